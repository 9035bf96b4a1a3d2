//! Small messages: with many processes, with many queues, and while many messages wait.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use mp::Queue;

use super::effort::{Effort, Times, same};
use crate::peers::{crossbeam, iceoryx2, ipc_channel};
use crate::work::{Link, now};
use crate::{Result, limits, ours};

/// Time limit for a contender to create the links of a size.
const MAKING: Duration = Duration::from_secs(5);

/// Defines the measurements of a contender whose links `$looped` creates.
macro_rules! links {
    ($($name:ident $looped:path;)*) => {$(
        // No contender has all curves.
        #[allow(dead_code)]
        pub(super) mod $name {
            use super::*;

            /// Measures a message over one link.
            pub(in crate::grow) fn echo(effort: &Effort, _: u64) -> Result<Times> {
                effort.echo(&mut $looped()?)
            }

            /// Measures a message over one link, while a message waits in each of `size` other links.
            pub(in crate::grow) fn among(effort: &Effort, size: u64) -> Result<Times> {
                let mut others = make(size, $looped)?;
                for (number, other) in others.iter_mut().enumerate() {
                    other.send(number as u64)?;
                }
                let times = effort.echo(&mut $looped()?)?;
                for (number, mut other) in others.into_iter().enumerate() {
                    same(number as u64, other.receive()?)?;
                }
                Ok(times)
            }

            /// Measures a message over each of `size` links, one after the other.
            pub(in crate::grow) fn in_turn(effort: &Effort, size: u64) -> Result<Times> {
                let mut links = make(size, $looped)?;
                let mut next = 0;
                effort.each(|number| {
                    next = if next + 1 == links.len() { 0 } else { next + 1 };
                    links[next].send(number)?;
                    same(number, links[next].receive()?)
                })
            }

            /// Measures creation and drop of a link, while `size` other links exist.
            pub(in crate::grow) fn open(effort: &Effort, size: u64) -> Result<Times> {
                let _others = make(size, $looped)?;
                effort.each(|_| Ok(drop(black_box($looped()?))))
            }
        }
    )*};
}

/// Private queue with as much memory as a queue of mp.
struct Deque(VecDeque<[u64; 2]>);

impl Deque {
    fn looped() -> Result<Self> {
        let mut deque = VecDeque::with_capacity(1024);
        // Writes the memory, so that it has pages.
        deque.resize(1024, [0; 2]);
        deque.clear();
        Ok(Self(deque))
    }
}

impl Link for Deque {
    #[inline]
    fn send(&mut self, message: u64) -> Result<()> {
        self.0.push_back([message; 2]);
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        Ok(self.0.pop_front().ok_or("empty")?[0])
    }
}

links! {
    private Deque::looped;
    own ours::looped;
    limit limits::looped;
    threads crossbeam::looped;
    sockets ipc_channel::looped;
    services iceoryx2::looped;
}

/// Creates `size` links.
fn make<L>(size: u64, one: impl Fn() -> Result<L>) -> Result<Vec<L>> {
    let start = Instant::now();
    let timed = |number| {
        if start.elapsed() > MAKING {
            return Err(format!("only {number} of {size} were made within {MAKING:?}").into());
        }
        one()
    };
    (0..size).map(timed).collect()
}

/// Message that needs an envelope of mp.
type Message = (u64, [u64; 4]);

fn message(number: u64) -> Message {
    (number, [number; 4])
}

/// Queue without a limit, for the curves with waiting messages.
trait Backlog: Sized {
    fn make() -> Result<Self>;
    fn put(&mut self, message: Message) -> Result<()>;
    fn get(&mut self) -> Result<Option<Message>>;
}

impl Backlog for Queue<Message> {
    fn make() -> Result<Self> {
        Ok(Self::unbounded()?)
    }

    #[inline]
    fn put(&mut self, message: Message) -> Result<()> {
        Ok(Self::put(self, message)?)
    }

    #[inline]
    fn get(&mut self) -> Result<Option<Message>> {
        Ok(self.try_get()?)
    }
}

