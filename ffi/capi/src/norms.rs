//! LayerNorm and RMSNorm on host memory.

use warpweft_device::{Device, View, ViewMut};
use warpweft_kernels::{Write, layernorm, rmsnorm};

use crate::element::{count, with_float};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, disjoint};

/// LayerNorm forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_layernorm_forward(
    device: Ref<Device>,
    rows: usize,
    channels: usize,
    eps: f32,
    dtype: i32,
    x: Input,
    w: Input,
    b: Input,
    mut y: Output,
    mut mean: Output,
    mut rstd: Output,
) -> i32 {
    guard("ww_layernorm_forward", || {
        let device = device.get("device")?;
        let len = count("x", &[rows, channels])?;
        with_float!(dtype, T => {
            disjoint(
                &[
                    y.extent::<T>("y", len)?,
                    mean.extent::<f32>("mean", rows)?,
                    rstd.extent::<f32>("rstd", rows)?,
                ],
                &[x.extent::<T>("x", len)?, w.extent::<T>("w", channels)?, b.extent::<T>("b", channels)?],
            )?;
            Ok(layernorm::forward(
                &device.stream(),
                layernorm::Shape { rows, channels },
                eps,
                View::from_host(device, x.slice::<T>("x", len)?)?,
                View::from_host(device, w.slice::<T>("w", channels)?)?,
                View::from_host(device, b.slice::<T>("b", channels)?)?,
                ViewMut::from_host(device, y.slice::<T>("y", len)?)?,
                ViewMut::from_host(device, mean.slice::<f32>("mean", rows)?)?,
                ViewMut::from_host(device, rstd.slice::<f32>("rstd", rows)?)?,
            )?)
        })
    })
}

/// LayerNorm backward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_layernorm_backward(
    device: Ref<Device>,
    rows: usize,
    channels: usize,
    dtype: i32,
    dy: Input,
    x: Input,
    w: Input,
    mean: Input,
    rstd: Input,
    mut dx: Output,
    mut dw: Output,
    mut db: Output,
) -> i32 {
    guard("ww_layernorm_backward", || {
        let device = device.get("device")?;
        let len = count("x", &[rows, channels])?;
        let shape = layernorm::Shape { rows, channels };
        with_float!(dtype, T => {
            disjoint(
                &[
                    dx.extent::<T>("dx", len)?,
                    dw.extent::<f32>("dw", channels)?,
                    db.extent::<f32>("db", channels)?,
                ],
                &[
                    dy.extent::<T>("dy", len)?,
                    x.extent::<T>("x", len)?,
                    w.extent::<T>("w", channels)?,
                    mean.extent::<f32>("mean", rows)?,
                    rstd.extent::<f32>("rstd", rows)?,
                ],
            )?;
            let dy = View::from_host(device, dy.slice::<T>("dy", len)?)?;
            let x = View::from_host(device, x.slice::<T>("x", len)?)?;
            let w = View::from_host(device, w.slice::<T>("w", channels)?)?;
            let mean = View::from_host(device, mean.slice::<f32>("mean", rows)?)?;
            let rstd = View::from_host(device, rstd.slice::<f32>("rstd", rows)?)?;
            let dx = ViewMut::from_host(device, dx.slice::<T>("dx", len)?)?;
            // Every pointer is looked at before the first write.
            let dw = ViewMut::from_host(device, dw.slice::<f32>("dw", channels)?)?;
            let db = ViewMut::from_host(device, db.slice::<f32>("db", channels)?)?;
            let stream = device.stream();
            layernorm::backward_input(&stream, shape, dy, x, w, mean, rstd, Write::Set, dx)?;
            Ok(layernorm::backward_weight(&stream, shape, dy, x, mean, rstd, dw, db)?)
        })
    })
}

/// RMSNorm forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_rmsnorm_forward(
    device: Ref<Device>,
    rows: usize,
    channels: usize,
    eps: f32,
    dtype: i32,
    x: Input,
    w: Input,
    mut y: Output,
    mut rstd: Output,
) -> i32 {
    guard("ww_rmsnorm_forward", || {
        let device = device.get("device")?;
        let len = count("x", &[rows, channels])?;
        with_float!(dtype, T => {
            disjoint(
                &[y.extent::<T>("y", len)?, rstd.extent::<f32>("rstd", rows)?],
                &[x.extent::<T>("x", len)?, w.extent::<T>("w", channels)?],
            )?;
            Ok(rmsnorm::forward(
                &device.stream(),
                rmsnorm::Shape { rows, channels },
                eps,
                View::from_host(device, x.slice::<T>("x", len)?)?,
                View::from_host(device, w.slice::<T>("w", channels)?)?,
                ViewMut::from_host(device, y.slice::<T>("y", len)?)?,
                ViewMut::from_host(device, rstd.slice::<f32>("rstd", rows)?)?,
            )?)
        })
    })
}

/// RMSNorm backward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_rmsnorm_backward(
    device: Ref<Device>,
    rows: usize,
    channels: usize,
    dtype: i32,
    dy: Input,
    x: Input,
    w: Input,
    rstd: Input,
    mut dx: Output,
    mut dw: Output,
) -> i32 {
    guard("ww_rmsnorm_backward", || {
        let device = device.get("device")?;
        let len = count("x", &[rows, channels])?;
        let shape = rmsnorm::Shape { rows, channels };
        with_float!(dtype, T => {
            disjoint(
                &[dx.extent::<T>("dx", len)?, dw.extent::<f32>("dw", channels)?],
                &[
                    dy.extent::<T>("dy", len)?,
                    x.extent::<T>("x", len)?,
                    w.extent::<T>("w", channels)?,
                    rstd.extent::<f32>("rstd", rows)?,
                ],
            )?;
            let dy = View::from_host(device, dy.slice::<T>("dy", len)?)?;
            let x = View::from_host(device, x.slice::<T>("x", len)?)?;
            let w = View::from_host(device, w.slice::<T>("w", channels)?)?;
            let rstd = View::from_host(device, rstd.slice::<f32>("rstd", rows)?)?;
            let dx = ViewMut::from_host(device, dx.slice::<T>("dx", len)?)?;
            let dw = ViewMut::from_host(device, dw.slice::<f32>("dw", channels)?)?;
            let stream = device.stream();
            rmsnorm::backward_input(&stream, shape, dy, x, w, rstd, Write::Set, dx)?;
            Ok(rmsnorm::backward_weight(&stream, shape, dy, x, rstd, dw)?)
        })
    })
}
