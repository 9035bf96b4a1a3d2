//! Objects in the server, and closures that are called with them.

use std::any::{Any, type_name};
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::Rc;

#[cfg(feature = "authkey")]
use mp_core::message::Outgoing;
use mp_core::message::nesting_depth::as_separate_message;
use mp_core::message::{IntoOutcome, Message, PlainNumber, Undecodable, scope};
use mp_core::user_code::{UserValue, drop_caught};
use mp_reduce::MessagePack;
use mp_spawn::{BorrowedState, CallFailure, Closure, Code, StateClosure, StateSlot};
use serde::{Deserialize, Serialize};

use crate::answer::{AnswerStatus, MessageBody, empty_buffer, too_short_error};

pub(crate) type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Result of a closure that creates an object.
pub(crate) type ObjectResult = Result<ServedObject, BoxedError>;

/// Error of the server itself, in place of an error of the called closure.
pub(crate) enum ServeError {
    /// The arguments can't be decoded.
    BadArguments(Box<Undecodable>),
    /// An object was not created because no thread could be started for it.
    NoThread(std::io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::BadArguments(why) => why.fmt(f),
            ServeError::NoThread(why) => why.fmt(f),
        }
    }
}

mp_core::readable_debug!(ServeError);

impl std::error::Error for ServeError {}

/// Returns the answer to a call, or to the creation of an object, that returned an error.
pub(crate) fn failure(error: BoxedError) -> AnswerStatus {
    match error.downcast().map(|error| *error) {
        Ok(ServeError::BadArguments(why)) => AnswerStatus::Undecodable(why),
        Ok(ServeError::NoThread(why)) => AnswerStatus::NoThread(why.to_string()),
        Err(error) => AnswerStatus::Raised(CallFailure::error(&*error)),
    }
}

/// Code of a closure that is called with an object, `&mut T`, and arguments.
pub(crate) type CallCode<T, A, R> = Code<(BorrowedState<T>, A), (BorrowedState<T>, R)>;

/// Type-erased object, which stays in the thread that created it.
pub(crate) struct ServedObject {
    /// Object of type `T` in a `StateSlot<T>`.
    home: Box<dyn Any>,
    type_name: &'static str,
}

impl ServedObject {
    pub(crate) fn new<T: 'static>(value: T) -> ServedObject {
        let home: StateSlot<T> = Rc::new(Cell::new(Some(Box::new(value))));
        ServedObject { home: Box::new(home), type_name: type_name::<T>() }
    }
}

impl fmt::Debug for ServedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({})", self.type_name)
    }
}

/// Type-erased closure, called a *task* in this file. A task decodes the captures, unless they are stored in
/// the task, and the arguments. Then it calls the closure with the object, and encodes the result.
pub(crate) struct ObjectCall(Box<RunFn>);

type RunFn = dyn Fn(&ServedObject, MessageBody) -> Result<MessageBody, AnswerStatus>;

impl fmt::Debug for ObjectCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

