//! Return types of process functions and pool tasks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use super::{AsBytes, Message};

/// Return type of the function of a process, or of a pool's task. One of these types:
///
/// - `Result<T, E>`, whose error is sent to the caller;
/// - `()`;
/// - a type of the standard library or of `mp` that can be sent;
/// - `!`.
///
/// ```
/// use mp_core::message::IntoOutcome;
///
/// fn parse(text: &str) -> Result<u32, std::num::ParseIntError> {
///     text.parse()
/// }
///
/// assert_eq!(parse("17").into_result().unwrap(), 17);
/// assert!(parse("x").into_result().unwrap_err().to_string().contains("invalid digit"));
/// assert_eq!(17_u32.into_result().unwrap(), 17); // as it is
/// ```
///
/// `T` is any type that can be sent; tensors in it are not copied. `E` is any type that converts into a boxed
/// error: an error type, a `Box<dyn Error + Send + Sync>`, an `anyhow::Error`, a `String`. The caller
/// receives the error's `Display` and `Debug` texts and all its sources. To return your own type, return it
/// in a `Result`, or implement [`PlainOutcome`] for it.
#[diagnostic::on_unimplemented(
    message = "the function of a process or a task cannot return `{Self}`",
    note = "it may return numbers, strings, collections, tensors, nothing, or `Result<T, E>` where `T` can \
    be sent and is `Send`, and `E` is an error that is `Send` and `Sync`",
    note = "an `async fn`: call it in a function that is not, by a runtime which that makes \
    (`Runtime::new()?.block_on(…)`)",
    note = "a type of your own: `Result<{Self}, E>`, or `impl mp::message::PlainOutcome for {Self} {{}}`"
)]
pub trait IntoOutcome: 'static {
    /// Value that the caller receives.
    type Value: Message + Send;

    /// Returns the value or the error.
    ///
    /// # Errors
    /// The error that the function returned.
    fn into_result(self) -> Result<Self::Value, Box<dyn Error + Send + Sync>>;
}

impl<T, E> IntoOutcome for Result<T, E>
where
    T: Message + Send,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    type Value = T;

    fn into_result(self) -> Result<T, Box<dyn Error + Send + Sync>> {
        self.map_err(Into::into)
    }
}

/// Outcome of a function that never returns: it runs forever, or panics.
impl IntoOutcome for NeverType {
    type Value = ();

    fn into_result(self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self
    }
}

/// The type `!`, which can't be named in stable Rust.
type NeverType = <fn() -> ! as never::Returns>::Output;

mod never {
    pub trait Returns {
        type Output;
    }
    impl<T> Returns for fn() -> T {
        type Output = T;
    }
}

/// Type that the function of a process or task may return without a `Result`. All its values count as
/// success.
///
/// ```
/// use mp_core::message::{IntoOutcome, PlainOutcome};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Point(i32, i32);
///
/// impl PlainOutcome for Point {}
///
/// assert_eq!(Point(3, 4).into_result().unwrap().1, 4);
/// ```
#[diagnostic::on_unimplemented(
    message = "the function of a process or a task cannot return `{Self}`",
    note = "it may return numbers, strings, collections, tensors, nothing, or `Result<T, E>` where `T` can \
    be sent and is `Send`, and `E` is an error that is `Send` and `Sync`",
    note = "an `async fn`: call it in a function that is not, by a runtime which that makes \
    (`Runtime::new()?.block_on(…)`)",
    note = "for a type of your own: `impl mp::message::PlainOutcome for {Self} {{}}`"
)]
pub trait PlainOutcome {}

impl<T: PlainOutcome + Message + Send> IntoOutcome for T {
    type Value = Self;

    fn into_result(self) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(self)
    }
}

impl<T, const N: usize> PlainOutcome for [T; N] {}

macro_rules! plain {
    ($([$($generic:ident),*] $type:ty;)*) => {$(
        impl<$($generic),*> PlainOutcome for $type {}
    )*};
}

plain! {
    [] (); [] bool; [] char; [] String; [] Duration; [] PathBuf;
    [] u8; [] u16; [] u32; [] u64; [] u128; [] usize;
    [] i8; [] i16; [] i32; [] i64; [] i128; [] isize; [] f32; [] f64;
    [A] (A,); [A, B] (A, B); [A, B, C] (A, B, C); [A, B, C, D] (A, B, C, D);
    [A, B, C, D, E] (A, B, C, D, E); [A, B, C, D, E, F] (A, B, C, D, E, F);
    [T] AsBytes<T>; [T] Option<T>; [T] Box<T>; [T] Vec<T>; [T] VecDeque<T>; [T] BTreeSet<T>;
    [K, V] BTreeMap<K, V>; [K, V, S] HashMap<K, V, S>; [T, S] HashSet<T, S>;
}
