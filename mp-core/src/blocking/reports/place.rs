//! Place of a blocking call in the source.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

/// Place of a call in the source, such as `src/train.rs:88`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub(crate) file: Cow<'static, str>,
    pub(crate) line: u32,
}

impl Place {
    /// Creates the place of a call in a program of another language.
    pub fn new(file: String, line: u32) -> Self {
        Self { file: Cow::Owned(file), line }
    }

    /// Returns the place of a call in a Rust program. Returns `None` for a call by the standard library, for
    /// example by an iterator adapter.
    #[doc(hidden)]
    pub fn of(at: &'static Location<'static>) -> Option<Self> {
        let file = at.file();
        (!file.starts_with("/rustc/")).then_some(Self { file: Cow::Borrowed(file), line: at.line() })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}
