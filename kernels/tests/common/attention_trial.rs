//! The proof that mutants of attention's kernels are tried against: cases forward and backward, with keys that join others, and
//! wrong starts.

use warpweft_device::{Buffer, DeviceError, Float, View};
use warpweft_kernels::attention::{self, Extra, Heads, Options, Saved, Shape, Starts, Window};

use super::On;
use super::attention::{Case, Output, shape};
use super::trial::{Judge, Trial, Verdict};

/// What a launch notes of wrong data: what data, row, value and limit.
fn noted(on: &On) -> Option<String> {
    match on.stream.synchronize() {
        Ok(()) => None,
        Err(DeviceError::BadData { what, row, value, limit, .. }) => Some(format!("{what} {row} {value} {limit}")),
        Err(other) => panic!("{other}"),
    }
}

/// A launch with this `seen`, for which everything is on the device already: an upload would report what another launch notes.
fn of_seen<'a, T: Float>(on: &'a On, size: usize, seen: [u32; 5]) -> impl FnOnce() + 'a {
    let case = Case::<T>::new(shape(1, (5, 9), (1, 1), size), Options::FULL);
    let [q, k] = [&case.q, &case.k].map(|x| on.up(x));
    let (mut out, mut lse, seen) = (on.garbage(5 * size), on.up(&[f32::NEG_INFINITY; 5]), on.up(&seen));
    move || {
        let inputs = [&q, &k, &k].map(|rows| Heads::whole(rows.as_view(), 1, size));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        attention::forward_onto(&on.stream, case.shape, case.options, Some(seen.as_view()), inputs, o, l).unwrap();
    }
}

/// The same with these starts of two sequences, the longest of which has so many queries, forward or backward.
fn of_starts<'a, T: Float>(
    on: &'a On,
    size: usize,
    longest: usize,
    starts: [[u32; 3]; 2],
    back: bool,
) -> impl FnOnce() + 'a {
    let shape = Shape { batch: 2, ..shape(1, (longest, 5), (1, 1), size) };
    let (q, k) = (on.garbage::<T>(5 * size), on.garbage::<T>(9 * size));
    let starts = starts.map(|starts| on.up(&starts));
    let (mut out, mut lse) = (on.garbage::<T>(5 * size), on.garbage(5));
    let mut gradients = [5, 9, 9].map(|tokens| on.garbage::<T>(tokens * size));
    move || {
        let inputs = [&q, &k, &k].map(|rows| Heads::whole(rows.as_view(), 1, size));
        let starts = Some(Starts { queries: starts[0].as_view(), keys: starts[1].as_view() });
        let extra = Extra { starts, ..Extra::default() };
        if back {
            let gradients = gradients.each_mut().map(|gradient| gradient.as_view_mut());
            let saved = Saved { out: out.as_view(), lse: lse.as_view(), dout: q.as_view() };
            attention::backward_with(&on.stream, shape, Options::FULL, extra, inputs, saved, gradients).unwrap();
        } else {
            let (o, l) = (out.as_view_mut(), lse.as_view_mut());
            attention::forward_with(&on.stream, shape, Options::FULL, extra, inputs, o, l).unwrap();
        }
    }
}

/// Shows what is noted of data that is wrong in every way, in one sequence, and that nothing is of right data.
fn show_faults<T: Float>(on: &On, judge: &mut Judge<'_>, size: usize, back: bool) {
    let mut show = |wrong: bool| {
        let noted = noted(on);
        judge.holds(noted.is_some() == wrong);
        judge.see(noted.unwrap_or_default().as_bytes());
    };
    let starts = |longest, starts| of_starts::<T>(on, size, longest, starts, back);
    // What was noted first stays.
    let (first, second) = (starts(4, [[0, 1, 5], [0, 5, 10]]), starts(4, [[0, 1, 6], [0, 5, 9]]));
    first();
    second();
    show(true);
    if !back {
        of_seen::<T>(on, size, [0, 1, 2, 2, 9])();
        show(false);
        for seen in [[0, 1, 2, 1, 9], [2, 1, 1, 1, 9], [1, 1, 2, 2, 10], [0, 4, 3, 9, 9]] {
            of_seen::<T>(on, size, seen)();
            show(true);
        }
        let (first, second) = (starts(4, [[0, 1, 5], [0, 5, 10]]), of_seen::<T>(on, size, [0, 1, 2, 1, 9]));
        first();
        second();
        show(true);
    }
    let mut show_starts = |longest, wrong, of| {
        starts(longest, of)();
        show(wrong);
    };
    show_starts(4, false, [[0, 1, 5], [0, 5, 9]]);
    show_starts(4, true, [[0, 3, 2], [0, 5, 9]]);
    show_starts(4, true, [[0, 1, 6], [0, 5, 9]]);
    show_starts(4, true, [[0, 1, 5], [0, 6, 9]]);
    show_starts(4, true, [[0, 0, 5], [0, 5, 9]]);
    show_starts(4, true, [[0, 1, 5], [0, 5, 10]]);
    show_starts(4, true, [[0, 1, 5], [4, 3, 8]]);
    // Both of one sequence.
    show_starts(4, true, [[0, 1, 6], [0, 5, 10]]);
    if back {
        // Where no query is, only the blocks of keys are there to note it.
        show_starts(0, false, [[0, 0, 0], [0, 5, 9]]);
        show_starts(0, true, [[0, 0, 1], [0, 5, 9]]);
        show_starts(0, true, [[1, 1, 0], [0, 5, 9]]);
        show_starts(0, true, [[0, 0, 0], [0, 6, 9]]);
        show_starts(0, true, [[0, 0, 0], [0, 5, 10]]);
        show_starts(0, true, [[0, 0, 0], [4, 3, 8]]);
        show_starts(0, true, [[0, 0, 1], [0, 5, 10]]);
    }
}

