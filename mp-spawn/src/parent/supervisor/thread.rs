//! Supervisor thread: waits for events of all children, starts children for other threads, and runs their
//! calls.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::error::os_limit::NO_EVENTS;
use crate::error::{Result, SpawnError, launch_error};
use crate::parent::supervisor::shared::{SERVER, StartJob, Supervisor, SupervisorRequest, TIMER, WAKE};
use crate::sys;

thread_local! {
    // fork: a copy has no supervisor thread, and the supervisor thread makes no copies.
    static IS_SUPERVISOR: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` on the supervisor thread, which runs callbacks. A process that this thread waits for would
/// not be reaped.
pub(crate) fn is_this_thread() -> bool {
    IS_SUPERVISOR.try_with(Cell::get).unwrap_or(false)
}

/// Starts the thread.
pub(super) fn start() -> Result<Arc<Supervisor>> {
    let (requests, incoming) = channel();
    let shared = Arc::new(Supervisor::new(requests)?);
    let event_loop = EventLoop { shared: Arc::clone(&shared), incoming, jobs: VecDeque::new() };
    std::thread::Builder::new()
        .name("mp-supervisor".to_string())
        .spawn(|| event_loop.run())
        .map_err(|error| launch_error("the supervisor thread", None, error))?;
    Ok(shared)
}

struct EventLoop {
    shared: Arc<Supervisor>,
    incoming: Receiver<SupervisorRequest>,
    jobs: VecDeque<Box<dyn StartJob>>,
}

impl EventLoop {
    fn run(mut self) {
        // Handlers of the program must run on threads of the program. Blocking a valid set can't fail.
        let _ = sys::block_signals();
        IS_SUPERVISOR.set(true);
        mp_core::waits::serves(mp_core::waits::Service::Supervisor);
        crate::sys::oom::begin();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let time_out = if self.jobs.is_empty() { None } else { Some(&at_once) };
            match epoll::wait(&self.shared.poll, spare_capacity(&mut events), time_out) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return self.fail_all(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => self.receive_requests(),
                    TIMER => self.handle_timer(),
                    SERVER => self.shared.reap_servers(),
                    id => self.shared.handle_event(id >> 1, id & 1 == 1, event.flags),
                }
            }
            self.start_one();
        }
    }

    fn receive_requests(&mut self) {
        drain(&self.shared.wake);
        for request in self.incoming.try_iter() {
            match request {
                SupervisorRequest::Start(job) => self.jobs.push_back(job),
                SupervisorRequest::Call(call) => call(),
            }
        }
    }

    fn handle_timer(&self) {
        drain(&self.shared.timer);
        self.shared.handle_timeouts();
    }

    /// Starts one process, so that events of running processes are handled before the next start.
    fn start_one(&mut self) {
        if let Some(job) = self.jobs.pop_front().and_then(StartJob::step) {
            self.jobs.push_front(job);
        }
    }

    /// Fails all processes and jobs after an epoll error, so that no caller waits.
    fn fail_all(mut self, error: io::Error) {
        let SpawnError::Launch(why) = launch_error(NO_EVENTS, None, error) else { return };
        // Done without the lock, because callbacks of the user run here and may query other processes.
        let children = mem::take(&mut self.shared.children.lock().by_id);
        for mut child in children.into_values() {
            child.fail(SpawnError::Launch(why.clone()));
            child.abandon();
        }
        for job in mem::take(&mut self.jobs) {
            job.fail(SpawnError::Launch(why.clone()));
        }
    }
}

/// Resets an eventfd or a timer.
fn drain(fd: &OwnedFd) {
    let mut count = [0u8; 8];
    // An empty counter is not an error: the state that it announces is stored elsewhere.
    let _ = rustix::io::read(fd, &mut count);
}
