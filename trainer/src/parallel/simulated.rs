//! A pipeline whose computations are waits of given lengths: the executor and the links are those of training, so that what
//! it takes is what a schedule takes when its passes last as long as it was drawn up for.
//!
//! A message carries the time at which it was made, and is taken `comm` later at the earliest.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use warpweft_comm::{Communicator, Options, bootstrap};
use warpweft_device::{Buffer, Device, Stream};
use warpweft_schedule::{Kind, Operation, Schedule};

use crate::TrainError;
use crate::memory::{Account, Allocator};
use crate::parallel::executor::{Executor, Hops, Passes, most_hops};
use crate::parallel::links::{Links, directions};
use crate::parallel::mesh::{Mesh, Sizes};

/// What one rank did in one repeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its operations, in the order in which it did them.
    pub order: Vec<Operation>,
    /// The most passes that were under way at once.
    pub peak: usize,
    /// Messages that it sent.
    pub messages: usize,
    /// From the start of its first operation to the end of its last.
    pub span: Duration,
}

/// Runs a schedule on as many ranks, which are threads, `repeats` times after one that does not count; a unit of the
/// schedule's times lasts `unit`. Gives what each rank did, by repeat.
///
/// # Errors
/// Threads that are not to be had; a failed message.
pub fn run(schedule: &Schedule, unit: Duration, repeats: usize) -> Result<Vec<Vec<Run>>, TrainError> {
    let began = Instant::now();
    let runs = Mutex::new(vec![Vec::new(); schedule.ranks()]);
    let rank = |bootstrap| {
        let communicator = Arc::new(Communicator::new(bootstrap, Options::default())?);
        let rank = communicator.rank();
        let mine = rank_runs(schedule, (unit, began), repeats, communicator)?;
        runs.lock().unwrap_or_else(PoisonError::into_inner)[rank] = mine;
        Ok::<_, TrainError>(())
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = bootstrap::threads(schedule.ranks())?
            .into_iter()
            .map(|bootstrap| scope.spawn(|| rank(bootstrap)))
            .collect();
        ranks.into_iter().try_for_each(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((0..repeats).map(|repeat| runs.iter().map(|rank| rank[repeat].clone()).collect()).collect())
}

fn rank_runs(
    schedule: &Schedule,
    (unit, began): (Duration, Instant),
    repeats: usize,
    communicator: Arc<Communicator>,
) -> Result<Vec<Run>, TrainError> {
    let mesh = Mesh::new(communicator.clone(), Sizes { pp: schedule.ranks(), ..Sizes::ONE }, 1)?;
    let (stage, placement) = (mesh.place().pp, *schedule.placement());
    let (device, account) = (Device::cpu_with_threads(1)?, Account::default());
    let mut allocator = Allocator { device: &device, account: &account };
    let steps = schedule.rank(stage);
    let hops = Hops::new(most_hops(steps, &placement, stage), 1, &mut allocator)?;
    let mut executor = Executor::new(placement, stage, Links::new(&mesh, &directions(schedule))?, hops);
    let mut passes = Simulated { schedule, unit, began, stream: device.stream() };
    let mut runs = Vec::with_capacity(repeats);
    for repeat in 0..=repeats {
        communicator.barrier()?;
        let before = executor.links().sent_bytes();
        let tally = executor.walk(steps, &mut passes)?;
        let messages = (executor.links().sent_bytes() - before) as usize / size_of::<f64>();
        let order = tally.ran.iter().map(|ran| ran.operation).collect();
        if repeat > 0 {
            runs.push(Run { order, peak: tally.peak, messages, span: tally.span() });
        }
    }
    Ok(runs)
}

/// Operations that take time, and nothing else.
struct Simulated<'a> {
    schedule: &'a Schedule,
    unit: Duration,
    /// What the times in messages count from.
    began: Instant,
    stream: Stream,
}

impl Simulated<'_> {
    fn last(&self, operation: Operation) {
        thread::sleep(self.unit.mul_f64(self.schedule.costs().of(operation.kind, self.schedule.placement())));
    }

    /// A message that was made now.
    fn made(&self, mut message: Buffer<f64>) -> Result<Buffer<f64>, TrainError> {
        message.as_view_mut().fill(&self.stream, self.began.elapsed().as_secs_f64())?;
        Ok(message)
    }
}

impl Passes<f64> for Simulated<'_> {
    fn forward(
        &mut self,
        operation: Operation,
        input: Option<Buffer<f64>>,
        hops: &mut Hops<f64>,
    ) -> Result<Option<Buffer<f64>>, TrainError> {
        self.last(operation);
        input.into_iter().for_each(|input| hops.give(input));
        let goes_on = self.schedule.placement().after(operation.chunk).is_some();
        if goes_on { self.made(hops.take()?).map(Some) } else { Ok(None) }
    }

    fn backward(
        &mut self,
        operation: Operation,
        error: Option<Buffer<f64>>,
        hops: &mut Hops<f64>,
    ) -> Result<Option<Buffer<f64>>, TrainError> {
        self.last(operation);
        match (operation.kind, error) {
            (Kind::W, _) => Ok(None),
            (_, Some(error)) => self.made(error).map(Some),
            (_, None) => self.made(hops.take()?).map(Some),
        }
    }

    fn message_len(&self, _micro_batch: usize) -> usize {
        1
    }

    fn arrived(&mut self, message: &Buffer<f64>) {
        let comm = self.unit.mul_f64(self.schedule.costs().comm);
        // Memory of this device is the host's.
        let made = message.as_view().host().map_or(0.0, |message| message[0]);
        thread::sleep((Duration::from_secs_f64(made) + comm).saturating_sub(self.began.elapsed()));
    }
}
