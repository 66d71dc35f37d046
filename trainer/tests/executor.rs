//! The executor that trains does what every schedule says, in its order, whatever an operation computes; and what is under
//! way beside the passes is under way while they go on.
#![forbid(unsafe_code)]

mod common;
#[allow(dead_code, reason = "what was learnt is no matter here")]
mod training;

use std::time::Duration;

use training::Training;
use warpweft_schedule::{Costs, Name, Schedule};
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::parallel::simulated;
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::{StepReport, Trainer};

#[test]
fn every_schedule_runs_in_its_order_and_holds_and_sends_what_it_says() {
    let costs = Costs { forward: 1.5, backward: 1.2, weight: 0.8, comm: 0.1 };
    let names = [
        Name::GPipe,
        Name::OneForwardOneBackward,
        Name::Interleaved,
        Name::ZbH1,
        Name::ZbH2,
        Name::ZbV,
        Name::DualPipe,
        Name::Auto,
    ];
    for name in names {
        for (p, m) in [(1, 3), (2, 1), (2, 5), (3, 4), (4, 8), (6, 12)] {
            if name == Name::DualPipe && p % 2 == 1 {
                continue;
            }
            let schedule = Schedule::new(name, p, m, None, costs, None).expect("a schedule");
            for ranks in simulated::run(&schedule, Duration::from_micros(100), 2).expect("ranks that are threads") {
                for (rank, run) in ranks.iter().enumerate() {
                    let what = format!("{name}, p {p}, m {m}, rank {rank}");
                    assert_eq!(run.order, schedule.computations(rank), "{what}");
                    assert_eq!(run.peak, schedule.peak_activations()[rank], "{what}");
                    assert_eq!(run.messages, schedule.proof().sends[rank], "{what}");
                }
                // No rank is faster than its computations, which wait as long as they should.
                let most = ranks.iter().map(|run| run.span).max().expect("ranks");
                let compute = m as f64 * costs.compute();
                assert!(most >= Duration::from_micros(100).mul_f64(compute), "{name}, p {p}, m {m}: {most:?}");
            }
        }
    }
}

/// Transfers of a kind that started before the last pass was over, in steps of data-parallel training.
fn under_way(overlap: bool, zero: Zero, what: &str) -> usize {
    let training =
        Training { overlap, zero, micro_batch: 1, ..Training::of(ModelShape::gpt2(6, 64, 4, 32, 257), 4, 4) };
    let each = training.run_then(2, |_: &mut Trainer<f32>, reports: &[StepReport]| {
        let transfers = reports.iter().flat_map(|report| {
            let early = report.transfers.iter().filter(|transfer| transfer.started < report.passes_ended);
            early.filter(|transfer| transfer.unit.is_some() && transfer.what == what)
        });
        transfers.count()
    });
    each[0]
}

#[test]
fn gradients_are_on_their_way_before_the_last_backward_pass_ends() {
    assert!(under_way(true, Zero::NONE, "all_reduce") > 0);
    assert_eq!(under_way(false, Zero::NONE, "all_reduce"), 0);
    assert!(under_way(true, Zero::stage(1), "reduce_scatter") > 0);
    assert_eq!(under_way(false, Zero::stage(1), "reduce_scatter"), 0);
}

#[test]
fn without_overlap_the_numbers_are_the_same_bits() {
    for stage in 0..=3 {
        let shape = ModelShape::gpt2(3, 16, 2, 8, 19);
        let training = Training { zero: Zero::stage(stage), micro_batch: 1, ..Training::of(shape, 6, 5) };
        let apart = Training { overlap: false, ..training };
        assert_eq!(training.run::<f32>(3), apart.run::<f32>(3), "stage {stage}");
    }
}
