//! Errors and panics as texts, bounded in length and number, for the process that requested the call.

use serde::{Deserialize, Serialize};

use crate::error::{ProcessName, ProcessRaised, RaisedKind};

/// Maximum length of a text that a child sends, in bytes. The rest is cut.
const TEXT: usize = 64 << 10;
/// Maximum number of sources of an error that a child sends.
const CHAIN: usize = 32;

/// Error or panic of a function that a worker called and survived, to be sent to the process that requested
/// the call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallFailure {
    pub(crate) kind: RaisedKind,
    pub(crate) message: String,
    pub(crate) chain: Vec<String>,
    pub(crate) debug: String,
    pub(crate) location: Option<String>,
    pub(crate) backtrace: Option<String>,
}

impl CallFailure {
    /// Creates the text of an error, with all its sources.
    pub fn error(error: &(dyn std::error::Error + 'static)) -> Box<CallFailure> {
        // The process is notified of Ctrl-C, and the error is most likely due to it.
        let kind = if mp_core::interrupted() { RaisedKind::Interrupted } else { RaisedKind::Error };
        Box::new(CallFailure {
            kind,
            message: cut(error.to_string()),
            chain: sources(error),
            debug: cut(format!("{error:?}")),
            location: None,
            backtrace: None,
        })
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Converts this into the failure of a process.
    pub fn into_raised(self, who: ProcessName) -> ProcessRaised {
        let CallFailure { kind, message, chain, debug, location, backtrace } = self;
        ProcessRaised { who, kind, message, chain, debug, location, backtrace }
    }
}

/// Returns the sources of an error, outermost first.
fn sources(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(error.source(), |error| error.source())
        .take(CHAIN)
        .map(|error| cut(error.to_string()))
        .collect()
}

/// Cuts a text that is too long to send, at a character boundary.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > TEXT {
        let end = (0..=TEXT).rfind(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" … (cut)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_failure_text_is_truncated_between_characters() {
        let text = cut("ä".repeat(TEXT));
        assert!(text.len() < TEXT + 20 && text.ends_with("(cut)"));
    }
}
