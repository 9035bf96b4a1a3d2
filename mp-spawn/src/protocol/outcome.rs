//! What a worker's function may return.

use std::any::TypeId;
use std::error::Error;

use mp_core::message::Message;

use crate::protocol::message::{cut, sources};
use crate::protocol::payload::Value;

/// What the function of a process may return: nothing, `Result<T, E>`, or never (`!`).
///
/// ```
/// use std::num::ParseIntError;
/// use mp_spawn::{Options, start_processes};
///
/// fn worker(rank: usize, text: String) -> Result<usize, ParseIntError> {
///     Ok(rank + text.parse::<usize>()?)
/// }
///
/// let workers = start_processes(worker, "17".to_string(), Options::nprocs(2))?;
/// assert_eq!(workers.join()?, [17, 18]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// `T` is anything that can be sent, and comes back from [`ProcessContext::join`](crate::ProcessContext::join);
/// tensors in it are not copied. `E` is anything that turns into a boxed error: an error type, a
/// `Box<dyn Error + Send + Sync>`, an `anyhow::Error`, a `String`. Its `Display`, `Debug` and all its sources reach the
/// parent.
#[diagnostic::on_unimplemented(
    message = "the function of a process cannot return `{Self}`",
    note = "it may return `()`, or `Result<T, E>` where `T` can be sent and `E` is an error"
)]
pub trait Outcome: sealed::Sealed {
    /// What the parent gets.
    type Value: Message;

    #[doc(hidden)]
    fn into_result(self) -> Result<Self::Value, Fault>;
}

/// An error in words.
#[doc(hidden)]
#[derive(Debug)]
pub struct Fault {
    pub(crate) message: String,
    pub(crate) chain: Vec<String>,
    pub(crate) debug: String,
}

/// How a call in the child ended, if it did not panic.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It returned; `None` stands for `()`.
    Returned(Option<Value>),
    Failed(Fault),
    Undecodable(String),
}

impl Ended {
    /// Packs what a function returned.
    pub(crate) fn new<T: Message>(result: Result<T, Fault>) -> Ended {
        match result {
            Err(fault) => Ended::Failed(fault),
            Ok(_) if is_unit::<T>() => Ended::Returned(None),
            Ok(value) => match Value::pack(value) {
                Ok(value) => Ended::Returned(Some(value)),
                Err(error) => Ended::Failed(Fault {
                    message: cut(format!("what the function returned can't be sent: {error}")),
                    chain: Vec::new(),
                    debug: cut(format!("{error:?}")),
                }),
            },
        }
    }
}

/// Whether a value of this type carries no information, and need not be sent.
pub(crate) fn is_unit<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<()>()
}

impl Outcome for () {
    type Value = ();

    fn into_result(self) -> Result<(), Fault> {
        Ok(())
    }
}

impl<T, E> Outcome for Result<T, E>
where
    T: Message,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    type Value = T;

    fn into_result(self) -> Result<T, Fault> {
        self.map_err(|error| {
            let error: Box<dyn Error + Send + Sync> = error.into();
            Fault {
                message: cut(error.to_string()),
                chain: sources(&*error),
                debug: cut(format!("{error:?}")),
            }
        })
    }
}

/// A function that never returns: it serves for ever, or panics.
impl Outcome for Never {
    type Value = ();

    fn into_result(self) -> Result<(), Fault> {
        self
    }
}

/// The type `!`, which has no name of its own in stable Rust.
type Never = <fn() -> ! as sealed::Returns>::Output;

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<T, E> Sealed for Result<T, E> {}
    impl Sealed for super::Never {}

    pub trait Returns {
        type Output;
    }
    impl<T> Returns for fn() -> T {
        type Output = T;
    }
}
