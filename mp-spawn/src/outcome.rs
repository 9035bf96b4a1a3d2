//! What a worker's function may return.

use std::error::Error;

use crate::message::{cut, sources};

/// What the function of a process may return: nothing, `Result<(), E>`, or never (`!`).
///
/// ```
/// use std::num::ParseIntError;
///
/// fn worker(_rank: usize, text: String) -> Result<(), ParseIntError> {
///     let _number: i32 = text.parse()?;
///     Ok(())
/// }
///
/// mp_spawn::spawn(worker, "17".to_string(), 2)?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// `E` is anything that turns into a boxed error: an error type, a `Box<dyn Error + Send + Sync>`, an
/// `anyhow::Error`, a `String`. Its `Display`, `Debug` and all its sources reach the parent.
#[diagnostic::on_unimplemented(
    message = "the function of a process cannot return `{Self}`",
    note = "it may return `()`, or `Result<(), E>` where `E` is an error"
)]
pub trait Outcome: sealed::Sealed {
    #[doc(hidden)]
    fn into_fault(self) -> Option<Fault>;
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
    Returned(Option<Fault>),
    Undecodable(String),
}

impl Outcome for () {
    fn into_fault(self) -> Option<Fault> {
        None
    }
}

impl<E> Outcome for Result<(), E>
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn into_fault(self) -> Option<Fault> {
        let error: Box<dyn Error + Send + Sync> = self.err()?.into();
        Some(Fault {
            message: cut(error.to_string()),
            chain: sources(&*error),
            debug: cut(format!("{error:?}")),
        })
    }
}

/// A function that never returns: one that serves for ever, or only panics.
impl Outcome for Never {
    fn into_fault(self) -> Option<Fault> {
        self
    }
}

/// The type `!`, which has no name of its own in stable Rust.
type Never = <fn() -> ! as sealed::Returns>::Output;

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E> Sealed for Result<(), E> {}
    impl Sealed for super::Never {}

    pub trait Returns {
        type Output;
    }
    impl<T> Returns for fn() -> T {
        type Output = T;
    }
}
