//! Objects in the server, and closures that are called with them.

use std::any::{Any, type_name};
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::Rc;

#[cfg(feature = "authkey")]
use mp_core::message::Outgoing;
use mp_core::message::level::of_its_own;
use mp_core::message::{IntoOutcome, Message, Number, Undecodable, scope};
use mp_core::user_code::{Apart, drop_caught};
use mp_reduce::MessagePack;
use mp_spawn::{Closure, Code, Home, Lent, Raise, StateClosure};

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Body, blank, too_short};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Result of a closure that creates an object.
pub(crate) type MakeObject = Result<Object, Failure>;

/// Error returned when an object was not created because its arguments could not be decoded.
pub(crate) struct BadArguments(pub(crate) Box<Undecodable>);

impl fmt::Display for BadArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for BadArguments {}

/// Error returned when an object was not created because no thread could be started for it.
pub(crate) struct NoThread(pub(crate) std::io::Error);

impl fmt::Display for NoThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

mp_core::readable_debug!(BadArguments, NoThread);

impl std::error::Error for NoThread {}

/// Code of a closure that is called with an object, `&mut T`, and arguments.
pub(crate) type CallCode<T, A, R> = Code<(Lent<T>, A), (Lent<T>, R)>;

/// Type-erased object, which stays in the thread that created it.
pub(crate) struct Object {
    /// Always a `Home<T>`.
    home: Box<dyn Any>,
    type_name: &'static str,
}

impl Object {
    pub(crate) fn new<T: 'static>(value: T) -> Object {
        let home: Home<T> = Rc::new(Cell::new(Some(Box::new(value))));
        Object { home: Box::new(home), type_name: type_name::<T>() }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({})", self.type_name)
    }
}

/// Type-erased closure: decodes its arguments, and its captures unless it stores them, calls the closure, and
/// encodes its result.
pub(crate) struct Task(Box<Run>);

type Run = dyn Fn(&Object, Body) -> Answer;

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

impl Task {
    /// Returns a closure that creates the task in the server.
    pub(crate) fn maker<T: 'static, A: Message, R: IntoOutcome>(
        code: CallCode<T, A, R>,
    ) -> Closure<(), Task> {
        Closure::from_parts((code, ()), |(code, ()): &(CallCode<T, A, R>, ()), (): ()| {
            let (code, kept) = (*code, OnceCell::new());
            Task(Box::new(move |object, body| {
                run(object, body, Stays::Here, |body| captured(code, &kept, body))
            }))
        })
    }

    /// Returns a closure that creates, in the server, a task with all its captures. Each call sends only
    /// arguments, encoded by [`write_args`].
    #[cfg(feature = "authkey")]
    pub(crate) fn bound<T: 'static, A: Message, R: IntoOutcome>(
        closure: StateClosure<T, A, R>,
        stays: Stays,
    ) -> Closure<(), Task> {
        let captures = (closure, (stays, ()));
        Closure::from_parts(
            captures,
            |(closure, (stays, ())): &(StateClosure<T, A, R>, (Stays, ())), (): ()| {
                let (closure, stays) = (closure.clone(), *stays);
                Task(Box::new(move |object, body| run(object, body, stays, |_| Ok(Captured::Kept(&closure)))))
            },
        )
    }

    pub(crate) fn run(&self, object: &Object, body: Body) -> Answer {
        (self.0)(object, body)
    }
}

/// Destination of a call's result.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Stays {
    /// A process with the same shared memory.
    Here,
    /// Another program.
    #[cfg(feature = "authkey")]
    Nowhere,
}

/// Closure with its captures.
enum Captured<'a, A: 'static, R: 'static> {
    /// Closure used for all calls.
    Kept(&'a Closure<A, R>),
    /// Closure of one call, which drops it.
    Own(Apart<Closure<A, R>>),
}

impl<A: 'static, R: 'static> Captured<'_, A, R> {
    fn get(&self) -> Option<&Closure<A, R>> {
        match self {
            Captured::Kept(closure) => Some(closure),
            Captured::Own(closure) => closure.get(),
        }
    }
}

/// Returns `true` if [`write_call`] runs no user code for this closure.
pub(crate) fn is_written_here<T: 'static, A: Message, R: 'static>(closure: &StateClosure<T, A, R>) -> bool {
    Number::has::<A>() && closure.captures_nothing()
}

/// Encodes the captures of a closure, and its arguments, for [`run`]. This is user code, and may panic,
/// unless [`is_written_here`] returns `true`.
#[inline]
pub(crate) fn write_call<T: 'static, A: Message, R: 'static>(
    closure: &StateClosure<T, A, R>,
    args: &mut A,
) -> mp_core::Result<Body> {
    if closure.captures_nothing()
        && let Some(body) = Body::few([0], args)
    {
        return Ok(body);
    }
    let mut out = blank();
    if closure.captures_nothing() {
        out.bytes().push(0);
        args.encode::<MessagePack>(&mut out)?;
        return Ok(Body::of(out));
    }
    scope::with_outgoing(&mut out, |bytes| {
        let captures = closure.captures()?;
        match u8::try_from(captures.len()) {
            Ok(short) if short != LONG => bytes.push(short),
            _ => {
                bytes.push(LONG);
                bytes.extend_from_slice(&(captures.len() as u64).to_le_bytes());
            }
        }
        bytes.extend_from_slice(&captures);
        Ok::<_, mp_core::Error>(())
    })??;
    args.encode::<MessagePack>(&mut out)?;
    Ok(Body::of(out))
}

