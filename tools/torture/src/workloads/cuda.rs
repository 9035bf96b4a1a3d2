//! Workload with tensors and events of a simulated GPU. Each group has its own session of the simulator.
//!
//! | killed process | guarantee |
//! |---|---|
//! | a producer, a relay | a tensor whose work never ran is reported as lost; each other tensor has the values that follow from its message's number |
//! | a consumer | the message that it was getting is lost |
//! | any | its memory is reused only after its writes have run, which the simulator checks; at the end, no memory of the device is in use |

use std::path::{Path, PathBuf};
use std::time::Duration;

use mp::queue::broadcast::{self, RecvError};
use mp::{Arena, Bundle, GetError, Message, PutError, Queue};
use mp_cuda::{CudaEvent, CudaStream, CudaTensor, Device, Error, FrozenCudaTensor};
use mp_cuda_sim::session::{Finding, Session, Setup};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::Op;
use crate::bookkeeping::ledger::Account;
use crate::random::{Random, mix};
use crate::rounds::crew::Clock;
use crate::workloads::work::{LONG, Worker};

/// Numbers of producers, of relays (which take messages and put them again), and of consumers. The first
/// relay has no GPU.
pub(crate) const PRODUCERS: usize = 2;
pub(crate) const RELAYS: usize = 2;
pub(crate) const CONSUMERS: usize = 2;

/// Time-out of waits for messages that might never arrive.
const SHORT: Duration = Duration::from_millis(5);
/// Largest capacity of a queue.
const MOST: u64 = 8;

/// Message with an exclusive or a frozen tensor, and possibly with an event that is recorded after the work
/// that fills the tensor.
#[derive(Message)]
pub(crate) struct Freight {
    number: u64,
    moved: Bundle<Option<CudaTensor<u32>>>,
    frozen: Option<FrozenCudaTensor<u32>>,
    done: Option<CudaEvent>,
}

/// Broadcast message, which every consumer receives.
type News = (u64, FrozenCudaTensor<u32>, CudaEvent);

/// Queues between the workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ways {
    made: Queue<Freight>,
    relayed: Queue<Freight>,
    news: broadcast::Sender<News>,
    heard: broadcast::Receiver<News>,
}

/// Session of a group, and the objects that its workers share.
#[derive(Debug)]
pub(crate) struct Gpu {
    session: Session,
    /// Queues of the workers. Dropped after the workers have ended, because the messages in them use memory
    /// of the device.
    ways: Option<Ways>,
    killed: Vec<u32>,
}

/// Returns the paths of the simulator's files, which are next to this program. Returns the path of a missing
/// file as an error.
fn files() -> Result<[PathBuf; 2], PathBuf> {
    let this = std::env::current_exe().unwrap_or_default();
    let folder = this.parent().unwrap_or(Path::new("."));
    let mut files = ["mp-cuda-sim-engine", "libmp_cuda_sim.so"].map(|name| folder.join(name));
    if !files[1].exists() {
        // Path in a build of only the tests.
        files[1] = folder.join("deps/libmp_cuda_sim.so");
    }
    files.iter().find(|file| !file.exists()).map_or(Ok(files.clone()), |file| Err(file.clone()))
}

/// Returns an error if a file of the simulator is missing. The error names the command that builds the
/// simulator.
pub(crate) fn is_there() -> Result<(), String> {
    let profile = if cfg!(debug_assertions) { "" } else { " --release" };
    files().map(drop).map_err(|file| {
        format!(
            "cuda is left out: there is no {}; cargo build{profile} -p mp-cuda-sim makes it",
            file.display()
        )
    })
}

impl Gpu {
    pub(crate) fn new(random: &mut Random) -> mp::AnyResult<Self> {
        let [engine, library] = files().map_err(|file| format!("{} is missing", file.display()))?;
        let seed = random.below(1 << 32);
        let late = random.pick(&[0, 1, 10]);
        let session = Setup::new(&engine, &library).set("SEED", seed).set("LATE_MS", late).start()?;
        let (news, heard) = broadcast::channel(random.pick(&[1, 4]))?;
        let queue = |random: &mut Random| Queue::bounded(random.pick(&[1, 2, MOST as usize]));
        let ways = Ways { made: queue(random)?, relayed: queue(random)?, news, heard };
        Ok(Self { session, ways: Some(ways), killed: Vec::new() })
    }

    pub(crate) fn ways(&self) -> mp::AnyResult<Ways> {
        Ok(self.ways.clone().ok_or("the workers have ended")?)
    }

    pub(crate) fn killed(&mut self, pid: u32) {
        self.killed.push(pid);
    }

    pub(crate) fn close(&self) {
        if let Some(ways) = &self.ways {
            _ = (ways.made.close(), ways.relayed.close());
        }
    }

