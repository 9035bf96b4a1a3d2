//! Output of workers: written to files, to memory, or line by line to the streams of this process.
//!
//! A single thread of the process reads all pipes, so no worker blocks until a caller asks for its output. A
//! blocked terminal delays only that thread: starting, receiving and reaping continue. The stored output is
//! bounded, however much a worker writes. A pipe may stay open after the end of its process, because a
//! grandchild may hold it. No thread waits for the end of a pipe: when the process is reaped, the available
//! bytes are read, and the reading thread writes their lines. A caller that waits for the end of processes
//! also waits for these writes, unless nothing has been written for a while. A caller that reaps processes
//! doesn't wait ([`reader`](crate::io::reader)).

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::error::{Result, launch_error};
use crate::io::captured::{CapturedOutput, OutputPipe};
use crate::io::reader::{OutputReader, add_pipe};
use crate::io::setup::{ProcessOptions, Stdio};
use crate::io::tee::{StandardStream, Tee};
use crate::protocol::outbox::StreamEnds;

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

    /// Reads the available output of a process that has ended, and requests that the reading thread write the
    /// remaining lines. Does not block.
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
    pub(crate) fn last_stderr_lines(&self) -> Option<String> {
        self.stderr.as_ref()?.captured().last_lines()
    }
}

/// Process that writes to the streams.
struct OutputOwner<'a> {
    /// Rank of the process. For a process with its own handle, whose rank is always 0, the number of the
    /// process.
    number: usize,
    name: &'a str,
    /// Prefix of the process's lines when they are mixed with lines of other processes.
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
            let path = &expand(path, owner.number, owner.name)
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
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(refused("pipe"))?;
    rustix::io::ioctl_fionbio(&ours, true).map_err(refused("ioctl"))?;
    let pipe = Arc::new(OutputPipe::new(ours, tee));
    add_pipe(&pipe)?;
    Ok((Some(pipe), Some(theirs)))
}

/// Returns the path for the process with this number and name, which replace `{rank}` and `{name}` in the
/// last part. Directories, and bytes that are not UTF-8, are unchanged.
fn expand(path: &Path, number: usize, name: &str) -> io::Result<PathBuf> {
    let bytes = path.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, mut rest) = bytes.split_at(at);
    let mut expanded = directory.to_vec();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        match first {
            b'{' | b'}' if others.first() == Some(first) => {
                expanded.push(*first);
                rest = &others[1..];
            }
            b'{' => {
                let end = others.iter().position(|byte| *byte == b'}').unwrap_or(others.len());
                match &others[..end] {
                    _ if end == others.len() => return Err(invalid("`{` without `}`")),
                    b"rank" => expanded.extend(number.to_string().bytes()),
                    b"name" if name.contains('/') => {
                        return Err(invalid(&format!("`{{name}}`, and the process is called {name:?}")));
                    }
                    b"name" => expanded.extend(name.bytes()),
                    unknown => {
                        let unknown = String::from_utf8_lossy(unknown);
                        return Err(invalid(&format!("the unknown pattern `{{{unknown}}}`")));
                    }
                }
                rest = &others[end + 1..];
            }
            b'}' => return Err(invalid("`}` without `{`")),
            byte => expanded.push(*byte),
        }
    }
    Ok(OsString::from_vec(expanded).into())
}

fn invalid(what: &str) -> io::Error {
    let why = format!(
        "the file name has {what}: it may have `{{rank}}` and `{{name}}`, whose process has no `/` in its \
         name, and `{{{{` and `}}}}` for braces"
    );
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(path: &[u8]) -> Result<Vec<u8>, String> {
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        let expanded = expand(&path, 3, "reader-3").map_err(|error| error.to_string())?;
        Ok(expanded.into_os_string().into_vec())
    }

    #[test]
    fn output_path_patterns_expand_rank_and_name() {
        for (path, file) in [
            (&b"logs/{rank}-{name}.txt"[..], &b"logs/3-reader-3.txt"[..]),
            (b"{rank}", b"3"),
            (b"/a/plain.txt", b"/a/plain.txt"),
            (b"{{rank}}{rank}}}", b"{rank}3}"),
        ] {
            assert_eq!(expanded(path).unwrap(), file);
        }
    }

    #[test]
    fn output_path_patterns_in_directories_stay_as_given() {
        assert_eq!(expanded(b"/a{b}/{rank}/{/{rank}.txt").unwrap(), b"/a{b}/{rank}/{/3.txt");
    }

    #[test]
    fn output_path_of_invalid_utf8_is_accepted() {
        assert_eq!(expanded(b"\xff\xfe/{rank}-\xff.txt").unwrap(), b"\xff\xfe/3-\xff.txt");
    }

    #[test]
    fn unknown_patterns_in_output_paths_are_errors() {
        for (path, part) in [
            (&b"{ranks}.txt"[..], "`{ranks}`"),
            (b"{}.txt", "`{}`"),
            (b"{rank.txt", "`{` without `}`"),
            (b"rank}.txt", "`}` without `{`"),
        ] {
            let error = expanded(path).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let error = expand("{name}".as_ref(), 0, "a/b").unwrap_err().to_string();
        assert!(error.contains("\"a/b\""), "{error}");
    }
}
