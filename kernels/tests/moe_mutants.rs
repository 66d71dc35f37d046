//! The kernels of mixtures of experts, broken on purpose.
#![forbid(unsafe_code)]

mod common;

use std::sync::Mutex;

use common::dispatched::{Choice, Moving, Sorted, outside, outside_sort};
use common::mutants::try_mutants;
use common::routing::{
    PLAIN, PLAIN_SIGMOID, Routed, Routing, SIGMOID, SOFTMAX, balanced, outside_backward, outside_sums,
};
use common::trial::{Trial, Verdict, sample};
use common::{On, f64s, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::{Program, programs};

/// How many are tried of kernels in the other storage types.
const SOME: usize = sample(8, usize::MAX);

fn program(op: &str) -> &'static Program {
    programs().iter().find(|program| program.op == op).unwrap()
}

/// What the kernel itself has shown in the runs that a trial begins with: of two rows that are wrong the schedule decides which is told.
#[derive(Default)]
struct First<R>(Mutex<Vec<R>>);

impl<R: PartialEq> First<R> {
    /// Runs of the kernel as it is, before its mutants.
    const RUNS: usize = 3;

    fn again(&self, seen: R) -> bool {
        let mut shown = self.0.lock().unwrap();
        if shown.len() == Self::RUNS {
            return shown.contains(&seen);
        }
        shown.push(seen);
        true
    }
}

/// Cases that take every way through the kernels: one lane's experts and several, fewer than lanes, chosen by part, all and
/// none, one far above all others, values that are equal, zero and below.
fn cases<T: Float>() -> Vec<Routing<T>> {
    let mut tied = Routing::new((5, 70, 3), PLAIN_SIGMOID, 0);
    tied.logits.iter_mut().enumerate().for_each(|(i, x)| *x = T::from_f32(((i * i) % 5) as f32));
    let mut far = Routing::new((40, 40, 2), PLAIN, 0);
    let one = |(i, x): (usize, &mut T)| *x = T::from_f32(if i % 40 == i / 40 { 390.0 } else { x.to_f32() - 375.0 });
    far.logits.iter_mut().enumerate().for_each(one);
    let mut zero = Routing { bias: Some(vec![0.0; 40]), ..Routing::new((40, 40, 2), SOFTMAX, 0) };
    zero.logits.clone_from(&far.logits);
    let mut wide = Routing::new((6, 40, 2), SIGMOID, 0);
    wide.logits.iter_mut().enumerate().for_each(|(i, x)| *x = T::from_f32((i as f32 * 37.0) % 1700.0 - 850.0));
    vec![
        // 16 bytes at a time, more than a warp has at once; and more than shared memory holds.
        Routing::new((2, 280, 34), SOFTMAX, 0).biased(),
        Routing::new((1, 3100, 34), PLAIN, 0).biased(),
        Routing::new((5, 33, 2), SOFTMAX, 0).biased(),
        Routing::new((3, 5, 2), SOFTMAX, 0).biased(),
        Routing::new((3, 5, 2), SIGMOID, 0),
        Routing::new((4, 32, 32), SIGMOID, 0),
        Routing::new((1, 40, 35), PLAIN, 0).biased(),
        Routing::new((3, 33, 0), SOFTMAX, 0),
        Routing::new((3, 5, 0), SIGMOID, 0),
        Routing::new((2, 40, 0), SIGMOID, 0),
        tied,
        far,
        zero,
        wide,
    ]
}

fn of_forward<T: Float>(most: usize) -> Verdict {
    let (cases, cpu) = (cases::<T>(), On::threads(1));
    let right: Vec<Routed> = cases.iter().map(|case| case.forward(&cpu)).collect();
    Trial::of("moe_router", &format!("moe_router_forward_{}", T::DTYPE), most).verdict(|on, judge| {
        cases.iter().zip(&right).for_each(|(case, routed)| judge.holds(case.forward(on) == *routed));
    })
}

#[test]
fn mutants_of_the_router_are_killed() {
    let all = of_forward::<f32>(usize::MAX).and(of_forward::<bf16>(SOME)).and(of_forward::<f16>(SOME));
    let (cpu, case) = (On::threads(1), cases::<f32>().swap_remove(0));
    let right = case.forward(&cpu);
    let mut many = Routing::<f32>::new((1100, 3, 1), SOFTMAX, 0);
    // The first of two margins of 0 is in a row behind the threads of a block.
    [1090, 1095].iter().for_each(|row| many.logits[3 * row..][..3].copy_from_slice(&[1.0, 1.0, 0.0]));
    let most = many.forward(&cpu);
    let proof = |on: &On| case.forward(on) == right && many.forward(on) == most;
    all.and(try_mutants(program("moe_router"), "moe_router_margin", 1, proof)).assert_killed();
}

