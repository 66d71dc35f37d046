//! Products of a linear layer, on host memory.

use warpweft_device::{Device, View, ViewMut};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Epilogue, Shape};

use crate::element::{count, with_float};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, disjoint};

/// `ww_matmul_epilogue`.
#[repr(C)]
pub struct MatmulEpilogue {
    bias: Input,
    activation: i32,
    pre: Output,
    residual: Input,
}

fn activation(code: i32) -> Result<Activation, Fault> {
    match code {
        0 => Ok(Activation::None),
        1 => Ok(Activation::GeluTanh),
        2 => Ok(Activation::GeluErf),
        3 => Ok(Activation::SwiGlu),
        _ => {
            let allowed = "WW_NONE (0), WW_GELU_TANH (1), WW_GELU_ERF (2) or WW_SWIGLU (3)";
            Err(Fault::Value { argument: "activation", given: code.into(), allowed })
        }
    }
}

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_forward(
    device: Ref<Device>,
    m: usize,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    w: Input,
    epilogue: Ref<MatmulEpilogue>,
    mut y: Output,
) -> i32 {
    guard("ww_matmul_forward", || {
        let device = device.get("device")?;
        let none = MatmulEpilogue::none();
        let epilogue = epilogue.optional("epilogue")?.unwrap_or(&none);
        let activation = activation(epilogue.activation)?;
        let (x_len, w_len, pre_len) = (count("x", &[m, k])?, count("w", &[n, k])?, count("pre", &[m, n])?);
        let y_len = count("y", &[m, activation.outputs(n)])?;
        let mut pre = epilogue.pre.again();
        with_float!(dtype, T => {
            disjoint(
                &[y.extent::<T>("y", y_len)?, pre.extent::<T>("pre", pre_len)?],
                &[
                    x.extent::<T>("x", x_len)?,
                    w.extent::<T>("w", w_len)?,
                    epilogue.bias.extent::<T>("bias", n)?,
                    epilogue.residual.extent::<T>("residual", y_len)?,
                ],
            )?;
            let bias = epilogue.bias.optional::<T>("bias", n)?;
            let residual = epilogue.residual.optional::<T>("residual", y_len)?;
            let pre = pre.optional::<T>("pre", pre_len)?;
            let epilogue = Epilogue {
                bias: bias.map(|bias| View::from_host(device, bias)).transpose()?,
                activation,
                pre: pre.map(|pre| ViewMut::from_host(device, pre)).transpose()?,
                residual: residual.map(|residual| View::from_host(device, residual)).transpose()?,
                ..Epilogue::default()
            };
            Ok(matmul::forward(
                &device.stream(),
                Shape { m, n, k },
                View::from_host(device, x.slice::<T>("x", x_len)?)?,
                View::from_host(device, w.slice::<T>("w", w_len)?)?,
                epilogue,
                ViewMut::from_host(device, y.slice::<T>("y", y_len)?)?,
            )?)
        })
    })
}

impl MatmulEpilogue {
    fn none() -> Self {
        Self { bias: Input::null(), activation: 0, pre: Output::null(), residual: Input::null() }
    }
}

/// The gradient of the input.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_input(
    device: Ref<Device>,
    m: usize,
    n: usize,
    k: usize,
    dtype: i32,
    dy: Input,
    w: Input,
    mut dx: Output,
) -> i32 {
    guard("ww_matmul_backward_input", || {
        let device = device.get("device")?;
        let (dy_len, w_len, dx_len) = (count("dy", &[m, n])?, count("w", &[n, k])?, count("dx", &[m, k])?);
        with_float!(dtype, T => {
            let read = [dy.extent::<T>("dy", dy_len)?, w.extent::<T>("w", w_len)?];
            disjoint(&[dx.extent::<T>("dx", dx_len)?], &read)?;
            Ok(matmul::backward_input(
                &device.stream(),
                Shape { m, n, k },
                View::from_host(device, dy.slice::<T>("dy", dy_len)?)?,
                View::from_host(device, w.slice::<T>("w", w_len)?)?,
                Write::Set,
                ViewMut::from_host(device, dx.slice::<T>("dx", dx_len)?)?,
            )?)
        })
    })
}

/// The gradient of the weight.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_weight(
    device: Ref<Device>,
    m: usize,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    dy: Input,
    mut dw: Output,
) -> i32 {
    guard("ww_matmul_backward_weight", || {
        let device = device.get("device")?;
        let (x_len, dy_len, dw_len) = (count("x", &[m, k])?, count("dy", &[m, n])?, count("dw", &[n, k])?);
        with_float!(dtype, T => {
            let read = [x.extent::<T>("x", x_len)?, dy.extent::<T>("dy", dy_len)?];
            disjoint(&[dw.extent::<f32>("dw", dw_len)?], &read)?;
            Ok(matmul::backward_weight(
                &device.stream(),
                Shape { m, n, k },
                View::from_host(device, x.slice::<T>("x", x_len)?)?,
                View::from_host(device, dy.slice::<T>("dy", dy_len)?)?,
                ViewMut::from_host(device, dw.slice::<f32>("dw", dw_len)?)?,
            )?)
        })
    })
}

/// The gradient of the bias.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_bias(
    device: Ref<Device>,
    m: usize,
    n: usize,
    dtype: i32,
    dy: Input,
    mut db: Output,
) -> i32 {
    guard("ww_matmul_backward_bias", || {
        let device = device.get("device")?;
        let dy_len = count("dy", &[m, n])?;
        with_float!(dtype, T => {
            disjoint(&[db.extent::<f32>("db", n)?], &[dy.extent::<T>("dy", dy_len)?])?;
            Ok(matmul::backward_bias(
                &device.stream(),
                // The sum over rows knows no K.
                Shape { m, n, k: 0 },
                View::from_host(device, dy.slice::<T>("dy", dy_len)?)?,
                ViewMut::from_host(device, db.slice::<f32>("db", n)?)?,
            )?)
        })
    })
}

/// The gradient through the activation.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_activation(
    device: Ref<Device>,
    m: usize,
    n: usize,
    code: i32,
    dtype: i32,
    pre: Input,
    dy: Input,
    mut dpre: Output,
) -> i32 {
    guard("ww_matmul_backward_activation", || {
        let device = device.get("device")?;
        let activation = activation(code)?;
        let (pre_len, dy_len) = (count("pre", &[m, n])?, count("dy", &[m, activation.outputs(n)])?);
        with_float!(dtype, T => {
            let read = [pre.extent::<T>("pre", pre_len)?, dy.extent::<T>("dy", dy_len)?];
            disjoint(&[dpre.extent::<T>("dpre", pre_len)?], &read)?;
            Ok(matmul::backward_activation(
                &device.stream(),
                Shape { m, n, k: 0 },
                activation,
                View::from_host(device, pre.slice::<T>("pre", pre_len)?)?,
                View::from_host(device, dy.slice::<T>("dy", dy_len)?)?,
                ViewMut::from_host(device, dpre.slice::<T>("dpre", pre_len)?)?,
            )?)
        })
    })
}
