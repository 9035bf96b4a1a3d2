//! Errors of any type, in words.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

/// An error of any type as it arrives in another process: what it says, and what it says of each of its sources.
///
/// ```
/// use mp_core::ErrorChain;
///
/// let error = std::io::Error::other("ä".parse::<u8>().unwrap_err());
/// let chain = ErrorChain::new(&error); // a serde type
/// assert_eq!(chain.to_string(), "invalid digit found in string");
/// ```
///
/// Its `Debug` is the first error's message and below that those of the sources.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(String, String)>", into = "Vec<(String, String)>")]
pub struct ErrorChain {
    message: String,
    /// What the error's `Debug` said.
    debug: String,
    source: Option<Box<ErrorChain>>,
}

/// How many errors of a chain are sent: one that leads back to itself has no end.
const MOST: usize = 100;

impl ErrorChain {
    /// What an error and its sources say; the first hundred of these.
    #[must_use]
    pub fn new(error: &(dyn Error + 'static)) -> Self {
        // As it was, if it came from another process already.
        if let Some(chain) = error.downcast_ref::<ErrorChain>() {
            return chain.clone();
        }
        let all = std::iter::successors(Some(error), |error| (**error).source()).take(MOST);
        all.map(|error| (error.to_string(), format!("{error:?}"))).collect::<Vec<_>>().into()
    }

    /// What the error's `Debug` said, where it was: with its fields, as a rule.
    #[must_use]
    pub fn debug(&self) -> &str {
        &self.debug
    }
}

/// A list, so that a long chain is not nested deeply: the outermost error first.
impl From<Vec<(String, String)>> for ErrorChain {
    fn from(mut all: Vec<(String, String)>) -> Self {
        all.truncate(MOST);
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