impl ObjectCall {
    /// Returns a closure that creates the task when the server calls it.
    pub(crate) fn factory<T: 'static, A: Message, R: IntoOutcome>(
        code: CallCode<T, A, R>,
    ) -> Closure<(), ObjectCall> {
        Closure::from_parts((code, ()), |(code, ()): &(CallCode<T, A, R>, ()), (): ()| {
            let (code, cached) = (*code, OnceCell::new());
            ObjectCall(Box::new(move |object, body| {
                run(object, body, ResultPlacement::SharedMemory, |body| read_closure(code, &cached, body))
            }))
        })
    }

    /// Returns a closure that the server calls to create a task with stored captures. Each call of the task
    /// contains only arguments, encoded by [`write_args`].
    #[cfg(feature = "authkey")]
    pub(crate) fn bound<T: 'static, A: Message, R: IntoOutcome>(
        closure: StateClosure<T, A, R>,
        placement: ResultPlacement,
    ) -> Closure<(), ObjectCall> {
        let captures = (closure, (placement, ()));
        Closure::from_parts(
            captures,
            |(closure, (placement, ())): &(StateClosure<T, A, R>, (ResultPlacement, ())), (): ()| {
                let (closure, placement) = (closure.clone(), *placement);
                ObjectCall(Box::new(move |object, body| {
                    run(object, body, placement, |_| Ok(CallClosure::Cached(&closure)))
                }))
            },
        )
    }

    /// Creates a task from a function that decodes the arguments itself.
    #[cfg(feature = "net")]
    pub(crate) fn new(
        run: impl Fn(&ServedObject, MessageBody) -> Result<MessageBody, AnswerStatus> + 'static,
    ) -> ObjectCall {
        ObjectCall(Box::new(run))
    }

    pub(crate) fn run(&self, object: &ServedObject, body: MessageBody) -> Result<MessageBody, AnswerStatus> {
        (self.0)(object, body)
    }
}

/// Kind of the receiver of a call's result, which determines the encoding.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum ResultPlacement {
    /// The receiver is a process with the same shared memory.
    SharedMemory,
    /// The receiver is another program. The result is encoded without attachments.
    #[cfg(feature = "authkey")]
    Inline,
}

/// Closure with its captures, for one call or for all.
enum CallClosure<'a, A: 'static, R: 'static> {
    /// Closure that is stored with its code, and used for all calls.
    Cached(&'a Closure<A, R>),
    /// Closure that is used by one call, and then dropped.
    Owned(UserValue<Closure<A, R>>),
}

impl<A: 'static, R: 'static> CallClosure<'_, A, R> {
    fn get(&self) -> Option<&Closure<A, R>> {
        match self {
            CallClosure::Cached(closure) => Some(closure),
            CallClosure::Owned(closure) => closure.get(),
        }
    }
}

/// Returns `true` if [`write_call`] runs no user code for this closure and its arguments.
pub(crate) fn is_written_here<T: 'static, A: Message, R: 'static>(closure: &StateClosure<T, A, R>) -> bool {
    PlainNumber::has::<A>() && closure.captures_nothing()
}

