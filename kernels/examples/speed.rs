//! How fast the matrix products and attention are on this machine, beside the bare GEMM of the same size.
//!
//! `cargo run --release -p warpweft-kernels --example speed [THREADS]` takes a few seconds. Each figure is the best of
//! several runs, in GFLOP/s; attention's operations are counted for the keys that a causal mask leaves.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use ndarray::{Array2, linalg::general_mat_mul};
use warpweft_device::{Buffer, Device, Float, Stream, bf16};
use warpweft_kernels::matmul::{self, Activation, Epilogue};
use warpweft_kernels::{Write, attention};

/// Names and sizes: rows, channels, tokens, heads.
const MODELS: [(&str, [usize; 4]); 2] = [("A", [768, 128, 64, 4]), ("B", [2048, 384, 256, 6])];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let threads = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let device = Device::cpu_with_threads(threads)?;
    let bench = Bench { stream: device.stream(), device };
    for (name, [rows, channels, tokens, heads]) in MODELS {
        bench.line(&format!("model {name}, {threads} threads: {rows} rows, {channels} channels, {tokens} tokens"))?;
        for (layer, n, k) in [
            ("qkv", 3 * channels, channels),
            ("projection", channels, channels),
            ("up", 4 * channels, channels),
            ("down", channels, 4 * channels),
        ] {
            bench.products(layer, matmul::Shape { m: rows, n, k })?;
        }
        let head_size = channels / heads;
        let (batch, kv_heads) = (rows / tokens, heads);
        let shape = attention::Shape { batch, queries: tokens, keys: tokens, heads, kv_heads, head_size };
        bench.attention::<f32>(shape)?;
        bench.attention::<bf16>(shape)?;
    }
    Ok(())
}

struct Bench {
    device: Device,
    stream: Stream,
}

impl Bench {
    fn line(&self, text: &str) -> Outcome<()> {
        Ok(writeln!(std::io::stdout(), "{text}")?)
    }

    fn numbers<T: Float>(&self, len: usize) -> Outcome<Buffer<T>> {
        let values: Vec<T> = (0..len).map(|i| T::from_f32((i * 7919 % 1009) as f32 / 504.0 - 1.0)).collect();
        Ok(self.device.upload(&values)?)
    }

    /// The best time of a call, from a fifth of a second of them.
    fn best(&self, mut call: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
        let (begin, mut best) = (Instant::now(), f64::INFINITY);
        let mut calls = 0;
        while calls < 5 || begin.elapsed() < Duration::from_millis(200) {
            let start = Instant::now();
            call()?;
            best = best.min(start.elapsed().as_secs_f64());
            calls += 1;
        }
        Ok(best)
    }

    fn products(&self, layer: &str, shape: matmul::Shape) -> Outcome<()> {
        let matmul::Shape { m, n, k } = shape;
        let (x, w, dy) = (self.numbers::<f32>(m * k)?, self.numbers::<f32>(n * k)?, self.numbers::<f32>(m * n)?);
        let (mut y, mut pre, mut dx) =
            (self.device.zeros(m * n)?, self.device.zeros(m * n)?, self.device.zeros(m * k)?);
        let (mut dw, bias, residual) = (self.device.zeros(n * k)?, self.numbers(n)?, self.numbers(m * n)?);
        let mut db = self.device.zeros(n)?;
        let (a, b, mut c) = (Array2::<f32>::ones((m, k)), Array2::<f32>::ones((n, k)), Array2::<f32>::zeros((m, n)));
        let bare = self.best(|| {
            general_mat_mul(1.0, &a, &b.t(), 0.0, &mut c);
            Ok(())
        })?;
        let linear = self.best(|| {
            let epilogue =
                Epilogue { bias: Some(bias.as_view()), residual: Some(residual.as_view()), ..Epilogue::default() };
            Ok(matmul::forward(&self.stream, shape, x.as_view(), w.as_view(), epilogue, y.as_view_mut())?)
        })?;
        let gelu = self.best(|| {
            let epilogue = Epilogue {
                bias: Some(bias.as_view()),
                activation: Activation::GeluTanh,
                pre: Some(pre.as_view_mut()),
                ..Epilogue::default()
            };
            Ok(matmul::forward(&self.stream, shape, x.as_view(), w.as_view(), epilogue, y.as_view_mut())?)
        })?;
        let input = self.best(|| {
            Ok(matmul::backward_input(&self.stream, shape, dy.as_view(), w.as_view(), Write::Set, dx.as_view_mut())?)
        })?;
        let weight = self
            .best(|| Ok(matmul::backward_weight(&self.stream, shape, x.as_view(), dy.as_view(), dw.as_view_mut())?))?;
        let sums = self.best(|| Ok(matmul::backward_bias(&self.stream, shape, dy.as_view(), db.as_view_mut())?))?;
        let mut dpre = self.device.zeros(m * n)?;
        let derivative = self.best(|| {
            let (pre, dy, dpre) = (pre.as_view(), dy.as_view(), dpre.as_view_mut());
            Ok(matmul::backward_activation(&self.stream, shape, Activation::GeluTanh, pre, dy, dpre)?)
        })?;
        let rate = |seconds: f64| 2.0 * (m * n * k) as f64 / seconds / 1e9;
        let each = |seconds: f64| seconds * 1e9 / (m * n) as f64;
        self.line(&format!(
            "  {layer:10} bare 1-thread GEMM {:4.0}; bias+residual {:4.0}, bias+GELU {:4.0}, dx {:4.0}, dw {:4.0} GFLOP/s; db {:.2}, dGELU {:.2} ns an element",
            rate(bare), rate(linear), rate(gelu), rate(input), rate(weight), each(sums), each(derivative),
        ))
    }

    fn attention<T: Float>(&self, shape: attention::Shape) -> Outcome<()> {
        let attention::Shape { batch, queries, heads, head_size, .. } = shape;
        let options = attention::Options::CAUSAL;
        let len = batch * queries * heads * head_size;
        let (qkv, dout) = (self.numbers::<T>(3 * len)?, self.numbers::<T>(len)?);
        let (mut out, mut lse) = (self.device.zeros::<T>(len)?, self.device.zeros(batch * heads * queries)?);
        let mut dqkv = self.device.zeros::<T>(3 * len)?;
        let forward = self.best(|| {
            let (out, lse) = (out.as_view_mut(), lse.as_view_mut());
            Ok(attention::forward_packed(&self.stream, shape, options, qkv.as_view(), out, lse)?)
        })?;
        let backward = self.best(|| {
            let (qkv, out, lse, dout) = (qkv.as_view(), out.as_view(), lse.as_view(), dout.as_view());
            Ok(attention::backward_packed(&self.stream, shape, options, qkv, out, lse, dout, dqkv.as_view_mut())?)
        })?;
        // Two products forward, five backward, each over half the square.
        let product = (batch * heads * queries * (queries + 1) * head_size) as f64;
        self.line(&format!(
            "  attention {}: forward {:.3} ms, {:.0} GFLOP/s; backward {:.3} ms, {:.0} GFLOP/s",
            T::DTYPE,
            forward * 1e3,
            2.0 * product / forward / 1e9,
            backward * 1e3,
            5.0 * product / backward / 1e9,
        ))
    }
}
