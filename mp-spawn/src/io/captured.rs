//! Output of workers: written to files, to memory, or line by line to the streams of this process.
//!
//! One thread of the process reads all pipes, so no worker blocks until a caller asks for its output. A
//! blocked terminal delays only that thread: starting, receiving and reaping continue. The stored output is
//! bounded, whatever a worker writes. A pipe may stay open after the end of its process, because a grandchild
//! may hold it. No thread waits for its end: when the process is reaped, the available bytes are read, and
//! the reading thread writes their lines. A caller that waits for the end of processes also waits for these
//! writes, unless nothing has been written for a while. A caller that reaps processes doesn't wait
//! ([`reader`](crate::io::reader)).

use std::collections::VecDeque;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use mp_core::mutex::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::error::Result;
use crate::error::launch_error;
use crate::io::pattern;
use crate::io::reader::{OutputReader, add_pipe};
use crate::io::setup::{ProcessOptions, Stdio};
use crate::io::tee::{StandardStream, Tee};
use crate::protocol::outbox::StreamEnds;

/// Number of bytes of a stream that are stored.
const STORED: usize = 1 << 20;
const CHUNK: usize = 64 << 10;
/// Number of chunks that are read from one pipe in each turn. More than the capacity of a pipe.
const CHUNKS_A_TURN: usize = 32;
/// Number of last lines of a crashed worker that its error shows.
const LAST_LINES: usize = 12;

/// Output that a process has written to one of its streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CapturedOutput {
    /// Last bytes of the output, at most 1 MiB.
    pub bytes: Vec<u8>,
    /// Number of earlier bytes that were discarded.
    pub lost: u64,
}

impl CapturedOutput {
    /// Returns the output as text. Bytes that are not valid UTF-8 are replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Returns the last lines, as the error of a crash shows them: at most twelve, without trailing empty
    /// lines. Returns `None` if there are none.
    ///
    /// ```
    /// use mp_spawn::{Stdio, Process};
    ///
    /// let count = |(): ()| (1..=100).for_each(|line| println!("line {line}"));
    /// let child = Process::builder().stdout(Stdio::Capture).spawn(count, ())?;
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

/// Reading ends of the streams of a process, if this process reads them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputStreams {
    stdout: Option<Arc<OutputPipe>>,
    stderr: Option<Arc<OutputPipe>>,
}

impl OutputStreams {
    /// Opens the destinations of the streams of a process.
    pub(crate) fn open(
        setup: &ProcessOptions,
        rank: usize,
        name: &str,
    ) -> Result<(OutputStreams, StreamEnds)> {
        let owner = match setup.number {
            Some(number) => OutputOwner { number, name, label: name.to_string() },
            None => OutputOwner { number: rank, name, label: format!("rank {rank}") },
        };
        let (mut streams, mut ends) = (OutputStreams::default(), StreamEnds::default());
        (streams.stdout, ends.stdout) = open(&setup.stdout, StandardStream::Stdout, &owner)?;
        (streams.stderr, ends.stderr) = open(&setup.stderr, StandardStream::Stderr, &owner)?;
        Ok((streams, ends))
    }

    fn pipes(&self) -> impl Iterator<Item = &Arc<OutputPipe>> {
        [&self.stdout, &self.stderr].into_iter().flatten()
    }

    /// Reads the available output of a process that has ended, and has its lines written by the reading
    /// thread. Does not block.
    pub(crate) fn drain(&self) {
        for pipe in self.pipes() {
            let mut state = pipe.state.lock();
            let _ = state.pump();
            state.flush();
            if state.is_written() {
                continue;
            }
            state.ended = Some(Instant::now());
            drop(state);
            if let Some(reader) = OutputReader::current() {
                reader.request_write(pipe);
            }
        }
    }

    /// Returns `true` if the process has ended and has lines that have not been written.
    pub(crate) fn has_unwritten_lines(&self) -> bool {
        self.pipes().any(|pipe| pipe.state.lock().ended.is_some())
    }

    /// Waits until the lines of processes that have ended are written. Stops waiting if the terminal blocks.
    /// Returns `false` if `until` passed first.
    pub(crate) fn wait_until_written(all: &[OutputStreams], until: Option<Instant>) -> bool {
        let Some(reader) = OutputReader::current() else { return true };
        all.iter().flat_map(OutputStreams::pipes).all(|pipe| reader.wait_for(pipe, until))
    }

    pub(crate) fn stdout(&self) -> CapturedOutput {
        self.stdout.as_ref().map(|pipe| pipe.captured()).unwrap_or_default()
    }

    pub(crate) fn stderr(&self) -> CapturedOutput {
        self.stderr.as_ref().map(|pipe| pipe.captured()).unwrap_or_default()
    }

