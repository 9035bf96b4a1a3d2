//! Workload with consumers that wait for several objects at once: queues, a channel, a pipe, an event, and
//! processes. The queues, the channel and the pipe are called *paths*.
//!
//! | subject | guarantee |
//! |---|---|
//! | an object that [`wait`](mp::wait()) returns | the object is ready, or another worker has taken its message; that does not happen indefinitely |
//! | messages | each message arrives once, and the messages of a sender arrive in order on each path; a killed consumer loses the message that it was taking |
//! | the end of a path | [`wait`](mp::wait()) returns the path when it is closed, or has no sender |
//! | a process | [`wait`](mp::wait()) returns a child process that has ended, and never the parent, which is alive |

use mp::connection::one_way_pipe;
use mp::process::{ExitStatus, Signal};
use mp::{
    Connection, Event, GetError, Process, Queue, QueueOptions, Receiver, Sender, Waitable, bounded_channel,
    parent_process,
};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::Op;
use crate::bookkeeping::parcel::Parcel;
use crate::random::Random;
use crate::workloads::work::{LONG, Worker};

/// Largest number of consecutive wake-ups without a message.
const FRUITLESS: u32 = 100_000;

/// Sending ends of all paths, for producers.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Outlets {
    bounded: Queue<Parcel>,
    growing: Queue<Parcel>,
    sender: Sender<Parcel>,
    pipe: Connection,
    bell: Event,
}

/// Receiving ends of all paths, for consumers.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Inlets {
    bounded: Queue<Parcel>,
    growing: Queue<Parcel>,
    receiver: Receiver<Parcel>,
    pipe: Connection,
    bell: Event,
}

/// Both ends of all paths, held by the process that starts the workers.
pub(crate) struct Ways {
    outlets: Option<Outlets>,
    inlets: Inlets,
}

impl Ways {
    pub(crate) fn new(random: &mut Random) -> mp::AnyResult<Self> {
        let bounded = QueueOptions::new().capacity(random.pick(&[1, 2, 8, 64])).create()?;
        let growing = Queue::growing(random.pick(&[300, 1000]))?;
        let (sender, receiver) = bounded_channel(random.pick(&[1, 8]))?;
        let (into, out) = one_way_pipe()?;
        let bell = Event::new()?;
        let inlets = Inlets {
            bounded: bounded.clone(),
            growing: growing.clone(),
            receiver,
            pipe: into,
            bell: bell.clone(),
        };
        Ok(Self { outlets: Some(Outlets { bounded, growing, sender, pipe: out, bell }), inlets })
    }

    pub(crate) fn outlets(&self) -> mp::AnyResult<Outlets> {
        self.outlets.clone().ok_or_else(|| "nothing more is put".into())
    }

    pub(crate) fn inlets(&self) -> Inlets {
        self.inlets.clone()
    }

    /// Ends all paths: closes the queues, and drops the last sending ends of the channel and the pipe.
    pub(crate) fn close(&mut self) {
        if let Some(outlets) = self.outlets.take() {
            outlets.bounded.close();
            outlets.growing.close();
        }
    }

    pub(crate) fn describe(&self) -> String {
        let Inlets { bounded, growing, receiver, pipe, bell } = &self.inlets;
        format!("{bounded:?}, {growing:?}, {receiver:?}, {pipe:?}, bell {}", bell.is_set())
    }
}

/// Object for which a consumer waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Bounded,
    Growing,
    Channel,
    Pipe,
    Bell,
    Parent,
    Child,
}

/// Result of an attempt to take a message from an object that is reported as ready.
enum TakeOutcome {
    Message(Parcel),
    /// The object has no message, because another worker was faster.
    Nothing,
    /// No more messages arrive.
    End,
}

impl Inlets {
    /// Takes a message from an object without waiting.
    fn take(&self, source: Source) -> mp::AnyResult<TakeOutcome> {
        let got = match source {
            Source::Bounded => self.bounded.try_get(),
            Source::Growing => self.growing.try_get(),
            Source::Channel => self.receiver.try_recv().map(Some),
            _ => self.pipe.try_recv().map(Some),
        };
        match got {
            Ok(Some(parcel)) => Ok(TakeOutcome::Message(parcel)),
            Ok(None) | Err(GetError::Disconnected) => Ok(TakeOutcome::End),
            Err(GetError::Empty) => Ok(TakeOutcome::Nothing),
            Err(error) => Err(format!("from {source:?}: {error}").into()),
        }
    }
}

