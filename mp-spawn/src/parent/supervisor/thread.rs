//! Supervisor thread: waits for events of all children, starts children for other threads, and runs their
//! calls.

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::error::os_limit::NO_EVENTS;
use crate::error::{SpawnError, launch_error};
use crate::parent::supervisor::{
    IS_SUPERVISOR, SERVER, StartJob, Supervisor, SupervisorRequest, TIMER, WAKE,
};
use crate::sys;

pub(super) struct Loop {
    pub(super) shared: Arc<Supervisor>,
    pub(super) incoming: Receiver<SupervisorRequest>,
    pub(super) jobs: Vec<StartJob>,
}

impl Loop {
    pub(super) fn run(mut self) {
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
                Err(error) => return self.give_up(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => self.take_jobs(),
                    TIMER => self.take_timer(),
                    SERVER => self.shared.reap_servers(),
                    id => self.shared.attend(id >> 1, id & 1 == 1, event.flags),
                }
            }
            self.start_one();
        }
    }

    fn take_jobs(&mut self) {
        drain(&self.shared.wake);
        for request in self.incoming.try_iter() {
            match request {
                SupervisorRequest::Start(job) => self.jobs.push(*job),
                SupervisorRequest::Call(call) => call(),
            }
        }
    }

    fn take_timer(&self) {
        drain(&self.shared.timer);
        self.shared.check_times();
    }

    /// Starts one process, so that events of running processes are handled before the next start.
    fn start_one(&mut self) {
        let Some(job) = self.jobs.first_mut() else { return };
        let outcome = match job.batch.orders.pop_front() {
            None => Ok(()),
            Some(order) => self.shared.launch(&job.batch, order).map(|id| job.started.push(id)),
        };
        if outcome.is_ok() && !job.batch.orders.is_empty() {
            return;
        }
        let StartJob { batch, started, reply, .. } = self.jobs.remove(0);
        if outcome.is_err() {
            self.shared.kill(&started);
        }
        // Frees the reserved places before the caller learns of the failure and may retry.
        drop(batch);
        // The requesting thread may have ended. Its context still exists.
        let _ = reply.send(outcome);
    }

    /// Fails all processes and jobs after an epoll error, so that no caller waits.
    fn give_up(mut self, error: io::Error) {
        let SpawnError::Launch(why) = launch_error(NO_EVENTS, None, error) else { return };
        // Done without the lock, because callbacks of the user run here and may query other processes.
        let watches = mem::take(&mut self.shared.watches.lock().by_id);
        for mut watch in watches.into_values() {
            watch.fail(SpawnError::Launch(why.clone()));
            watch.abandon();
        }
        for job in mem::take(&mut self.jobs) {
            let _ = job.reply.send(Err(SpawnError::Launch(why.clone())));
        }
    }
}

/// Resets an eventfd or a timer.
fn drain(fd: &OwnedFd) {
    let mut count = [0u8; 8];
    // An empty counter is not an error: the state that it announces is stored elsewhere.
    let _ = rustix::io::read(fd, &mut count);
}
