//! Errors of any type, as text.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Error of any type after its transfer to another process: its message, and the messages of its sources.
///
/// ```
/// use mp_core::ErrorChain;
///
/// let error = std::io::Error::other("ä".parse::<u8>().unwrap_err());
/// let chain = ErrorChain::new(&error); // a serde type
/// assert_eq!(chain.to_string(), "invalid digit found in string");
/// ```
///
/// Its `Debug` shows the message of the first error, followed by those of the sources.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(String, String)>", into = "Vec<(String, String)>")]
pub struct ErrorChain {
    message: String,
    /// Output of the error's `Debug`.
    debug: String,
    source: Option<Box<ErrorChain>>,
}

/// Maximum number of errors in a chain: a chain that refers to itself has no end.
const MAX_SOURCES: usize = 100;

impl ErrorChain {
    /// Converts an error and its sources, at most a hundred.
    #[must_use]
    pub fn new(error: &(dyn Error + 'static)) -> Self {
        // An error received from another process is kept as it is.
        if let Some(chain) = error.downcast_ref::<ErrorChain>() {
            return chain.clone();
        }
        let all = std::iter::successors(Some(error), |error| (**error).source()).take(MAX_SOURCES);
        all.map(|error| (error.to_string(), format!("{error:?}"))).collect::<Vec<_>>().into()
    }

    /// Returns the output of the error's `Debug` in its original process, which usually includes the fields.
    #[must_use]
    pub fn debug(&self) -> &str {
        &self.debug
    }
}

/// From a list with the outermost error first, so that a long chain is not nested deeply.
impl From<Vec<(String, String)>> for ErrorChain {
    fn from(mut all: Vec<(String, String)>) -> Self {
        all.truncate(MAX_SOURCES);
        let mut source = None;
        while all.len() > 1 {
            source = all.pop().map(|(message, debug)| Box::new(ErrorChain { message, debug, source }));
        }
        let (message, debug) = all.pop().unwrap_or_default();
        ErrorChain { message, debug, source }
    }
}

impl From<ErrorChain> for Vec<(String, String)> {
    fn from(chain: ErrorChain) -> Self {
        let mut all = Vec::new();
        let mut next = Some(Box::new(chain));
        while let Some(chain) = next {
            all.push((chain.message, chain.debug));
            next = chain.source;
        }
        all
    }
}

impl fmt::Display for ErrorChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

crate::readable_debug!(ErrorChain);

impl Error for ErrorChain {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
