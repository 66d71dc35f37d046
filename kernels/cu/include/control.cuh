// The numbers of a step on the device: kernels/src/optimizer/control.rs.
#pragma once

struct Control {
  double lr, step, grad_scale, skip, norm;
};
