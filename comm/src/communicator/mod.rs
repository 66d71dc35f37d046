//! The communicator: a group of ranks, and what they do together.

mod calls;
mod operations;
mod pending;
mod point;
mod scope;
mod split;
mod turn;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use pending::{Done, Pending, PendingError};
pub use point::Group;
pub use scope::{Scope, ScopedPending};

use crate::bootstrap::{Bootstrap, Site};
use crate::collective::{Algorithm, Circumstances, Descriptor, Engine};
use crate::transport::{Exchange, Setup, TransportKind, connect};
use crate::{CommError, Failure, Health, Verdict};
use pending::Worker;
use turn::{Ticket, Turn};

/// How a communicator works.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What carries the bytes; all ranks must give the same.
    pub transport: TransportKind,
    /// How collectives are carried out; all ranks must give the same. The environment variable `WARPWEFT_ALGO` overrides it.
    pub algorithm: Algorithm,
    /// The deadline of every wait; `None` takes the bootstrap's.
    pub timeout: Option<Duration>,
}

/// One rank's place in a group of ranks that call the same operations in the same order.
///
/// Methods take `&self` from any thread; operations run one after the other in the order of the calls, blocking or not.
/// After a failure the communicator is unusable: every later call returns the first failure at once. Every wait has a
/// deadline ([`set_timeout`](Self::set_timeout)), and a failed one says which peer it waited for and why.
///
/// Results are the same bits on all ranks, and in every run with the same algorithm, world and count (see
/// [`Algorithm`]). Dropping it finishes the non-blocking operations that were started, or aborts them at the deadline.
///
/// ```
/// use warpweft_comm::{Communicator, Op, Options, bootstrap};
/// let ranks = bootstrap::threads(2)?.into_iter().map(|bootstrap| {
///     std::thread::spawn(move || {
///         let comm = Communicator::new(bootstrap, Options::default())?;
///         let mut x = vec![1.0f32 + comm.rank() as f32; 1000];
///         comm.all_reduce(&mut x, Op::Sum)?;
///         assert_eq!(x, vec![3.0; 1000]);
///         Ok::<_, warpweft_comm::CommError>(())
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     rank.join().expect("no panic")?;
/// }
/// # Ok::<(), warpweft_comm::CommError>(())
/// ```
pub struct Communicator {
    shared: Arc<Shared>,
    worker: Worker,
}

/// What the calling threads and the progress thread share.
struct Shared {
    rank: usize,
    world: usize,
    local_rank: usize,
    kind: TransportKind,
    algorithm: Algorithm,
    /// The job's rank of each rank.
    members: Vec<usize>,
    health: Health,
    timeout_ns: AtomicU64,
    spins: u32,
    job: Job,
    turn: Arc<Turn>,
    waited: Arc<Waited>,
    /// `None` with one rank: nothing to talk to.
    live: Option<Mutex<Live>>,
    failed: OnceLock<Failure>,
}

/// What belongs to the job as a whole, and lasts as long as one of its communicators.
#[derive(Clone)]
struct Job {
    site: Site,
    /// The membership in the job: it ends in order when the last communicator goes.
    _membership: Arc<Mutex<Box<dyn Exchange + Send>>>,
}

/// What changes from operation to operation.
struct Live {
    engine: Engine,
    /// Collectives so far.
    sequence: u64,
    /// Reused by point-to-point calls.
    descriptors: Vec<Descriptor>,
}

impl Communicator {
    /// Connects the ranks of a job. Collective: returns once all have come, or at the deadline.
    ///
    /// # Errors
    /// [`CommError::Config`] for settings that contradict each other, [`CommError::Failed`] where ranks are missing.
    pub fn new(bootstrap: Bootstrap, options: Options) -> Result<Self, CommError> {
        let algorithm = Algorithm::from_env()?.unwrap_or(options.algorithm);
        let Bootstrap { rank, world, local_rank, health, timeout, site, mut exchange, .. } = bootstrap;
        let timeout = options.timeout.unwrap_or(timeout);
        let health = health.child();
        let setup = Setup { rank, world, exchange: &mut *exchange, health: &health, timeout, site: &site };
        let transport = connect(options.transport, setup)?;
        let job = Job { site, _membership: Arc::new(Mutex::new(exchange)) };
        let shape = Membership { rank, world, local_rank, members: (0..world).collect(), algorithm, timeout, health };
        Ok(Self::assemble(shape, job, transport))
    }

    /// A communicator of one rank: every call is local.
    pub fn alone() -> Self {
        let Bootstrap { rank, world, local_rank, health, timeout, site, exchange, .. } = Bootstrap::alone();
        let job = Job { site, _membership: Arc::new(Mutex::new(exchange)) };
        let algorithm = Algorithm::Auto;
        let shape = Membership { rank, world, local_rank, members: vec![0], algorithm, timeout, health };
        let shared = shape.shared(job, TransportKind::Thread, None);
        Self { shared: Arc::new(shared), worker: Worker::default() }
    }

