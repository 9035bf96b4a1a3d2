//! Group of workers that share one structure, and the guarantees that are checked at the end.

use std::fmt;

use mp::process::ProcessBuilder;
use mp::queue::JoinableQueueError;
use mp::{
    Connection, JoinableQueue, Manager, Queue, QueueOptions, Receiver, Sender, StartMethod, bounded_channel,
    channel, pipe,
};

use crate::bookkeeping::ledger::{Account, Ledger};
use crate::bookkeeping::parcel::{Job, Parcel};
use crate::random::Random;
use crate::rounds::crew::Exposure;
use crate::workloads::cuda::{self, Gpu};
use crate::workloads::files::Cargo;
use crate::workloads::hosts::Hosts;
use crate::workloads::leaving::Sides;
use crate::workloads::loader::LOADERS;
use crate::workloads::locks::Locks;
use crate::workloads::newest::{ToAll, Watched};
use crate::workloads::objects::Objects;
use crate::workloads::pool::{IN_POOL, WORKERS};
use crate::workloads::select::Ways;
use crate::workloads::sockets::{CLIENTS, Service};
use crate::workloads::work::{IN_PIPE, Work};

/// Kind of structure that a group uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Bounded,
    Growing,
    Acknowledged,
    Channel,
    Joinable,
    Pipe,
    Select,
    Futures,
    Leaving,
    Socket,
    Pool,
    Loader,
    Locks,
    Watch,
    Broadcast,
    Objects,
    Files,
    Net,
    Cuda,
}

impl Kind {
    pub(crate) const ALL: [Kind; 19] = [
        Kind::Bounded,
        Kind::Select,
        Kind::Acknowledged,
        Kind::Watch,
        Kind::Locks,
        Kind::Files,
        Kind::Broadcast,
        Kind::Socket,
        Kind::Growing,
        Kind::Net,
        Kind::Futures,
        Kind::Channel,
        Kind::Cuda,
        Kind::Pool,
        Kind::Joinable,
        Kind::Loader,
        Kind::Leaving,
        Kind::Objects,
        Kind::Pipe,
    ];

    /// Returns `true` if the structure has no messages that a ledger counts. For this kind, operations are
    /// counted instead.
    pub(crate) const fn counts_operations(self) -> bool {
        matches!(self, Kind::Locks | Kind::Watch | Kind::Broadcast | Kind::Objects | Kind::Loader)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Bounded => "bounded queue, batches, bytes",
            Kind::Growing => "growing queue, batches",
            Kind::Acknowledged => "queue with acknowledgement",
            Kind::Channel => "channel",
            Kind::Joinable => "joinable queue",
            Kind::Pipe => "pipe",
            Kind::Select => "wait and select",
            Kind::Futures => "futures, some dropped",
            Kind::Leaving => "channel whose sides leave",
            Kind::Socket => "sockets",
            Kind::Pool => "pool",
            Kind::Loader => "data loader",
            Kind::Locks => "locks",
            Kind::Watch => "watch",
            Kind::Broadcast => "broadcast",
            Kind::Objects => "objects of a manager",
            Kind::Files => "files in messages",
            Kind::Net => "queue of a cluster",
            Kind::Cuda => "tensors and events of a GPU",
        }
    }
}

/// Handles to the structure of a group, which this program holds.
enum Ends {
    Queue(Queue<Parcel>),
    Jobs(Queue<Job>),
    Channel(Option<Sender<Parcel>>, Receiver<Parcel>),
    Tasks(JoinableQueue<Job>),
    /// Both ends of a pipe. They are held only until both workers have started, because no other process may
    /// have an end.
    Pipe(Box<[Option<Connection>; 2]>),
    Ways(Box<Ways>),
    Futures(Queue<Parcel>),
    /// Both sides of a channel. They are held only until the workers have started.
    Sides(Sides),
    Service(Service),
    /// `true` if the pool's workers may be forked.
    Pool(bool),
    /// `true` if the loader's workers may be forked.
    Loader(bool),
    Locks(Box<Locks>),
    Watched(Watched),
    ToAll(ToAll),
    /// Manager, and its objects. The drop of the manager ends its server process.
    Objects(Manager, Objects),
    Files(Queue<Cargo>),
    Hosts(Box<Hosts>),
    Gpu(Box<Gpu>),
}

/// Group of workers that share one structure.
pub(crate) struct Group {
    pub(crate) kind: Kind,
    pub(crate) ledger: Ledger,
    ends: Ends,
    producers: usize,
    pub(crate) workers: usize,
    /// Largest number of messages that a consumer takes at once.
    batch: usize,
    /// Number of messages that may be missing at the end, because of killed workers.
    allowed: u64,
}

