//! What workers write: into files, into memory, or line by line to where this process writes.
//!
//! One thread of the process reads all pipes, so that no worker waits for somebody to ask for its output, and so that a
//! terminal that stands still delays nobody but that thread: starting, hearing and reaping go on. The memory that is kept
//! is bounded, whatever a worker writes. The end of a process is not the end of its pipe (a grandchild may hold it),
//! and nobody waits for that: what is there when the process is reaped is read then.
//!
//! Only that thread writes to the streams of this process, and it holds no lock then: the standard library has locks for
//! them, which whoever waits for a worker, or looks at its output, may hold for as long as it likes.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::{Condvar, Mutex, MutexGuard};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::error::Result;
use crate::launch::failed;
use crate::setup::{Output, Setup};

/// How much of what a stream says is kept.
const KEPT: usize = 1 << 20;
/// A line that is longer is passed on in pieces.
const LINE: usize = 64 << 10;
const CHUNK: usize = 64 << 10;
/// Chunks that are read from one pipe before the others get their turn; more than a pipe holds.
const CHUNKS_A_TURN: usize = 32;
/// How long a process that has ended waits for a terminal that stands still.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long this process does, before it exits.
const PATIENCE_AT_EXIT: Duration = Duration::from_secs(2);
/// Lines of a crashed worker that its error shows.
const LAST_LINES: usize = 12;

/// What a process has written to one of its streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// The last of it, at most a MiB.
    pub bytes: Vec<u8>,
    /// How many bytes came before these and were not kept.
    pub lost: u64,
}

impl Captured {
    /// As text; what is no UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The last lines, as the error of a crash shows them: at most twelve, without empty ones behind them; `None` if nothing
    /// was written.
    ///
    /// ```
    /// use mp_spawn::{Output, Process};
    ///
    /// let count = |(): ()| (1..=100).for_each(|line| println!("line {line}"));
    /// let child = Process::builder().stdout(Output::Capture).spawn(count, ())?;
    /// child.wait_timeout(std::time::Duration::from_secs(60));
    /// let last = child.stdout().last_lines().unwrap();
    /// assert!(last.starts_with("line 89\n") && last.ends_with("\nline 100"));
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    #[must_use]
    pub fn last_lines(&self) -> Option<String> {
        let bytes = self.bytes.trim_ascii_end();
        let ends = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        let start = ends.map(|(at, _)| at + 1).nth(LAST_LINES - 1).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[start..]);
        let lines: Vec<&str> = text.lines().collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

/// The reading ends of a process's streams, where this process has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    stdout: Option<Arc<Pipe>>,
    stderr: Option<Arc<Pipe>>,
}

/// What a process gets as its streams, where they are not inherited.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl Streams {
    /// Opens what a process is to write to.
    pub(crate) fn open(setup: &Setup, rank: usize, name: &str) -> Result<(Streams, Ends)> {
        let whose = match setup.number {
            Some(number) => Whose { number, name, label: name.to_string() },
            None => Whose { number: rank, name, label: format!("rank {rank}") },
        };
        let (mut streams, mut ends) = (Streams::default(), Ends::default());
        (streams.stdout, ends.stdout) = open(&setup.stdout, Stream::Stdout, &whose)?;
        (streams.stderr, ends.stderr) = open(&setup.stderr, Stream::Stderr, &whose)?;
        Ok((streams, ends))
    }

    /// Reads what is there, for the process has ended.
    pub(crate) fn drain(&self) {
        for pipe in [&self.stdout, &self.stderr].into_iter().flatten() {
            let mut state = pipe.state.lock();
            let _ = state.pump();
            state.flush();
            if state.is_passed_on() {
                continue;
            }
            drop(state);
            if let Some(reader) = Reader::ours() {
                reader.ask(pipe);
                pipe.wait_until_passed_on(Instant::now() + PATIENCE);
            }
        }
    }

    pub(crate) fn stdout(&self) -> Captured {
        self.stdout.as_ref().map(|pipe| pipe.captured()).unwrap_or_default()
    }

    pub(crate) fn stderr(&self) -> Captured {
        self.stderr.as_ref().map(|pipe| pipe.captured()).unwrap_or_default()
    }

    /// The last lines of its standard error, if they are known.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.stderr.as_ref()?.captured().last_lines()
    }
}

/// Which process writes.
struct Whose<'a> {
    /// Its rank, or the number of a process that has a handle of its own: all of those have the rank 0.
    number: usize,
    name: &'a str,
    /// What its lines begin with where they are mixed with those of others.
    label: String,
}

