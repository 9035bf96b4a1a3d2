//! Shared parts of a message, which the receiver decodes to one object.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::rc::Rc;
use std::sync::Arc;

use mp_core::message::scope;
use serde::de::{DeserializeOwned, Error as _, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{read_part, shared_parts, write_part};

/// Trait of the types that [`shared`](mod@shared) can send: an `Arc` or `Rc` of a serde type, and a `Vec`,
/// `Option` or map of these.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be sent by `#[serde(with = \"shared\")]`",
    note = "it can be an `Arc<T>` or `Rc<T>`, where `T` and `Box<T>` are serde types, \
            and an `Option`, a `Vec` or a map of these; a `Weak` can't be sent: `#[serde(skip)]` it, and \
            restore it at the receiver"
)]
pub trait SharedPointer: Sized {
    /// See [`shared::serialize`].
    #[doc(hidden)]
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error>;

    /// See [`shared::deserialize`].
    #[doc(hidden)]
    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error>;
}

/// Functions for the attribute `#[serde(with = "mp_reduce::shared")]` at a field. An [`Arc`] or [`Rc`] that
/// occurs twice in a message is one object at the receiver.
///
/// ```
/// use std::sync::Arc;
/// use mp_reduce::{pack, unpack};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Job {
///     number: u32,
///     #[serde(with = "mp_reduce::shared")]
///     settings: Arc<String>,
/// }
///
/// let settings = Arc::new("long settings".to_string());
/// let jobs: Vec<Job> = (0..100).map(|number| Job { number, settings: settings.clone() }).collect();
/// let arrived = unpack::<Vec<Job>>(pack(jobs).map_err(|e| e.error)?)?;
/// assert!(arrived.iter().all(|job| Arc::ptr_eq(&job.settings, &arrived[0].settings)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The message contains the bytes of the object once. The field is an `Arc` or `Rc` of a serde type
/// (including `str`, slices and paths), or an `Option`, a `Vec` or a map of these ([`SharedPointer`]).
/// Pointers of two types to one object arrive as two objects.
///
/// The scope is one message: one `put`, or the arguments of one process or of one task. A value in two
/// messages arrives twice. Tensors, storages and queues do not need this: they always refer to the same
/// memory at the receiver.
///
/// Outside of a message, as in `serde_json`, the value is written at each occurrence, like with serde's
/// feature `rc`.
///
/// # Errors
/// `put` refuses a value that refers to itself, and returns the message. [`Weak`](std::sync::Weak), the usual
/// type of back references, can't be sent: use `#[serde(skip)]`, and restore it at the receiver.
#[doc(alias = "memo")]
pub mod shared {
    use serde::{Deserializer, Serializer};

    use super::SharedPointer;

    /// Serializes a reference to the shared part. At its first occurrence, adds the part to the message.
    ///
    /// # Errors
    /// Returns the errors of the value, and an error if the value refers to itself.
    pub fn serialize<P: SharedPointer, S: Serializer>(value: &P, s: S) -> Result<S::Ok, S::Error> {
        value.write(s)
    }

    /// Deserializes a reference to a shared part. At its first occurrence, decodes the part.
    ///
    /// # Errors
    /// Returns the errors of the value, and an error if the message has no such part.
    pub fn deserialize<'de, P: SharedPointer, D: Deserializer<'de>>(d: D) -> Result<P, D::Error> {
        P::read(d)
    }
}

/// First byte of an encoded reference. No text begins with this byte, so an untagged enum can't mistake a
/// reference for a text.
const MARK: u8 = 0xff;

/// Reference to a shared part. The number of the part is encoded as a byte string in all formats.
struct PartReference(u32);

impl Serialize for PartReference {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let [a, b, c, d] = self.0.to_le_bytes();
        s.serialize_bytes(&[MARK, a, b, c, d])
    }
}

impl<'de> Deserialize<'de> for PartReference {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct ReferenceVisitor;
        impl Visitor<'_> for ReferenceVisitor {
            type Value = PartReference;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a shared part")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<PartReference, E> {
                match *bytes {
                    [MARK, a, b, c, d] => Ok(PartReference(u32::from_le_bytes([a, b, c, d]))),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Bytes(bytes), &self)),
                }
            }
        }
        d.deserialize_bytes(ReferenceVisitor)
    }
}

fn write<T, P, S>(pointer: &P, value: &T, s: S) -> Result<S::Ok, S::Error>
where
    T: Serialize + ?Sized,
    P: Any + Clone,
    Box<T>: DeserializeOwned,
    S: Serializer,
{
    if scope::outgoing("a shared part", |_| Ok(())).is_err() {
        return value.serialize(s);
    }
    let address = (&raw const *value).cast::<()>().addr();
    let number = shared_parts::write_reference(pointer, address, || write_part::<T, Box<T>>(value));
    PartReference(number.map_err(S::Error::custom)?).serialize(s)
}

fn read<'de, T, P, D>(d: D) -> Result<P, D::Error>
where
    T: ?Sized,
    P: Any + Clone + From<Box<T>>,
    Box<T>: DeserializeOwned,
    D: Deserializer<'de>,
{
    if !shared_parts::has_parts() {
        return Ok(Box::<T>::deserialize(d)?.into());
    }
    let PartReference(number) = PartReference::deserialize(d)?;
    let part = |bytes: &[u8]| read_part::<Box<T>>(bytes).map(P::from);
    shared_parts::read_reference(number, part).map_err(D::Error::custom)
}

macro_rules! pointers {
    ($($pointer:ident)*) => {$(
        impl<T: ?Sized + Serialize + 'static> SharedPointer for $pointer<T>
        where
            Box<T>: DeserializeOwned,
        {
            fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                write(self, &**self, s)
            }

            fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                read::<T, Self, D>(d)
            }
        }
    )*};
}

pointers!(Arc Rc);

/// Serializer of one item of a list or map of shared pointers.
struct WriteShared<'a, P>(&'a P);

impl<P: SharedPointer> Serialize for WriteShared<'_, P> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.write(s)
    }
}

/// Deserialized item of a list or map of shared pointers.
struct ReadShared<P>(P);

impl<'de, P: SharedPointer> Deserialize<'de> for ReadShared<P> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        P::read(d).map(ReadShared)
    }
}

impl<P: SharedPointer> SharedPointer for Option<P> {
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(WriteShared).serialize(s)
    }

    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Option::<ReadShared<P>>::deserialize(d)?.map(|read| read.0))
    }
}

impl<P: SharedPointer> SharedPointer for Vec<P> {
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.iter().map(WriteShared))
    }

    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Vec::<ReadShared<P>>::deserialize(d)?.into_iter().map(|read| read.0).collect())
    }
}

impl<K: Serialize + DeserializeOwned + Ord, P: SharedPointer> SharedPointer for BTreeMap<K, P> {
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter().map(|(key, value)| (key, WriteShared(value))))
    }

    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<K, ReadShared<P>>::deserialize(d)?
            .into_iter()
            .map(|(key, read)| (key, read.0))
            .collect())
    }
}

impl<K, P, H> SharedPointer for HashMap<K, P, H>
where
    K: Serialize + DeserializeOwned + Eq + Hash,
    P: SharedPointer,
    H: BuildHasher + Default,
{
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter().map(|(key, value)| (key, WriteShared(value))))
    }

    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(HashMap::<K, ReadShared<P>, H>::deserialize(d)?
            .into_iter()
            .map(|(key, read)| (key, read.0))
            .collect())
    }
}