    fn assemble(shape: Membership, job: Job, transport: Box<dyn crate::transport::Transport>) -> Self {
        let kind = transport.kind();
        let live = (shape.world > 1).then(|| {
            let engine = Engine::new(shape.rank, shape.world, transport);
            Mutex::new(Live { engine, sequence: 0, descriptors: Vec::new() })
        });
        Self { shared: Arc::new(shape.shared(job, kind, live)), worker: Worker::default() }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Ranks.
    pub fn world(&self) -> usize {
        self.shared.world
    }

    /// This rank among those of its host, when the job began.
    pub fn local_rank(&self) -> usize {
        self.shared.local_rank
    }

    /// What carries the bytes; never `Auto`.
    pub fn transport(&self) -> TransportKind {
        self.shared.kind
    }

    /// How collectives are carried out, as it was asked for.
    pub fn algorithm(&self) -> Algorithm {
        self.shared.algorithm
    }

    /// The health of this communicator: bad when it was aborted or the job has lost a rank.
    pub fn health(&self) -> &Health {
        &self.shared.health
    }

    /// Bytes of memory that this rank holds for data on its way: the rings that it sends through and what operations so far
    /// needed between their steps. Waits for an operation in progress.
    pub fn buffer_bytes(&self) -> usize {
        self.shared.live().map_or(0, |live| live.engine.buffer_bytes())
    }

    /// Bytes of the elements that this rank has sent to others, in the operations that finished so far: the payload, without
    /// the frames around it. Waits for an operation in progress.
    pub fn sent_bytes(&self) -> u64 {
        self.shared.live().map_or(0, |live| live.engine.sent_bytes())
    }

    /// Time in which callers have waited: for blocking calls to return, for operations under way, for a scope to end.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.shared.waited.0.load(Ordering::Relaxed))
    }

    /// The deadline of every wait from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.timeout_ns.store(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The deadline of every wait.
    pub fn timeout(&self) -> Duration {
        self.shared.timeout()
    }

    /// Ends this communicator from any thread: the operation in progress, if there is one, and all later ones fail, here
    /// and (as they learn of it in their own operations) on the other ranks, with this reason.
    pub fn abort(&self, reason: &str) {
        let shared = &self.shared;
        let verdict = Verdict::Aborted { by: shared.members[shared.rank], reason: reason.to_owned() };
        shared.health.report(verdict.clone());
        // An operation in progress sees the report, tells the others and lets go of the engine.
        let Some(mut live) = shared.live() else { return };
        if shared.failed.get().is_none() {
            let failure = live.engine.abort(verdict, &shared.circumstances());
            let _ = shared.failed.set(failure);
        }
    }

    /// A place in the order of operations, whose turn has come; the time until it goes is a caller's wait.
    fn enter(&self) -> Entered<'_> {
        let waiting = self.shared.waited.begin();
        let ticket = self.shared.turn.ticket();
        ticket.wait();
        Entered { _ticket: ticket, _waiting: waiting }
    }
}

/// A blocking call in its turn.
struct Entered<'a> {
    // Before the other: whoever comes next need not wait for the clock.
    _ticket: Ticket,
    _waiting: Waiting<'a>,
}

/// Nanoseconds in which callers waited.
#[derive(Default)]
struct Waited(AtomicU64);

/// A caller that waits, from its making to its end.
struct Waiting<'a> {
    waited: &'a Waited,
    begun: Instant,
}

impl Waited {
    fn begin(&self) -> Waiting<'_> {
        Waiting { waited: self, begun: Instant::now() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let nanoseconds = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited.0.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// What a communicator is made from.
struct Membership {
    rank: usize,
    world: usize,
    local_rank: usize,
    members: Vec<usize>,
    algorithm: Algorithm,
    timeout: Duration,
    health: Health,
}

impl Membership {
    fn shared(self, job: Job, kind: TransportKind, live: Option<Mutex<Live>>) -> Shared {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // More ranks than cores: whoever spins keeps the one that it waits for from running.
        let looks = if self.world <= cores { 800 } else { 8 };
        Shared {
            rank: self.rank,
            world: self.world,
            local_rank: self.local_rank,
            kind,
            algorithm: self.algorithm,
            members: self.members,
            health: self.health,
            timeout_ns: AtomicU64::new(u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX)),
            spins: looks / self.world as u32,
            job,
            turn: Arc::default(),
            waited: Arc::default(),
            live,
            failed: OnceLock::new(),
        }
    }
}

impl Shared {
    fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns.load(Ordering::Relaxed))
    }

    fn circumstances(&self) -> Circumstances<'_> {
        Circumstances { health: &self.health, members: &self.members, timeout: self.timeout(), spins: self.spins }
    }

    fn live(&self) -> Option<MutexGuard<'_, Live>> {
        self.live.as_ref().map(|live| live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The first failure, if there was one.
    fn usable(&self) -> Result<(), CommError> {
        self.failed.get().map_or(Ok(()), |failure| Err(failure.clone().into()))
    }

    /// Keeps the first failure for all later calls.
    fn fail(&self, failure: Failure) -> CommError {
        self.failed.get_or_init(|| failure).clone().into()
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {}, {})", self.rank(), self.world(), self.transport())
    }
}
