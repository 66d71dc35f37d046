//! Attention.

use warpweft_device::{Float, Stream};
use warpweft_kernels::attention::{self, Dropout, Extra, Heads, Options, Saved, Starts, Window};

use crate::arguments::Arguments;
use crate::element::{count, with_float};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, Settings, Versioned};

/// `ww_attention_shape`.
#[repr(C)]
pub struct Shape {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
}

/// `ww_attention_options`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AttentionOptions {
    size: usize,
    causal: i32,
    scale: f32,
    softcap: f32,
    window: i32,
    window_left: i64,
    window_right: i64,
    dropout: f32,
    first_sequence: u32,
    seed: u64,
    first_head: u32,
    alibi_slopes: Input,
    query_starts: Input,
    key_starts: Input,
    all_queries: usize,
    all_keys: usize,
    rows: [usize; 3],
    firsts: [usize; 3],
}

// SAFETY: numbers, and pointers, which may be null.
unsafe impl Versioned for AttentionOptions {}

impl Shape {
    pub(crate) fn native(&self) -> attention::Shape {
        attention::Shape {
            batch: self.batch,
            queries: self.queries,
            keys: self.keys,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
        }
    }
}

/// Sizes of the arrays.
pub(crate) struct Sizes {
    pub(crate) q: [usize; 4],
    pub(crate) kv: [usize; 4],
    pub(crate) lse: [usize; 3],
}

impl AttentionOptions {
    fn native(&self) -> Result<Options, Fault> {
        let end = |argument, given: i64| match usize::try_from(given) {
            Ok(end) => Ok(Some(end)),
            Err(_) if given == -1 => Ok(None),
            Err(_) => Err(Fault::Value { argument, given, allowed: "-1 (no limit), or 0 and more" }),
        };
        let window = match self.window {
            0 => Window::default(),
            _ => Window { left: end("window_left", self.window_left)?, right: end("window_right", self.window_right)? },
        };
        Ok(Options {
            causal: self.causal != 0,
            scale: (self.scale != 0.0).then_some(self.scale),
            window,
            softcap: (self.softcap != 0.0).then_some(self.softcap),
            dropout: (self.dropout != 0.0).then_some(Dropout {
                probability: self.dropout,
                seed: self.seed,
                first_sequence: self.first_sequence,
                first_head: self.first_head,
            }),
        })
    }

    /// Whether sequences lie one behind the other.
    fn has_starts(&self) -> bool {
        self.query_starts.is_given() || self.key_starts.is_given()
    }

    fn sizes(&self, shape: &Shape) -> Sizes {
        if !self.has_starts() {
            return shape.sizes();
        }
        shape.sizes_of([1, self.all_queries, self.all_keys])
    }

    /// The arrays among the options.
    fn extra<'a>(&self, args: &mut Arguments<'a, Stream>, shape: &Shape) -> Result<Extra<'a>, Fault> {
        let slopes = args.read_if_given::<f32>("alibi_slopes", self.alibi_slopes, &[shape.heads])?;
        if !self.has_starts() {
            return Ok(Extra { slopes, starts: None });
        }
        let count = [shape.batch.saturating_add(1)];
        let queries = args.read::<u32>("query_starts", self.query_starts, &count)?;
        let keys = args.read::<u32>("key_starts", self.key_starts, &count)?;
        Ok(Extra { slopes, starts: Some(Starts { queries, keys }) })
    }

    /// q, k and v, each in the rows that the options say.
    pub(crate) fn inputs<'a, T: Float>(
        &self,
        args: &mut Arguments<'a, Stream>,
        sizes: &Sizes,
        [q, k, v]: [Input; 3],
    ) -> Result<[Heads<'a, T>; 3], Fault> {
        let mut heads =
            |index: usize, names: [&'static str; 2], from, [batch, tokens, heads, head_size]: [usize; 4]| {
                let ([argument, row_argument], first) = (names, self.firsts[index]);
                let width = count(argument, &[heads, head_size])?;
                let row = if self.rows[index] == 0 { width } else { self.rows[index] };
                if first.checked_add(width).is_none_or(|end| end > row) {
                    let allowed = "0 where there are only these heads, or enough for them and what is before them";
                    return Err(Fault::Value { argument: row_argument, given: self.rows[index] as i64, allowed });
                }
                Ok(Heads { rows: args.read::<T>(argument, from, &[batch, tokens, row])?, row, first })
            };
        let (q, k) = (heads(0, ["q", "q_row"], q, sizes.q)?, heads(1, ["k", "k_row"], k, sizes.kv)?);
        Ok([q, k, heads(2, ["v", "v_row"], v, sizes.kv)?])
    }

    /// Whether nothing says that q, k or v lie in longer rows, which those of `call` do not.
    fn without_rows(&self, call: &'static str) -> Result<(), Fault> {
        let names = ["q_row", "k_row", "v_row", "q_first", "k_first", "v_first"];
        match names.into_iter().zip(self.rows.into_iter().chain(self.firsts)).find(|(_, given)| *given != 0) {
            Some((argument, _)) => Err(Fault::Excluded { argument, by: call }),
            None => Ok(()),
        }
    }

    /// The options of calls that have no arrays beside q, k and v.
    pub(crate) fn without_arrays(&self, call: &'static str) -> Result<Options, Fault> {
        let given = [
            ("alibi_slopes", self.alibi_slopes.is_given()),
            ("query_starts", self.query_starts.is_given()),
            ("key_starts", self.key_starts.is_given()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((argument, _)) => Err(Fault::Excluded { argument, by: call }),
            None => self.native(),
        }
    }
}

