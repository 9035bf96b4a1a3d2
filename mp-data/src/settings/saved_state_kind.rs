//! First field of a saved state. A state of the other kind of loader is refused with an error that names both
//! kinds.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Reads the format of a state of batches with indices.
pub(crate) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    u32::deserialize(from).map_err(other_kind)
}

/// Reads the format of a state of a stream.
pub(crate) fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map_err(other_kind)
}

fn other_kind<E: Error>(error: E) -> E {
    let begins = "the state of a `DataLoader` begins with a number, and that of a `StreamLoader` with a name";
    E::custom(format_args!("{error}: {begins}"))
}
