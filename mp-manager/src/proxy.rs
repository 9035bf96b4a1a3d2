//! Handles of objects in the server, for other processes.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::message::nesting_depth::with_nested_message;
use mp_core::message::{IntoOutcome, Message, PlainOutcome};
use mp_core::mutex::Mutex;
use mp_queue::{GetError, Sender, channel};
use mp_spawn::{BorrowedState, CallFailure, Closure, LazyClosure, ProcessName, StateClosure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::answer::{AnswerStatus, CallAnswer, MessageBody};
use crate::call_cycle;
use crate::caller::{Caller, send};
use crate::error::{CallError, CallName};
use crate::object::{BoxedError, ObjectCall, ObjectResult, ServeError, is_written_here, write_call};
use crate::request::ObjectRequest;
use crate::server::ManagerServer;

/// Handle of an object of type `T` in a [`Manager`](crate::Manager)'s server.
///
/// ```
/// use mp_manager::Manager;
/// use mp_spawn::closure;
///
/// let manager = Manager::start()?;
/// let total = manager.create(|| 0_u64)?;
/// let more = 5;
/// total.call(closure!([more] |total: &mut u64| *total += more))?;
/// // The argument moves to the server, so it may be sendable only once, like an exclusive tensor.
/// let new = total.call_with(closure!([] |total: &mut u64, factor: u64| { *total *= factor; *total }), 2)?;
/// assert_eq!(new, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A proxy implements serde's traits: it can be sent in arguments, results, through queues, into other
/// objects and in calls. Cloning or sending a proxy copies the handle, not the object. The object lives as
/// long as a proxy exists in any process or message. Objects that hold proxies of each other, or of
/// themselves, stay alive until the manager ends.
///
/// # Blocking
/// A call blocks until the object has finished the calls that were sent before, and this call.
/// [`with_timeout`](Self::with_timeout) limits the wait. Several threads may call through one proxy at the
/// same time. While both sides are awake, a call makes no system call if its closure was called before
/// through this proxy or its clones.
///
/// # When a process dies
/// See the table at [`CallError`]. If a caller is killed while it sends a call, the call was either sent or
/// not. A call that was sent runs.
#[doc(alias = "BaseProxy")]
pub struct Proxy<T: 'static> {
    link: Arc<ObjectLink>,
    timeout: Option<Duration>,
    object: PhantomData<fn(T) -> T>,
}

/// State shared by all clones of a proxy in one process.
pub(crate) struct ObjectLink {
    pub(crate) requests: Sender<ObjectRequest>,
    /// Process id of the server.
    pub(crate) server: u32,
    /// Number of the object in the server.
    pub(crate) object: u64,
    /// Idle caller. A call holds this lock until it returns, because locking once is faster than locking
    /// twice. Concurrent calls use `others`.
    first: Mutex<Option<IdleCaller>>,
    /// Other idle callers, for concurrent calls.
    others: Mutex<Vec<IdleCaller>>,
}

/// Idle caller. Boxed, because each call moves it twice.
struct IdleCaller(Box<Caller>);

/// Serialized form of a proxy.
#[derive(Serialize, Deserialize)]
struct ProxyParts {
    requests: Sender<ObjectRequest>,
    server: u32,
    object: u64,
    timeout: Option<Duration>,
}

