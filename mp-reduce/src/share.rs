//! What several parts of a message point to, and arrives once.

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

use crate::codec::{mentioned, part_of, read_part};

/// What [`shared`](mod@shared) sends: an `Arc` or `Rc` of a serde type, or a `Vec`, `Option` or map of such.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that `#[serde(with = \"shared\")]` can send",
    note = "it can be an `Arc<T>` or `Rc<T>`, where `T` and `Box<T>` are serde types, and an `Option`, a `Vec` or a map of these; a `Weak` \
            can't be sent: `#[serde(skip)]` it, and make it again at the receiver"
)]
pub trait SharedPointer: Sized {
    /// As [`shared::serialize`].
    #[doc(hidden)]
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error>;

    /// As [`shared::deserialize`].
    #[doc(hidden)]
    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error>;
}

/// For fields: `#[serde(with = "mp_reduce::shared")]`. An [`Arc`] or [`Rc`] that is mentioned twice in a message is one object at the
/// receiver, too.
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
/// Its bytes are in the message once. The field is an `Arc` or `Rc` of a serde type (`str`, slices and paths among them), or an `Option`, a
/// `Vec` or a map with such values ([`SharedPointer`]). Two that point to one thing as things of two types are two objects at the receiver.
///
/// One message is what one `put` sends, or the arguments of one process or of one task: what is mentioned in two messages arrives twice.
/// Tensors, storages and queues need none of this: they are the same memory at the receiver however often they are mentioned.
///
/// Outside of a message, as in `serde_json`, it is the value itself, each time that it is mentioned: what serde's feature `rc` does.
///
/// # Errors
/// A value that leads to itself is refused at `put`, which gives the message back. There is nothing for [`Weak`](std::sync::Weak), which
/// is how such a way back is mostly kept: `#[serde(skip)]` it, and set it again at the receiver.
#[doc(alias = "memo")]
pub mod shared {
    use serde::{Deserializer, Serializer};

    use super::SharedPointer;

    /// Writes which part of the message it is; the first time, the part as well.
    ///
    /// # Errors
    /// Those of the value, and when it leads to itself.
    pub fn serialize<P: SharedPointer, S: Serializer>(value: &P, s: S) -> Result<S::Ok, S::Error> {
        value.write(s)
    }

    /// Reads which part of the message it is, and the part, unless it was read already.
    ///
    /// # Errors
    /// Those of the value; and when the message has no such part.
    pub fn deserialize<'de, P: SharedPointer, D: Deserializer<'de>>(d: D) -> Result<P, D::Error> {
        P::read(d)
    }
}

/// The first byte of a mention: it begins no text, so that an untagged enum takes it for nothing else.
const MARK: u8 = 0xff;

/// That a part is mentioned: its number, which is bytes to all formats.
struct Mention(u32);

impl Serialize for Mention {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let [a, b, c, d] = self.0.to_le_bytes();
        s.serialize_bytes(&[MARK, a, b, c, d])
    }
}

impl<'de> Deserialize<'de> for Mention {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Mention;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a shared part")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Mention, E> {
                match *bytes {
                    [MARK, a, b, c, d] => Ok(Mention(u32::from_le_bytes([a, b, c, d]))),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Bytes(bytes), &self)),
                }
            }
        }
        d.deserialize_bytes(Reader)
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
    let number = mentioned::mention(pointer, address, || part_of::<T, Box<T>>(value));
    Mention(number.map_err(S::Error::custom)?).serialize(s)
}

fn read<'de, T, P, D>(d: D) -> Result<P, D::Error>
where
    T: ?Sized,
    P: Any + Clone + From<Box<T>>,
    Box<T>: DeserializeOwned,
    D: Deserializer<'de>,
{
    if !mentioned::are_read() {
        return Ok(Box::<T>::deserialize(d)?.into());
    }
    let Mention(number) = Mention::deserialize(d)?;
    let part = |bytes: &[u8]| read_part::<Box<T>>(bytes).map(P::from);
    mentioned::part(number, part).map_err(D::Error::custom)
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

/// As a serde type, within a list or map.
struct Item<'a, P>(&'a P);

impl<P: SharedPointer> Serialize for Item<'_, P> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.write(s)
    }
}

/// Likewise, to be read.
struct Read<P>(P);

impl<'de, P: SharedPointer> Deserialize<'de> for Read<P> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        P::read(d).map(Read)
    }
}

impl<P: SharedPointer> SharedPointer for Option<P> {
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(Item).serialize(s)
    }

    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Option::<Read<P>>::deserialize(d)?.map(|read| read.0))
    }
}

impl<P: SharedPointer> SharedPointer for Vec<P> {
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.iter().map(Item))
    }

    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Vec::<Read<P>>::deserialize(d)?.into_iter().map(|read| read.0).collect())
    }
}

impl<K: Serialize + DeserializeOwned + Ord, P: SharedPointer> SharedPointer for BTreeMap<K, P> {
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter().map(|(key, value)| (key, Item(value))))
    }

    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<K, Read<P>>::deserialize(d)?.into_iter().map(|(key, read)| (key, read.0)).collect())
    }
}

impl<K, P, H> SharedPointer for HashMap<K, P, H>
where
    K: Serialize + DeserializeOwned + Eq + Hash,
    P: SharedPointer,
    H: BuildHasher + Default,
{
    fn write<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter().map(|(key, value)| (key, Item(value))))
    }

    fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(HashMap::<K, Read<P>, H>::deserialize(d)?.into_iter().map(|(key, read)| (key, read.0)).collect())
    }
}
