//! Closures that can be sent: the captures are sent, and the code is found in the receiving process.
//!
//! The macro [`closure!`](crate::closure!) splits a closure into its captures and its code. The code is
//! itself a closure: it captures nothing, and gets the captures by reference. Since the code is a constant of
//! the program, it is sent as a reference, and verified like the function of a process. The captures are
//! serde values. Captures and code form a [`Closure`], whose type contains only arguments and result.

mod captures;
mod lazy;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use mp_core::message::PlainOutcome;
use mp_core::serde_with::ByteString;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::api::borrowed_state::BorrowedState;
use crate::bounds::CapturesNothing;
use crate::protocol::function::{self, FunctionDesc, FunctionRef, instance};
pub use captures::{Capture, Captures, list_in_the_brackets_what_the_body_uses, parts};
pub use lazy::LazyClosure;

/// A closure that can be sent as an argument, in a message or as a result. It is called with `A` and returns
/// `R`.
///
/// ```
/// use mp_spawn::{Closure, Process, closure};
///
/// // Its type does not depend on the captures.
/// fn scaled(factor: f64) -> Closure<f64, f64> {
///     closure!([factor] |x: f64| factor * x)
/// }
///
/// // A closure that another process has returned can still be called.
/// let half = Process::spawn(|factor: f64| Ok::<_, String>(scaled(factor)), 0.5)?.join()?;
/// assert_eq!(half.call(8.0), 4.0);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// Clones share the captures. A closure is a serde type. Tensors and queues among its captures are attached
/// to the message, so a closure with such captures can only be serialized into a message. Deserialization
/// returns an error unless the receiver runs the same build of the program, and captures, arguments and
/// result have the same types.
///
/// Run the closure in a process by [`ProcessBuilder::spawn_closure`](crate::ProcessBuilder::spawn_closure) or
/// [`start_closure`](crate::start_closure), or in the current process by [`call`](Self::call).
pub struct Closure<A: 'static, R: 'static>(Arc<dyn ErasedClosure<A, R>>);

/// A closure whose types are erased, except those of arguments and result.
trait ErasedClosure<A, R>: Send + Sync {
    fn call(&self, args: A) -> R;
    /// Returns the description by which other processes find the code.
    fn code(&self) -> &'static FunctionDesc<RebuildFn<A, R>>
    where
        A: 'static,
        R: 'static;
    /// Returns `true` if there are no captures.
    fn captures_nothing(&self) -> bool;
    /// Encodes the captures.
    fn captures(&self) -> mp_core::Result<Vec<u8>>;
}

/// Code `F` and its captures.
struct CapturedClosure<F, C, A, R> {
    captures: C,
    types: PhantomData<fn(F, A) -> R>,
}

/// Rebuilds a closure from its encoded captures.
type RebuildFn<A, R> = fn(&[u8]) -> mp_core::Result<Closure<A, R>>;

impl<F, C, A, R> CapturedClosure<F, C, A, R>
where
    F: Fn(&C, A) -> R + Copy + Send + 'static,
    C: Captures,
    A: 'static,
    R: 'static,
{
    const DESC: &'static FunctionDesc<RebuildFn<A, R>> =
        &FunctionDesc::new::<Self>(std::any::type_name::<F>, |bytes| match C::nothing() {
            Some(nothing) if bytes.is_empty() => Ok(Self::closure(nothing)),
            _ => Ok(Self::closure(mp_reduce::from_part(bytes)?)),
        });

    fn closure(captures: C) -> Closure<A, R> {
        Closure(Arc::new(CapturedClosure::<F, C, A, R> { captures, types: PhantomData }))
    }
}

impl<F, C, A, R> ErasedClosure<A, R> for CapturedClosure<F, C, A, R>
where
    F: Fn(&C, A) -> R + Copy + Send + 'static,
    C: Captures,
    A: 'static,
    R: 'static,
{
    fn call(&self, args: A) -> R {
        instance::<F>()(&self.captures, args)
    }

    fn code(&self) -> &'static FunctionDesc<RebuildFn<A, R>> {
        Self::DESC
    }

    fn captures_nothing(&self) -> bool {
        C::nothing().is_some()
    }

    fn captures(&self) -> mp_core::Result<Vec<u8>> {
        if C::nothing().is_some() { Ok(Vec::new()) } else { mp_reduce::to_part(&self.captures) }
    }
}

