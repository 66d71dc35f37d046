//! Kernels of attention on tensor cores broken on purpose: a sample of the mutants of each, a larger one with `long-tests`.
#![forbid(unsafe_code)]

mod common;

use common::On;
use common::attention::{Case, Gradients, Output, shape};
use common::mutants::try_mutants_beside;
use warpweft_device::{Float, bf16};
use warpweft_kernels::attention::{self, Dropout, Extra, Heads, Options, Shape, Starts, Window};
use warpweft_kernels::{Program, programs};

/// Mutants passed over for each that is tried.
const SAMPLE: usize = if cfg!(feature = "long-tests") { 10 } else { 90 };

fn program(op: &str) -> &'static Program {
    programs().iter().find(|program| program.op == op).unwrap()
}

/// Cases that take every way through a kernel: tiles that all see and tiles that some see, with every border of a mask and of
/// what is there in each fragment, every head size, every switch, sequences with starts.
fn cases<T: Float>() -> Vec<Case<T>> {
    let dropout = Some(Dropout { probability: 0.3, seed: 5 << 33, first_sequence: 1, first_head: 2 });
    let window = Window { left: Some(30), right: Some(4) };
    let all = Options { window, softcap: Some(5.0), dropout, scale: Some(0.3), ..Options::FULL };
    let some = Options { window, ..Options::FULL };
    let past = Options { window: Window { left: Some(70), right: Some(0) }, ..Options::FULL };
    let mut cases = vec![
        Case::new(shape(1, (130, 300), (2, 1), 40), Options::CAUSAL),
        Case::of_lengths(&[(5, 128), (37, 101), (69, 69), (101, 37)], (1, 1), 56, some),
        Case::of_lengths(&[(128, 128), (128, 136), (128, 144), (128, 152)], (1, 1), 64, past),
        Case::of_lengths(&[(40, 50), (0, 3), (3, 0), (7, 70)], (2, 1), 56, all).alibi(),
    ];
    let sizes =
        (1..=8).map(|eighth| Case::new(shape(1, (16 * eighth - 11, 16 * eighth - 11), (1, 1), 8 * eighth), some));
    cases.extend(sizes);
    cases
}

/// Whether `seen` that falls, and starts that do, are found.
fn finds_faults<T: Float>(on: &On) -> bool {
    let case = Case::<T>::new(shape(1, (5, 9), (1, 1), 8), Options::FULL);
    let [q, k] = [&case.q, &case.k].map(|x| on.up(x));
    let inputs = [q.as_view(), k.as_view(), k.as_view()].map(|rows| Heads::whole(rows, 1, 8));
    let found = |seen: [u32; 5]| {
        let (mut out, mut lse, seen) = (on.garbage(40), on.up(&[f32::NEG_INFINITY; 5]), on.up(&seen));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        attention::forward_onto(&on.stream, case.shape, case.options, Some(seen.as_view()), inputs, o, l).unwrap();
        on.stream.synchronize().is_err()
    };
    let starts = |of: [[u32; 3]; 2]| {
        let starts = of.map(|starts| on.up(&starts));
        let starts = Some(Starts { queries: starts[0].as_view(), keys: starts[1].as_view() });
        let (mut out, mut lse) = (on.garbage::<T>(40), on.garbage(5));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        let (extra, shape) =
            (Extra { starts, ..Extra::default() }, Shape { batch: 2, queries: 4, keys: 5, ..case.shape });
        attention::forward_with(&on.stream, shape, case.options, extra, inputs, o, l).unwrap();
        on.stream.synchronize().is_err()
    };
    let seen = found([0, 1, 2, 2, 9]);
    let fine = starts([[0, 1, 5], [0, 5, 9]]);
    !seen
        && !fine
        && found([0, 1, 2, 1, 9])
        && found([1, 1, 2, 2, 10])
        && found([0, 4, 3, 9, 9])
        && starts([[0, 3, 2], [0, 5, 9]])
        && starts([[0, 1, 6], [0, 5, 9]])
        && starts([[0, 1, 5], [0, 6, 9]])
        && starts([[0, 0, 5], [0, 5, 9]])
        && starts([[0, 1, 5], [0, 5, 10]])
        && starts([[0, 1, 5], [4, 3, 9]])
}

