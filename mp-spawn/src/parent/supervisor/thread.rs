//! Supervisor thread: waits for events of all children, starts children for other threads, and runs their
//! calls.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::{io, mem};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::error::os_limit::NO_EVENTS;
use crate::error::{Result, SpawnError, launch_error};
use crate::parent::supervisor::shared::{SERVER, Supervisor, SupervisorCall, TIMER, WAKE};
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
    let event_loop = EventLoop { shared: Arc::clone(&shared), incoming };
    std::thread::Builder::new()
        .name("mp-supervisor".to_string())
        .spawn(|| event_loop.run())
        .map_err(|error| launch_error("the supervisor thread", None, error))?;
    Ok(shared)
}

struct EventLoop {
    shared: Arc<Supervisor>,
    incoming: Receiver<SupervisorCall>,
}

impl EventLoop {
    fn run(self) {
        // Handlers of the program must run on threads of the program. Blocking a valid set can't fail.
        let _ = sys::block_signals();
        IS_SUPERVISOR.set(true);
        mp_core::waits::serves(mp_core::waits::Service::Supervisor);
        crate::sys::oom::begin();
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.shared.poll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return self.fail_all(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        drain(&self.shared.wake);
                        self.incoming.try_iter().for_each(|call| call());
                    }
                    TIMER => {
                        drain(&self.shared.timer);
                        self.shared.handle_timeouts();
                    }
                    SERVER => self.shared.reap_servers(),
                    id => self.shared.handle_event(id >> 1, id & 1 == 1, event.flags),
                }
            }
        }
    }

    /// Fails all processes after an epoll error, so that no caller waits.
    fn fail_all(self, error: io::Error) {
        let SpawnError::Launch(why) = launch_error(NO_EVENTS, None, error) else { return };
        // Done without the lock, because callbacks of the user run here and may query other processes.
        let children = mem::take(&mut self.shared.children.lock().by_id);
        for mut child in children.into_values() {
            child.fail(SpawnError::Launch(why.clone()));
            child.abandon();
        }
    }
}

/// Resets an eventfd or a timer.
fn drain(fd: &OwnedFd) {
    let mut count = [0u8; 8];
    // An empty counter is not an error: the state that it announces is stored elsewhere.
    let _ = rustix::io::read(fd, &mut count);
}
