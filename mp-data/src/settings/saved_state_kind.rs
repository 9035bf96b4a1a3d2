//! First field of a saved state. A state of the other kind of loader is refused with an error that names both
//! kinds.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Visitor};

struct FormatNumber;

impl Visitor<'_> for FormatNumber {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the number with which the state of a `DataLoader` begins; that of a `StreamLoader` \
                     begins with a name",
        )
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
        u32::try_from(number).map_err(|_| E::custom("no state has such a format"))
    }
}

struct FormatName;

impl Visitor<'_> for FormatName {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the name with which the state of a `StreamLoader` begins; that of a `DataLoader` begins \
                     with a number",
        )
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<String, E> {
        Ok(name.into())
    }
}

/// Reads the format of a state of batches with indices.
pub(crate) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    from.deserialize_u32(FormatNumber)
}

/// Reads the format of a state of a stream.
pub(crate) fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    from.deserialize_string(FormatName)
}
