//! Findings.

use std::fmt;

use crate::bookkeeping::leaks::Leaked;

/// Violation of a guarantee.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) what: What,
    pub(crate) text: String,
    /// Leaked resources, if that is the violation.
    pub(crate) leaked: Leaked,
}

/// Broken guarantee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Hang,
    Torn,
    Duplicated,
    Lost,
    Leaked,
    /// An unexpected error, a panic, or an unexpected end.
    Failed,
}

impl What {
    pub(crate) const ALL: [(What, &str); 6] = [
        (What::Hang, "hang"),
        (What::Torn, "torn"),
        (What::Duplicated, "duplicated"),
        (What::Lost, "lost"),
        (What::Leaked, "leaked"),
        (What::Failed, "failed"),
    ];
}

impl Finding {
    /// Classifies an error by its text.
    pub(crate) fn of(error: &dyn fmt::Display) -> Self {
        let text = error.to_string();
        let said = |(_, word): &&(What, &str)| text.contains(&format!("{word}: "));
        let what = What::ALL.iter().find(said).map_or(What::Failed, |(what, _)| *what);
        Self { what, text, leaked: Leaked::default() }
    }

    pub(crate) fn hang(text: String) -> Self {
        Self { what: What::Hang, text, leaked: Leaked::default() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.what, self.text)
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Finding {
    fn from(error: E) -> Self {
        Self::of(&error.into())
    }
}
