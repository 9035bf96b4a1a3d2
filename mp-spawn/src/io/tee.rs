//! Lines of a stream of a worker, and the prefix that this process writes before each line.

use std::io::{self, IsTerminal, Write};

/// Maximum length of a line in bytes. Longer lines are passed on in pieces.
const LINE: usize = 64 << 10;

/// Standard stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandardStream {
    Stdout,
    Stderr,
}

impl StandardStream {
    fn is_terminal(self) -> bool {
        match self {
            StandardStream::Stdout => io::stdout().is_terminal(),
            StandardStream::Stderr => io::stderr().is_terminal(),
        }
    }

    /// Writes lines to the stream of this process. Blocks on the lock of the stream and on the terminal.
    pub(crate) fn write(self, lines: &[u8]) {
        // A failure can't be reported, because stderr itself may have failed.
        let _ = match self {
            StandardStream::Stdout => io::stdout().lock().write_all(lines),
            StandardStream::Stderr => io::stderr().lock().write_all(lines),
        };
    }
}

/// Destination of passed-on lines, with the lines that have not been written.
#[derive(Debug)]
pub(crate) struct Tee {
    stream: StandardStream,
    before: String,
    /// Incomplete line.
    line: Vec<u8>,
    /// Complete lines to be written.
    whole: Vec<u8>,
    /// `true` while a thread writes earlier lines.
    writing: bool,
}

impl Tee {
    /// Creates a tee with `label` as the prefix, in a colour that depends on `number`.
    pub(crate) fn new(stream: StandardStream, number: usize, label: &str) -> Tee {
        // Colours that are readable on black and on white.
        const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];
        let coloured =
            stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let before = match COLOURS.get(number % COLOURS.len()) {
            Some(colour) if coloured => format!("\x1b[{colour}m[{label}]\x1b[0m "),
            _ => format!("[{label}] "),
        };
        Tee { stream, before, line: Vec::new(), whole: Vec::new(), writing: false }
    }

    /// Adds bytes that were read from the worker.
    pub(crate) fn pass_on(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE {
                self.end_line();
            }
        }
    }

    /// Completes the incomplete line.
    pub(crate) fn end_line(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        // Written in one piece, so that lines of other writers don't come between.
        [self.before.as_bytes(), text, b"\n"].iter().for_each(|part| self.whole.extend_from_slice(part));
        self.line.clear();
    }

    /// Takes the lines to be written, if there are any.
    pub(crate) fn begin(&mut self) -> Option<(StandardStream, Vec<u8>)> {
        self.writing = !self.whole.is_empty();
        self.writing.then(|| (self.stream, std::mem::take(&mut self.whole)))
    }

    /// Records that the lines of the last [`begin`](Self::begin) are written.
    pub(crate) fn end(&mut self) {
        self.writing = false;
    }

    /// Returns `true` if all complete lines have been written.
    pub(crate) fn is_written(&self) -> bool {
        self.whole.is_empty() && !self.writing
    }
}
