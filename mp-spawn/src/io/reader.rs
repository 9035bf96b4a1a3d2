//! Thread that reads the output of all workers and passes on their lines.
//!
//! | lines in the pipe | the thread that reaps the process | a thread that waits for the process |
//! |---|---|---|
//! | none, or all are written | does nothing | continues |
//! | some are not written | sets `ended`, and requests a write from the reading thread | waits until `ended` is reset, or nothing is written for [`STILL`] |
//! | has lines that are being written | the same | the same |
//!
//! Only the reading thread writes the lines to the streams of this process. During a write it holds no lock
//! of this crate, because the write may block for an unlimited time: the standard library locks the streams,
//! and a thread of the program may hold a stream's lock while it waits for a worker.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mp_core::fork::PerProcess;
use mp_core::long_lived_fds;
use mp_core::mutex::{Condvar, Mutex, MutexGuard};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::error::os_limit::{NO_EPOLL, OWN_WATCH};
use crate::error::{Result, launch_error};
use crate::io::captured::OutputPipe;
use crate::io::tee::Tee;
use crate::sys::{new_event, notify};

/// Time without a write after which waiters stop waiting for a blocked terminal.
const STILL: Duration = Duration::from_millis(200);
/// Time for which this process waits for a blocked terminal before it exits.
const WAIT_AT_EXIT: Duration = Duration::from_secs(2);

/// State of the reading thread.
#[derive(Debug)]
pub(crate) struct OutputReader {
    process: u32,
    poll: OwnedFd,
    pipes: Mutex<(u64, HashMap<u64, Arc<OutputPipe>>)>,
    /// Pipes of processes that have ended, with lines to be written.
    requested: Mutex<Vec<Arc<OutputPipe>>>,
    /// Time of the last write of lines. Locked before the state of a pipe, never after it.
    written: Mutex<Option<Instant>>,
    /// Notified after each write of lines, and when all lines of an ended process are written.
    written_event: Condvar,
    /// Eventfd that is readable while `requested` may have pipes.
    bell: OwnedFd,
}

/// Event number of the eventfd `bell`. Pipes have higher event numbers.
const BELL: u64 = 0;

static READER: PerProcess<Mutex<Option<Arc<OutputReader>>>> = mp_core::per_process!(Mutex::new(None));

/// Adds a pipe to the thread that reads output, and starts the thread if necessary. The thread reads the pipe
/// until the last writer has closed it.
pub(crate) fn add_pipe(pipe: &Arc<OutputPipe>) -> Result<()> {
    let reader = {
        let mut slot = READER.lock();
        match &*slot {
            Some(running) if running.process == std::process::id() => Arc::clone(running),
            _ => Arc::clone(slot.insert(OutputReader::begin()?)),
        }
    };
    let id = {
        let mut pipes = reader.pipes.lock();
        pipes.0 += 1;
        let id = pipes.0;
        pipes.1.insert(id, Arc::clone(pipe));
        id
    };
    let added = match &pipe.state.lock().fd {
        Some(fd) => epoll::add(&reader.poll, fd, epoll::EventData::new_u64(id), epoll::EventFlags::IN),
        None => Ok(()),
    };
    added.map_err(|error| {
        reader.pipes.lock().1.remove(&id);
        launch_error(OWN_WATCH, None, error.into())
    })
}

impl OutputReader {
    fn begin() -> Result<Arc<OutputReader>> {
        let refused = |what| move |error: Errno| launch_error(what, None, error.into());
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused(NO_EPOLL))?;
        let bell = new_event(0)?;
        epoll::add(&poll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(refused(OWN_WATCH))?;
        long_lived_fds::register("output: epoll", &poll);
        long_lived_fds::register("output: bell", &bell);
        let reader = Arc::new(OutputReader {
            process: std::process::id(),
            poll,
            pipes: Mutex::default(),
            requested: Mutex::default(),
            written: Mutex::default(),
            written_event: Condvar::new(),
            bell,
        });
        let run = Arc::clone(&reader);
        thread::Builder::new()
            .name("mp-output".to_string())
            .spawn(move || run.run())
            .map_err(|error| launch_error("the thread for output", None, error))?;
        Ok(reader)
    }

