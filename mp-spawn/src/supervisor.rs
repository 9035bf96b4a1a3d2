//! The one thread of a process that starts all its children, hears them, and reaps them.
//!
//! **Invariant:** children are started by this thread only. A child asks the kernel to end it when its parent
//! ends, and there "parent" means the thread that started it; so that thread must live as long as the process.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use std::{io, mem, thread};

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::error::{Result, SpawnError};
use crate::launch::{self, Command, failed};
use crate::sys;
use crate::watch::{Common, Orders, Watch};

/// The data of the event that announces new batches; other events have the number of their process.
const WAKE: u64 = u64::MAX;

/// The processes of one start, to be started.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) command: Command,
    pub(crate) common: Common,
    pub(crate) orders: Orders,
}

#[derive(Debug)]
struct Job {
    batch: Batch,
    /// The processes of it that run.
    started: Vec<u64>,
    reply: Sender<Result<()>>,
}

#[derive(Debug)]
struct Supervisor {
    /// The process that it belongs to: another one after a fork.
    process: u32,
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
}

static SUPERVISOR: Mutex<Option<Supervisor>> = Mutex::new(None);

/// Starts the processes of a batch, in order. Blocks until all run, or one could not be started; then those
/// that run already have got a SIGKILL.
pub(crate) fn start(batch: Batch) -> Result<()> {
    let (reply, answer) = channel();
    let gone = || failed("the supervisor thread", None, io::Error::other("it has ended"));
    {
        let mut slot = SUPERVISOR.lock();
        if slot.as_ref().is_none_or(|running| running.process != std::process::id()) {
            *slot = Some(begin()?);
        }
        let Some(supervisor) = slot.as_ref() else { return Err(gone()) };
        if supervisor.jobs.send(Job { batch, started: Vec::new(), reply }).is_err() {
            *slot = None;
            return Err(gone());
        }
        rustix::io::write(&supervisor.wake, &1u64.to_ne_bytes())
            .map_err(|error| failed("write to an eventfd", None, error.into()))?;
    }
    answer.recv().unwrap_or_else(|_| Err(gone()))
}

fn begin() -> Result<Supervisor> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| failed("eventfd", None, error.into()))?;
    let wake = Arc::new(wake);
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(|error| failed("epoll_create", None, error.into()))?;
    epoll::add(&poll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)
        .map_err(|error| failed("epoll_ctl", None, error.into()))?;
    let (jobs, incoming) = channel();
    let run =
        Loop { poll, wake: Arc::clone(&wake), incoming, jobs: Vec::new(), watches: HashMap::new(), next: 0 };
    thread::Builder::new()
        .name("mp-supervisor".to_string())
        .spawn(|| run.run())
        .map_err(|error| failed("the supervisor thread", None, error))?;
    Ok(Supervisor { process: std::process::id(), jobs, wake })
}

struct Loop {
    poll: OwnedFd,
    wake: Arc<OwnedFd>,
    incoming: Receiver<Job>,
    jobs: Vec<Job>,
    watches: HashMap<u64, Watch>,
    next: u64,
}

