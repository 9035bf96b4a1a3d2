//! Channels whose messages stay: a cell that a reader looks into while it is replaced, and messages to all receivers.

use crate::{Failure, Result};

/// A value that a reader would see torn, were it not read whole.
pub(crate) type Value = [u64; 16];

/// The value of this version.
pub(crate) fn value(version: u64) -> Value {
    [version; 16]
}

/// Which version it is; an error if it is torn, or older than the one before.
pub(crate) fn version(value: &Value, before: u64) -> Result<u64> {
    let version = value[0];
    if value.iter().any(|word| *word != version) {
        return Err(Failure::from("wrong result: a torn value"));
    }
    if version < before {
        return Err(format!("wrong result: version {version} after {before}").into());
    }
    Ok(version)
}

/// How many messages a sender is ahead of its receiver, at most: as many as the channel keeps.
pub(crate) const WINDOW: u64 = 512;

/// The numbers of the messages, one after the other; how many came.
pub(crate) struct Counted(pub(crate) u64);

impl Counted {
    /// One more message; an error if it is not the next one.
    pub(crate) fn next(&mut self, number: u64) -> Result<()> {
        if number != self.0 {
            return Err(format!("wrong result: message {number}, and not {}", self.0).into());
        }
        self.0 += 1;
        Ok(())
    }
}