    /// Configures worker `i` to load the simulated driver of the session, or no driver for the relay without
    /// a GPU.
    pub(crate) fn prepare(
        &self,
        i: usize,
        process: mp::process::ProcessBuilder,
    ) -> mp::process::ProcessBuilder {
        match i == PRODUCERS {
            true => process.env("LD_LIBRARY_PATH", "").env_remove("MP_CUDA_SIM"),
            false => {
                self.session.environment().into_iter().fold(process, |p, (name, value)| p.env(name, value))
            }
        }
    }

    /// Returns `true` for a finding that a killed worker has caused, and that harms no other worker:
    /// - a race with a read of a killed worker, because no process gets the values;
    /// - a race between a killed worker and a stream that waited for that worker, or a read of memory that
    ///   the killed worker was going to write. The death releases the stream, whose results are reported as
    ///   lost.
    fn is_harmless(&self, found: &Finding) -> bool {
        let line: serde_json::Value = serde_json::from_str(&found.line).unwrap_or_default();
        let was_killed = |pid: &serde_json::Value| {
            pid.as_u64().is_some_and(|pid| self.killed.iter().any(|killed| u64::from(*killed) == pid))
        };
        let operations = [&line["earlier"], &line["later"], &line];
        let released = || {
            let mut dead = operations.iter().filter_map(|one| one["released_from"].as_array()).flatten();
            dead.any(was_killed)
        };
        let reads = || ["earlier", "later"].iter().any(|one| line[one]["writes"] == false);
        match found.kind.as_str() {
            "race" if reads() => released() || operations.iter().any(|one| was_killed(&one["pid"])),
            "race" => line["released"] == true && operations.iter().any(|one| was_killed(&one["pid"])),
            "unwritten" => released(),
            _ => false,
        }
    }

    fn stat(&self, name: &str) -> mp::AnyResult<u64> {
        let stats = self.session.stats()?;
        let value = &stats[name];
        let number = value.as_u64().or_else(|| value.as_array()?.iter().map(|one| one.as_u64()).sum());
        Ok(number.ok_or_else(|| format!("the simulator has no number of {name}"))?)
    }

    /// Checks that no resource of the ended workers is left in the simulator, and that all its findings are
    /// harmless.
    pub(crate) fn settle(&mut self, account: &Account) -> mp::AnyResult<()> {
        // For each dead worker: messages in the queues, and messages that all other workers had in hand.
        let allowed = self.killed.len() as u64 * (2 * MOST + 8);
        if account.lost > allowed {
            return Err(format!("lost: the data of {} tensors, where {allowed} may be", account.lost).into());
        }
        self.ways = None;
        let mut clock = Clock::new();
        loop {
            Arena::current()?.reclaim()?;
            let left = (self.stat("bytes")?, self.stat("processes")?);
            if left == (0, 0) {
                break;
            }
            if clock.passed().as_secs() >= 10 {
                let (bytes, processes) = left;
                return Err(format!("leaked: {bytes} bytes on the device, {processes} processes").into());
            }
            clock.tick();
        }
        match self.session.findings()?.iter().find(|found| !self.is_harmless(found)) {
            Some(found) => Err(format!("torn: the simulator found {}: {}", found.kind, found.line).into()),
            None => Ok(()),
        }
    }
}

fn value(number: u64) -> u32 {
    mix(number) as u32
}

impl Worker {
    fn stream(&self) -> mp::AnyResult<CudaStream> {
        Ok(CudaStream::new(&Device::new(0)?)?)
    }

    fn filled(&mut self, number: u64, stream: &CudaStream) -> mp::AnyResult<CudaTensor<u32>> {
        let len = self.random.pick(&[1, 100, 3000, 70_000]);
        let mut tensor = CudaTensor::zeros([len], stream)?;
        tensor.fill(value(number), stream)?;
        Ok(tensor)
    }

