//! Every schedule passes the checker, and none of its mutations does that would not be a schedule any more.
#![forbid(unsafe_code)]

use warpweft_schedule::{
    Content, Costs, Fault, Kind, Name, Operation, Placement, Schedule, ScheduleError, Shape, Step, check,
};

const NAMES: [Name; 7] =
    [Name::GPipe, Name::OneForwardOneBackward, Name::Interleaved, Name::ZbH1, Name::ZbH2, Name::ZbV, Name::DualPipe];

/// All named schedules of these sizes, the uneven ones and those of fewer micro-batches than ranks among them.
fn schedules() -> Vec<Schedule> {
    let mut all = Vec::new();
    for p in [1, 2, 3, 4, 6] {
        for m in [1, 2, 3, 5, 8, 13] {
            for name in NAMES {
                let chunks: &[Option<usize>] =
                    if name == Name::Interleaved { &[Some(1), None, Some(3)] } else { &[None] };
                for &v in chunks {
                    match Schedule::new(name, p, m, v, Costs { comm: 0.3, ..Costs::default() }, None) {
                        Ok(schedule) => all.push(schedule),
                        Err(error) => {
                            assert_eq!((name, error), (Name::DualPipe, ScheduleError::Odd { p }), "p {p} m {m} v {v:?}")
                        }
                    }
                }
            }
        }
    }
    all
}

fn lists(schedule: &Schedule) -> Vec<Vec<Step>> {
    (0..schedule.ranks()).map(|rank| schedule.rank(rank).to_vec()).collect()
}

fn verdict(schedule: &Schedule, lists: &[Vec<Step>], room: usize) -> Result<(), ScheduleError> {
    check(schedule.placement(), schedule.micro_batches(), lists, schedule.costs(), room, None).map(|_| ())
}

#[test]
fn every_schedule_passes_with_any_room_for_messages() {
    let all = schedules();
    assert!(all.len() > 200, "{}", all.len());
    for schedule in all {
        for room in [0, 1, 2, 1000] {
            verdict(&schedule, &lists(&schedule), room)
                .unwrap_or_else(|error| panic!("{}: {error}", schedule.origin()));
        }
    }
}

#[test]
fn a_dropped_or_doubled_step_is_refused() {
    for schedule in schedules() {
        let whole = lists(&schedule);
        for rank in 0..whole.len() {
            for at in (0..whole[rank].len()).step_by(3) {
                let mut dropped = whole.clone();
                dropped[rank].remove(at);
                verdict(&schedule, &dropped, 1000).expect_err("a step is missing");
                let mut doubled = whole.clone();
                doubled[rank].push(whole[rank][at]);
                let error = verdict(&schedule, &doubled, 1000).expect_err("a step stands there twice");
                assert!(matches!(error, ScheduleError::Fault(Fault::Twice { .. })), "{error}");
            }
        }
    }
}

#[test]
fn what_lies_on_another_rank_is_refused() {
    for schedule in schedules().into_iter().filter(|schedule| schedule.ranks() > 1) {
        let mut swapped = lists(&schedule);
        swapped.swap(0, 1);
        verdict(&schedule, &swapped, 1000).expect_err("ranks have swapped their lists");
        let mut fewer = lists(&schedule);
        fewer.pop();
        verdict(&schedule, &fewer, 1000).expect_err("a rank has no list");
    }
}

/// What must come before what on one rank, written down once more and independently: two steps of one micro-batch may not change
/// places if one needs the other.
fn depends(placement: &Placement, late: Step, early: Step) -> bool {
    match (early, late) {
        (Step::Compute(a), Step::Compute(b)) if a.micro_batch == b.micro_batch => match (a.kind, b.kind) {
            (Kind::F, Kind::F) => placement.after(a.chunk) == Some(b.chunk),
            (Kind::F, Kind::B | Kind::BW) | (Kind::B, Kind::W) => a.chunk == b.chunk,
            (Kind::B | Kind::BW, Kind::B | Kind::BW) => placement.before(a.chunk) == Some(b.chunk),
            _ => false,
        },
        (Step::Compute(Operation { kind, chunk, micro_batch }), Step::Send(sent)) => {
            let made = if sent.content == Content::Activation { kind == Kind::F } else { kind.makes_error() };
            made && chunk == sent.chunk && micro_batch == sent.micro_batch
        }
        (Step::Recv(taken), Step::Compute(Operation { kind, chunk, micro_batch })) => {
            let used = if taken.content == Content::Activation { kind == Kind::F } else { kind.makes_error() };
            used && chunk == taken.chunk && micro_batch == taken.micro_batch
        }
        _ => false,
    }
}

