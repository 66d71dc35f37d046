//! Cross-entropy, of one rank and of a vocabulary that ranks share.

use warpweft_device::Stream;
use warpweft_kernels::cross_entropy::{self, Options, PARTS, Shape, Shard, Sum};

use crate::arguments::Arguments;
use crate::element::with_float;
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Out, Output, Ref, Settings, Versioned};

/// `ww_cross_entropy_options`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CrossEntropyOptions {
    size: usize,
    ignoring: i32,
    ignore: u32,
    smoothing: f32,
    z_loss: f32,
    softcap: f32,
}

// SAFETY: numbers.
unsafe impl Versioned for CrossEntropyOptions {}

impl CrossEntropyOptions {
    fn native(&self) -> Options {
        let Self { smoothing, z_loss, softcap, .. } = *self;
        Options { ignore: (self.ignoring != 0).then_some(self.ignore), smoothing, z_loss, softcap }
    }
}

/// Where the sum of the losses goes, if it is wanted.
struct Total(Out<f64>, Out<usize>);

impl Total {
    fn check(&self) -> Result<(), Fault> {
        self.0.check_if_wanted("loss")?;
        self.1.check_if_wanted("counted")
    }

    fn set(self, sum: Sum) -> Result<(), Fault> {
        self.0.set_if_wanted("loss", sum.loss)?;
        self.1.set_if_wanted("counted", sum.count)
    }
}

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_cross_entropy_forward(
    stream: Ref<Stream>,
    rows: usize,
    vocab: usize,
    options: Settings<CrossEntropyOptions>,
    dtype: i32,
    logits: Input,
    targets: Input,
    losses: Output,
    lse: Output,
    loss: Out<f64>,
    counted: Out<usize>,
) -> i32 {
    guard("ww_cross_entropy_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (options, total) = (options.get("options")?.native(), Total(loss, counted));
        total.check()?;
        with_float!(dtype, T => {
            let logits = args.read::<T>("logits", logits, &[rows, vocab])?;
            let targets = args.read::<u32>("targets", targets, &[rows])?;
            let losses = args.write::<f32>("losses", losses, &[rows])?;
            let lse = args.write::<f32>("lse", lse, &[rows])?;
            let shape = Shape { rows, vocab };
            total.set(cross_entropy::forward(args.handle, shape, logits, targets, options, losses, lse)?)
        })
    })
}

/// Backward, in place.
#[unsafe(no_mangle)]
pub extern "C" fn ww_cross_entropy_backward(
    stream: Ref<Stream>,
    rows: usize,
    vocab: usize,
    options: Settings<CrossEntropyOptions>,
    dtype: i32,
    logits: Output,
    targets: Input,
    lse: Input,
    scale: f32,
) -> i32 {
    guard("ww_cross_entropy_backward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let options = options.get("options")?.native();
        with_float!(dtype, T => {
            let logits = args.write::<T>("logits", logits, &[rows, vocab])?;
            let targets = args.read::<u32>("targets", targets, &[rows])?;
            let lse = args.read::<f32>("lse", lse, &[rows])?;
            Ok(cross_entropy::backward(args.handle, Shape { rows, vocab }, logits, targets, options, lse, scale)?)
        })
    })
}

/// What a rank finds in the classes that it has.
#[unsafe(no_mangle)]
pub extern "C" fn ww_cross_entropy_forward_shard(
    stream: Ref<Stream>,
    rows: usize,
    vocab: usize,
    first: usize,
    all: usize,
    options: Settings<CrossEntropyOptions>,
    dtype: i32,
    logits: Input,
    targets: Input,
    parts: Output,
) -> i32 {
    guard("ww_cross_entropy_forward_shard", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (options, shard) = (options.get("options")?.native(), Shard { first, vocab: all });
        with_float!(dtype, T => {
            let logits = args.read::<T>("logits", logits, &[rows, vocab])?;
            let targets = args.read::<u32>("targets", targets, &[rows])?;
            let parts = args.write::<f64>("parts", parts, &[rows, PARTS])?;
            let shape = Shape { rows, vocab };
            Ok(cross_entropy::forward_shard(args.handle, shape, shard, logits, targets, options, parts)?)
        })
    })
}

/// The losses of what all ranks found.
#[unsafe(no_mangle)]
pub extern "C" fn ww_cross_entropy_merge(
    stream: Ref<Stream>,
    ranks: usize,
    rows: usize,
    options: Settings<CrossEntropyOptions>,
    parts: Input,
    targets: Input,
    losses: Output,
    normaliser: Output,
    loss: Out<f64>,
    counted: Out<usize>,
) -> i32 {
    guard("ww_cross_entropy_merge", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (options, total) = (options.get("options")?.native(), Total(loss, counted));
        total.check()?;
        let parts = args.read::<f64>("parts", parts, &[ranks, rows, PARTS])?;
        let targets = args.read::<u32>("targets", targets, &[rows])?;
        let losses = args.write::<f32>("losses", losses, &[rows])?;
        let normaliser = args.write::<f64>("normaliser", normaliser, &[rows, 2])?;
        total.set(cross_entropy::merge(args.handle, ranks, parts, targets, options, losses, normaliser)?)
    })
}

/// Backward for the classes that a rank has, in place.
#[unsafe(no_mangle)]
pub extern "C" fn ww_cross_entropy_backward_shard(
    stream: Ref<Stream>,
    rows: usize,
    vocab: usize,
    first: usize,
    all: usize,
    options: Settings<CrossEntropyOptions>,
    dtype: i32,
    logits: Output,
    targets: Input,
    normaliser: Input,
    scale: f32,
) -> i32 {
    guard("ww_cross_entropy_backward_shard", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (options, shard) = (options.get("options")?.native(), Shard { first, vocab: all });
        with_float!(dtype, T => {
            let logits = args.write::<T>("logits", logits, &[rows, vocab])?;
            let targets = args.read::<u32>("targets", targets, &[rows])?;
            let normaliser = args.read::<f64>("normaliser", normaliser, &[rows, 2])?;
            let shape = Shape { rows, vocab };
            Ok(cross_entropy::backward_shard(args.handle, shape, shard, logits, targets, options, normaliser, scale)?)
        })
    })
}