impl Group {
    /// Creates a group with a random structure of this kind. `copies` is `true` if its processes may be
    /// forked.
    pub(crate) fn new(kind: Kind, copies: bool, random: &mut Random) -> mp::AnyResult<Self> {
        let capacity = random.pick(&[1, 2, 8, 64]);
        let ends = match kind {
            Kind::Bounded => {
                let bytes = random.pick(&[0, 100_000, 2_000_000]);
                Ends::Queue(QueueOptions::new().capacity(capacity).bytes(bytes).create()?)
            }
            Kind::Growing => Ends::Queue(Queue::growing(random.pick(&[300, 1000, 2000]))?),
            Kind::Acknowledged => {
                // Deliveries are unlimited, or a message is set aside after three.
                let deliveries = random.pick(&[0, 3]);
                Ends::Jobs(QueueOptions::new().capacity(capacity).deliveries(deliveries).create()?)
            }
            Kind::Channel => {
                let bounded = random.percent(70);
                let (sender, receiver) = if bounded { bounded_channel(capacity)? } else { channel()? };
                Ends::Channel(Some(sender), receiver)
            }
            Kind::Joinable => Ends::Tasks(JoinableQueue::bounded(capacity)?),
            Kind::Pipe => Ends::Pipe(Box::default()),
            Kind::Select => Ends::Ways(Box::new(Ways::new(random)?)),
            Kind::Futures => Ends::Futures(Queue::bounded(random.pick(&[1, 2, 8]))?),
            Kind::Leaving => Ends::Sides(Sides::new(random)),
            Kind::Socket => Ends::Service(Service::new(random)?),
            Kind::Pool => Ends::Pool(copies),
            Kind::Loader => Ends::Loader(copies),
            Kind::Locks => Ends::Locks(Box::new(Locks::new()?)),
            Kind::Watch => Ends::Watched(Watched::new()?),
            Kind::Broadcast => Ends::ToAll(ToAll::new(random)?),
            Kind::Objects => {
                let manager = Manager::start()?;
                let objects = Objects::new(&manager)?;
                Ends::Objects(manager, objects)
            }
            Kind::Files => Ends::Files(Queue::bounded(capacity)?),
            Kind::Net => Ends::Hosts(Box::new(Hosts::new(random)?)),
            Kind::Cuda => Ends::Gpu(Box::new(Gpu::new(random)?)),
        };
        let (producers, consumers) = match (kind, &ends) {
            (_, Ends::Hosts(hosts)) => hosts.workers(),
            (Kind::Locks | Kind::Watch | Kind::Broadcast | Kind::Objects, _) => (3, 0),
            (Kind::Pipe, _) => (1, 1),
            (Kind::Pool | Kind::Loader, _) => (1, 0),
            (Kind::Socket, _) => (CLIENTS, 1),
            (Kind::Futures, _) => (2, 2),
            (Kind::Cuda, _) => (cuda::PRODUCERS + cuda::RELAYS, cuda::CONSUMERS),
            _ => (1 + random.below(2) as usize, 1 + random.below(2) as usize),
        };
        let batch = if random.percent(40) { 1 + random.below(20) as usize } else { 1 };
        let ledger = Ledger::new()?;
        Ok(Self { kind, ledger, ends, producers, workers: producers + consumers, batch, allowed: 0 })
    }

    /// Returns `true` if worker `i` ends with the round, as workers do that put messages. Other workers end
    /// when no more messages arrive.
    pub(crate) fn produces(&self, i: usize) -> bool {
        i < self.producers
    }

    /// Returns `true` if a dead worker is replaced at once. Otherwise the group is started again after all
    /// its workers have ended.
    pub(crate) fn one_by_one(&self) -> bool {
        !matches!(self.kind, Kind::Pipe | Kind::Leaving)
    }

    /// Configures the start of worker `i`. A worker that needs its own environment is not forked, because a
    /// forked child doesn't read its environment again.
    pub(crate) fn prepare(&self, i: usize, process: ProcessBuilder) -> ProcessBuilder {
        match &self.ends {
            Ends::Gpu(gpu) => gpu.prepare(i, process.start_method(StartMethod::Spawn)),
            _ => process,
        }
    }

    /// Returns the signals to which worker `i` is exposed.
    pub(crate) fn exposure(&self, i: usize) -> Exposure {
        match &self.ends {
            Ends::Hosts(hosts) => hosts.exposure(i),
            _ => Exposure::default(),
        }
    }

    /// Returns the number of processes of the group, including processes that workers start.
    pub(crate) fn processes(&self) -> usize {
        match self.kind {
            Kind::Pool => self.workers * (1 + WORKERS),
            Kind::Loader => self.workers * (1 + LOADERS),
            Kind::Objects => self.workers + 1,
            _ => self.workers,
        }
    }

