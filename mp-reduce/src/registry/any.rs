//! Messages of any registered type in one queue.

use std::any::{Any, TypeId, type_name};
use std::fmt;

use mp_core::message::PlainOutcome;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{entry_of_id, entry_of_name};
use crate::builtin::ByteString;

/// A value of any [registered](crate::register()) type, so that one queue transports values of all these
/// types.
///
/// ```
/// use std::path::PathBuf;
/// use mp_reduce::{AnyValue, pack, register_serde, unpack};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, PartialEq, Debug)]
/// struct Job { number: u32 }
///
/// register_serde::<Job>()?; // in all processes that send or receive it; `register!` covers a whole program
/// let (job, path) = (AnyValue::new(Job { number: 7 }), AnyValue::new(PathBuf::from("/tmp")));
/// let mixed = vec![job, path, AnyValue::new(2.5_f64)];
/// let mut arrived = unpack::<Vec<AnyValue>>(pack(mixed).map_err(|e| e.error)?)?.into_iter();
/// let first = arrived.next().ok_or("nothing")?;
/// let first = first.downcast::<PathBuf>().unwrap_err(); // not a path: the error returns the value
/// assert_eq!(first.downcast::<Job>().ok(), Some(Job { number: 7 }));
/// assert!(arrived.next().is_some_and(|path| path.is::<PathBuf>()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Numbers, `bool`, `char`, `()`, `String`, `Vec<u8>`, and the types of the standard library that implement
/// [`Reduce`](crate::Reduce) are registered in every process.
///
/// The receiver finds the type by the name that it has at the sender. If the receiver has not registered the
/// type, the error names the type and the process, and contains the bytes. A
/// [leased](https://docs.rs/mp-queue) message is then delivered to another consumer. `put` refuses a value
/// whose type is not registered at the sender, and returns it.
pub struct AnyValue {
    value: Box<dyn Any + Send + Sync>,
    type_name: &'static str,
}

impl AnyValue {
    /// Wraps a value. Sending it fails if its type is not registered.
    #[must_use]
    pub fn new<T: Send + Sync + 'static>(value: T) -> Self {
        Self { value: Box::new(value), type_name: type_name::<T>() }
    }

    /// Returns `true` if the value is a `T`.
    #[must_use]
    pub fn is<T: 'static>(&self) -> bool {
        self.value.is::<T>()
    }

    /// Unwraps the value, if it is a `T`.
    ///
    /// # Errors
    /// Returns `self` in the error if the value has another type.
    pub fn downcast<T: 'static>(self) -> Result<T, Self> {
        let Self { value, type_name } = self;
        value.downcast().map(|value| *value).map_err(|value| Self { value, type_name })
    }

    /// Returns the value, if it is a `T`.
    #[must_use]
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        self.value.downcast_ref()
    }

    /// Returns a mutable reference to the value, if it is a `T`.
    #[must_use]
    pub fn downcast_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.value.downcast_mut()
    }

    /// Returns the name of the value's type in this program.
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
        let entry = entry_of_id(self.type_id(), self.type_name).map_err(S::Error::custom)?;
        let bytes = entry.write(&*self.value).map_err(S::Error::custom)?;
        (&entry.name, ByteString(bytes)).serialize(s)
    }
}

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (name, ByteString(bytes)) = <(String, ByteString)>::deserialize(d)?;
        let entry = entry_of_name(&name).map_err(D::Error::custom)?;
        let value = entry.read_shared(&bytes).map_err(D::Error::custom)?;
        Ok(Self { value, type_name: entry.type_name() })
    }
}

impl PlainOutcome for AnyValue {}
