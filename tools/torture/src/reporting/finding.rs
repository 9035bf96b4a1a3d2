//! What should not be.

use std::fmt;

use crate::bookkeeping::leaks::Leaked;

/// Something that was promised not to happen.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) what: What,
    pub(crate) text: String,
    /// How much was left at the end, if that is what is wrong.
    pub(crate) leaked: Leaked,
}

/// Which promise was broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Hang,
    Torn,
    Duplicated,
    Lost,
    Leaked,
    /// An error where there should be none, a panic, or an end that was not asked for.
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
    /// Of an error, which says itself what it is about.
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
