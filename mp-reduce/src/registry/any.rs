//! Messages of any registered type, in one queue.

use std::any::{Any, TypeId, type_name};
use std::fmt;

use mp_core::message::PlainOutcome;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::table;
use crate::builtin::ByteString;

/// A value of any type that is [registered](crate::register()): a queue of these takes them all.
///
/// ```
/// use std::path::PathBuf;
/// use mp_reduce::{AnyValue, pack, register_serde, unpack};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, PartialEq, Debug)]
/// struct Job { number: u32 }
///
/// register_serde::<Job>()?; // in all processes that send or receive it; `register!` does it in all of a program
/// let mixed = vec![AnyValue::new(Job { number: 7 }), AnyValue::new(PathBuf::from("/tmp")), AnyValue::new(2.5_f64)];
/// let mut arrived = unpack::<Vec<AnyValue>>(pack(mixed).map_err(|e| e.error)?)?.into_iter();
/// let first = arrived.next().ok_or("nothing")?;
/// let first = first.downcast::<PathBuf>().unwrap_err(); // it is none, and comes back
/// assert_eq!(first.downcast::<Job>().ok(), Some(Job { number: 7 }));
/// assert!(arrived.next().is_some_and(|path| path.is::<PathBuf>()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Numbers, `bool`, `char`, `()`, `String`, `Vec<u8>`, and the types of the standard library that are [`Reduce`](crate::Reduce) are registered in
/// every process.
///
/// Its type is found by its name, and checked: the sender's name of the type says it all. A process that has no type of this name can't
/// read the message: the error says which type and which process, and has the bytes; as a [lease](https://docs.rs/mp-queue) the message
/// goes to another consumer. A value whose type is not registered at its sender is refused at `put`, and comes back.
pub struct AnyValue {
    value: Box<dyn Any + Send + Sync>,
    type_name: &'static str,
}

impl AnyValue {
    /// Of a value. Whether its type is registered is found out when it is sent.
    #[must_use]
    pub fn new<T: Send + Sync + 'static>(value: T) -> Self {
        Self { value: Box::new(value), type_name: type_name::<T>() }
    }

    /// Whether it is a `T`.
    #[must_use]
    pub fn is<T: 'static>(&self) -> bool {
        self.value.is::<T>()
    }

    /// The value, if it is a `T`.
    ///
    /// # Errors
    /// It itself, if it is something else.
    pub fn downcast<T: 'static>(self) -> Result<T, Self> {
        let Self { value, type_name } = self;
        value.downcast().map(|value| *value).map_err(|value| Self { value, type_name })
    }

    /// The value, if it is a `T`.
    #[must_use]
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        self.value.downcast_ref()
    }

    /// The value, to change it, if it is a `T`.
    #[must_use]
    pub fn downcast_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.value.downcast_mut()
    }

    /// The name of its type, as this program has it.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }

    fn type_id(&self) -> TypeId {
        (*self.value).type_id()
    }
}

impl fmt::Debug for AnyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyValue({})", self.type_name)
    }
}

impl Serialize for AnyValue {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let entry = table::of_id(self.type_id(), self.type_name).map_err(S::Error::custom)?;
        let bytes = entry.write(&*self.value).map_err(S::Error::custom)?;
        (&entry.name, ByteString(bytes)).serialize(s)
    }
}

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (name, ByteString(bytes)) = <(String, ByteString)>::deserialize(d)?;
        let entry = table::of_name(&name).map_err(D::Error::custom)?;
        let value = entry.read_shared(&bytes).map_err(D::Error::custom)?;
        Ok(Self { value, type_name: entry.type_name() })
    }
}

impl PlainOutcome for AnyValue {}
