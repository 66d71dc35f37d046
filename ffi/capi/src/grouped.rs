//! Products by expert, with what follows them.

use warpweft_device::Stream;
use warpweft_kernels::matmul::{Epilogue, Through};
use warpweft_kernels::moe::grouped;

use crate::arguments::Arguments;
use crate::element::{with_float, write as write_of};
use crate::fault::{Fault, guard};
use crate::matmul::{MatmulEpilogue, MatmulThrough, activation as activation_of, factor};
use crate::pointer::{Input, Output, Ref, Settings};

/// All rows of all experts.
fn rows_of(counts: &[usize]) -> Result<usize, Fault> {
    let rows = counts.iter().try_fold(0usize, |rows, &count| rows.checked_add(count));
    rows.ok_or(Fault::TooLarge { argument: "counts", len: usize::MAX })
}

/// Products by expert.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_forward(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    w: Input,
    activation: i32,
    pre: Output,
    y: Output,
) -> i32 {
    guard("ww_moe_grouped_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (counts, activation) = (counts.list("counts", experts)?, activation_of(activation)?);
        let rows = rows_of(counts)?;
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, k])?;
            let w = args.read::<T>("w", w, &[experts, n, k])?;
            let pre = args.write_if_given::<T>("pre", pre, &[rows, n])?;
            let y = args.write::<T>("y", y, &[rows, activation.outputs(n)])?;
            Ok(grouped::forward(args.handle, grouped::Shape { counts, n, k }, x, w, activation, pre, y)?)
        })
    })
}

/// The gradient of the input.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_backward_input(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    k: usize,
    dtype: i32,
    dy: Input,
    w: Input,
    write: i32,
    dx: Output,
) -> i32 {
    guard("ww_moe_grouped_backward_input", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (counts, write) = (counts.list("counts", experts)?, write_of(write)?);
        let rows = rows_of(counts)?;
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, n])?;
            let w = args.read::<T>("w", w, &[experts, n, k])?;
            let dx = args.write::<T>("dx", dx, &[rows, k])?;
            Ok(grouped::backward_input(args.handle, grouped::Shape { counts, n, k }, dy, w, write, dx)?)
        })
    })
}

/// The same with all that follows a product.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_forward_with(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    w: Input,
    epilogue: Settings<MatmulEpilogue>,
    y: Output,
) -> i32 {
    guard("ww_moe_grouped_forward_with", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (counts, epilogue) = (counts.list("counts", experts)?, epilogue.get("epilogue")?);
        let (activation, scale) = (activation_of(epilogue.activation)?, factor(epilogue.scale));
        let (rows, outputs) = (rows_of(counts)?, activation.outputs(n));
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, k])?;
            let w = args.read::<T>("w", w, &[experts, n, k])?;
            let bias = args.read_if_given::<T>("bias", epilogue.bias, &[experts, n])?;
            let residual = args.read_if_given::<T>("residual", epilogue.residual, &[rows, outputs])?;
            let pre = args.write_if_given::<T>("pre", epilogue.pre, &[rows, n])?;
            let y = args.write::<T>("y", y, &[rows, outputs])?;
            let epilogue = Epilogue { scale, bias, activation, pre, residual };
            Ok(grouped::forward_with(args.handle, grouped::Shape { counts, n, k }, x, w, epilogue, y)?)
        })
    })
}

/// The gradient of the input, and through the activation that it came out of.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_backward_input_through(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    k: usize,
    dtype: i32,
    dy: Input,
    w: Input,
    through: Settings<MatmulThrough>,
    write: i32,
    dx: Output,
) -> i32 {
    guard("ww_moe_grouped_backward_input_through", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (counts, write) = (counts.list("counts", experts)?, write_of(write)?);
        let through = through.get("through")?;
        let (activation, scale) = (activation_of(through.activation)?, factor(through.scale));
        let (rows, columns) = (rows_of(counts)?, activation.inputs(k));
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, n])?;
            let w = args.read::<T>("w", w, &[experts, n, k])?;
            let pre = args.read_if_given::<T>("pre", through.pre, &[rows, columns])?;
            let dx = args.write::<T>("dx", dx, &[rows, columns])?;
            let db = args.write_if_given::<f32>("db", through.db, &[experts, columns])?;
            let (shape, through) = (grouped::Shape { counts, n, k }, Through { scale, activation, pre, db });
            Ok(grouped::backward_input_through(args.handle, shape, dy, w, through, write, dx)?)
        })
    })
}

/// The gradient of the bias.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_backward_bias(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    dtype: i32,
    dy: Input,
    db: Output,
) -> i32 {
    guard("ww_moe_grouped_backward_bias", || {
        let mut args = Arguments::of("stream", &stream)?;
        let counts = counts.list("counts", experts)?;
        let rows = rows_of(counts)?;
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, n])?;
            let db = args.write::<f32>("db", db, &[experts, n])?;
            // The sum over rows knows no K.
            Ok(grouped::backward_bias(args.handle, grouped::Shape { counts, n, k: 0 }, dy, db)?)
        })
    })
}

/// The gradient of the weights.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_backward_weight(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    dy: Input,
    dw: Output,
) -> i32 {
    guard("ww_moe_grouped_backward_weight", || {
        let mut args = Arguments::of("stream", &stream)?;
        let counts = counts.list("counts", experts)?;
        let rows = rows_of(counts)?;
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, k])?;
            let dy = args.read::<T>("dy", dy, &[rows, n])?;
            let dw = args.write::<f32>("dw", dw, &[experts, n, k])?;
            Ok(grouped::backward_weight(args.handle, grouped::Shape { counts, n, k }, x, dy, dw)?)
        })
    })
}