impl<A: 'static, R: 'static> Closure<A, R> {
    /// Creates a closure from the parts into which [`closure!`](crate::closure!) splits it.
    #[doc(hidden)]
    pub fn from_parts<C: Captures, F: Fn(&C, A) -> R + Copy + Send + 'static>(captures: C, code: F) -> Self {
        const { function::assert_no_captures::<F>() };
        // Only the type of `code` is needed: it identifies the code.
        let _ = code;
        CapturedClosure::<F, C, A, R>::closure(captures)
    }

    /// Wraps a function, or a closure without captures, so that functions can be sent as values.
    ///
    /// ```
    /// use mp_spawn::{Closure, Process};
    ///
    /// fn double(x: u32) -> u32 {
    ///     2 * x
    /// }
    ///
    /// let steps = vec![Closure::new(double), Closure::new(|x| x + 1)];
    /// let run = |steps: Vec<Closure<u32, u32>>| {
    ///     Ok::<_, String>(steps.iter().fold(5, |x, step| step.call(x)))
    /// };
    /// assert_eq!(Process::spawn(run, steps)?.join()?, 11);
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// The compiler refuses closures with captures, and function pointers:
    ///
    /// ```compile_fail
    /// let pointer: fn(u32) -> u32 = |x| x;
    /// mp_spawn::Closure::new(pointer);
    /// ```
    pub fn new<F: Fn(A) -> R + CapturesNothing>(function: F) -> Self {
        // The captured function has no bytes.
        Self::from_parts((), move |(): &(), args| function(args))
    }

    /// Calls the closure in this process.
    ///
    /// ```
    /// let offset = 3;
    /// let add = mp_spawn::closure!([offset] |x: i32, y: i32| x + y + offset);
    /// assert_eq!(add.call((1, 2)), 6);
    /// ```
    pub fn call(&self, args: A) -> R {
        self.0.call(args)
    }

    /// Returns the encoded captures, for the message that is being written: tensors and queues among them are
    /// attached to that message. The bytes are empty if and only if there are no captures.
    ///
    /// # Errors
    /// Returns an error if the `Serialize` of a capture returns an error.
    #[doc(hidden)]
    pub fn captures(&self) -> mp_core::Result<Vec<u8>> {
        self.0.captures()
    }

    /// Returns `true` if there are no captures.
    #[doc(hidden)]
    pub fn captures_nothing(&self) -> bool {
        self.0.captures_nothing()
    }

    /// Returns the compiler's name of the code.
    #[doc(hidden)]
    pub fn name(&self) -> &'static str {
        self.0.code().name()
    }
}

impl<A: 'static, R: 'static> Clone for Closure<A, R> {
    fn clone(&self) -> Self {
        Closure(Arc::clone(&self.0))
    }
}

impl<A: 'static, R: 'static> fmt::Debug for Closure<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Closure({})", self.0.code().name())
    }
}

impl<A: 'static, R: 'static> Serialize for Closure<A, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let code = reference(self.0.code()).map_err(S::Error::custom)?;
        // Code and captures belong to the same message, and share its attachments.
        let captures = self.0.captures().map_err(S::Error::custom)?;
        (code, ByteString(captures)).serialize(serializer)
    }
}

impl<'de, A: 'static, R: 'static> Deserialize<'de> for Closure<A, R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (code, ByteString(captures)) = <(FunctionRef, ByteString)>::deserialize(deserializer)?;
        let desc = resolve::<A, R>(&code).map_err(D::Error::custom)?;
        (desc.entry)(&captures).map_err(D::Error::custom)
    }
}

impl<A: 'static, R: 'static> PlainOutcome for Closure<A, R> {}

/// Code of a [`Closure`], a constant of the program. It is sent as a reference, which is verified when it is
/// read.
#[doc(hidden)]
pub struct Code<A: 'static, R: 'static>(&'static FunctionDesc<RebuildFn<A, R>>);

impl<A: 'static, R: 'static> Closure<A, R> {
    /// Returns the code without the captures. With this code, any number of closures can be rebuilt from the
    /// bytes of [`captures`](Self::captures).
    #[doc(hidden)]
    pub fn code(&self) -> Code<A, R> {
        Code(self.0.code())
    }
}

impl<A: 'static, R: 'static> Code<A, R> {
    /// Returns a number that identifies the code within this process.
    pub fn id(self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }

    /// Creates the closure from this code and encoded captures.
    ///
    /// # Errors
    /// Returns an error if [`Closure::captures`] did not write the bytes, or a captured value's `Deserialize`
    /// returns an error.
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

fn reference<A: 'static, R: 'static>(
    code: &'static FunctionDesc<RebuildFn<A, R>>,
) -> Result<FunctionRef, &'static str> {
    code.reference().ok_or("this program's build can't be identified: link it with a build-id")
}

fn resolve<A: 'static, R: 'static>(
    code: &FunctionRef,
) -> Result<&'static FunctionDesc<RebuildFn<A, R>>, String> {
    function::resolve::<RebuildFn<A, R>>(code)
        .map_err(|why| format!("the closure `{}` can't be used here: {why}", code.name))
}