fn of_backward<T: Float>(most: usize) -> Verdict {
    let (cases, told) = (cases::<T>(), First::default());
    let routed: Vec<Routed> = cases.iter().map(|case| case.forward(&On::threads(1))).collect();
    Trial::of("moe_router", &format!("moe_router_backward_{}", T::DTYPE), most).verdict(|on, judge| {
        cases.iter().zip(&routed).for_each(|(case, routed)| judge.see(&case.backward(on, routed)));
        judge.holds(told.again([SOFTMAX, PLAIN].map(|options| outside_backward::<T>(on, options))));
    })
}

#[test]
fn mutants_of_the_gradients_are_killed() {
    of_backward::<f32>(usize::MAX).and(of_backward::<bf16>(SOME)).and(of_backward::<f16>(SOME)).assert_killed();
}

#[test]
fn mutants_of_balance_are_killed() {
    let cpu = On::threads(1);
    let sizes = [
        ((6, 5, 2), 2, SOFTMAX),
        ((6, 5, 2), 2, SIGMOID),
        ((274, 33, 2), 2, SIGMOID),
        ((256, 300, 1), 1, SOFTMAX),
        ((3, 5, 0), 1, SOFTMAX),
    ];
    let cases = sizes.map(|(sizes, sequences, options)| {
        let case = Routing::<f32>::new(sizes, options, 0);
        let routed = case.forward(&cpu);
        (case, sequences, routed)
    });
    let run = |on: &On| -> Vec<[Vec<f64>; 4]> {
        cases.iter().map(|(case, sequences, routed)| balanced(on, *sequences, case, routed)).collect()
    };
    let right = run(&On::software());
    let tried = |kernel| {
        let told = First::default();
        try_mutants(program("moe_router"), kernel, 1, |on| run(on) == right && told.again(outside_sums(on)))
    };
    tried("moe_router_balance").and(tried("moe_router_move_bias")).assert_killed();
}

#[test]
fn mutants_of_sorting_are_killed() {
    let cases = [
        Choice::new((6, 4, 2), 3),
        Choice::new((37, 300, 1), 1),
        Choice::new((256, 255, 1), 4),
        Choice::new((60, 512, 1), 2).to(511),
    ];
    let run = |on: &On| cases.each_ref().map(|case| case.all(on));
    let right = run(&On::threads(1));
    let tried = |kernel| {
        let told = First::default();
        try_mutants(program("moe_dispatch"), kernel, 1, |on| run(on) == right && told.again(outside_sort(on)))
    };
    let small = tried("moe_dispatch_keys").and(tried("moe_dispatch_places")).and(tried("moe_dispatch_counts"));
    small.and(tried("moe_dispatch_capacity")).assert_killed();
}

/// The embedding's sort, under other names, whose tests ask for more: here it changes nothing to read one key beyond the last.
#[test]
fn mutants_of_the_sort_inside_are_killed() {
    // Lengths that end in each round of a warp; every digit in every block, and more of them than the scan has threads; one pass
    // over the digits and three.
    let short = (0..8).map(|round| (32 * round + 5, 3, 1));
    let sizes = short.chain([(2100, 290, 1), (10_240, 256, 1), (100, 70_000, 1)]);
    let cases: Vec<Choice> = sizes.map(|sizes| Choice::new(sizes, 1)).collect();
    let right: Vec<Sorted> = cases.iter().map(|case| case.sort(&On::threads(1), false)).collect();
    let sort = Trial::of("moe_dispatch", "moe_dispatch_sort", sample(40, usize::MAX)).verdict(|on, judge| {
        cases.iter().zip(&right).for_each(|(case, sorted)| judge.holds(case.sort(on, false) == *sorted));
    });
    sort.assert_killed_of_100(90);
}

fn of_moving<T: Float>(most: usize) -> Verdict {
    let cases = [
        Moving::<T>::new((5, 2, 12), 0, normal),
        Moving::new((3, 0, 12), 0, normal),
        Moving::new((3, 0, 37), 1, normal),
        Moving::new((6, 3, 37), 1, normal),
        Moving::new((2, 2, 516), 0, normal),
        Moving::new((2, 2, 1101), 0, normal),
        Moving::new((3, 40, 8), 0, normal),
        Moving::new((1, 1, 98_320 / size_of::<T>()), 0, normal),
    ];
    let tried = |kernel: &str, run: fn(&Moving<T>, &On) -> Vec<f64>| {
        let told = First::default();
        Trial::of("moe_dispatch", &format!("moe_dispatch_{kernel}_{}", T::DTYPE), most).verdict(|on, judge| {
            cases.iter().for_each(|case| judge.see(&run(case, on)));
            judge.holds(told.again(outside::<T>(on)));
        })
    };
    let moved = tried("permute", Moving::permute).and(tried("combine", Moving::combine));
    moved.and(tried("backward_weights", |case, on| f64s(&case.backward_weights(on))))
}

#[test]
fn mutants_of_moving_are_killed() {
    of_moving::<f32>(usize::MAX).and(of_moving::<bf16>(SOME)).and(of_moving::<f16>(SOME)).assert_killed();
}