/// With keys that join others.
fn onto<T: Float>(on: &On, case: &Case<T>, saved: &Output<T>) -> Vec<Vec<f32>> {
    let (seen, size) = (
        on.up(&(0..case.shape.queries as u32).map(|i| (i * 2).min(case.shape.keys as u32)).collect::<Vec<_>>()),
        case.shape.head_size,
    );
    let [q, k, v] = [&case.q, &case.k, &case.v].map(|x| on.up(x));
    let kv = case.shape.kv_heads;
    let inputs = [
        Heads::whole(q.as_view(), case.shape.heads, size),
        Heads::whole(k.as_view(), kv, size),
        Heads::whole(v.as_view(), kv, size),
    ];
    let ones = |len: usize| on.up(&vec![1.0f32; len]);
    let (mut out, mut lse) = (ones(case.q.len()), on.up(&saved.lse));
    let (seen, options) = (Some(seen.as_view()), Options::FULL);
    let (o, l) = (out.as_view_mut(), lse.as_view_mut());
    attention::forward_onto(&on.stream, case.shape, options, seen, inputs, o, l).unwrap();
    let (mut dq, mut dk, mut dv) = (ones(case.q.len()), ones(case.k.len()), ones(case.v.len()));
    let (dout, of) = (on.up(&case.dout), on.up(&saved.out));
    let from = (of.as_view(), lse.as_view(), dout.as_view());
    let (q, k, v) = (dq.as_view_mut(), dk.as_view_mut(), dv.as_view_mut());
    attention::backward_onto(&on.stream, case.shape, options, seen, inputs, from, q, k, v).unwrap();
    [out, lse, dq, dk, dv].iter().map(|x| on.down(x)).collect()
}

fn forwards<T: Float>(on: &On, cases: &[Case<T>]) -> Vec<Output<T>> {
    cases.iter().map(|case| case.forward(on)).collect()
}

fn equal<T: Float>(a: &[Vec<T>], b: &[Vec<T>]) -> bool {
    a.iter().zip(b).all(|(a, b)| bytemuck::cast_slice::<T, u8>(a) == bytemuck::cast_slice::<T, u8>(b))
}

fn kill<T: Float>(op: &str, width: u32) {
    let (program, cases, on) = (program(op), cases::<T>(), On::software());
    let saved = forwards(&on, &cases);
    let gradients: Vec<Gradients<T>> =
        cases.iter().zip(&saved).map(|(case, saved)| case.backward(&on, saved)).collect();
    // Those without starts.
    let apart: Vec<_> = cases.iter().zip(&saved).filter(|(case, _)| case.starts.is_none()).collect();
    let onto_all =
        |on: &On| -> Vec<Vec<f32>> { apart.iter().flat_map(|(case, saved)| onto(on, case, saved)).collect() };
    let joined = onto_all(&on);
    let kernel = |what: &str| format!("attention_{what}_{width}_{}", T::DTYPE);
    let names = ["forward", "rows", "queries", "keys"].map(kernel);
    let beside = names.each_ref().map(String::as_str);
    let same = |a: &Output<T>, b: &Output<T>| {
        equal(std::slice::from_ref(&a.out), std::slice::from_ref(&b.out)) && a.lse == b.lse
    };
    let forward = |on: &On| {
        finds_faults::<T>(on)
            && forwards(on, &cases).iter().zip(&saved).all(|(a, b)| same(a, b))
            && equal(&onto_all(on), &joined)
    };
    let backward = |on: &On| {
        let all = cases.iter().zip(&saved).zip(&gradients);
        all.into_iter().all(|((case, saved), right)| equal(&case.backward(on, saved), right))
            && equal(&onto_all(on), &joined)
    };
    let verdict = try_mutants_beside(program, &names[0], &beside, SAMPLE, forward);
    let verdict = verdict.and(try_mutants_beside(program, &names[1], &beside, SAMPLE.div_ceil(4), backward));
    let verdict = verdict.and(try_mutants_beside(program, &names[2], &beside, SAMPLE, backward));
    verdict.and(try_mutants_beside(program, &names[3], &beside, SAMPLE, backward)).assert_killed();
}

#[test]
fn mutants_of_the_tensor_cores_kernels_are_killed() {
    kill::<bf16>("attention_64", 64);
}
