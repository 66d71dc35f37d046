//! Softmax.

use warpweft_device::Stream;
use warpweft_kernels::softmax::{self, MaskShape, Options, Shape};

use crate::arguments::Arguments;
use crate::element::{with_float, write as write_of};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, Settings, Versioned};

/// `ww_softmax_options`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SoftmaxOptions {
    size: usize,
    queries: usize,
    causal: i32,
    scale: f32,
    hidden: Input,
    mask_heads: usize,
    mask_queries: usize,
}

// SAFETY: numbers and a pointer that may be null.
unsafe impl Versioned for SoftmaxOptions {}

impl SoftmaxOptions {
    fn native(&self) -> Options {
        Options {
            scale: if self.scale == 0.0 { 1.0 } else { self.scale },
            causal: (self.causal != 0).then_some(self.queries),
        }
    }

    /// How rows share those of a given mask.
    fn mask(&self) -> MaskShape {
        MaskShape { heads: self.mask_heads.max(1), queries: self.mask_queries.max(1) }
    }
}

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_softmax_forward(
    stream: Ref<Stream>,
    rows: usize,
    columns: usize,
    options: Settings<SoftmaxOptions>,
    dtype: i32,
    x: Input,
    y: Output,
) -> i32 {
    guard("ww_softmax_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let given = options.get("options")?;
        let (shape, options, mask) = (Shape { rows, columns }, given.native(), given.mask());
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, columns])?;
            let hidden = args.read_if_given::<u8>("hidden", given.hidden, &[rows / mask.heads, columns])?;
            let y = args.write::<T>("y", y, &[rows, columns])?;
            match hidden {
                Some(hidden) => Ok(softmax::forward_masked(args.handle, shape, options, mask, hidden, x, y)?),
                None => Ok(softmax::forward(args.handle, shape, options, x, y)?),
            }
        })
    })
}

/// Backward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_softmax_backward(
    stream: Ref<Stream>,
    rows: usize,
    columns: usize,
    options: Settings<SoftmaxOptions>,
    dtype: i32,
    dy: Input,
    y: Input,
    write: i32,
    dx: Output,
) -> i32 {
    guard("ww_softmax_backward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let options = options.get("options")?.native();
        let write = write_of(write)?;
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, columns])?;
            let y = args.read::<T>("y", y, &[rows, columns])?;
            let dx = args.write::<T>("dx", dx, &[rows, columns])?;
            Ok(softmax::backward(args.handle, Shape { rows, columns }, options, dy, y, write, dx)?)
        })
    })
}
