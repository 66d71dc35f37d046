// RMSNorm of rows, and its gradients. Contract: kernels/src/rmsnorm/mod.rs; launch: row_norm.cuh.
#include "row_norm.cuh"

#define ENTRIES(T)                                                                                                                           \
  extern "C" __global__ void rmsnorm_forward_##T(const T* x, const T* branch, T* sum, const T* w, T* y, f32* rstd, uint32_t rows,            \
                                                 uint32_t columns, float eps, uint32_t packed, uint32_t staged) {                            \
    norm_forward<false, T>(x, branch, sum, w, nullptr, y, nullptr, rstd, rows, columns, eps, packed, staged);                                \
  }                                                                                                                                          \
  extern "C" __global__ void rmsnorm_backward_input_##T(const T* dy, const T* x, const T* w, const f32* rstd, T* dx, uint32_t rows,          \
                                                        uint32_t columns, uint32_t add, uint32_t packed, uint32_t staged) {                  \
    norm_backward_input<false, T>(dy, x, w, nullptr, rstd, dx, rows, columns, add, packed, staged);                                          \
  }                                                                                                                                          \
  extern "C" __global__ void rmsnorm_backward_weight_##T(const T* dy, const T* x, const f32* rstd, f32* partials, uint32_t rows,             \
                                                         uint32_t columns, uint32_t packed) {                                                \
    if (packed) {                                                                                                                            \
      norm_backward_weight<false, 16 / sizeof(T)>(dy, x, nullptr, rstd, partials, rows, columns);                                            \
    } else {                                                                                                                                 \
      norm_backward_weight<false, 1>(dy, x, nullptr, rstd, partials, rows, columns);                                                         \
    }                                                                                                                                        \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)

// Grid: columns by 32, 1; block 32 x PART_WARPS.
extern "C" __global__ void rmsnorm_add_parts(const f32* partials, uint32_t parts, uint32_t columns, f32* dw) {
  add_parts<1>(partials, parts, columns, {dw});
}
