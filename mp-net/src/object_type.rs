//! Kinds of objects, and the types of their messages.

use mp_core::Message;
use mp_reduce::{TypeFingerprint, name_of};

/// Kind of an object and type of its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectType {
    pub(crate) fingerprint: u64,
    /// Text for errors, such as `a queue of u64`.
    pub(crate) name: String,
}

/// Returns the fingerprint of a kind of objects that have no messages.
fn plain(kind: &[u8; 8], name: &str) -> ObjectType {
    ObjectType { fingerprint: u64::from_le_bytes(*kind), name: name.into() }
}

impl ObjectType {
    /// Returns the type of a queue whose messages have this fingerprint.
    pub(crate) fn queue<T: Message>(fingerprint: u64) -> Self {
        Self { fingerprint, name: format!("a queue of {}", name_of::<T>()) }
    }

    pub(crate) fn event() -> Self {
        plain(b"event   ", "an event")
    }

    pub(crate) fn semaphore() -> Self {
        plain(b"permits ", "a semaphore")
    }

    /// Returns the type of a channel of this kind, whose messages are serde types.
    fn channel<T>(kind: &[u8; 8], name: &str) -> Self {
        let fingerprint = TypeFingerprint::<T>::of_rust_name().get() ^ u64::from_le_bytes(*kind);
        Self { fingerprint, name: format!("{name} of {}", std::any::type_name::<T>()) }
    }

    pub(crate) fn watch<T>() -> Self {
        Self::channel::<T>(b"watch   ", "a watch channel")
    }

    pub(crate) fn broadcast<T>() -> Self {
        Self::channel::<T>(b"casts   ", "a broadcast channel")
    }

    pub(crate) fn barrier() -> Self {
        plain(b"barrier ", "a barrier")
    }
}
