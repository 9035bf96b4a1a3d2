//! The code of a closure, by itself.

use std::fmt;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Closure, Rebuild};
use crate::protocol::function::{self, Desc, FunctionRef};

/// The code of a [`Closure`], a constant of the program. It travels as a reference that is verified when it is read.
#[doc(hidden)]
pub struct Code<A: 'static, R: 'static>(pub(super) &'static Desc<Rebuild<A, R>>);

impl<A: 'static, R: 'static> Code<A, R> {
    /// Tells it from all other code of this process.
    pub fn id(self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }

    /// The closure that has captured this.
    ///
    /// # Errors
    /// When these are not the bytes that [`Closure::captures`] wrote, or a captured value's `Deserialize` refuses.
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

pub(super) fn reference<A: 'static, R: 'static>(
    code: &'static Desc<Rebuild<A, R>>,
) -> Result<FunctionRef, &'static str> {
    code.reference().ok_or("this program's build can't be identified: link it with a build-id")
}

pub(super) fn resolve<A: 'static, R: 'static>(
    code: &FunctionRef,
) -> Result<&'static Desc<Rebuild<A, R>>, String> {
    function::resolve::<Rebuild<A, R>>(code)
        .map_err(|why| format!("the closure `{}` can't be used here: {why}", code.name))
}