impl Loop {
    fn run(mut self) {
        // A handler of the program runs in one of the program's threads. This can't fail for a valid set.
        let _ = sys::block_signals();
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.poll, spare_capacity(&mut events), self.time_out().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return self.give_up(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => self.take_jobs(),
                    id => self.attend(id >> 1, id & 1 == 1, event.flags),
                }
            }
            self.check_patience();
            self.start_one();
        }
    }

    /// How long to wait for events: not at all while there is something to start.
    fn time_out(&self) -> Option<Timespec> {
        if !self.jobs.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let until = self.watches.values().filter_map(|watch| watch.hello_until).min()?;
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up: waking early would only lead to another wait.
        let left = left.saturating_add(std::time::Duration::from_millis(1));
        Some(Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        })
    }

    fn take_jobs(&mut self) {
        let mut count = [0u8; 8];
        // Nothing to read is fine: the queue is what counts.
        let _ = rustix::io::read(&self.wake, &mut count);
        self.jobs.extend(self.incoming.try_iter());
    }

    /// Something happened to a process, or to its socket.
    fn attend(&mut self, id: u64, ended: bool, flags: epoll::EventFlags) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        if ended {
            if watch.reap() {
                self.forget(id);
            }
            return;
        }
        if flags.contains(epoll::EventFlags::OUT)
            && watch.send()
            && let Some(socket) = &watch.socket
        {
            let listen = epoll::EventFlags::IN;
            // If this fails, the socket stays writable and the next turn tries again.
            let _ = epoll::modify(&self.poll, socket, epoll::EventData::new_u64(id << 1), listen);
        }
        if !watch.receive()
            && let Some(socket) = watch.socket.take()
        {
            // Explicitly, for a forked process may hold the socket too. It was added, so this can't fail.
            let _ = epoll::delete(&self.poll, &socket);
        }
    }

    fn forget(&mut self, id: u64) {
        let Some(watch) = self.watches.remove(&id) else { return };
        // Both were added, so neither can fail.
        let _ = epoll::delete(&self.poll, &watch.pidfd);
        if let Some(socket) = &watch.socket {
            let _ = epoll::delete(&self.poll, socket);
        }
        watch.close();
    }

    fn check_patience(&mut self) {
        if self.watches.values().all(|watch| watch.hello_until.is_none()) {
            return;
        }
        let now = Instant::now();
        for watch in self.watches.values_mut() {
            if watch.hello_until.is_some_and(|until| until <= now) {
                watch.out_of_patience();
            }
        }
    }

    /// Starts one process, so that those that run already get their turn before the next one.
    fn start_one(&mut self) {
        let Some(job) = self.jobs.first_mut() else { return };
        let outcome = match job.batch.orders.pop_front() {
            None => Some(Ok(())),
            Some(order) => {
                let started = launch::launch(&job.batch.command).and_then(|launched| {
                    let mut watch = Watch::new(job.batch.common.clone(), order, launched);
                    let id = self.next;
                    let added = add(&self.poll, id, &mut watch);
                    match added {
                        Err(_) => watch.abandon(),
                        Ok(()) => {
                            self.next += 1;
                            job.started.push(id);
                            self.watches.insert(id, watch);
                        }
                    }
                    added
                });
                match started {
                    Err(error) => Some(Err(error)),
                    Ok(()) if job.batch.orders.is_empty() => Some(Ok(())),
                    Ok(()) => None,
                }
            }
        };
        let Some(outcome) = outcome else { return };
        let job = self.jobs.remove(0);
        if outcome.is_err() {
            for watch in job.started.iter().filter_map(|id| self.watches.get(id)) {
                watch.kill();
            }
        }
        // Nobody listens if the thread that asked is gone; its context isn't.
        let _ = job.reply.send(outcome);
    }

    /// Nothing can be heard any more: says so, and lets nobody wait.
    fn give_up(mut self, error: io::Error) {
        let SpawnError::Launch(why) = failed("epoll_wait", None, error) else { return };
        for mut watch in mem::take(&mut self.watches).into_values() {
            watch.fail(SpawnError::Launch(why.clone()));
            watch.abandon();
        }
        for job in mem::take(&mut self.jobs) {
            let _ = job.reply.send(Err(SpawnError::Launch(why.clone())));
        }
    }
}

/// Begins to watch a process: sends what its socket takes, and listens to it and to its end.
fn add(poll: &OwnedFd, id: u64, watch: &mut Watch) -> Result<()> {
    let refused = |error: Errno| failed("epoll_ctl", None, error.into());
    let end = epoll::EventData::new_u64(id << 1 | 1);
    epoll::add(poll, watch.pidfd.as_fd(), end, epoll::EventFlags::IN).map_err(refused)?;
    let sent = watch.send();
    if let Some(socket) = &watch.socket {
        let flags = if sent { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT };
        epoll::add(poll, socket, epoll::EventData::new_u64(id << 1), flags).map_err(refused)?;
    }
    Ok(())
}
