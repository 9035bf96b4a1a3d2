//! Code of a closure, without its captures.

use std::fmt;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Closure, RebuildFn, reference, resolve};
use crate::protocol::function::{FunctionDesc, FunctionRef};

/// Code of a [`Closure`], a constant of the program. It is sent as a reference, which is verified when it is
/// read.
#[doc(hidden)]
pub struct Code<A: 'static, R: 'static>(pub(super) &'static FunctionDesc<RebuildFn<A, R>>);

impl<A: 'static, R: 'static> Closure<A, R> {
    /// Returns the code without the captures. Sent once, it rebuilds closures from the bytes of
    /// [`captures`](Self::captures).
    #[doc(hidden)]
    pub fn code(&self) -> Code<A, R> {
        Code(self.0.get().code())
    }
}

impl<A: 'static, R: 'static> Code<A, R> {
    /// Returns a number that identifies the code within this process.
    pub fn id(self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }

    /// Creates the closure with these captures.
    ///
    /// # Errors
    /// If [`Closure::captures`] did not write the bytes, or a captured value's `Deserialize` returns an
    /// error.
    pub fn capturing(self, captures: &[u8]) -> mp_core::Result<Closure<A, R>> {
        (self.0.entry)(captures)
    }
}

impl<A: 'static, R: 'static> Clone for Code<A, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: 'static, R: 'static> Copy for Code<A, R> {}

impl<A: 'static, R: 'static> fmt::Debug for Code<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({:?})", self.0)
    }
}

impl<A: 'static, R: 'static> Serialize for Code<A, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        reference(self.0).map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de, A: 'static, R: 'static> Deserialize<'de> for Code<A, R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        resolve(&FunctionRef::deserialize(deserializer)?).map(Code).map_err(D::Error::custom)
    }
}
