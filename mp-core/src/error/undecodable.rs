//! Error for a message that can't be decoded.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Error;

/// Message that could not be decoded as its type: the place, the reason and the bytes, so that no data is
/// lost.
///
/// Tensors and queues that were attached to the message are released.
#[derive(Serialize, Deserialize)]
pub struct Undecodable {
    type_name: Cow<'static, str>,
    path: String,
    why: String,
    bytes: Vec<u8>,
    source: Option<Box<Error>>,
}

/// Number of bytes that `Display` shows.
const SHOWN: usize = 32;

impl Undecodable {
    /// Creates the error for a value of this type whose part at `path` could not be read.
    fn new(type_name: &'static str, path: String, why: String) -> Self {
        Self { type_name: type_name.into(), path, why, bytes: Vec::new(), source: None }
    }

    /// Creates the error for a value of type `T` whose part at `path` could not be read, in a message with
    /// these bytes.
    #[cold]
    pub fn of_value<T>(path: String, why: String, bytes: &[u8]) -> Error {
        Self::of_named_value(std::any::type_name::<T>(), path, why, bytes)
    }

    fn of_named_value(type_name: &'static str, path: String, why: String, bytes: &[u8]) -> Error {
        let mut all = Self::new(type_name, path, why);
        all.bytes = bytes.to_vec();
        Error::Undecodable(Box::new(all))
    }

    /// Converts any error that occurred while decoding a message of type `T` with these bytes.
    #[cold]
    pub fn of_message<T>(error: Error, bytes: &[u8]) -> Error {
        Self::of_named_message(std::any::type_name::<T>(), error, bytes)
    }

    fn of_named_message(type_name: &'static str, error: Error, bytes: &[u8]) -> Error {
        let mut all = match error {
            Error::Undecodable(part) => *part,
            other => match other.into_reason() {
                Ok(why) => Self::new(type_name, String::new(), why),
                Err(other) => {
                    let source = Some(Box::new(other));
                    Self { source, ..Self::new(type_name, String::new(), String::new()) }
                }
            },
        };
        all.type_name = type_name.into();
        all.bytes = bytes.to_vec();
        Error::Undecodable(Box::new(all))
    }

    /// Returns the name of the expected type.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Returns the path to the invalid part: fields, variants and indices, for example `jobs[3].name`. The
    /// path is empty for the value itself. The path does not lead into values that serde buffers before it
    /// reads them (untagged and internally tagged enums, flattened fields).
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the bytes of the message. Each serde value in the message is encoded in MessagePack and
    /// preceded by its length. A length below 255 is one byte. Other lengths are a byte 255 and four bytes,
    /// little-endian.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of the message by value.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Creates the error from the parts received from another process: type, path, reason, and the bytes.
    #[doc(hidden)]
    pub fn from_parts([type_name, path, why]: [String; 3], bytes: Vec<u8>) -> Self {
        Self { type_name: type_name.into(), path, why, bytes, source: None }
    }

    /// Returns the parts to send to another process: type, path and reason. A source is reduced to its text.
    #[doc(hidden)]
    pub fn to_parts(&self) -> [String; 3] {
        let why = self.source.as_ref().map_or_else(|| self.why.clone(), ToString::to_string);
        [self.type_name.clone().into_owned(), self.path.clone(), why]
    }

    /// Prepends a field to the path.
    fn within(&mut self, field: &str) {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{field}{dot}{}", self.path);
    }
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { type_name, path, why, bytes, source } = self;
        write!(f, "a message can't be decoded as {type_name}: ")?;
        if !path.is_empty() {
            write!(f, "at {path}: ")?;
        }
        match source {
            Some(source) => source.fmt(f)?,
            None => f.write_str(why)?,
        }
        if !bytes.is_empty() {
            write!(f, "; it has {} bytes, which are in this error:", bytes.len())?;
            bytes.iter().take(SHOWN).try_for_each(|byte| write!(f, " {byte:02x}"))?;
        }
        f.write_str(if bytes.len() > SHOWN { " ..." } else { "" })
    }
}

crate::readable_debug!(Undecodable);

impl std::error::Error for Undecodable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Prepends a field to the path of an error, for a derived [`Message::decode`](crate::Message::decode).
#[doc(hidden)]
#[cold]
pub fn in_field<T>(error: Error, field: &str) -> Error {
    in_field_of(std::any::type_name::<T>(), error, field)
}

fn in_field_of(type_name: &'static str, error: Error, field: &str) -> Error {
    let mut undecodable = match error {
        Error::Undecodable(undecodable) => undecodable,
        other => match other.into_reason() {
            Ok(why) => Box::new(Undecodable::new(type_name, String::new(), why)),
            Err(other) => return other,
        },
    };
    undecodable.type_name = type_name.into();
    undecodable.within(field);
    Error::Undecodable(undecodable)
}