    /// Checks the values that were read from the tensor of message `number`. Returns `false` if the tensor is
    /// reported as lost, and an error for wrong values.
    fn whole(&self, number: u64, read: mp_cuda::Result<Vec<u32>>) -> mp::AnyResult<bool> {
        match read {
            Ok(values) => match values.iter().position(|found| *found != value(number)) {
                None => Ok(true),
                Some(at) => Err(format!(
                    "torn: element {at} of {} of message {number} is {:#x} instead of {:#x}",
                    values.len(),
                    values[at],
                    value(number)
                )
                .into()),
            },
            Err(Error::ProducerDied { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the stream or this thread wait for the event. The death of the event's process is not an error.
    fn behind(&mut self, event: &CudaEvent, stream: &CudaStream) -> mp::AnyResult<()> {
        let waited = if self.random.percent(70) { event.wait(stream) } else { event.synchronize() };
        match waited {
            Ok(()) | Err(Error::ProducerDied { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs a producer: creates and puts tensors, and sometimes broadcasts a tensor to all consumers.
    pub(crate) fn make_on_gpu(&mut self, ways: &Ways) -> mp::AnyResult<()> {
        let streams = [self.stream()?, self.stream()?];
        let mut reported = 0;
        while !self.row.over() {
            let stream = &streams[self.random.below(2) as usize];
            if self.random.percent(20) {
                reported += 1;
                self.row.note(Op::Send, reported);
                let tensor = self.filled(reported, stream)?.freeze();
                let event = CudaEvent::new()?;
                event.record(stream)?;
                ways.news.send((reported, tensor, event)).map_err(PutError::forget)?;
                continue;
            }
            let Some(number) = self.ledger.begin() else { return Ok(()) };
            self.row.note(Op::Put, number);
            let tensor = self.filled(number, stream)?;
            let done = if self.random.percent(30) { Some(CudaEvent::new()?) } else { None };
            done.iter().try_for_each(|event| event.record(stream))?;
            let (moved, frozen) = match self.random.percent(50) {
                true => (Bundle(Some(tensor)), None),
                false => (Bundle(None), Some(tensor.freeze())),
            };
            self.was_put(number, ways.made.put_timeout(Freight { number, moved, frozen, done }, LONG))?;
        }
        Ok(())
    }

    /// Runs a relay: takes messages and puts them again. With a GPU, copies or rewrites some of their
    /// tensors.
    pub(crate) fn relay(&mut self, ways: &Ways, gpu: bool) -> mp::AnyResult<()> {
        let stream = if gpu { Some(self.stream()?) } else { None };
        while !self.row.over() {
            self.row.note(Op::Get, ways.made.len() as u64);
            let mut freight = match ways.made.get_timeout(SHORT) {
                Ok(Some(freight)) => freight,
                Ok(None) => return Ok(()),
                Err(GetError::Empty) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(stream) = &stream {
                match self.handled(&mut freight, stream) {
                    // The consumer of this message gets the same error.
                    Ok(()) | Err(Error::ProducerDied { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.row.note(Op::Put, freight.number);
            ways.relayed.put_timeout(freight, LONG).map_err(PutError::forget)?;
        }
        Ok(())
    }

    /// Copies an exclusive tensor on the stream, rewrites it in place, or leaves it unchanged, at random.
    fn handled(&mut self, freight: &mut Freight, stream: &CudaStream) -> mp_cuda::Result<()> {
        let Some(tensor) = &mut freight.moved.0 else { return Ok(()) };
        match self.random.below(3) {
            0 => {
                let mut copy = CudaTensor::zeros(tensor.shape(), stream)?;
                copy.copy_from(tensor, stream)?;
                *tensor = copy;
                Ok(())
            }
            1 => tensor.fill(value(freight.number), stream),
            _ => Ok(()),
        }
    }

    /// Runs a consumer: takes messages of producers and relays, and receives broadcast messages, until no
    /// more messages arrive.
    pub(crate) fn consume_on_gpu(&mut self, ways: &Ways) -> mp::AnyResult<()> {
        let stream = self.stream()?;
        let heard = ways.heard.resubscribe()?;
        let mut open = [true, true];
        while open != [false, false] {
            self.hear(&heard, &stream)?;
            for (queue, open) in [&ways.relayed, &ways.made].into_iter().zip(&mut open) {
                self.row.note(Op::Get, queue.len() as u64);
                match queue.get_timeout(SHORT) {
                    Ok(Some(freight)) => self.take(freight, &stream)?,
                    Ok(None) => *open = false,
                    Err(GetError::Empty) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, freight: Freight, stream: &CudaStream) -> mp::AnyResult<()> {
        let Freight { number, moved, frozen, done } = freight;
        self.ledger.got(number, true)?;
        self.row.note(Op::Read, number);
        if let Some(event) = &done {
            self.behind(event, stream)?;
        }
        for read in moved.0.iter().map(|t| t.to_vec(stream)).chain(frozen.iter().map(|t| t.to_vec(stream))) {
            if !self.whole(number, read)? {
                self.ledger.lost(number)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, heard: &broadcast::Receiver<News>, stream: &CudaStream) -> mp::AnyResult<()> {
        match heard.recv_timeout(Duration::ZERO) {
            Ok((number, tensor, event)) => {
                self.row.note(Op::Receive, number);
                self.behind(&event, stream)?;
                self.whole(number, tensor.to_vec(stream)).map(drop)
            }
            Err(RecvError::Lagged(_) | RecvError::Empty) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