    /// Returns the work of worker `i`.
    pub(crate) fn work(&mut self, i: usize) -> mp::AnyResult<Work> {
        let produces = self.produces(i);
        Ok(match &mut self.ends {
            Ends::Queue(queue) if produces => Work::Put(queue.clone()),
            Ends::Queue(queue) => Work::Get(queue.clone(), self.batch),
            Ends::Jobs(queue) if produces => Work::PutJobs(queue.clone()),
            Ends::Jobs(queue) => Work::Acknowledge(queue.clone()),
            Ends::Channel(Some(sender), _) if produces => Work::Send(sender.clone()),
            Ends::Channel(_, receiver) => Work::Receive(receiver.clone()),
            Ends::Tasks(queue) if produces => Work::PutTasks(queue.clone()),
            Ends::Tasks(queue) => Work::DoTasks(queue.clone()),
            Ends::Pipe(ends) => {
                let [ping, pong] = &mut **ends;
                if produces {
                    let (here, there) = pipe()?;
                    (*ping, *pong) = (Some(here), Some(there));
                }
                match (produces, ping.take(), pong.take()) {
                    (true, Some(here), there) => {
                        *pong = there;
                        Work::Ping(here)
                    }
                    (false, None, Some(there)) => Work::Pong(there),
                    _ => return Err("the ends of a pipe are given away in order".into()),
                }
            }
            Ends::Ways(ways) if produces => Work::PutAnywhere(ways.outlets()?),
            Ends::Ways(ways) => Work::Select(ways.inlets()),
            // Half of the workers wait by futures, the other half by blocking calls.
            Ends::Futures(queue) => match (produces, i % 2) {
                (true, 0) => Work::PutAsync(queue.clone()),
                (true, _) => Work::Put(queue.clone()),
                (false, 0) => Work::GetAsync(queue.clone()),
                (false, _) => Work::Get(queue.clone(), 1),
            },
            Ends::Sides(sides) => match sides.of(i, self.workers)? {
                (sender, _) if produces => Work::SendAndLeave(sender),
                (_, receiver) => Work::ReceiveAll(receiver),
            },
            Ends::Service(service) if produces => Work::Call(service.clone()),
            Ends::Service(service) => Work::Serve(service.clone()),
            Ends::Pool(copies) => Work::OwnPool(*copies),
            Ends::Loader(copies) => Work::OwnLoader(*copies),
            Ends::Locks(locks) => Work::Lock(Locks::clone(locks)),
            Ends::Watched(watched) => Work::Watch(watched.clone()),
            Ends::ToAll(to_all) => Work::Broadcast(to_all.clone()),
            Ends::Objects(_, objects) => Work::Objects(objects.clone()),
            Ends::Files(queue) if produces => Work::PutFiles(queue.clone()),
            Ends::Files(queue) => Work::GetFiles(queue.clone()),
            Ends::Hosts(hosts) if produces => {
                let (config, puts) = hosts.client(i);
                Work::UseHome(config, puts)
            }
            Ends::Hosts(hosts) => {
                let (config, queue, over) = hosts.home();
                Work::BeHome(config, queue, over)
            }
            Ends::Gpu(gpu) if i < cuda::PRODUCERS => Work::MakeOnGpu(gpu.ways()?),
            Ends::Gpu(gpu) if produces => Work::Relay(gpu.ways()?, i > cuda::PRODUCERS),
            Ends::Gpu(gpu) => Work::ConsumeOnGpu(gpu.ways()?),
        })
    }

    /// Adds the number of messages that the death of worker `i` may lose to the permitted losses. `pid` is
    /// the id of the worker's process. `polled` is `true` if its last operation was to poll a future once.
    pub(crate) fn killed(&mut self, i: usize, pid: u32, polled: bool) {
        if let Ends::Gpu(gpu) = &mut self.ends {
            gpu.killed(pid);
        }
        self.allowed += match (self.kind, &self.ends) {
            (Kind::Locks | Kind::Watch | Kind::Broadcast | Kind::Objects | Kind::Loader, _) => 0,
            (Kind::Pipe, _) => 1 + IN_PIPE,
            // The killed listener had a connection for each client.
            (Kind::Socket, _) => (1 + IN_PIPE) * if self.produces(i) { 1 } else { CLIENTS as u64 },
            (Kind::Pool, _) => IN_POOL,
            // The relay may have had a message in hand.
            (Kind::Cuda, _) => u64::from(i >= cuda::PRODUCERS),
            (_, Ends::Hosts(hosts)) => hosts.cost(i, polled),
            _ if self.produces(i) => 0,
            (_, Ends::Sides(sides)) => sides.cost(),
            (Kind::Bounded | Kind::Growing, _) => self.batch as u64,
            _ => 1,
        };
    }