fn open(output: &Output, stream: Stream, whose: &Whose<'_>) -> Result<(Option<Arc<Pipe>>, Option<OwnedFd>)> {
    let tee = match output {
        Output::Inherit => return Ok((None, None)),
        Output::Null => {
            let null = File::options().write(true).open("/dev/null");
            return Ok((None, Some(null.map_err(|e| failed("opening /dev/null", None, e))?.into())));
        }
        Output::File(path) | Output::Append(path) => {
            let path = whose.named(path);
            // To its end in any case: who else writes into it, or into a copy of the descriptor, writes over nothing.
            let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
            flags.set(OFlags::TRUNC, matches!(output, Output::File(_)));
            let file =
                rustix::io::retry_on_intr(|| rustix::fs::open(&path, flags, Mode::from_raw_mode(0o666)));
            let refused = |e: Errno| failed("making the file for its output", Some(&path), e.into());
            return Ok((None, Some(file.map_err(refused)?)));
        }
        Output::Capture => None,
        Output::Tee => Some(Tee::new(stream, whose)),
    };
    let refused = |what| move |error: Errno| failed(what, None, error.into());
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(refused("pipe"))?;
    rustix::io::ioctl_fionbio(&ours, true).map_err(refused("ioctl"))?;
    let state = State { fd: Some(ours), tail: VecDeque::new(), lost: 0, tee };
    let pipe = Arc::new(Pipe { state: Mutex::new(state), passed_on: Condvar::new() });
    read_from_now_on(&pipe)?;
    Ok((Some(pipe), Some(theirs)))
}

impl Whose<'_> {
    /// The file of this process.
    fn named(&self, path: &std::path::Path) -> PathBuf {
        match path.to_str() {
            Some(text) => {
                text.replace("{rank}", &self.number.to_string()).replace("{name}", self.name).into()
            }
            None => path.to_owned(),
        }
    }
}

/// One stream of one process.
#[derive(Debug)]
struct Pipe {
    /// Never locked while something is written.
    state: Mutex<State>,
    /// Lines were written.
    passed_on: Condvar,
}

#[derive(Debug)]
struct State {
    /// Until the last writer has closed it.
    fd: Option<OwnedFd>,
    tail: VecDeque<u8>,
    lost: u64,
    tee: Option<Tee>,
}

impl Pipe {
    fn captured(&self) -> Captured {
        let state = self.state.lock();
        Captured { bytes: state.tail.iter().copied().collect(), lost: state.lost }
    }

    /// Writes the lines that are whole. In the one thread that does.
    fn pass_on(&self) {
        let mut state = self.state.lock();
        while let Some((stream, lines)) = state.tee.as_mut().and_then(Tee::begin) {
            MutexGuard::unlocked(&mut state, || write(stream, &lines));
            if let Some(tee) = &mut state.tee {
                tee.writing = false;
            }
        }
        self.passed_on.notify_all();
    }

