//! Supervisor thread: waits for events of all children, starts children for other threads, and runs the calls
//! that these threads request.

use std::cell::Cell;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::error::os_limit::NO_EVENTS;
use crate::error::{Result, SpawnError, launch_error};
use crate::parent::supervisor::shared::{SERVER, Supervisor, SupervisorCall, TIMER, WAKE};
use crate::sys;

thread_local! {
    // fork: a copy has no supervisor thread, and the supervisor thread makes no copies.
    static IS_SUPERVISOR: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` on the supervisor thread. A callback, which runs on this thread, must not wait for a
/// process: the thread could not reap the process meanwhile.
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
        // Signal handlers of the program must run on threads of the program. Blocking a valid set can't fail.
        let _ = sys::block_signals();
        IS_SUPERVISOR.set(true);
        mp_core::waits::serves(mp_core::waits::Service::Supervisor);
        crate::sys::oom::begin();
        loop {
            match self.shared.handle_events(None) {
                Ok(false) => {}
                Ok(true) => {
                    drain(&self.shared.wake);
                    self.incoming.try_iter().for_each(|call| call());
                }
                Err(error) => return self.fail_all(error),
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

impl Supervisor {
    /// Waits for events for at most this time, and handles them. Returns `true` if other threads have sent
    /// requests.
    pub(crate) fn handle_events(&self, time: Option<&Timespec>) -> io::Result<bool> {
        let mut events = [MaybeUninit::uninit(); 64];
        let events = match epoll::wait(&self.poll, &mut events, time) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let mut requested = false;
        for event in events {
            match event.data.u64() {
                WAKE => requested = true,
                TIMER => {
                    drain(&self.timer);
                    self.handle_timeouts();
                }
                SERVER => self.reap_servers(),
                id => self.handle_event(id >> 1, id & 1 == 1, event.flags),
            }
        }
        Ok(requested)
    }
}

/// Resets an eventfd or a timer.
fn drain(fd: &OwnedFd) {
    let mut count = [0u8; 8];
    // An empty counter is not an error: the state that it announces is stored elsewhere.
    let _ = rustix::io::read(fd, &mut count);
}
