//! The checker itself finds what it is for.

use super::super::plan::{How, Plan, output};
use super::{Symbol, own, simulate};

/// Two ranks that both receive before they send.
#[test]
#[should_panic(expected = "deadlock")]
fn a_deadlock_is_found() {
    let plan = |plan: &mut Plan, rank: usize| {
        plan.recv(1 - rank, output(0..1), How::Store);
        plan.end_round();
        plan.send(1 - rank, output(0..1));
        plan.end_round();
    };
    simulate(2, plan, |rank| (Vec::new(), own(rank, 1)));
}

/// An exchange in place that does not stay behind what it sends: the partner gets a sum instead of a part.
#[test]
fn a_result_that_overtakes_what_is_sent_is_found() {
    let plan = |plan: &mut Plan, rank: usize| {
        plan.recv(1 - rank, output(0..3), How::Reduce { own: output(0..3), finish: true, behind: false });
        plan.send(1 - rank, output(0..3));
        plan.end_round();
    };
    let outcome = std::panic::catch_unwind(|| simulate(2, plan, |rank| (Vec::new(), own(rank, 3))));
    let right: Vec<Symbol> = (0..3).map(|index| Symbol::of_all(2, index)).collect();
    assert!(outcome.is_err() || outcome.is_ok_and(|(outputs, _)| outputs.iter().any(|output| *output != right)));
}

/// A rank that expects more than is sent.
#[test]
#[should_panic(expected = "expects as much")]
fn a_length_that_does_not_fit_is_found() {
    let plan = |plan: &mut Plan, rank: usize| {
        if rank == 0 {
            plan.send(1, output(0..2));
        } else {
            plan.recv(0, output(0..3), How::Store);
        }
        plan.end_round();
    };
    simulate(2, plan, |rank| (Vec::new(), own(rank, 3)));
}