    /// Returns the last lines of the standard error, if it is captured.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.stderr.as_ref()?.captured().last_lines()
    }
}

/// Process that writes.
struct OutputOwner<'a> {
    /// Rank of the process, or the number of a process with its own handle, because all of these have rank 0.
    number: usize,
    name: &'a str,
    /// Prefix of its lines if they are mixed with lines of other processes.
    label: String,
}

fn open(
    output: &Stdio,
    stream: StandardStream,
    owner: &OutputOwner<'_>,
) -> Result<(Option<Arc<OutputPipe>>, Option<OwnedFd>)> {
    let tee = match output {
        Stdio::Inherit => return Ok((None, None)),
        Stdio::Null => {
            let null = File::options().write(true).open("/dev/null");
            return Ok((None, Some(null.map_err(|e| launch_error("opening /dev/null", None, e))?.into())));
        }
        Stdio::File(path) | Stdio::Append(path) => {
            let path = &pattern::expand(path, owner.number, owner.name)
                .map_err(|error| launch_error("naming the file for its output", Some(path), error))?;
            // Always appends, so that writers to the same file, or through copies of the descriptor, don't
            // overwrite each other.
            let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
            flags.set(OFlags::TRUNC, matches!(output, Stdio::File(_)));
            let file =
                rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)));
            let refused = |e: Errno| launch_error("making the file for its output", Some(path), e.into());
            return Ok((None, Some(file.map_err(refused)?)));
        }
        Stdio::Capture => None,
        Stdio::Tee => Some(Tee::new(stream, owner.number, &owner.label)),
    };
    let refused = |what| move |error: Errno| launch_error(what, None, error.into());
    let (current, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(refused("pipe"))?;
    rustix::io::ioctl_fionbio(&current, true).map_err(refused("ioctl"))?;
    let state = PipeState { fd: Some(current), tail: VecDeque::new(), lost: 0, tee, ended: None };
    let pipe = Arc::new(OutputPipe { state: Mutex::new(state) });
    add_pipe(&pipe)?;
    Ok((Some(pipe), Some(theirs)))
}

/// Stream of a process.
#[derive(Debug)]
pub(crate) struct OutputPipe {
    /// Never locked during a write.
    pub(crate) state: Mutex<PipeState>,
}

/// Data that was read from a stream.
#[derive(Debug)]
pub(crate) struct PipeState {
    /// Open until the last writer has closed the pipe.
    pub(crate) fd: Option<OwnedFd>,
    tail: VecDeque<u8>,
    lost: u64,
    pub(crate) tee: Option<Tee>,
    /// Time at which the end of the process was detected. Reset once the lines that were available then are
    /// written.
    pub(crate) ended: Option<Instant>,
}

impl OutputPipe {
    fn captured(&self) -> CapturedOutput {
        let state = self.state.lock();
        CapturedOutput { bytes: state.tail.iter().copied().collect(), lost: state.lost }
    }
}

impl PipeState {
    /// Reads the available bytes. Returns `false` at the end of the stream.
    pub(crate) fn pump(&mut self) -> bool {
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
                    let surplus = self.tail.len().saturating_sub(STORED);
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

    /// Passes on an incomplete last line.
    fn flush(&mut self) {
        if let Some(tee) = &mut self.tee {
            tee.end_line();
        }
    }

    /// Returns `true` if all complete lines have been written.
    fn is_written(&self) -> bool {
        self.tee.as_ref().is_none_or(Tee::is_written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded() {
        let (current, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&current, true).unwrap();
        let mut state =
            PipeState { fd: Some(current), tail: VecDeque::new(), lost: 0, tee: None, ended: None };
        for round in 0..40u8 {
            rustix::io::write(&theirs, &[round; 32 << 10]).unwrap();
            assert!(state.pump());
        }
        assert_eq!((state.tail.len(), state.lost), (STORED, 8 * (32 << 10)));
        assert_eq!(state.tail.back(), Some(&39));
        drop(theirs);
        // A process that another test is just starting briefly holds a copy of the descriptor.
        let until = Instant::now() + std::time::Duration::from_secs(60);
        while state.pump() {
            assert!(Instant::now() < until, "it has no writer any more");
        }
    }

    #[test]
    fn the_last_lines_are_a_few_and_none_of_nothing() {
        let last = |text: &str| CapturedOutput { bytes: text.into(), lost: 0 }.last_lines();
        assert_eq!((last(""), last("\n \n")), (None, None));
        assert_eq!(last("one\r\n\ntwo\n\n").as_deref(), Some("one\n\ntwo"));
        let many: String = (0..20).map(|line| format!("{line}\n")).collect();
        assert_eq!(last(&many).as_deref(), Some("8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19"));
    }
}