    /// Waits until there is nothing to be written, but not beyond this.
    fn wait_until_passed_on(&self, until: Instant) {
        let mut state = self.state.lock();
        while !state.is_passed_on() {
            if self.passed_on.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }
}

fn write(stream: Stream, lines: &[u8]) {
    // Nobody can be told that there is nowhere to write to.
    let _ = match stream {
        Stream::Stdout => io::stdout().lock().write_all(lines),
        Stream::Stderr => io::stderr().lock().write_all(lines),
    };
}

impl State {
    /// Reads what is there; false when nothing more will come.
    fn pump(&mut self) -> bool {
        let mut chunk = [MaybeUninit::<u8>::uninit(); CHUNK];
        for _ in 0..CHUNKS_A_TURN {
            let Some(fd) = &self.fd else { return false };
            match rustix::io::read(fd, &mut chunk) {
                Ok(([], _)) => {
                    self.flush();
                    return false;
                }
                Ok((bytes, _)) => {
                    self.tail.extend(bytes.iter());
                    let surplus = self.tail.len().saturating_sub(KEPT);
                    self.tail.drain(..surplus);
                    self.lost += surplus as u64;
                    if let Some(tee) = &mut self.tee {
                        tee.pass_on(bytes);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
        true
    }

    /// Passes the beginning of a line on that has no end.
    fn flush(&mut self) {
        if let Some(tee) = &mut self.tee {
            tee.end_line();
        }
    }

    /// Whether all lines that are whole have been written.
    fn is_passed_on(&self) -> bool {
        self.tee.as_ref().is_none_or(|tee| tee.whole.is_empty() && !tee.writing)
    }
}

/// Where lines are passed on to.
#[derive(Debug)]
struct Tee {
    stream: Stream,
    before: String,
    /// A line that has not ended.
    line: Vec<u8>,
    /// Those that have, and are to be written.
    whole: Vec<u8>,
    /// Somebody writes what came before.
    writing: bool,
}

impl Tee {
    fn new(stream: Stream, Whose { number, label, .. }: &Whose<'_>) -> Tee {
        // Those that can be read on black and on white.
        const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];
        let terminal = match stream {
            Stream::Stdout => io::stdout().is_terminal(),
            Stream::Stderr => io::stderr().is_terminal(),
        };
        let coloured = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let before = match COLOURS.get(number % COLOURS.len()) {
            Some(colour) if coloured => format!("\x1b[{colour}m[{label}]\x1b[0m "),
            _ => format!("[{label}] "),
        };
        Tee { stream, before, line: Vec::new(), whole: Vec::new(), writing: false }
    }

    fn pass_on(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        // Written in one piece, so that nobody else's come between.
        [self.before.as_bytes(), text, b"\n"].iter().for_each(|part| self.whole.extend_from_slice(part));
        self.line.clear();
    }

    /// What is to be written now, if anything is.
    fn begin(&mut self) -> Option<(Stream, Vec<u8>)> {
        self.writing = !self.whole.is_empty();
        self.writing.then(|| (self.stream, std::mem::take(&mut self.whole)))
    }
}

/// The thread that reads.
#[derive(Debug)]
struct Reader {
    process: u32,
    poll: OwnedFd,
    pipes: Mutex<(u64, HashMap<u64, Arc<Pipe>>)>,
    /// Pipes of processes that have ended, with lines to be written.
    asked: Mutex<Vec<Arc<Pipe>>>,
    /// Readable when there are such.
    bell: OwnedFd,
}

/// The number of the bell; pipes have those above.
const BELL: u64 = 0;

static READER: PerProcess<Mutex<Option<Arc<Reader>>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// Has this pipe read until its last writer has closed it.
fn read_from_now_on(pipe: &Arc<Pipe>) -> Result<()> {
    let reader = {
        let mut slot = READER.lock();
        match &*slot {
            Some(running) if running.process == std::process::id() => Arc::clone(running),
            _ => Arc::clone(slot.insert(Reader::begin()?)),
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
        failed("epoll_ctl", None, error.into())
    })
}

impl Reader {
    fn begin() -> Result<Arc<Reader>> {
        let refused = |what| move |error: Errno| failed(what, None, error.into());
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused("epoll_create"))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused("eventfd"))?;
        epoll::add(&poll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(refused("epoll_ctl"))?;
        let (process, pipes, asked) = (std::process::id(), Mutex::default(), Mutex::default());
        let reader = Arc::new(Reader { process, poll, pipes, asked, bell });
        let run = Arc::clone(&reader);
        thread::Builder::new()
            .name("mp-output".to_string())
            .spawn(move || run.run())
            .map_err(|error| failed("the thread for output", None, error))?;
        crate::family::care_at_exit();
        Ok(reader)
    }

    /// The one of this process, if it has one.
    fn ours() -> Option<Arc<Reader>> {
        READER.lock().as_ref().filter(|reader| reader.process == std::process::id()).map(Arc::clone)
    }

    /// Has the lines of a pipe written.
    fn ask(&self, pipe: &Arc<Pipe>) {
        self.asked.lock().push(Arc::clone(pipe));
        // It fails only where it counted to the end: then it is readable.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Writes the lines that others have asked for.
    fn pass_on_asked(&self) {
        // Nothing to read is fine.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        loop {
            let Some(pipe) = self.asked.lock().last().map(Arc::clone) else { return };
            pipe.pass_on();
            // Only then, so that an exit finds it; another one may have come meanwhile.
            self.asked.lock().retain(|asked| !Arc::ptr_eq(asked, &pipe));
        }
    }

    fn run(&self) {
        // A handler of the program runs in one of the program's threads. This can't fail for a valid set.
        let _ = crate::sys::block_signals();
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.poll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // Not known to happen. Workers then wait with full pipes, until they are drained at their end.
                Err(_) => return,
            }
            for event in &events {
                let id = event.data.u64();
                if id == BELL {
                    self.pass_on_asked();
                    continue;
                }
                let Some(pipe) = self.pipes.lock().1.get(&id).map(Arc::clone) else { continue };
                let mut state = pipe.state.lock();
                if !state.pump() {
                    // That takes it out of the epoll set.
                    state.fd = None;
                    self.pipes.lock().1.remove(&id);
                }
                drop(state);
                pipe.pass_on();
            }
        }
    }
}

/// At exit: what workers had written before they were seen to end is written.
pub(crate) fn pass_on_at_exit() {
    let Some(reader) = Reader::ours() else { return };
    let until = Instant::now() + PATIENCE_AT_EXIT;
    let asked = reader.asked.lock().clone();
    asked.iter().for_each(|pipe| pipe.wait_until_passed_on(until));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded() {
        let (ours, theirs) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let mut state = State { fd: Some(ours), tail: VecDeque::new(), lost: 0, tee: None };
        for round in 0..40u8 {
            rustix::io::write(&theirs, &[round; 32 << 10]).unwrap();
            assert!(state.pump());
        }
        assert_eq!((state.tail.len(), state.lost), (KEPT, 8 * (32 << 10)));
        assert_eq!(state.tail.back(), Some(&39));
        drop(theirs);
        assert!(!state.pump());
    }

    #[test]
    fn the_last_lines_are_a_few_and_none_of_nothing() {
        let last = |text: &str| Captured { bytes: text.into(), lost: 0 }.last_lines();
        assert_eq!((last(""), last("\n \n")), (None, None));
        assert_eq!(last("one\r\n\ntwo\n\n").as_deref(), Some("one\n\ntwo"));
        let many: String = (0..20).map(|line| format!("{line}\n")).collect();
        assert_eq!(last(&many).as_deref(), Some("8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19"));
    }

    #[test]
    fn names_of_files() {
        let whose = Whose { number: 3, name: "reader-3", label: String::new() };
        let path = whose.named("logs/{rank}-{name}.txt".as_ref());
        assert_eq!(path, std::path::Path::new("logs/3-reader-3.txt"));
    }
}
