//! Captured output of one stream of a worker, and the pipe that it is read from.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Instant;

use mp_core::mutex::Mutex;
use rustix::io::Errno;

use crate::io::tee::Tee;

/// Maximum number of bytes of a stream that are stored.
const STORED: usize = 1 << 20;
const CHUNK: usize = 64 << 10;
/// Maximum number of chunks that are read from one pipe at a time: more than the capacity of a pipe.
const CHUNKS_A_TURN: usize = 32;
/// Maximum number of lines that the error of a crashed worker shows: the last lines of its standard error.
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

/// Output stream of a process, read through a pipe.
#[derive(Debug)]
pub(crate) struct OutputPipe {
    /// State of the pipe. The lock is never held while lines are written.
    pub(crate) state: Mutex<PipeState>,
}

/// Data that was read from a stream.
#[derive(Debug)]
pub(crate) struct PipeState {
    /// Read end of the pipe. Open until the last writer has closed the pipe.
    pub(crate) fd: Option<OwnedFd>,
    tail: VecDeque<u8>,
    lost: u64,
    pub(crate) tee: Option<Tee>,
    /// Time at which the end of the process was detected. Reset when the lines that were available at that
    /// time are written.
    pub(crate) ended: Option<Instant>,
}

impl OutputPipe {
    /// Creates the state of a pipe from its read end.
    pub(super) fn new(fd: OwnedFd, tee: Option<Tee>) -> OutputPipe {
        let state = PipeState { fd: Some(fd), tail: VecDeque::new(), lost: 0, tee, ended: None };
        OutputPipe { state: Mutex::new(state) }
    }

    pub(super) fn captured(&self) -> CapturedOutput {
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

    /// Completes an incomplete last line, so that the line is passed on.
    pub(super) fn flush(&mut self) {
        if let Some(tee) = &mut self.tee {
            tee.end_line();
        }
    }

    /// Returns `true` if all complete lines have been written.
    pub(super) fn is_written(&self) -> bool {
        self.tee.as_ref().is_none_or(Tee::is_written)
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::PipeFlags;

    use super::*;

    #[test]
    fn captured_output_beyond_its_bound_keeps_the_end() {
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let mut state = PipeState { fd: Some(ours), tail: VecDeque::new(), lost: 0, tee: None, ended: None };
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
            assert!(Instant::now() < until, "the pipe should have no writer left");
        }
    }

    #[test]
    fn last_output_lines_are_limited_and_none_if_blank() {
        let last = |text: &str| CapturedOutput { bytes: text.into(), lost: 0 }.last_lines();
        assert_eq!((last(""), last("\n \n")), (None, None));
        assert_eq!(last("one\r\n\ntwo\n\n").as_deref(), Some("one\n\ntwo"));
        let many: String = (0..20).map(|line| format!("{line}\n")).collect();
        assert_eq!(last(&many).as_deref(), Some("8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19"));
    }
}
