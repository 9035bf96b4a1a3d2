//! Plain old data as bytes: values that are [`bytemuck::Pod`] are written and read by one copy, regardless of
//! their fields.
//!
//! Messages of a few bytes without attachments ([`SmallBytes`]) stay in registers. Other messages use
//! buffers.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::{Pod, bytes_of, bytes_of_mut, pod_read_unaligned};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Codec, Incoming, Outgoing};
use crate::error::{Error, Result};

/// Wrapper that sends a value as its bytes in memory.
///
/// ```
/// use mp_core::message::AsBytes;
/// # use mp_core::Message;
/// use bytemuck::{Pod, Zeroable};
///
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(C)]
/// struct Reading {
///     time: f64,
///     values: [f32; 12],
/// }
///
/// // A queue of `AsBytes` copies each value once when it is put, and once when it is got.
/// fn sendable(reading: Reading) -> impl Message {
///     AsBytes(reading)
/// }
/// # sendable(Reading { time: 0.0, values: [0.0; 12] });
/// ```
///
/// Implements serde's traits, for messages between processes of one machine: the bytes are in native order,
/// and sender and receiver must agree on the layout. Data of another length is rejected. A reordering of
/// fields is not detected, as for any data shared by its layout. Sender and receiver keep the value on their
/// stacks, like any value that is moved. Use a tensor for values larger than about ten KiB.
///
/// Your own type needs no wrapper if it has `#[derive(Message)] #[message(as_bytes)]`. A field of a serde
/// type needs no wrapper if it has `#[serde(with = "mp::message::as_bytes")]` (in `mp-reduce`:
/// `mp_reduce::message::as_bytes`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct AsBytes<T>(
    /// The value.
    pub T,
);

impl<T: Pod> Serialize for AsBytes<T> {
    #[inline]
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_bytes(bytes_of(&self.0))
    }
}

impl<'de, T: Pod> Deserialize<'de> for AsBytes<T> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        d.deserialize_bytes(AsBytesVisitor(PhantomData)).map(Self)
    }
}

struct AsBytesVisitor<T>(PhantomData<T>);

impl<'de, T: Pod> Visitor<'de> for AsBytesVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} bytes of a {}", size_of::<T>(), std::any::type_name::<T>())
    }

    #[inline]
    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> std::result::Result<T, E> {
        if bytes.len() == size_of::<T>() {
            Ok(pod_read_unaligned(bytes))
        } else {
            Err(E::invalid_length(bytes.len(), &self))
        }
    }

    /// Reads the bytes one by one, for formats without byte strings, which write each byte as a number.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<T, A::Error> {
        let mut value = T::zeroed();
        let bytes = bytes_of_mut(&mut value);
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(i, &self))?;
        }
        match seq.next_element::<u8>()? {
            None => Ok(value),
            Some(_) => Err(A::Error::invalid_length(size_of::<T>() + 1, &self)),
        }
    }
}

/// Field attribute for serde types: `#[serde(with = "mp::message::as_bytes")]`; see [`AsBytes`].
///
/// ```
/// use serde::{Deserialize, Serialize};
/// # use mp_core as mp;
///
/// #[derive(Serialize, Deserialize)]
/// struct Frame {
///     name: String,
///     #[serde(with = "mp::message::as_bytes")]
///     matrix: [[f32; 4]; 4],
/// }
/// ```
pub mod as_bytes {
    use bytemuck::{Pod, bytes_of};
    use serde::{Deserialize, Deserializer, Serializer};

    use super::AsBytes;

    /// Writes the bytes of a value.
    ///
    /// # Errors
    /// Any error of the serializer.
    #[inline]
    pub fn serialize<T: Pod, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(bytes_of(value))
    }

    /// Reads a value from its bytes.
    ///
    /// # Errors
    /// An error if the number of bytes is not the size of the type, and any error of the deserializer.
    #[inline]
    pub fn deserialize<'de, T: Pod, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        AsBytes::deserialize(d).map(|AsBytes(value)| value)
    }
}

/// Writes a value for `#[message(as_bytes)]`.
#[doc(hidden)]
#[inline]
pub fn write_as_bytes<T: Pod, C: Codec>(out: &mut Outgoing, value: &T) -> Result<()> {
    C::write_bytes(out, bytes_of(value))
}

/// Reads a value that `write_as_bytes` wrote, into `slot`.
#[doc(hidden)]
#[inline]
pub fn read_as_bytes_into<T: Pod, C: Codec>(inc: &mut Incoming, slot: &mut Option<T>) -> Result<()> {
    let read = |bytes: &[u8]| {
        if bytes.len() != size_of::<T>() {
            return Err(of_another_length::<T>(bytes.len()));
        }
        bytes_of_mut(slot.insert(T::zeroed())).copy_from_slice(bytes);
        Ok(())
    };
    if !C::read_small_bytes(inc, read)? {
        *slot = Some(C::read::<AsBytes<T>>(inc)?.0);
    }
    Ok(())
}

/// Reads a value that `write_as_bytes` wrote, from the bytes of a message without attachments.
#[doc(hidden)]
#[inline]
pub fn read_as_bytes_plain<T: Pod, C: Codec>(bytes: &[u8]) -> Result<T> {
    C::read_plain(bytes).map(|AsBytes(value)| value)
}

#[cold]
fn of_another_length<T: Pod>(len: usize) -> Error {
    let error: serde::de::value::Error =
        serde::de::Error::invalid_length(len, &AsBytesVisitor::<T>(PhantomData));
    Error::Malformed(error.to_string())
}

/// Up to ten bytes, the capacity of a queue's slot.
///
/// ```
/// use mp_core::message::SmallBytes;
///
/// let small_bytes = SmallBytes::new(&[1, 2, 3]).unwrap();
/// assert_eq!(small_bytes.as_slice(), [1, 2, 3]);
/// assert_eq!(SmallBytes::new(&[0; 11]), None);
/// ```
#[derive(Clone, Copy, Default)]
pub struct SmallBytes {
    bytes: [u8; SmallBytes::MOST],
    /// Number of bytes in use.
    len: u8,
}

impl SmallBytes {
    /// Maximum number of bytes.
    pub const MOST: usize = 10;
    /// Value with a length of 0.
    pub const EMPTY: Self = Self { bytes: [0; Self::MOST], len: 0 };

    /// Creates a value with these bytes. Returns `None` if there are more than `MOST`.
    #[inline]
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MOST];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { bytes, len: from.len() as u8 })
    }

    /// Creates a value with the first `len` of these bytes. If `len` exceeds [`MOST`](Self::MOST),
    /// [`as_slice`](Self::as_slice) returns an empty slice.
    #[inline(always)]
    pub fn first(len: usize, bytes: [u8; Self::MOST]) -> Self {
        Self { bytes, len: len as u8 }
    }

    /// Returns the bytes.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len()).unwrap_or_default()
    }

    /// Returns the whole array: the bytes, followed by unused ones.
    #[inline(always)]
    pub fn all(self) -> [u8; Self::MOST] {
        self.bytes
    }

    /// Returns the number of bytes.
    #[inline(always)]
    pub fn len(self) -> usize {
        self.len.into()
    }

    /// Returns `true` if there are no bytes.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl PartialEq for SmallBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SmallBytes {}

impl fmt::Debug for SmallBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}
