//! Channels with retained messages: a cell that is read while its value is replaced, and broadcast messages.

use crate::{Failure, Result};

/// Value whose words are all equal. After a partial read, they differ.
pub(crate) type Value = [u64; 16];

/// Returns the value of this version.
pub(crate) fn value(version: u64) -> Value {
    [version; 16]
}

/// Returns the version of a value, or an error if the value is torn or older than version `before`.
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

/// Maximum lead of a sender over its receiver, in messages: the capacity of the channel.
pub(crate) const WINDOW: u64 = 512;

/// Checks the numbers of the messages, one after the other.
pub(crate) struct SequenceCheck(pub(crate) u64);

impl SequenceCheck {
    /// Counts one more message, or returns an error if its number is not the next one.
    pub(crate) fn next(&mut self, number: u64) -> Result<()> {
        if number != self.0 {
            return Err(format!("wrong result: message {number}, and not {}", self.0).into());
        }
        self.0 += 1;
        Ok(())
    }
}
