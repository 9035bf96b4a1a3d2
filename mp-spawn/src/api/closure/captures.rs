//! Values that a closure captures, and the compile-time check that [`closure!`](crate::closure!) lists all of
//! these values.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Types that a [`Closure`](crate::Closure) can capture: serde values, including frozen and shared tensors and queues.
#[diagnostic::on_unimplemented(
    message = "a sendable closure can't capture `{Self}`",
    label = "`{Self}` can't be sent to another process",
    note = "it can capture types that are `Serialize + DeserializeOwned + Send + Sync + 'static`: numbers, \
            strings, structs of them with `#[derive(Serialize, Deserialize)]`, frozen and shared tensors, \
            queues, other closures. Pass an exclusive tensor as an argument, or freeze it first; capture the \
            path of a file, and the contents of an `Rc`"
)]
pub trait Capture: Serialize + DeserializeOwned + Send + Sync + 'static {}

// Otherwise the compiler error would name `Serialize` instead of the reason.
#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Capture for T {}

/// Captures of a closure: `()`, or a pair of the first capture and the remaining captures. With nested pairs,
/// a closure can have any number of captures, and a compiler error names a single capture.
#[doc(hidden)]
pub trait Captures: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Returns `Some` if `Self` is `()`, the empty list of captures, whose encoding has no bytes.
    fn nothing() -> Option<Self> {
        None
    }
}

impl Captures for () {
    fn nothing() -> Option<()> {
        Some(())
    }
}

impl<First: Capture, Others: Captures> Captures for (First, Others) {}

/// Returns the arguments unchanged. The bound on `F` lets the compiler infer the types of a closure's
/// parameters.
#[doc(hidden)]
pub fn parts<C, A, R, F: Fn(&C, A) -> R>(captures: C, code: F) -> (C, F) {
    (captures, code)
}

/// Refuses closures that capture. The compiler error names the variable, and shows the name of this function.
#[doc(hidden)]
pub fn list_in_the_brackets_what_the_body_uses<C, A, R>(_: fn(&C, A) -> R) {}