impl Shape {
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes_of([self.batch, self.queries, self.keys])
    }

    /// Sequences side by side, or one behind the other as a single one.
    fn sizes_of(&self, [batch, queries, keys]: [usize; 3]) -> Sizes {
        let Shape { heads, kv_heads, head_size, .. } = *self;
        Sizes {
            q: [batch, queries, heads, head_size],
            kv: [batch, keys, kv_heads, head_size],
            lse: [batch, heads, queries],
        }
    }

    /// Rows that hold the heads of q, then of k, then of v.
    fn packed(&self) -> [usize; 4] {
        [self.batch, self.queries, self.kv_heads.saturating_mul(2).saturating_add(self.heads), self.head_size]
    }
}

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_attention_forward(
    stream: Ref<Stream>,
    shape: Ref<Shape>,
    options: Settings<AttentionOptions>,
    dtype: i32,
    q: Input,
    k: Input,
    v: Input,
    out: Output,
    lse: Output,
) -> i32 {
    guard("ww_attention_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, given) = (shape.get("shape")?, options.get("options")?);
        let (options, sizes) = (given.native()?, given.sizes(shape));
        with_float!(dtype, T => {
            let inputs = given.inputs::<T>(&mut args, &sizes, [q, k, v])?;
            let extra = given.extra(&mut args, shape)?;
            let out = args.write::<T>("out", out, &sizes.q)?;
            let lse = args.write::<f32>("lse", lse, &sizes.lse)?;
            Ok(attention::forward_with(args.handle, shape.native(), options, extra, inputs, out, lse)?)
        })
    })
}

/// Backward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_attention_backward(
    stream: Ref<Stream>,
    shape: Ref<Shape>,
    options: Settings<AttentionOptions>,
    dtype: i32,
    q: Input,
    k: Input,
    v: Input,
    out: Input,
    lse: Input,
    dout: Input,
    dq: Output,
    dk: Output,
    dv: Output,
) -> i32 {
    guard("ww_attention_backward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, given) = (shape.get("shape")?, options.get("options")?);
        let (options, sizes) = (given.native()?, given.sizes(shape));
        with_float!(dtype, T => {
            let inputs = given.inputs::<T>(&mut args, &sizes, [q, k, v])?;
            let out = args.read::<T>("out", out, &sizes.q)?;
            let lse = args.read::<f32>("lse", lse, &sizes.lse)?;
            let dout = args.read::<T>("dout", dout, &sizes.q)?;
            let extra = given.extra(&mut args, shape)?;
            let dq = args.write::<T>("dq", dq, &sizes.q)?;
            let dk = args.write::<T>("dk", dk, &sizes.kv)?;
            let dv = args.write::<T>("dv", dv, &sizes.kv)?;
            let saved = Saved { out, lse, dout };
            Ok(attention::backward_with(args.handle, shape.native(), options, extra, inputs, saved, [dq, dk, dv])?)
        })
    })
}

/// Forward on packed rows.
#[unsafe(no_mangle)]
pub extern "C" fn ww_attention_forward_packed(
    stream: Ref<Stream>,
    shape: Ref<Shape>,
    options: Settings<AttentionOptions>,
    dtype: i32,
    qkv: Input,
    out: Output,
    lse: Output,
) -> i32 {
    guard("ww_attention_forward_packed", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, given) = (shape.get("shape")?, options.get("options")?);
        given.without_rows("packed rows")?;
        let options = given.without_arrays("packed rows")?;
        let (packed, sizes) = (shape.packed(), shape.sizes());
        with_float!(dtype, T => {
            let qkv = args.read::<T>("qkv", qkv, &packed)?;
            let out = args.write::<T>("out", out, &sizes.q)?;
            let lse = args.write::<f32>("lse", lse, &sizes.lse)?;
            Ok(attention::forward_packed(args.handle, shape.native(), options, qkv, out, lse)?)
        })
    })
}

/// Backward on packed rows.
#[unsafe(no_mangle)]
pub extern "C" fn ww_attention_backward_packed(
    stream: Ref<Stream>,
    shape: Ref<Shape>,
    options: Settings<AttentionOptions>,
    dtype: i32,
    qkv: Input,
    out: Input,
    lse: Input,
    dout: Input,
    dqkv: Output,
) -> i32 {
    guard("ww_attention_backward_packed", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, given) = (shape.get("shape")?, options.get("options")?);
        given.without_rows("packed rows")?;
        let options = given.without_arrays("packed rows")?;
        let (packed, sizes) = (shape.packed(), shape.sizes());
        with_float!(dtype, T => {
            let qkv = args.read::<T>("qkv", qkv, &packed)?;
            let out = args.read::<T>("out", out, &sizes.q)?;
            let lse = args.read::<f32>("lse", lse, &sizes.lse)?;
            let dout = args.read::<T>("dout", dout, &sizes.q)?;
            let dqkv = args.write::<T>("dqkv", dqkv, &packed)?;
            Ok(attention::backward_packed(args.handle, shape.native(), options, qkv, out, lse, dout, dqkv)?)
        })
    })
}
