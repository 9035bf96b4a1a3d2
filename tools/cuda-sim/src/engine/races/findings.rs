//! Findings: mistakes of programs, including mistakes that the driver does not detect. A test fails for each
//! finding that it doesn't expect. Each finding is one line of JSON in the session's file, and is reported
//! once.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde_json::json;

use crate::engine::races::shadow::{Race, TracedOperation};

#[derive(Debug)]
pub(crate) struct Findings {
    file: File,
    reported: HashSet<String>,
}

impl Findings {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, reported: HashSet::new() })
    }

    pub(crate) fn count(&self) -> usize {
        self.reported.len()
    }

    pub(crate) fn add(&mut self, kind: &str, pid: u32, text: &str) {
        self.write(kind, text, json!({"kind": kind, "pid": pid, "text": text}));
    }

    /// Reports a race between two operations. The operation `later` is running.
    pub(crate) fn race(&mut self, text: &str, race: &Race, later: &TracedOperation, writes: bool) {
        let one = |o: &TracedOperation, writes: bool| {
            json!({
                "call": o.call,
                "pid": o.pid,
                "stream": o.stream,
                "trace": o.trace,
                "writes": writes,
                "released_from": o.released_from,
            })
        };
        let line = json!({
            "kind": "race",
            "pid": later.pid,
            "text": text,
            "offset": race.offset,
            "bytes": race.bytes,
            "earlier": one(&race.earlier, race.wrote),
            "later": one(later, writes),
            "released": later.was_released_from(&race.earlier),
        });
        self.write("race", text, line);
    }

    /// Reports a read of bytes that were never written.
    pub(crate) fn unwritten(&mut self, text: &str, by: &TracedOperation) {
        let released = !by.released_from.is_empty();
        let line = json!({
            "kind": "unwritten",
            "pid": by.pid,
            "text": text,
            "released": released,
            "released_from": by.released_from,
        });
        self.write("unwritten", text, line);
    }

    fn write(&mut self, kind: &str, text: &str, line: serde_json::Value) {
        if self.reported.insert(format!("{kind} {text}")) {
            // If the file can't be written, the text is printed to stderr.
            if writeln!(self.file, "{line}").and_then(|()| self.file.flush()).is_err() {
                eprintln!("{line}");
            }
        }
    }
}
