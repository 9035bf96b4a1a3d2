//! Findings: violations of guarantees that the torture detects.

use std::fmt;

use crate::bookkeeping::leaks::Leaked;

/// Violation of a guarantee.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) what: FindingKind,
    pub(crate) text: String,
    /// Leaked resources, if the violation is a leak.
    pub(crate) leaked: Leaked,
}

/// Kind of a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FindingKind {
    Hang,
    Torn,
    Duplicated,
    Lost,
    Leaked,
    /// Unexpected error, panic, or end of a process.
    Failed,
}

impl FindingKind {
    pub(crate) const ALL: [(FindingKind, &str); 6] = [
        (FindingKind::Hang, "hang"),
        (FindingKind::Torn, "torn"),
        (FindingKind::Duplicated, "duplicated"),
        (FindingKind::Lost, "lost"),
        (FindingKind::Leaked, "leaked"),
        (FindingKind::Failed, "failed"),
    ];
}

impl Finding {
    /// Classifies an error by its text.
    pub(crate) fn of(error: &dyn fmt::Display) -> Self {
        let text = error.to_string();
        let said = |(_, word): &&(FindingKind, &str)| text.contains(&format!("{word}: "));
        let what = FindingKind::ALL.iter().find(said).map_or(FindingKind::Failed, |(what, _)| *what);
        Self { what, text, leaked: Leaked::default() }
    }

    pub(crate) fn hang(text: String) -> Self {
        Self { what: FindingKind::Hang, text, leaked: Leaked::default() }
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
