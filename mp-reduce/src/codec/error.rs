//! Errors of encoding or decoding a value, with the position in the value.

use std::cell::Cell;
use std::fmt;

use mp_core::message::nesting_depth;

/// Error of encoding or decoding a value. The error is a single word, so that results are returned in
/// registers.
#[derive(Debug)]
pub(crate) struct CodecError(Box<ErrorDetails>);

#[derive(Debug)]
struct ErrorDetails {
    why: Cause,
    /// Position of the error: the fields, variants and indexes that contain it, the innermost first.
    path: Vec<PathStep>,
}

#[derive(Debug)]
pub(in crate::codec) enum Cause {
    TooShort,
    /// The value is nested too deeply. Contains the error text.
    TooDeep(String),
    /// The value's type has returned an error. Contains the error text.
    Message(String),
}

/// Number of steps that an error text shows at each end of a long path.
const SHOWN: usize = 3;

#[derive(Debug)]
enum PathStep {
    Field(String),
    Index(usize),
}

impl CodecError {
    #[cold]
    pub(super) fn new(why: Cause) -> Self {
        Self(Box::new(ErrorDetails { why, path: Vec::new() }))
    }

    #[cold]
    pub(super) fn message(why: impl fmt::Display) -> Self {
        Self::new(Cause::Message(why.to_string()))
    }

    /// Adds the field or variant that contains the error.
    #[cold]
    pub(super) fn in_field(mut self, name: &str) -> Self {
        self.0.path.push(PathStep::Field(name.into()));
        self
    }

    /// Adds the index of the element that contains the error.
    #[cold]
    pub(super) fn in_element(mut self, index: usize) -> Self {
        self.0.path.push(PathStep::Index(index));
        self
    }

    /// Returns `true` if the value is nested too deeply.
    pub(super) fn is_too_deep(&self) -> bool {
        matches!(self.0.why, Cause::TooDeep(_))
    }

    /// Returns the error text, preceded by the position of the error in the value.
    pub(crate) fn located(&self) -> String {
        match self.path() {
            path if path.is_empty() => self.to_string(),
            path => format!("at {path}: {self}"),
        }
    }

    /// Returns the position of the error, such as `jobs[3].name`. A long path is shortened to its two ends:
    /// `next.next … next.value`.
    pub(super) fn path(&self) -> String {
        let (mut path, len) = (String::new(), self.0.path.len());
        let hidden = if len > 2 * SHOWN { SHOWN..len - SHOWN } else { len..len };
        for (i, step) in self.0.path.iter().rev().enumerate() {
            match step {
                _ if i == hidden.start => path.push_str(" … "),
                _ if hidden.contains(&i) => {}
                PathStep::Field(name) if path.is_empty() || i == hidden.end => path.push_str(name),
                PathStep::Field(name) => path.extend([".", name]),
                PathStep::Index(i) => path.push_str(&format!("[{i}]")),
            }
        }
        path
    }
}

/// Writes the error text without the position.
impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.why {
            Cause::TooShort => f.write_str("the bytes end within a value"),
            Cause::TooDeep(why) | Cause::Message(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for CodecError {}

impl serde::de::Error for CodecError {
    #[cold]
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::message(why)
    }
}

impl serde::ser::Error for CodecError {
    #[cold]
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::message(why)
    }
}

#[cold]
pub(super) fn too_short() -> CodecError {
    CodecError::new(Cause::TooShort)
}

#[cold]
pub(super) fn too_deep(left: &Cell<u16>, last: u16) -> CodecError {
    CodecError::new(Cause::TooDeep(nesting_depth::too_deep(left, last).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_path_of_a_codec_error_shows_both_ends() {
        let levels =
            |n: usize| (0..n).rev().fold(CodecError::message("why"), |bad, i| bad.in_field(&format!("f{i}")));
        assert_eq!(levels(3).path(), "f0.f1.f2");
        assert_eq!(levels(6).path().matches('.').count(), 5);
        let long = levels(400).path();
        assert!(long.starts_with("f0.f1.") && long.ends_with(".f398.f399"), "{long}");
        assert!(long.contains("f2 … f397") && long.len() < 50, "{long}");
        let indexed = (0..40).fold(CodecError::message("why"), |bad, i| bad.in_element(i)).path();
        assert!(indexed.starts_with("[39][38]") && indexed.ends_with("[0]"), "{indexed}");
    }
}
