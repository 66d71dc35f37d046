//! The proof that mutants of attention's kernels are tried against: cases forward and backward, with keys that join others, and
//! wrong starts.

use warpweft_device::Float;
use warpweft_kernels::attention::{self, Extra, Heads, Options, Shape, Starts};

use super::On;
use super::attention::{Case, Output, shape};
use super::trial::{Judge, Trial, Verdict};

/// Whether `seen` that falls, and starts that do, are found.
fn finds_faults<T: Float>(on: &On, size: usize) -> bool {
    let case = Case::<T>::new(shape(1, (5, 9), (1, 1), size), Options::FULL);
    let [q, k] = [&case.q, &case.k].map(|x| on.up(x));
    let inputs = [q.as_view(), k.as_view(), k.as_view()].map(|rows| Heads::whole(rows, 1, size));
    let found = |seen: [u32; 5]| {
        let (mut out, mut lse, seen) = (on.garbage(5 * size), on.up(&[f32::NEG_INFINITY; 5]), on.up(&seen));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        attention::forward_onto(&on.stream, case.shape, case.options, Some(seen.as_view()), inputs, o, l).unwrap();
        on.stream.synchronize().is_err()
    };
    let starts = |of: [[u32; 3]; 2]| {
        let starts = of.map(|starts| on.up(&starts));
        let starts = Some(Starts { queries: starts[0].as_view(), keys: starts[1].as_view() });
        let (mut out, mut lse) = (on.garbage::<T>(5 * size), on.garbage(5));
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

/// What becomes of mutants of the kernels of one type and range of head sizes, which the program `op` has, under the proof that
/// runs `cases`: of each kernel, but for the short one, at most so many.
pub(crate) fn tried<T: Float>(op: &str, width: usize, cases: &[Case<T>], most: usize) -> Verdict {
    let on = On::software();
    let saved: Vec<Output<T>> = cases.iter().map(|case| case.forward(&on)).collect();
    let all = || cases.iter().zip(&saved);
    // Those without starts.
    let join = |on: &On, judge: &mut Judge<'_>| {
        for (case, saved) in all().filter(|(case, _)| case.starts.is_none()) {
            onto(on, case, saved).iter().for_each(|of| judge.see(of));
        }
    };
    let forward = |on: &On, judge: &mut Judge<'_>| {
        for case in cases {
            let Output { out, lse } = case.forward(on);
            judge.see(&out);
            judge.see(&lse);
        }
        join(on, judge);
        judge.holds(finds_faults::<T>(on, width));
    };
    let backward = |on: &On, judge: &mut Judge<'_>| {
        for (case, saved) in all() {
            case.backward(on, saved).iter().for_each(|gradient| judge.see(gradient));
        }
        join(on, judge);
    };
    let names = ["forward", "rows", "queries", "keys"].map(|what| format!("attention_{what}_{width}_{}", T::DTYPE));
    let beside = names.each_ref().map(String::as_str);
    let trial =
        |kernel: usize, share: usize| Trial { beside: &beside, ..Trial::of(op, &names[kernel], most.div_ceil(share)) };
    let verdict = trial(0, 1).verdict(forward).and(trial(1, 4).verdict(backward));
    verdict.and(trial(2, 1).verdict(backward)).and(trial(3, 1).verdict(backward))
}