/// A sendable closure whose first argument, `&mut S`, is a state that the executing process keeps between
/// calls. [`closure!`](crate::closure!) creates the closure, and the owner of the state calls it: a pool's
/// worker (`StatePool::task_closure`).
pub type StateClosure<S, A, R> = Closure<(BorrowedState<S>, A), (BorrowedState<S>, R)>;

/// Creates a [`Closure`], which can be sent to another process with its captures.
///
/// ```
/// use mp_spawn::{SpawnOptions, closure, start_closure};
///
/// let words = vec!["zero".to_string(), "one".to_string()];
/// let base = 10;
/// let worker = closure!([words, base = base * 2] |rank: usize, suffix: String| {
///     Ok::<String, String>(format!("{}{suffix} {}", words[rank], base + rank))
/// });
/// let workers = start_closure(worker, "!".to_string(), SpawnOptions::nprocs(2))?;
/// assert_eq!(workers.join()?, ["zero! 20", "one! 21"]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// The brackets list the captures: variables, which are moved into the closure, or `name = expression`. In
/// the body they are references, because the closure can be called more than once. The arguments follow, each
/// with its type. A caller passes several arguments as one tuple ([`Closure<(A, B), R>`](Closure)), and `()`
/// for no arguments. A result type may follow, as in `|x: u8| -> u8 { x + 1 }`. An argument is a name or a
/// pattern: `mut x: u8`, `_: u8`, `(a, b): (u8, u8)`, `[a, b]: [u8; 2]`, `Point { x, y }: Point`.
///
/// A first argument `name: &mut S` is a state that the closure's process keeps. The result is a
/// [`StateClosure`], for a pool whose workers have such a state.
///
/// # Compiler errors
///
/// The compiler refuses captures that can't be sent, and variables that are used but not listed:
///
/// ```compile_fail
/// let pointer = std::ptr::null::<u8>();
/// mp_spawn::closure!([pointer] |x: u8| x);
/// ```
/// ```compile_fail
/// let forgotten = 3;
/// mp_spawn::closure!([] |x: u8| x + forgotten);
/// ```
///
/// | error | cause |
/// |---|---|
/// | `a sendable closure can't capture ...` | this value is in the brackets and can't be sent: see [`Capture`] |
/// | `expected fn pointer, found closure`, and `captured here` at a variable | the body uses this variable, and it is not in the brackets: `closure!([it] ...)`, or `[it = it.clone()]` to keep the original |
/// | `cannot move out of ...`, `which is behind a shared reference` | captures are references in the body, since the closure may be called again: clone the value |
/// | `cannot assign to ...`, `cannot borrow ... as mutable` | captures are references in the body, so they can't be changed: capture a `SharedTensor`, a `Value` or a queue |
/// | `use of moved value`, `borrow of moved value` after the closure | captures are moved into the closure: `[name = name.clone()]` |
/// | `mismatched types` in the body, `expected ..., found &...` | captures are references in the body: `*name` |
#[macro_export]
macro_rules! closure {
    ([$($captures:tt)*] || $($body:tt)+) => {
        $crate::closure!(@make | [$($captures)*] (()) (()) $($body)+)
    };
    ([$($captures:tt)*] $bar:tt $state:ident: &mut $held:ty $(,)? | $($body:tt)+) => {
        $crate::closure!(@state $bar [$($captures)*] ($state, $held) (()) (()) $($body)+)
    };
    // Each argument is moved to the list after the captures, as its pattern and its type. The bar token is
    // the caller's, so that the compiler reports errors at the closure.
    ([$($captures:tt)*] $bar:tt $state:ident: &mut $held:ty, $($rest:tt)+) => {
        $crate::closure!(@args $bar [$($captures)*] [@state ($state, $held)] [] $($rest)+)
    };
    ([$($captures:tt)*] $bar:tt $($rest:tt)+) => {
        $crate::closure!(@args $bar [$($captures)*] [@make] [] $($rest)+)
    };
    (@args $bar:tt $captures:tt $kind:tt [$($args:tt)*] mut $arg:ident: $type:ty, $($rest:tt)+) => {
        $crate::closure!(@args $bar $captures $kind [$($args)* ((mut $arg) $type)] $($rest)+)
    };
    (@args $bar:tt $captures:tt $kind:tt [$($args:tt)*] mut $arg:ident: $type:ty | $($body:tt)+) => {
        $crate::closure!(@args $bar $captures $kind [$($args)* ((mut $arg) $type)] | $($body)+)
    };
    (@args $bar:tt $captures:tt $kind:tt [$($args:tt)*] $arg:tt: $type:ty, $($rest:tt)+) => {
        $crate::closure!(@args $bar $captures $kind [$($args)* (($arg) $type)] $($rest)+)
    };
    (@args $bar:tt $captures:tt $kind:tt [$($args:tt)*] $arg:tt: $type:ty | $($body:tt)+) => {
        $crate::closure!(@args $bar $captures $kind [$($args)* (($arg) $type)] | $($body)+)
    };
    (@args $bar:tt $captures:tt $kind:tt [$($args:tt)*] $name:ident $fields:tt: $type:ty, $($rest:tt)+) => {
        $crate::closure!(@args $bar $captures $kind [$($args)* (($name $fields) $type)] $($rest)+)
    };
    (@args $bar:tt $captures:tt $kind:tt [$($args:tt)*] $name:ident $fields:tt: $type:ty | $($body:tt)+) => {
        $crate::closure!(@args $bar $captures $kind [$($args)* (($name $fields) $type)] | $($body)+)
    };
    (@args $bar:tt $captures:tt [@$kind:ident $($state:tt)?] [(($($arg:tt)+) $type:ty)] | $($body:tt)+) => {
        $crate::closure!(@$kind $bar $captures $($state)? ($($arg)+) ($type) $($body)+)
    };
    (
        @args $bar:tt $captures:tt [@$kind:ident $($state:tt)?] [$((($($arg:tt)+) $type:ty))+] | $($body:tt)+
    ) => {
        $crate::closure!(@$kind $bar $captures $($state)? (($($($arg)+,)+)) (($($type,)+)) $($body)+)
    };
    (@args $($rest:tt)*) => {
        compile_error!("an argument of `closure!` is `pattern: Type`, where the pattern is a name, \
                        `mut name`, `_`, `(a, b)`, `[a, b]` or `Type { a, b }`")
    };
    (
        @state $bar:tt [$($captures:tt)*] ($state:ident, $held:ty) ($args:pat) ($types:ty)
        -> $result:ty $body:block
    ) => {
        $crate::closure!(@check $crate::parts(
            $crate::closure!(@values $($captures)*),
            $bar $crate::closure!(@names $($captures)*),
            (lent, $args): ($crate::BorrowedState<$held>, $types) $bar {
                $crate::with_borrowed_state(lent, $bar $state: &mut $held $bar -> $result { $body })
            },
        ))
    };
    (@state $bar:tt [$($captures:tt)*] ($state:ident, $held:ty) ($args:pat) ($types:ty) $body:expr) => {
        $crate::closure!(@check $crate::parts(
            $crate::closure!(@values $($captures)*),
            $bar $crate::closure!(@names $($captures)*),
            (lent, $args): ($crate::BorrowedState<$held>, $types) $bar {
                $crate::with_borrowed_state(lent, $bar $state: &mut $held $bar $body)
            },
        ))
    };
    (@make $bar:tt [$($captures:tt)*] ($args:pat) ($types:ty) -> $result:ty $body:block) => {
        $crate::closure!(@check $crate::parts(
            $crate::closure!(@values $($captures)*),
            $bar $crate::closure!(@names $($captures)*), $args: $types $bar -> $result { $body },
        ))
    };
    (@make $bar:tt [$($captures:tt)*] ($args:pat) ($types:ty) $body:expr) => {
        $crate::closure!(@check $crate::parts(
            $crate::closure!(@values $($captures)*),
            $bar $crate::closure!(@names $($captures)*), $args: $types $bar $body,
        ))
    };
    (@check $parts:expr) => {{
        let (captures, code) = $parts;
        $crate::list_in_the_brackets_what_the_body_uses(code);
        $crate::Closure::from_parts(captures, code)
    }};
    (@values) => { () };
    (@values $name:ident $(, $($others:tt)*)?) => { ($name, $crate::closure!(@values $($($others)*)?)) };
    (@values $name:ident = $value:expr $(, $($others:tt)*)?) => {
        ($value, $crate::closure!(@values $($($others)*)?))
    };
    (@names) => { () };
    (@names $name:ident $(= $value:expr)? $(, $($others:tt)*)?) => {
        ($name, $crate::closure!(@names $($($others)*)?))
    };
}

#[cfg(test)]
mod tests;
