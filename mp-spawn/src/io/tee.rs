//! The lines of one stream of one worker, and what this process writes before each of them.

use std::io::{self, IsTerminal, Write};

/// A line that is longer is passed on in pieces.
const LINE: usize = 64 << 10;

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn is_terminal(self) -> bool {
        match self {
            Stream::Stdout => io::stdout().is_terminal(),
            Stream::Stderr => io::stderr().is_terminal(),
        }
    }

    /// Writes lines to this process's. Waits for its lock, and for the terminal.
    pub(crate) fn write(self, lines: &[u8]) {
        // There is nowhere left to report that this failed.
        let _ = match self {
            Stream::Stdout => io::stdout().lock().write_all(lines),
            Stream::Stderr => io::stderr().lock().write_all(lines),
        };
    }
}

/// Where lines are passed on to.
#[derive(Debug)]
pub(crate) struct Tee {
    stream: Stream,
    before: String,
    /// A line that has not ended.
    line: Vec<u8>,
    /// Those that have, and are to be written.
    whole: Vec<u8>,
    /// A thread is writing the lines that came before.
    writing: bool,
}

impl Tee {
    /// Behind this label, in the colour of this number.
    pub(crate) fn new(stream: Stream, number: usize, label: &str) -> Tee {
        // Those that can be read on black and on white.
        const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];
        let coloured =
            stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let before = match COLOURS.get(number % COLOURS.len()) {
            Some(colour) if coloured => format!("\x1b[{colour}m[{label}]\x1b[0m "),
            _ => format!("[{label}] "),
        };
        Tee { stream, before, line: Vec::new(), whole: Vec::new(), writing: false }
    }

    /// Takes what has been read.
    pub(crate) fn pass_on(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE {
                self.end_line();
            }
        }
    }

    /// Ends the line that has no end yet.
    pub(crate) fn end_line(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        // Written in one piece, so that no other writer's lines come between.
        [self.before.as_bytes(), text, b"\n"].iter().for_each(|part| self.whole.extend_from_slice(part));
        self.line.clear();
    }

    /// What is to be written now, if anything is.
    pub(crate) fn begin(&mut self) -> Option<(Stream, Vec<u8>)> {
        self.writing = !self.whole.is_empty();
        self.writing.then(|| (self.stream, std::mem::take(&mut self.whole)))
    }

    /// What was to be written is.
    pub(crate) fn end(&mut self) {
        self.writing = false;
    }

    /// Whether all lines that are whole have been written.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.whole.is_empty() && !self.writing
    }
}