impl<T: 'static> Proxy<T> {
    pub(crate) fn new(link: ObjectLink) -> Proxy<T> {
        Proxy { link: Arc::new(link), timeout: None, object: PhantomData }
    }

    /// Returns the link, for code to which the object's type is unknown.
    #[cfg(feature = "authkey")]
    pub(crate) fn link(&self) -> &Arc<ObjectLink> {
        &self.link
    }

    /// Calls a closure with the object, in the server, and returns its result.
    ///
    /// ```
    /// # use mp_manager::Manager;
    /// # use mp_spawn::closure;
    /// # let manager = Manager::start()?;
    /// let names = manager.create(Vec::<String>::new)?;
    /// let name = "a".to_string();
    /// let before = names.call(closure!([name] |names: &mut Vec<String>| {
    ///     names.push(name.clone());
    ///     names.len() - 1
    /// }))?;
    /// assert_eq!(before, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The captures are sent to the server, and the result is sent back: numbers, strings, collections,
    /// tensors, queues, proxies, or `Result<R, E>`, whose error is [`CallError::Raised`]. The closure runs in
    /// the object's own thread. A closure that blocks, for a message or for another object, delays only calls
    /// of this object.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn call<R: IntoOutcome>(&self, closure: StateClosure<T, (), R>) -> Result<R::Value, CallError> {
        self.call_with(closure, ())
    }

    /// Calls a closure with the object and an argument. Pass several arguments as a tuple.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn call_with<A: Message, R: IntoOutcome>(
        &self,
        closure: StateClosure<T, A, R>,
        args: A,
    ) -> Result<R::Value, CallError> {
        self.call_as(CallName::at_caller(closure.name(), type_name::<T>()), closure, args)
    }

    /// Calls a closure with the object and arguments (`()` for none), and turns the result into an object of
    /// the same server. The value stays in the server, where it gets a thread of its own, and need not be a
    /// message.
    ///
    /// ```
    /// # use mp_manager::{Manager, Proxy};
    /// # use mp_spawn::closure;
    /// # let manager = Manager::start()?;
    /// let lines = manager.create(|| vec!["a", "b", "c"])?;
    /// let open = closure!([] |lines: &mut Vec<&'static str>, from: usize| {
    ///     lines.split_off(from).into_iter()
    /// });
    /// let cursor: Proxy<std::vec::IntoIter<&str>> = lines.call_to_object(open, 1)?;
    /// let next = closure!([] |lines: &mut std::vec::IntoIter<&'static str>| lines.next().map(String::from));
    /// let next = || cursor.call(next.clone());
    /// assert_eq!([next()?, next()?, next()?], [Some("b".into()), Some("c".into()), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The new object is like any other: it is freed when its last proxy is dropped, and its calls run
    /// independently of this object. If this call gets no answer in time, or this process is killed before it
    /// receives the proxy, the new object is freed at once. The new proxy has the same time-out as this one.
    ///
    /// # Errors
    /// [`CallError::NoThread`]. For other errors see the table at [`CallError`].
    #[doc(alias = "method_to_typeid")]
    #[track_caller]
    pub fn call_to_object<A: Message, U: Send + 'static>(
        &self,
        closure: StateClosure<T, A, U>,
        args: A,
    ) -> Result<Proxy<U>, CallError> {
        let call = CallName::at_caller(closure.name(), type_name::<T>());
        self.call_as(call, to_object(closure), args).map(|made| Proxy { timeout: self.timeout, ..made })
    }

    /// Turns the result of a closure that may fail into an object, like
    /// [`call_to_object`](Self::call_to_object). If the closure returns an error, the call returns it as
    /// [`CallError::Raised`], and no object is created.
    ///
    /// # Errors
    /// Same as [`call_to_object`](Self::call_to_object).
    #[track_caller]
    pub fn try_call_to_object<A: Message, U: Send + 'static, E: Into<BoxedError> + 'static>(
        &self,
        closure: StateClosure<T, A, Result<U, E>>,
        args: A,
    ) -> Result<Proxy<U>, CallError> {
        let call = CallName::at_caller(closure.name(), type_name::<T>());
        self.call_as(call, try_to_object(closure), args).map(|made| Proxy { timeout: self.timeout, ..made })
    }

    fn call_as<A: Message, R: IntoOutcome>(
        &self,
        call: CallName,
        closure: StateClosure<T, A, R>,
        args: A,
    ) -> Result<R::Value, CallError> {
        let mut args = args;
        let mut write = || write_call(&closure, &mut args);
        let encode_args = if is_written_here(&closure) {
            write()
        } else {
            CallFailure::catch_encode(|| with_nested_message(&mut write))
        };
        let body = encode_args.map_err(CallError::of_arguments)?;
        let answer = self.link.request(
            self.timeout,
            &call,
            || false,
            |link, caller| {
                let (code, new) = caller.code(closure.code().id());
                if new {
                    let task = LazyClosure::ToSend(ObjectCall::factory::<T, A, R>(closure.code()));
                    let learn = ObjectRequest::Learn { caller: caller.number(), code, task };
                    send(&link.requests, learn, link.server)?;
                }
                Ok(ObjectRequest::Call { caller: caller.number(), code, body })
            },
        )?;
        match answer {
            CallAnswer(Ok(value)) => read_value::<R::Value>(value),
            other => Err(answer_error(other, self.link.server, call)),
        }
    }

    /// Frees the object, regardless of other proxies. Blocks until the calls that were sent before have
    /// finished and the object's `Drop` has run. Later calls return [`CallError::Freed`]. To free the object
    /// when it is no longer needed, drop the proxies instead.
    ///
    /// ```
    /// # use mp_manager::{CallError, Manager};
    /// # use mp_spawn::closure;
    /// # let manager = Manager::start()?;
    /// let table = manager.create(|| vec![0_u8; 1 << 20])?;
    /// table.free()?;
    /// let error = table.call(closure!([] |table: &mut Vec<u8>| table.len())).unwrap_err();
    /// assert!(matches!(error, CallError::Freed { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See the table at [`CallError`]. Freeing an object twice is not an error.
    #[track_caller]
    pub fn free(&self) -> Result<(), CallError> {
        self.link.free(self.timeout, CallName::at_caller("Proxy::free", type_name::<T>()), || false)
    }

    /// Sets a time-out for calls by this handle, its clones, and copies that are sent in messages. A call
    /// that times out is not withdrawn: it runs when its turn comes, or continues to run.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_manager::{CallError, Manager};
    /// use mp_spawn::closure;
    ///
    /// let manager = Manager::start()?;
    /// let slow = manager.create(|| ())?.with_timeout(Duration::from_millis(20));
    /// let error = slow.call(closure!([] |_nothing: &mut ()| std::thread::park())).unwrap_err();
    /// assert!(matches!(error, CallError::TimedOut { call, .. } if call.location.line > 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Proxy<T> {
        Proxy { timeout: Some(timeout), ..self }
    }

    /// Returns the time-out of calls by this handle; `None` means no limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns the process id of the server that has the object.
    #[must_use]
    pub fn server_pid(&self) -> u32 {
        self.link.server
    }

    /// Returns `true` if both are handles of the same object.
    #[must_use]
    pub fn is_same_object(&self, other: &Proxy<T>) -> bool {
        (self.link.server, self.link.object) == (other.link.server, other.link.object)
    }
}