    /// Closes the structures, so that workers end.
    pub(crate) fn close(&mut self) -> mp::AnyResult<()> {
        match &mut self.ends {
            Ends::Queue(queue) => _ = queue.close(),
            Ends::Jobs(queue) => _ = queue.close(),
            Ends::Tasks(queue) => _ = queue.close(),
            Ends::Channel(sender, _) => *sender = None,
            Ends::Ways(ways) => ways.close(),
            Ends::Futures(queue) => _ = queue.close(),
            Ends::Files(queue) => _ = queue.close(),
            Ends::Gpu(gpu) => gpu.close(),
            Ends::Service(service) => service.close()?,
            Ends::Hosts(hosts) => hosts.close()?,
            Ends::Pipe(..) | Ends::Sides(_) | Ends::Pool(_) | Ends::Loader(_) => {}
            Ends::Locks(_) | Ends::Watched(_) | Ends::ToAll(_) | Ends::Objects(..) => {}
        }
        Ok(())
    }

    /// Checks the guarantees of the group, after all workers have ended. Returns the numbers of its messages.
    pub(crate) fn settle(&mut self) -> mp::AnyResult<Account> {
        match &mut self.ends {
            Ends::Gpu(gpu) => gpu.settle(&self.ledger.account())?,
            Ends::Locks(locks) => locks.settle()?,
            Ends::Watched(watched) => watched.settle()?,
            Ends::Service(service) => service.settle()?,
            Ends::Hosts(hosts) => hosts.settle(&self.ledger, self.allowed)?,
            Ends::Jobs(queue) => {
                while let Some(job) = queue.dead_letter()? {
                    job.check()?;
                    self.ledger.lost(job.number)?;
                }
            }
            Ends::Tasks(tasks) => match tasks.join() {
                Ok(()) => {}
                Err(JoinableQueueError::Lost(_)) => {
                    while let Some(task) = tasks.dead_letter()? {
                        task.check()?;
                        self.ledger.lost(task.number)?;
                    }
                }
                Err(error) => return Err(error.into()),
            },
            _ => {}
        }
        let account = self.ledger.account();
        let acknowledged = match &self.ends {
            Ends::Hosts(hosts) => hosts.acknowledged(),
            ends => matches!(ends, Ends::Jobs(_) | Ends::Tasks(_)),
        };
        let (missing, undone) = (account.missing, account.undone);
        let allowed = self.allowed;
        match acknowledged {
            true if missing > 0 => Err(format!("lost: {missing} messages that no consumer had taken").into()),
            _ if matches!(self.kind, Kind::Pool | Kind::Net) && missing + undone > allowed => {
                Err(format!("lost: {} messages without an end, where {allowed} may be", missing + undone)
                    .into())
            }
            true if undone > allowed => {
                Err(format!("lost: {undone} messages were got and never done, {allowed} consumers killed")
                    .into())
            }
            false if missing > allowed => {
                Err(format!("lost: {missing} messages, where {allowed} may be").into())
            }
            _ => Ok(account),
        }
    }
}

/// Prints the kind and the state of the structure.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind.name())?;
        match &self.ends {
            Ends::Queue(queue) => write!(f, "{queue:?}")?,
            Ends::Jobs(queue) => write!(f, "{queue:?}")?,
            Ends::Tasks(queue) => write!(f, "{queue:?}, {} unfinished", queue.unfinished())?,
            Ends::Channel(sender, receiver) => write!(f, "{sender:?}, {receiver:?}")?,
            Ends::Ways(ways) => write!(f, "{}", ways.describe())?,
            Ends::Futures(queue) => write!(f, "{queue:?}")?,
            Ends::Pipe(ends) => write!(f, "ends that were not given away: {ends:?}")?,
            Ends::Sides(sides) => write!(f, "{sides:?}")?,
            Ends::Service(service) => write!(f, "{service:?}")?,
            Ends::Pool(copies) | Ends::Loader(copies) => write!(f, "copies: {copies}")?,
            Ends::Locks(locks) => write!(f, "{locks:?}")?,
            Ends::Watched(watched) => write!(f, "{watched:?}")?,
            Ends::ToAll(to_all) => write!(f, "{to_all:?}")?,
            Ends::Objects(manager, objects) => write!(f, "{manager:?}, {objects:?}")?,
            Ends::Files(queue) => write!(f, "{queue:?}")?,
            Ends::Hosts(hosts) => write!(f, "{hosts:?}")?,
            Ends::Gpu(gpu) => write!(f, "{gpu:?}")?,
        }
        write!(f, "; {:?}, {} may be missing", self.ledger.account(), self.allowed)
    }
}
