//! What a task's function may return, and how several arguments are passed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use mp_queue::Queue;
use mp_reduce::{Bundle, Message};
use mp_spawn::Closure;
use mp_tensor::{AnyTensor, Element, Mode, Tensor};

/// What the function of a task may return: `Result<T, E>`, whose error becomes the task's, or one of the types of the
/// standard library and of `mp` that can be sent.
///
/// ```
/// use std::convert::Infallible;
/// use mp_pool::Pool;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, PartialEq, Debug)]
/// struct Point(i32, i32);
///
/// let pool = Pool::new(1)?;
/// assert_eq!(pool.apply(|x: i32| x + 1, 1)?, 2);
/// // One's own type goes in a `Result`.
/// let point = pool.apply(|(x, y): (i32, i32)| Ok::<_, Infallible>(Point(x, y)), (3, 4))?;
/// assert_eq!(point, Point(3, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `E` is anything that turns into a boxed error: an error type, a `Box<dyn Error + Send + Sync>`, an `anyhow::Error`, a
/// `String`.
#[diagnostic::on_unimplemented(
    message = "the function of a task cannot return `{Self}`",
    note = "it may return numbers, strings, collections, tensors, or `Result<T, E>` where `T` is anything that can be sent"
)]
pub trait TaskOutcome: 'static {
    /// What the task's result is.
    type Value: Message + Send;

    /// The value, or the error.
    ///
    /// # Errors
    /// What the function returned as its error.
    fn into_result(self) -> Result<Self::Value, Box<dyn Error + Send + Sync>>;
}

impl<T, E> TaskOutcome for Result<T, E>
where
    T: Message + Send,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    type Value = T;

    fn into_result(self) -> Result<T, Box<dyn Error + Send + Sync>> {
        self.map_err(Into::into)
    }
}

/// Types that are what they are, and never an error.
macro_rules! plain {
    ($([$($generic:ident),*] $type:ty;)*) => {$(
        impl<$($generic: 'static),*> TaskOutcome for $type
        where
            $type: Message + Send,
        {
            type Value = Self;

            fn into_result(self) -> Result<Self, Box<dyn Error + Send + Sync>> {
                Ok(self)
            }
        }
    )*};
}

plain! {
    [] (); [] bool; [] char; [] String; [] Duration; [] PathBuf; [] AnyTensor;
    [] u8; [] u16; [] u32; [] u64; [] u128; [] usize;
    [] i8; [] i16; [] i32; [] i64; [] i128; [] isize; [] f32; [] f64;
    [A] (A,); [A, B] (A, B); [A, B, C] (A, B, C); [A, B, C, D] (A, B, C, D);
    [A, B, C, D, E] (A, B, C, D, E); [A, B, C, D, E, F] (A, B, C, D, E, F);
    [T] Option<T>; [T] Box<T>; [T] Vec<T>; [T] VecDeque<T>; [T] BTreeSet<T>; [T] Bundle<T>;
    [K, V] BTreeMap<K, V>; [K, V, S] HashMap<K, V, S>; [T, S] HashSet<T, S>;
    [A, R] Closure<A, R>;
}

impl<T: Element, M: Mode + 'static> TaskOutcome for Tensor<T, M>
where
    Tensor<T, M>: Message + Send,
{
    type Value = Self;

    fn into_result(self) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(self)
    }
}

impl<T: Message> TaskOutcome for Queue<T> {
    type Value = Self;

    fn into_result(self) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(self)
    }
}

/// A function of several arguments, which are one tuple to the pool: see [`Pool::starmap`](crate::Pool::starmap).
pub trait StarFn<Args>: Copy + Send + 'static {
    /// What it returns.
    type Output: TaskOutcome;

    /// Calls it.
    fn call(self, args: Args) -> Self::Output;
}

macro_rules! star {
    ($($($arg:ident)+;)*) => {$(
        impl<Func, Ret, $($arg),+> StarFn<($($arg,)+)> for Func
        where
            Func: Fn($($arg),+) -> Ret + Copy + Send + 'static,
            Ret: TaskOutcome,
        {
            type Output = Ret;

            #[allow(non_snake_case)]
            fn call(self, ($($arg,)+): ($($arg,)+)) -> Ret {
                self($($arg),+)
            }
        }
    )*};
}

star! { A; A B; A B C; A B C D; A B C D E; A B C D E F; }
