//! Errors of writing a value or reading bytes, with the position in the value.

use std::cell::Cell;
use std::fmt;

use mp_core::message::level;

use super::read::text_of;

/// A single word, so that results are returned in registers.
#[derive(Debug)]
pub(crate) struct Bad(Box<Inner>);

#[derive(Debug)]
struct Inner {
    why: Why,
    /// From the innermost position to the outermost.
    path: Vec<Step>,
}

#[derive(Debug)]
pub(in crate::codec) enum Why {
    TooShort,
    /// The value is nested too deeply. Contains the error text.
    TooDeep(String),
    /// Text of an error that the type returned.
    Says(String),
}

/// Number of steps that an error text shows of each end of a long path.
const SHOWN: usize = 3;

#[derive(Debug)]
enum Step {
    Field(String),
    Index(usize),
}

impl Bad {
    #[cold]
    pub(super) fn new(why: Why) -> Self {
        Self(Box::new(Inner { why, path: Vec::new() }))
    }

    #[cold]
    pub(super) fn says(why: impl fmt::Display) -> Self {
        Self::new(Why::Says(why.to_string()))
    }

    /// Adds the field or variant that contains the error.
    #[cold]
    pub(super) fn in_field(mut self, name: &str) -> Self {
        self.0.path.push(Step::Field(name.into()));
        self
    }

    /// Adds the index of the element that contains the error.
    #[cold]
    pub(super) fn in_element(mut self, index: usize) -> Self {
        self.0.path.push(Step::Index(index));
        self
    }

    /// Adds the key of the entry that contains the error. The key is at the beginning of these bytes: a
    /// field's name, or any other key of a map.
    #[cold]
    pub(super) fn in_entry(self, key: &[u8]) -> Self {
        let name = text_of(key);
        self.in_field(&name)
    }

    /// Returns `true` if the value is nested too deeply.
    pub(super) fn is_too_deep(&self) -> bool {
        matches!(self.0.why, Why::TooDeep(_))
    }

    /// Returns the position of the error: `jobs[3].name`. A long path contains only its two ends: `next.next
    /// … next.value`.
    pub(super) fn path(&self) -> String {
        let (mut path, len) = (String::new(), self.0.path.len());
        let hidden = if len > 2 * SHOWN { SHOWN..len - SHOWN } else { len..len };
        for (i, step) in self.0.path.iter().rev().enumerate() {
            match step {
                _ if i == hidden.start => path.push_str(" … "),
                _ if hidden.contains(&i) => {}
                Step::Field(name) if path.is_empty() || i == hidden.end => path.push_str(name),
                Step::Field(name) => path.extend([".", name]),
                Step::Index(i) => path.push_str(&format!("[{i}]")),
            }
        }
        path
    }
}

/// Writes the text without the path.
impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.why {
            Why::TooShort => f.write_str("the bytes end within a value"),
            Why::TooDeep(why) | Why::Says(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Bad {}

impl serde::de::Error for Bad {
    #[cold]
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::says(why)
    }
}

impl serde::ser::Error for Bad {
    #[cold]
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::says(why)
    }
}

#[cold]
pub(super) fn too_short() -> Bad {
    Bad::new(Why::TooShort)
}

#[cold]
pub(super) fn too_deep(left: &Cell<u16>, last: u16) -> Bad {
    Bad::new(Why::TooDeep(level::too_deep(left, last).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_many_levels_has_both_ends() {
        let levels = |n: usize| (0..n).rev().fold(Bad::says("why"), |bad, i| bad.in_field(&format!("f{i}")));
        assert_eq!(levels(3).path(), "f0.f1.f2");
        assert_eq!(levels(6).path().matches('.').count(), 5);
        let long = levels(400).path();
        assert!(long.starts_with("f0.f1.") && long.ends_with(".f398.f399"), "{long}");
        assert!(long.contains("f2 … f397") && long.len() < 50, "{long}");
        let indexed = (0..40).fold(Bad::says("why"), |bad, i| bad.in_element(i)).path();
        assert!(indexed.starts_with("[39][38]") && indexed.ends_with("[0]"), "{indexed}");
    }
}
