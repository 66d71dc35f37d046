//! Kernels over lists of tensors where a tensor has more than 2^31 elements: of a sparse buffer only the last chunks are gone
//! through, which lie behind 131,072 others.
#![forbid(unsafe_code)]

mod common;

use common::{On, integers};
use warpweft_device::{Arg, Buffer, Element, Module, bf16};
use warpweft_kernels::programs;

const CHUNK: usize = 16_384;
/// Chunks that no block has.
const BEFORE: usize = 1 << 17;
/// Elements behind them: two chunks, the last one not whole.
const BEHIND: usize = CHUNK + 77;
const PACKED: u64 = 1;

/// A sparse buffer, of which the elements behind have values.
fn sparse<T: Element>(on: &On, values: &[T]) -> Buffer<T> {
    let begin = BEFORE * CHUNK;
    let mut buffer = on.device.uninitialized::<T>(begin + values.len()).unwrap();
    buffer.view_mut(begin..).unwrap().copy_from_host(&on.stream, values).unwrap();
    buffer
}

fn behind<T: Element>(on: &On, buffer: &Buffer<T>) -> Vec<T> {
    buffer.view(BEFORE * CHUNK..).unwrap().download(&on.stream).unwrap()
}

fn address<T: Element>(buffer: &Buffer<T>) -> u64 {
    Arg::try_from(buffer).unwrap().address()
}

/// Two blocks, the first of which has the chunk `BEFORE` of the one tensor of the table.
fn launch(on: &On, op: &str, kernel: &str, tensors: [u64; 5], flags: u64, others: &[Arg]) {
    let [len, first] = [(BEFORE * CHUNK + BEHIND) as u64, 0u64.wrapping_sub(BEFORE as u64)];
    let mut words = tensors.to_vec();
    words.extend([len, first, flags | PACKED, 0]);
    let table = on.up(&words);
    let program = programs().iter().find(|program| program.op == op).unwrap();
    let kernel = Module::load(&on.device, program.ptx).unwrap().kernel(kernel).unwrap();
    let args = [&[(&table).try_into().unwrap(), 1u32.into()], others].concat();
    kernel.launch(&on.stream, [2, 1, 1], [256, 1, 1], 0, &args).unwrap();
    on.stream.synchronize().unwrap();
}

fn on() -> On {
    On::open("software?check=all&memory=137438953472")
}

fn gradients() -> Vec<f32> {
    integers::<f32>(BEHIND, 1).into_iter().map(|x| if x == 0.0 { 2.0 } else { x }).collect()
}

#[test]
fn an_optimizers_offsets_have_64_bits() {
    let (on, grads) = (on(), gradients());
    let (w, grad) = (sparse(&on, &vec![bf16::ONE; BEHIND]), sparse(&on, &grads));
    let [m, v] = [0; 2].map(|_| sparse(&on, &vec![0f32; BEHIND]));
    // With these m is the gradient, v its square, and the weight moves by half against the gradient's sign.
    let mut coefficients = [0f32; 16];
    let [grad_scale, keep, step_size, root_correction] = [1.0, 1.0, 0.5, 1.0];
    coefficients[4..8].copy_from_slice(&[grad_scale, keep, step_size, root_correction]);
    let [l2, beta2, one_minus_beta1, one_minus_beta2] = [0.0, 0.5, 1.0, 1.0];
    coefficients[8..12].copy_from_slice(&[l2, beta2, one_minus_beta1, one_minus_beta2]);
    let (coefficients, word) = (on.up(&coefficients), on.up(&[0u64]));
    let tensors = [address(&w), 0, address(&grad), address(&m), address(&v)];
    let others = [(&coefficients).try_into().unwrap(), 0u64.into(), (&word).try_into().unwrap()];
    launch(&on, "optimizer", "optimizer_adam_bf16", tensors, 8, &others);
    assert_eq!(behind(&on, &m), grads);
    assert_eq!(behind(&on, &v), grads.iter().map(|g| g * g).collect::<Vec<_>>());
    assert_eq!(behind(&on, &w), grads.iter().map(|g| bf16::from_f32(1.0 - 0.5 * g.signum())).collect::<Vec<_>>());
}

#[test]
fn a_norms_offsets_have_64_bits() {
    let (on, grads) = (on(), gradients());
    let (grad, sums) = (sparse(&on, &grads), on.up(&[f64::MAX; 2]));
    launch(&on, "norm", "norm_squares", [address(&grad), 0, 0, 0, 0], 0, &[(&sums).try_into().unwrap()]);
    let exact = |grads: &[f32]| grads.iter().map(|g| f64::from(g * g)).sum::<f64>();
    assert_eq!(on.down(&sums), [exact(&grads[..CHUNK]), exact(&grads[CHUNK..])]);
    launch(&on, "norm", "norm_scale", [address(&grad), 0, 0, 0, 0], 0, &[0.5f32.into()]);
    assert_eq!(behind(&on, &grad), grads.iter().map(|g| 0.5 * g).collect::<Vec<_>>());
}