/// Encodes the captures of a closure, and its arguments, for [`run`]. The encoding is user code, and may
/// panic, unless [`is_written_here`] returns `true`.
#[inline]
pub(crate) fn write_call<T: 'static, A: Message, R: 'static>(
    closure: &StateClosure<T, A, R>,
    args: &mut A,
) -> mp_core::Result<MessageBody> {
    if closure.captures_nothing()
        && let Some(body) = MessageBody::few([0], args)
    {
        return Ok(body);
    }
    let mut out = empty_buffer();
    if closure.captures_nothing() {
        out.bytes().push(0);
        args.encode::<MessagePack>(&mut out)?;
        return Ok(MessageBody::of(out));
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
    Ok(MessageBody::of(out))
}

/// Encodes only the arguments of a call, for another program, which does not have this program's memory.
#[cfg(feature = "authkey")]
pub(crate) fn write_args<A: Message>(args: &mut A) -> mp_core::Result<Box<Outgoing>> {
    let mut out = Box::new(Outgoing::in_band());
    args.encode::<MessagePack>(&mut out)?;
    if out.plain().is_none() {
        return Err(mp_core::Error::Unsendable(
            "a tensor, queue, lock or descriptor is in this program's memory, which another program does \
             not have: send what is in it"
                .into(),
        ));
    }
    Ok(out)
}

/// First byte of captures whose length does not fit into one byte. The length follows this byte.
const LONG: u8 = u8::MAX;

fn run<'a, T: 'static, A: Message, R: IntoOutcome>(
    object: &ServedObject,
    mut body: MessageBody,
    placement: ResultPlacement,
    closure: impl FnOnce(
        &mut MessageBody,
    ) -> mp_core::Result<CallClosure<'a, (BorrowedState<T>, A), (BorrowedState<T>, R)>>,
) -> Result<MessageBody, AnswerStatus> {
    let Some(home) = object.home.downcast_ref::<StateSlot<T>>() else {
        return Err(AnswerStatus::WrongType(object.type_name.into()));
    };
    // Declared outside the closure, so that both are dropped separately even if one of them panics.
    let (mut result, mut encode_args) = (None, None);
    let ran = CallFailure::catch(|| {
        let closure = closure(&mut body).map_err(|error| AnswerStatus::Unreadable(error.to_string()))?;
        let args = body.read::<A>().map_err(|error| match error {
            mp_core::Error::Undecodable(arguments) => AnswerStatus::Undecodable(arguments),
            other => AnswerStatus::Unreadable(other.to_string()),
        })?;
        // Attachments that are not part of the arguments are dropped before the call, not kept during the
        // call.
        drop(body);
        let (Some(lent), Some(closure)) = (BorrowedState::borrow_from(home), closure.get()) else {
            return Err(AnswerStatus::Freed);
        };
        let (lent, returned) = closure.call((lent, args));
        drop(lent);
        let value = match returned.into_result() {
            Ok(value) => result.insert(value),
            Err(error) => return Err(failure(error)),
        };
        encode_args = Some(written_result(value, placement)?);
        Ok(())
    });
    let has_returned = result.is_some();
    drop_caught(result);
    Err(match (encode_args, ran) {
        // The call has succeeded, even if the closure panics when it is dropped.
        (Some(body), _) => return Ok(body),
        (None, Ok(Err(status))) => status,
        (None, Err(raise)) if has_returned => {
            AnswerStatus::Unsendable(format!("its `Serialize` panicked: {}", raise.message()))
        }
        (None, Err(raise)) => AnswerStatus::Raised(raise),
        (None, Ok(Ok(()))) => AnswerStatus::Unsendable("it was not written".into()),
    })
}

/// Encodes the result of a call for its answer.
fn written_result<V: Message>(
    value: &mut V,
    placement: ResultPlacement,
) -> Result<MessageBody, AnswerStatus> {
    let mut out = match placement {
        ResultPlacement::SharedMemory => match MessageBody::few([], value) {
            Some(body) => return Ok(body),
            None => empty_buffer(),
        },
        #[cfg(feature = "authkey")]
        ResultPlacement::Inline => Box::new(Outgoing::in_band()),
    };
    as_separate_message::<V, _>(|| value.encode::<MessagePack>(&mut out))
        .map_err(|error| AnswerStatus::Unsendable(error.to_string()))?;
    Ok(match placement {
        ResultPlacement::SharedMemory => MessageBody::of(out),
        #[cfg(feature = "authkey")]
        ResultPlacement::Inline => MessageBody::Out(out),
    })
}

/// Returns the closure of a call. A closure without captures is created once, and stored in `cached`.
fn read_closure<'a, A: 'static, R: 'static>(
    code: Code<A, R>,
    cached: &'a OnceCell<Closure<A, R>>,
    body: &mut MessageBody,
) -> mp_core::Result<CallClosure<'a, A, R>> {
    let [short, rest @ ..] = body.unread() else { return Err(too_short_error()) };
    let (len, at) = match *short {
        LONG => (u64::from_le_bytes(*rest.first_chunk().ok_or_else(too_short_error)?) as usize, 9),
        short => (usize::from(short), 1),
    };
    body.advance(at);
    if len == 0
        && let Some(cached) = cached.get()
    {
        return Ok(CallClosure::Cached(cached));
    }
    let closure = body.with_unread(|rest| code.capturing(rest.get(..len).ok_or_else(too_short_error)?))??;
    body.advance(len);
    Ok(if len == 0 {
        CallClosure::Cached(cached.get_or_init(|| closure))
    } else {
        CallClosure::Owned(UserValue::new(closure))
    })
}