/// Child process of a consumer. The child exits at once, or is killed before.
struct Child {
    process: Process<()>,
    killed: bool,
}

impl Child {
    fn start(killed: bool) -> mp::AnyResult<Self> {
        let process = Process::spawn(|(): ()| {}, ())?;
        if killed {
            process.kill()?;
        }
        Ok(Self { process, killed })
    }

    /// Joins the child after it was reported as ended.
    fn join(self) -> mp::AnyResult<()> {
        // Another thread reaps the child within moments.
        self.process.wait_timeout(LONG);
        match (self.process.exit(), self.process.join()) {
            (Some(ExitStatus::Signal { signal: Signal::KILL, .. }), Err(_)) if self.killed => Ok(()),
            (_, end) => Ok(end?),
        }
    }
}

impl Worker {
    /// Puts messages into random paths, until the round has ended.
    pub(crate) fn put_anywhere(&mut self, to: &Outlets) -> mp::AnyResult<()> {
        while let Some(parcel) = self.next(Op::Put)? {
            let number = parcel.job.number;
            let end = match self.random.below(10) {
                0..4 => to.bounded.put_timeout(parcel, LONG),
                4..7 => to.growing.put_timeout(parcel, LONG),
                7..9 => to.sender.send_timeout(parcel, LONG),
                // A send into the pipe never waits.
                _ => to.pipe.send(parcel),
            };
            self.was_put(number, end)?;
            if self.random.percent(2) {
                self.row.note(Op::Ring, number);
                to.bell.set()?;
            }
        }
        Ok(())
    }

    /// Takes messages from all paths, until no more messages arrive.
    pub(crate) fn select(&mut self, from: &Inlets) -> mp::AnyResult<()> {
        let parent = parent_process().ok_or("a worker without a parent")?;
        let mut child: Option<Child> = None;
        let mut open = vec![Source::Bounded, Source::Growing, Source::Channel, Source::Pipe];
        let mut fruitless = 0;
        while !open.is_empty() {
            if child.is_none() && self.random.below(400) == 0 {
                self.row.note(Op::Child, 0);
                child = Some(Child::start(self.random.percent(50))?);
            }
            let mut sources = open.clone();
            sources.extend(self.random.percent(50).then_some(Source::Bell));
            sources.extend(self.random.percent(20).then_some(Source::Parent));
            sources.extend(child.is_some().then_some(Source::Child));
            let first = self.random.below(sources.len() as u64) as usize;
            sources.rotate_left(first);
            let mut things: Vec<&dyn Waitable> = Vec::new();
            for source in &sources {
                things.push(match source {
                    Source::Bounded => &from.bounded,
                    Source::Growing => &from.growing,
                    Source::Channel => &from.receiver,
                    Source::Pipe => &from.pipe,
                    Source::Bell => &from.bell,
                    Source::Parent => &parent,
                    Source::Child => &child.as_ref().ok_or("no child")?.process,
                });
            }
            self.row.note(Op::Wait, sources.len() as u64);
            let found = match self.random.percent(50) {
                true => mp::select(&things, Some(LONG))?.into_iter().collect(),
                false => mp::wait(&things, Some(LONG))?,
            };
            if found.is_empty() {
                return Err(format!("hang: none of {sources:?} became ready").into());
            }
            for source in found.into_iter().map(|i| sources[i]) {
                fruitless += 1;
                match source {
                    Source::Bell => _ = from.bell.clear()?,
                    Source::Parent => return Err("torn: the parent was said to have ended".into()),
                    Source::Child => child.take().map_or(Ok(()), Child::join)?,
                    _ => match from.take(source)? {
                        TakeOutcome::Message(parcel) => {
                            fruitless = 0;
                            self.got_by(source as u8, &parcel)?;
                        }
                        TakeOutcome::End => open.retain(|&other| other != source),
                        TakeOutcome::Nothing => {}
                    },
                }
                if fruitless > FRUITLESS {
                    return Err(format!("hang: {source:?} was ready {fruitless} times, for nothing").into());
                }
            }
        }
        if let Some(child) = child {
            self.row.note(Op::Child, 1);
            if mp::wait(&[&child.process], Some(LONG))?.is_empty() {
                return Err("hang: a process that ends at once is still there".into());
            }
            child.join()?;
        }
        Ok(())
    }
}