#[test]
fn a_step_before_what_it_needs_is_refused() {
    let mut tried = 0;
    for schedule in schedules() {
        let whole = lists(&schedule);
        for (rank, list) in whole.iter().enumerate() {
            for early in (0..list.len()).step_by(2) {
                let Some(late) =
                    (early + 1..list.len()).find(|&late| depends(schedule.placement(), list[late], list[early]))
                else {
                    continue;
                };
                let mut swapped = whole.clone();
                swapped[rank].swap(early, late);
                verdict(&schedule, &swapped, 1000).expect_err("two steps changed places that depend on each other");
                tried += 1;
            }
        }
    }
    assert!(tried > 5000, "{tried}");
}

#[test]
fn too_much_memory_is_refused() {
    for schedule in schedules() {
        let most = schedule.peak_activations().into_iter().max().unwrap_or(0);
        let within = |memory| {
            check(schedule.placement(), schedule.micro_batches(), &lists(&schedule), schedule.costs(), 0, Some(memory))
        };
        assert!(within(most).is_ok());
        assert!(matches!(within(most - 1), Err(ScheduleError::Fault(Fault::Memory { .. }))));
    }
}

#[test]
fn sends_that_wait_for_each_other_are_a_deadlock() {
    // Two ranks; each sends what it has made before it takes what the other sends: fine with room for one message, not without.
    let schedule = Schedule::new(Name::OneForwardOneBackward, 2, 2, None, Costs::default(), None).expect("1f1b");
    let f = |micro| Step::Compute(Operation::new(Kind::F, 0, micro));
    let list = schedule.rank(0).to_vec();
    let steps: Vec<Step> = list.iter().copied().filter(|step| !matches!(step, Step::Recv(_))).collect();
    // Rank 0: everything forward and sent first; rank 1 sends its first error before it takes the second activation.
    let mut first: Vec<Step> = vec![f(0), f(1)];
    first.extend(steps.iter().filter(|step| matches!(step, Step::Send(_))));
    for step in &list {
        if matches!(step, Step::Recv(_)) || matches!(step, Step::Compute(operation) if operation.kind != Kind::F) {
            first.push(*step);
        }
    }
    let mut second = schedule.rank(1).to_vec();
    let taken = second.iter().rposition(|step| matches!(step, Step::Recv(_))).expect("rank 1 takes two activations");
    let step = second.remove(taken);
    let sent = second.iter().position(|step| matches!(step, Step::Send(_))).expect("rank 1 sends errors");
    second.insert(sent + 1, step);
    let at = second.iter().position(|step| *step == Step::Compute(Operation::new(Kind::F, 1, 1)));
    assert!(at.is_some_and(|at| at > sent + 1), "the second forward comes after its receive: {second:?}");
    let lists = [first, second];
    verdict(&schedule, &lists, 1).expect("there is room for the message");
    let error = verdict(&schedule, &lists, 0).expect_err("both wait");
    assert!(matches!(error, ScheduleError::Fault(Fault::Deadlock { room: 0, .. })), "{error}");
}

#[test]
fn chunks_lie_where_the_shapes_say() {
    let vee = Placement::new(Shape::Vee, 4, 2);
    assert_eq!((0..8).map(|chunk| vee.place(chunk)).collect::<Vec<_>>(), [0, 1, 2, 3, 3, 2, 1, 0]);
    let round = Placement::new(Shape::Round, 3, 2);
    assert_eq!((0..6).map(|chunk| round.place(chunk)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    let both = Placement::new(Shape::Both, 4, 2);
    assert_eq!((0..8).map(|chunk| both.place(chunk)).collect::<Vec<_>>(), [0, 1, 2, 3, 3, 2, 1, 0]);
    assert_eq!((both.after(3), both.before(4), both.copies()), (None, None, 2));
    assert!(both.carries(0, 2) && both.carries(4, 3) && !both.carries(4, 2));
}
