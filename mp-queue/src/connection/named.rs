//! Values with the names of their types, as sent over connections in shared memory. The two ends may expect
//! different types, and the error then contains both names.
//!
//! | bytes | contents |
//! |---|---|
//! | 2 | length of the name, little-endian; 0 if it is longer than [`MAX_NAME`] |
//! | that length | the name (`std::any::type_name`) |
//! | all other bytes | the value, encoded as in a queue. (A queue has one type, so its messages contain no name) |

use mp_core::message::{Codec, Incoming, Outgoing, Undecodable, UnsentValues};
use mp_core::{Message, fnv1a};
use mp_reduce::Error;

use crate::error::GetError;

/// Largest number of bytes of a name that is sent. A longer name is not sent, and the error for a type
/// mismatch then contains only the expected type.
pub(crate) const MAX_NAME: usize = 4096;
/// Number of bytes of the length of a name.
pub(crate) const LENGTH: usize = 2;

/// Returns the length and the name of a type as they are sent.
pub(crate) fn sent_name<T>() -> ([u8; LENGTH], &'static [u8]) {
    let name = std::any::type_name::<T>().as_bytes();
    let name = if name.len() > MAX_NAME { &[] } else { name };
    ((name.len() as u16).to_le_bytes(), name)
}

/// A value, encoded after the name of its type.
pub(crate) struct NamedValue<T>(pub(crate) T);

impl<T: Message> Message for NamedValue<T> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let (length, name) = sent_name::<T>();
        let bytes = out.bytes();
        bytes.extend_from_slice(&length);
        bytes.extend_from_slice(name);
        self.0.encode::<C>(out)
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        self.0.take_back(back);
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let (name, _) = split(inc.rest()).ok_or_else(|| {
            mp_core::Error::Malformed("a message of a connection is shorter than its type name".into())
        })?;
        if !is_name_of::<T>(name) {
            return Err(mp_core::Error::Malformed(
                "the message has another type with the same fingerprint".into(),
            ));
        }
        let before = LENGTH + name.len();
        inc.advance(before);
        T::decode::<C>(inc).map(Self)
    }
}

/// Returns `true` if a value with this type name is a `T`. The caller has checked that its fingerprint is
/// that of `T`, and two type names may have the same fingerprint. An empty name means that the name was too
/// long to be sent, so the fingerprint alone decides.
pub(crate) fn is_name_of<T>(name: &[u8]) -> bool {
    name.is_empty() || name == sent_name::<T>().1
}

/// Splits a message into the name of its type and the encoded value.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(u16::from_le_bytes(*length).into())
}

/// Converts the error of receiving a [`NamedValue`] into the error of receiving its value. A type mismatch
/// then contains the names of both types.
#[cold]
pub(crate) fn unwrap_error<T>(error: GetError) -> GetError {
    let GetError::Failed(error) = error else { return error };
    GetError::Failed(match error {
        Error::TypeMismatch { found, bytes, .. } => {
            let expected = std::any::type_name::<T>();
            match split(&bytes) {
                Some((name, value)) => {
                    let found =
                        if name.is_empty() { found } else { Some(String::from_utf8_lossy(name).into()) };
                    Error::TypeMismatch { expected, found, bytes: value.to_vec() }
                }
                None => Error::TypeMismatch { expected, found, bytes },
            }
        }
        Error::Memory(mp_core::Error::Undecodable(undecodable)) => {
            let bytes = undecodable.bytes().to_vec();
            let (name, value) = split(&bytes).unwrap_or_else(|| (sent_name::<T>().1, &bytes));
            if !is_name_of::<T>(name) {
                return GetError::Failed(type_mismatch::<T>(name, value));
            }
            Undecodable::of_message::<T>(mp_core::Error::Undecodable(undecodable), value).into()
        }
        other => other,
    })
}

/// Returns the error for a value of another type.
#[cold]
pub(crate) fn type_mismatch<T>(name: &[u8], value: &[u8]) -> Error {
    let found = (!name.is_empty()).then(|| String::from_utf8_lossy(name).into());
    Error::TypeMismatch { expected: std::any::type_name::<T>(), found, bytes: value.to_vec() }
}

/// Adds the type name that arrived over a socket to a type mismatch, if the fingerprint is the hash of that
/// name.
#[cold]
pub(crate) fn with_name(error: Error, fingerprint: u64, name: &[u8]) -> Error {
    match error {
        Error::TypeMismatch { expected, bytes, .. } if fnv1a(name) == fingerprint => {
            Error::TypeMismatch { expected, found: Some(String::from_utf8_lossy(name).into()), bytes }
        }
        error => error,
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use mp_reduce::MessagePack;

    use super::*;

    /// The message has the fingerprint of the expected type and the name of another type.
    #[test]
    fn value_of_equal_fingerprint_is_checked_by_type_name() {
        let received = |name: &str| {
            let bytes = [&(name.len() as u16).to_le_bytes(), name.as_bytes(), &[1, 5]].concat();
            let decoded = NamedValue::<u8>::decode::<MessagePack>(&mut Incoming::from_plain(bytes.clone()));
            let error =
                |error| GetError::from(Error::from(Undecodable::of_message::<NamedValue<u8>>(error, &bytes)));
            decoded.map(|named| named.0).map_err(|e| unwrap_error::<u8>(error(e)))
        };
        assert_eq!(received("u8").unwrap(), 5);
        match received("u9").unwrap_err() {
            GetError::Failed(Error::TypeMismatch { expected, found, bytes }) => {
                assert_eq!((expected, found.as_deref(), &bytes[..]), ("u8", Some("u9"), &[1, 5][..]));
            }
            other => panic!("{other:?}"),
        }
    }
}