/// The queries, keys and values of a case without starts, on a device.
struct Inputs<T>([Buffer<T>; 3]);

impl<T: Float> Inputs<T> {
    fn of(on: &On, case: &Case<T>) -> Self {
        Self([&case.q, &case.k, &case.v].map(|x| on.up(x)))
    }

    fn heads(&self, shape: Shape) -> [Heads<'_, T>; 3] {
        let [q, k, v] = self.0.each_ref().map(|x| x.as_view());
        let kv = |rows| Heads::whole(rows, shape.kv_heads, shape.head_size);
        [Heads::whole(q, shape.heads, shape.head_size), kv(k), kv(v)]
    }
}

/// What the case's options leave when keys come in parts.
fn in_parts<T>(case: &Case<T>) -> Options {
    Options { dropout: None, ..case.options }
}

/// What they leave where `seen` says which keys a query sees.
fn beside_seen<T>(case: &Case<T>) -> Options {
    Options { causal: false, window: Window::default(), ..in_parts(case) }
}

/// out and LSE: the case's keys join what is nothing yet, then once more; and with `seen` they join rows that are there.
fn forward_onto<T: Float>(on: &On, case: &Case<T>, saved: &Output<T>, judge: &mut Judge<'_>) {
    let inputs = Inputs::of(on, case);
    let inputs = inputs.heads(case.shape);
    let mut join = |options, seen: Option<View<'_, u32>>, times, out: f32, lse: &[f32]| {
        let (mut out, mut lse) = (on.up(&vec![out; case.q.len()]), on.up(lse));
        for _ in 0..times {
            let (o, l) = (out.as_view_mut(), lse.as_view_mut());
            attention::forward_onto(&on.stream, case.shape, options, seen, inputs, o, l).unwrap();
        }
        judge.see(&on.down(&out));
        judge.see(&on.down(&lse));
    };
    join(in_parts(case), None, 2, f32::NAN, &vec![f32::NEG_INFINITY; saved.lse.len()]);
    for seen in [seen(case), vec![0; case.shape.queries]] {
        join(beside_seen(case), Some(on.up(&seen).as_view()), 1, 1.0, &saved.lse);
    }
}

/// The gradients that the case's keys add, with and without `seen`.
fn backward_onto<T: Float>(on: &On, case: &Case<T>, saved: &Output<T>, judge: &mut Judge<'_>) {
    let inputs = Inputs::of(on, case);
    let inputs = inputs.heads(case.shape);
    let (out, lse, dout) = (on.up(&saved.out), on.up(&saved.lse), on.up(&case.dout));
    let mut join = |options, seen: Option<View<'_, u32>>| {
        let mut gradients = [&case.q, &case.k, &case.v].map(|x| on.up(&vec![1.0f32; x.len()]));
        let [dq, dk, dv] = gradients.each_mut().map(|gradient| gradient.as_view_mut());
        let from = (out.as_view(), lse.as_view(), dout.as_view());
        attention::backward_onto(&on.stream, case.shape, options, seen, inputs, from, dq, dk, dv).unwrap();
        gradients.iter().for_each(|gradient| judge.see(&on.down(gradient)));
    };
    join(in_parts(case), None);
    join(beside_seen(case), Some(on.up(&seen(case)).as_view()));
}

/// Query i sees the first 2 i keys, or those up to the one beside it where there are as many queries as keys.
fn seen<T>(case: &Case<T>) -> Vec<u32> {
    let Shape { queries, keys, .. } = case.shape;
    (0..queries).map(|i| if queries == keys { i + 1 } else { (i * 2).min(keys) } as u32).collect()
}

/// What becomes of mutants of the kernels of one type and range of head sizes, which the program `op` has, under the proof that
/// runs `cases`: of each kernel, but for the short one, at most so many.
pub(crate) fn tried<T: Float>(op: &str, width: usize, cases: &[Case<T>], most: usize) -> Verdict {
    let on = On::software();
    let saved: Vec<Output<T>> = cases.iter().map(|case| case.forward(&on)).collect();
    let all = || cases.iter().zip(&saved);
    // Keys in parts have no starts.
    let whole = || all().filter(|(case, _)| case.starts.is_none());
    let forward = |on: &On, judge: &mut Judge<'_>| {
        for case in cases {
            let Output { out, lse } = case.forward(on);
            judge.see(&out);
            judge.see(&lse);
        }
        whole().for_each(|(case, saved)| forward_onto(on, case, saved, judge));
        show_faults::<T>(on, judge, width, false);
    };
    let backward = |on: &On, judge: &mut Judge<'_>| {
        for (case, saved) in all() {
            case.backward(on, saved).iter().for_each(|gradient| judge.see(gradient));
        }
        whole().for_each(|(case, saved)| backward_onto(on, case, saved, judge));
        show_faults::<T>(on, judge, width, true);
    };
    let names = ["forward", "rows", "queries", "keys"].map(|what| format!("attention_{what}_{width}_{}", T::DTYPE));
    let beside = names.each_ref().map(String::as_str);
    let trial =
        |kernel: usize, share: usize| Trial { beside: &beside, ..Trial::of(op, &names[kernel], most.div_ceil(share)) };
    let verdict = trial(0, 1).verdict(forward).and(trial(1, 4).verdict(backward));
    verdict.and(trial(2, 1).verdict(backward)).and(trial(3, 1).verdict(backward))
}