/// A channel of crossbeam, with both of its ends.
type Channel = (crossbeam_channel::Sender<Message>, crossbeam_channel::Receiver<Message>);

impl Backlog for Channel {
    fn make() -> Result<Self> {
        Ok(crossbeam_channel::unbounded())
    }

    #[inline]
    fn put(&mut self, message: Message) -> Result<()> {
        Ok(self.0.send(message)?)
    }

    #[inline]
    fn get(&mut self) -> Result<Option<Message>> {
        Ok(Some(self.1.try_recv()?))
    }
}

/// Message in private memory, as large as an envelope.
#[repr(align(256))]
struct Padded(Message);

/// Private queue whose messages take as much memory as messages of mp.
type Private = VecDeque<Box<Padded>>;

impl Backlog for Private {
    fn make() -> Result<Self> {
        Ok(Self::new())
    }

    #[inline]
    fn put(&mut self, message: Message) -> Result<()> {
        self.push_back(Box::new(Padded(message)));
        Ok(())
    }

    #[inline]
    fn get(&mut self) -> Result<Option<Message>> {
        Ok(self.pop_front().map(|message| message.0))
    }
}

/// Returns a queue in which `size` messages wait.
fn filled<B: Backlog>(size: u64) -> Result<B> {
    let mut queue = B::make()?;
    (0..size).try_for_each(|number| queue.put(message(number)))?;
    Ok(queue)
}

/// Measures a message through an empty queue, while `size` messages wait in another queue.
fn elsewhere<B: Backlog>(effort: &Effort, size: u64) -> Result<Times> {
    let (mut waiting, mut queue) = (filled::<B>(size)?, B::make()?);
    let times = effort.each(|number| {
        queue.put(message(number))?;
        same(Some(message(number)), queue.get()?)
    })?;
    (0..size).try_for_each(|number| same(Some(message(number)), waiting.get()?))?;
    Ok(times)
}

/// Measures a put after `size` waiting messages, and a get of the oldest message.
fn within<B: Backlog>(effort: &Effort, size: u64) -> Result<Times> {
    let mut queue = filled::<B>(size)?;
    effort.each(|number| {
        queue.put(message(number + size))?;
        same(Some(message(number)), queue.get()?)
    })
}

/// Measures the drop of a queue in which `size` messages wait.
fn dropped<B: Backlog>(effort: &Effort, size: u64) -> Result<Times> {
    effort.sample(1_000, || {
        let queue = filled::<B>(size)?;
        let start = now();
        drop(queue);
        Ok(now() - start)
    })
}

pub(super) fn own_elsewhere(effort: &Effort, size: u64) -> Result<Times> {
    elsewhere::<Queue<Message>>(effort, size)
}

pub(super) fn limit_elsewhere(effort: &Effort, size: u64) -> Result<Times> {
    elsewhere::<Private>(effort, size)
}

pub(super) fn threads_elsewhere(effort: &Effort, size: u64) -> Result<Times> {
    elsewhere::<Channel>(effort, size)
}

pub(super) fn own_within(effort: &Effort, size: u64) -> Result<Times> {
    within::<Queue<Message>>(effort, size)
}

pub(super) fn limit_within(effort: &Effort, size: u64) -> Result<Times> {
    within::<Private>(effort, size)
}

pub(super) fn threads_within(effort: &Effort, size: u64) -> Result<Times> {
    within::<Channel>(effort, size)
}

pub(super) fn own_dropped(effort: &Effort, size: u64) -> Result<Times> {
    dropped::<Queue<Message>>(effort, size)
}

pub(super) fn limit_dropped(effort: &Effort, size: u64) -> Result<Times> {
    dropped::<Private>(effort, size)
}

/// Measures the death of a process, while `size` messages wait.
pub(super) fn recover(effort: &Effort, size: u64) -> Result<Times> {
    let _waiting: Queue<Message> = filled(size)?;
    super::processes::recover(effort, size)
}

pub(super) fn threads_dropped(effort: &Effort, size: u64) -> Result<Times> {
    dropped::<Channel>(effort, size)
}