/// Wraps a closure so that its result becomes an object of the server in which it is called.
pub(crate) fn to_object<T: 'static, A: Message, U: Send + 'static>(
    closure: StateClosure<T, A, U>,
) -> StateClosure<T, A, Result<Proxy<U>, BoxedError>> {
    Closure::from_parts(
        (closure, ()),
        |(closure, ()): &(StateClosure<T, A, U>, ()), (lent, args): (BorrowedState<T>, A)| {
            let (lent, value) = closure.call((lent, args));
            (lent, serve_value(value))
        },
    )
}

/// Wraps a closure like `to_object`, if the closure may fail.
pub(crate) fn try_to_object<T: 'static, A: Message, U: Send + 'static, E: Into<BoxedError> + 'static>(
    closure: StateClosure<T, A, Result<U, E>>,
) -> StateClosure<T, A, Result<Proxy<U>, BoxedError>> {
    Closure::from_parts(
        (closure, ()),
        |(closure, ()): &(StateClosure<T, A, Result<U, E>>, ()), (lent, args): (BorrowedState<T>, A)| {
            let (lent, value) = closure.call((lent, args));
            (lent, value.map_err(Into::into).and_then(serve_value))
        },
    )
}

/// Creates an object from a value, and returns its only proxy. Called in the process of the server. If the
/// answer that contains the proxy has no receiver, the object is freed.
fn serve_value<U: Send + 'static>(value: U) -> Result<Proxy<U>, BoxedError> {
    let server = ManagerServer::current()?;
    let (requests, receiver) = channel::<ObjectRequest>()?;
    let object = server.serve_value(receiver, value).map_err(ServeError::NoThread)?;
    Ok(Proxy::new(ObjectLink::new(requests, std::process::id(), object, None)))
}

impl ObjectLink {
    fn new(
        requests: Sender<ObjectRequest>,
        server: u32,
        object: u64,
        first: Option<IdleCaller>,
    ) -> ObjectLink {
        ObjectLink { requests, server, object, first: Mutex::new(first), others: Mutex::default() }
    }

    /// Creates the object whose requests are sent through `requests`, and blocks until it is created. `gone`
    /// returns `true` after the death of the server. This check is needed because the receiver of the
    /// requests may be in a message that the server has not received: the channel then stays connected.
    pub(crate) fn make(
        requests: Sender<ObjectRequest>,
        server: u32,
        maker: Closure<(), ObjectResult>,
        call: CallName,
        gone: impl Fn() -> bool,
    ) -> Result<ObjectLink, CallError> {
        let mut caller = Caller::new(&requests, server)?;
        let _waits = call_cycle::register_wait(server, call_cycle::NOT_MADE, caller.number(), &call)?;
        let request = ObjectRequest::Make { caller: caller.number(), maker: LazyClosure::ToSend(maker) };
        send(&requests, request, server)?;
        match answer(&requests, &mut caller, server, None, &call, gone)? {
            CallAnswer(Err(AnswerStatus::Created { object })) => {
                Ok(ObjectLink::new(requests, server, object, Some(IdleCaller(Box::new(caller)))))
            }
            other => Err(answer_error(other, server, call)),
        }
    }

    pub(crate) fn free(
        &self,
        timeout: Option<Duration>,
        call: CallName,
        gone: impl Fn() -> bool,
    ) -> Result<(), CallError> {
        let free = |_: &ObjectLink, caller: &mut Caller| Ok(ObjectRequest::Free { caller: caller.number() });
        match self.request(timeout, &call, gone, free)? {
            CallAnswer(Err(AnswerStatus::Freed)) => Ok(()),
            other => Err(answer_error(other, self.server, call)),
        }
    }