/// Encodes only the arguments of a call, for another program, which does not have this program's memory.
#[cfg(feature = "authkey")]
pub(crate) fn write_args<A: Message>(args: &mut A) -> mp_core::Result<Box<Outgoing>> {
    let mut out = Box::new(Outgoing::in_band());
    args.encode::<MessagePack>(&mut out)?;
    if out.plain().is_none() {
        return Err(mp_core::Error::Unsendable(
            "a tensor, queue, lock or descriptor is in this program's memory, which another program does not have: send what is in it"
                .into(),
        ));
    }
    Ok(out)
}

/// Marker of a length of captures that follows separately.
const LONG: u8 = u8::MAX;

/// Progress of a call.
enum Reached {
    Nothing,
    /// The closure has returned its result.
    Result,
}

fn run<'a, T: 'static, A: Message, R: IntoOutcome>(
    object: &Object,
    mut body: Body,
    stays: Stays,
    closure: impl FnOnce(&mut Body) -> mp_core::Result<Captured<'a, (Lent<T>, A), (Lent<T>, R)>>,
) -> Answer {
    let Some(home) = object.home.downcast_ref::<Home<T>>() else {
        return Answer::WrongType(object.type_name.into());
    };
    let mut reached = Reached::Nothing;
    // Declared outside, so that they are dropped separately whatever panics.
    let (mut result, mut written) = (None, None);
    let ran = Raise::catch(|| {
        let closure = closure(&mut body).map_err(|error| Answer::Unreadable(error.to_string()))?;
        let args = body.read::<A>().map_err(|error| match error {
            mp_core::Error::Undecodable(arguments) => Answer::Undecodable(arguments),
            other => Answer::Unreadable(other.to_string()),
        })?;
        // Attachments that are not part of the arguments are dropped here, not kept while the arguments are
        // used.
        drop(body);
        let (Some(lent), Some(closure)) = (Lent::from_home(home), closure.get()) else {
            return Err(Answer::Freed);
        };
        let (lent, returned) = closure.call((lent, args));
        drop(lent);
        let value = match returned.into_result() {
            Ok(value) => result.insert(value),
            Err(error) => {
                return Err(match error.downcast::<NoThread>() {
                    Ok(no_thread) => Answer::NoThread(no_thread.to_string()),
                    Err(error) => Answer::Raised(Raise::error(&*error)),
                });
            }
        };
        reached = Reached::Result;
        written = Some(written_result(value, stays)?);
        Ok(())
    });
    drop_caught(result);
    match (written, ran, reached) {
        // Done even if the closure panics when it is dropped.
        (Some(body), ..) => Answer::Done(body),
        (None, Ok(Err(answer)), _) => answer,
        (None, Err(raise), Reached::Result) => {
            Answer::Unsendable(format!("its `Serialize` panicked: {}", raise.message()))
        }
        (None, Err(raise), Reached::Nothing) => Answer::Raised(raise),
        (None, Ok(Ok(())), _) => Answer::Unsendable("it was not written".into()),
    }
}

/// Encodes the result of a call for its answer.
fn written_result<V: Message>(value: &mut V, stays: Stays) -> Result<Body, Answer> {
    let mut out = match stays {
        Stays::Here => match Body::few([], value) {
            Some(body) => return Ok(body),
            None => blank(),
        },
        #[cfg(feature = "authkey")]
        Stays::Nowhere => Box::new(Outgoing::in_band()),
    };
    of_its_own::<V, _>(|| value.encode::<MessagePack>(&mut out))
        .map_err(|error| Answer::Unsendable(error.to_string()))?;
    Ok(match stays {
        Stays::Here => Body::of(out),
        #[cfg(feature = "authkey")]
        Stays::Nowhere => Body::Out(out),
    })
}

/// Returns the closure of a call. A closure without captures is created once, and stored in `kept`.
fn captured<'a, A: 'static, R: 'static>(
    code: Code<A, R>,
    kept: &'a OnceCell<Closure<A, R>>,
    body: &mut Body,
) -> mp_core::Result<Captured<'a, A, R>> {
    let [short, rest @ ..] = body.unread() else { return Err(too_short()) };
    let (len, at) = match *short {
        LONG => (u64::from_le_bytes(*rest.first_chunk().ok_or_else(too_short)?) as usize, 9),
        short => (usize::from(short), 1),
    };
    body.advance(at);
    if len == 0
        && let Some(kept) = kept.get()
    {
        return Ok(Captured::Kept(kept));
    }
    let closure = body.with_unread(|rest| code.capturing(rest.get(..len).ok_or_else(too_short)?))??;
    body.advance(len);
    Ok(if len == 0 {
        Captured::Kept(kept.get_or_init(|| closure))
    } else {
        Captured::Own(Apart::new(closure))
    })
}