    /// Returns the reader of this process, if it has one.
    pub(crate) fn current() -> Option<Arc<OutputReader>> {
        READER.lock().as_ref().filter(|reader| reader.process == std::process::id()).map(Arc::clone)
    }

    /// Requests that the thread write the lines of a pipe.
    pub(crate) fn request_write(&self, pipe: &Arc<OutputPipe>) {
        self.requested.lock().push(Arc::clone(pipe));
        // Fails only if the counter is at its maximum, and then the eventfd is readable.
        notify(&self.bell);
    }

    /// Writes the complete lines. Called only on the reading thread.
    fn write_lines(&self, pipe: &OutputPipe) {
        let mut state = pipe.state.lock();
        while let Some((stream, lines)) = state.tee.as_mut().and_then(Tee::begin) {
            MutexGuard::unlocked(&mut state, || {
                stream.write(&lines);
                *self.written.lock() = Some(Instant::now());
                self.written_event.notify_all();
            });
            if let Some(tee) = &mut state.tee {
                tee.end();
            }
        }
        let ended = state.ended.take();
        drop(state);
        if ended.is_some() {
            // The lock ensures that no waiter is between its check and its sleep.
            let _written = self.written.lock();
            self.written_event.notify_all();
        }
    }

    /// Waits until the lines that a process left in a pipe are written. Stops waiting if no lines are written
    /// for a while. Returns `false` if `until` passed first.
    pub(crate) fn wait_for(&self, pipe: &OutputPipe, until: Option<Instant>) -> bool {
        let mut written = self.written.lock();
        loop {
            let Some(ended) = pipe.state.lock().ended else { return true };
            let still_until = written.map_or(ended, |written| written.max(ended)) + STILL;
            let now = Instant::now();
            if still_until <= now {
                return true;
            }
            if until.is_some_and(|until| until <= now) {
                return false;
            }
            // The loop checks the state again after each wake-up.
            let _ = self
                .written_event
                .wait_until(&mut written, until.map_or(still_until, |until| until.min(still_until)));
        }
    }

    /// Writes the lines that other threads have queued.
    fn write_requested(&self) {
        // An empty eventfd is not an error.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        loop {
            let Some(pipe) = self.requested.lock().last().map(Arc::clone) else { return };
            self.write_lines(&pipe);
            // Removed only after the write, so that an exit handler finds the pipe. Other pipes may have been
            // queued meanwhile.
            self.requested.lock().retain(|requested| !Arc::ptr_eq(requested, &pipe));
        }
    }

    fn run(&self) {
        // Signal handlers of the program must run on threads of the program. Blocking a valid set can't fail.
        let _ = crate::sys::block_signals();
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.poll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // An error of `epoll_wait` is not known to happen. Workers would then block on full pipes
                // until the pipes are drained at the ends of the workers.
                Err(_) => return,
            }
            for event in &events {
                let id = event.data.u64();
                if id == BELL {
                    self.write_requested();
                    continue;
                }
                let Some(pipe) = self.pipes.lock().1.get(&id).map(Arc::clone) else { continue };
                let mut state = pipe.state.lock();
                if !state.pump() {
                    // Closing the descriptor removes it from the epoll set.
                    state.fd = None;
                    self.pipes.lock().1.remove(&id);
                }
                drop(state);
                self.write_lines(&pipe);
            }
        }
    }
}

/// Waits, at the exit of this process, until the output of ended workers is written, for at most
/// [`WAIT_AT_EXIT`].
pub(crate) fn write_at_exit() {
    let Some(reader) = OutputReader::current() else { return };
    let until = Instant::now() + WAIT_AT_EXIT;
    let requested = reader.requested.lock().clone();
    let mut written = reader.written.lock();
    let is_left = |pipe: &Arc<OutputPipe>| pipe.state.lock().ended.is_some();
    while requested.iter().any(is_left) && !reader.written_event.wait_until(&mut written, until).timed_out() {
    }
}