    /// Sends a request and waits for its answer, until the time-out or until `gone` returns `true`.
    pub(crate) fn request(
        &self,
        timeout: Option<Duration>,
        call: &CallName,
        gone: impl Fn() -> bool,
        request: impl FnOnce(&ObjectLink, &mut Caller) -> Result<ObjectRequest, CallError>,
    ) -> Result<CallAnswer, CallError> {
        let mut first = self.first.try_lock();
        let idle = match first.as_deref_mut().and_then(Option::take) {
            None => self.others.lock().pop(),
            idle => idle,
        };
        let mut caller = match idle {
            Some(caller) => caller,
            None => IdleCaller(Box::new(Caller::new(&self.requests, self.server)?)),
        };
        let request = request(self, &mut caller.0)?;
        let _waits = call_cycle::register_wait(self.server, self.object, caller.0.number(), call)?;
        send(&self.requests, request, self.server)?;
        // Without an answer, `caller` is dropped, so that a late answer is not mistaken for the answer to
        // another call.
        let answer = answer(&self.requests, &mut caller.0, self.server, timeout, call, gone);
        if answer.is_ok() {
            match &mut first {
                Some(first) => **first = Some(caller),
                None => self.others.lock().push(caller),
            }
        }
        answer
    }
}

/// Waits for an answer.
fn answer(
    requests: &Sender<ObjectRequest>,
    caller: &mut Caller,
    server: u32,
    timeout: Option<Duration>,
    call: &CallName,
    gone: impl Fn() -> bool,
) -> Result<CallAnswer, CallError> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        match caller.recv(until) {
            Ok(answer) => return Ok(answer),
            Err(GetError::Empty) => {}
            Err(GetError::Interrupted) => return Err(CallError::Interrupted),
            Err(GetError::Failed(error)) => return Err(error.into()),
            Err(_) => return Err(CallError::ServerGone { server }),
        }
        // The sender of answers is in this caller's first request. If the object dies before it takes that
        // request, the sender stays in the channel, which this process keeps open.
        if requests.is_disconnected() || gone() {
            return match caller.answers().try_recv() {
                Ok(answer) => Ok(answer),
                Err(_) => Err(CallError::ServerGone { server }),
            };
        }
        if let Some(timeout) = timeout
            && until.is_some_and(|until| Instant::now() >= until)
        {
            return Err(CallError::TimedOut {
                call: call.clone(),
                timeout,
                server,
                address: None,
                sent: true,
            });
        }
    }
}

pub(crate) fn read_value<V: Message>(mut body: MessageBody) -> Result<V, CallError> {
    body.read::<V>().map_err(|error| {
        let why = error.to_string();
        match error {
            mp_core::Error::Undecodable(undecodable) => {
                CallError::Value { why, undecodable: Some(undecodable.into()) }
            }
            error => error.into(),
        }
    })
}

/// Converts an answer into an error.
#[cold]
pub(crate) fn answer_error(answer: CallAnswer, server: u32, call: CallName) -> CallError {
    let malformed = || mp_core::Error::Malformed("an answer to another request".into()).into();
    let CallAnswer(Err(status)) = answer else { return malformed() };
    match status {
        AnswerStatus::Raised(raise) => {
            let who = ProcessName::new(None, "a call in the manager's server".to_string(), server);
            CallError::Raised(Box::new(raise.into_raised(who)))
        }
        AnswerStatus::Undecodable(undecodable) => {
            let why = undecodable.to_string();
            CallError::Arguments { why, undecodable: Some(undecodable.into()) }
        }
        AnswerStatus::Unreadable(why) => CallError::Arguments { why, undecodable: None },
        AnswerStatus::Unsendable(why) => CallError::Value { why, undecodable: None },
        AnswerStatus::WrongType(found) => CallError::WrongType { call, found },
        AnswerStatus::Freed => CallError::Freed { call },
        AnswerStatus::NoThread(why) => CallError::NoThread { why },
        AnswerStatus::Created { .. } => malformed(),
    }
}

impl<T> Clone for Proxy<T> {
    fn clone(&self) -> Self {
        Proxy { link: Arc::clone(&self.link), ..*self }
    }
}

impl<T> PlainOutcome for Proxy<T> {}

impl<T> fmt::Debug for Proxy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectLink { server, object, .. } = &*self.link;
        write!(f, "Proxy<{}>(object {object} of server {server})", type_name::<T>())
    }
}

impl<T> Serialize for Proxy<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ObjectLink { requests, server, object, .. } = &*self.link;
        ProxyParts { requests: requests.clone(), server: *server, object: *object, timeout: self.timeout }
            .serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Proxy<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ProxyParts { requests, server, object, timeout } = ProxyParts::deserialize(deserializer)?;
        let link = ObjectLink::new(requests, server, object, None);
        Ok(Proxy { link: Arc::new(link), timeout, object: PhantomData })
    }
}
