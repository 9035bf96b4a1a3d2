//! Server side of a connected program.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;

use mp_core::message::{Incoming, Outgoing};
use mp_core::peer::{self, Life};
use mp_core::sent::ByteString;
use mp_queue::{Connection, GetError, PutError, channel};
use mp_spawn::Closure;

use crate::answer::{Answer, Body};
use crate::caller::LOOK;
use crate::caller::send;
use crate::error::{CallError, CallName};
use crate::named::methods::{Constructor, Registered};
use crate::named::{Handle, Named, NoHandle, Session};
use crate::object::MakeObject;
use crate::proxy::{Link, Proxy, read_value, refused};
use crate::remote::wire::{Ask, Framed, Names, Reply, VERSION};
use crate::request::{Late, Request};
use crate::server::Server;

/// Server of this process, with its named types and objects.
#[derive(Clone, Copy)]
pub(super) struct Here {
    pub(super) server: &'static Server,
    pub(super) named: &'static Named,
}

/// Purpose of a connection.
enum Purpose {
    /// The program has not sent its purpose yet.
    Unknown,
    /// Keeps the session alive. The descriptor, unless the session may outlive the process that has
    /// connected, becomes readable when that process ends.
    Keeps(Arc<Session>, Option<OwnedFd>),
    Calls(Weak<Session>),
}

/// Reason why a request has no result; `Refused` makes the connection unusable.
enum Unmet {
    Failed(CallError),
    Refused(String),
}

impl From<CallError> for Unmet {
    fn from(error: CallError) -> Self {
        Unmet::Failed(error)
    }
}

/// Serves one connection until its program closes it, or the manager ends.
pub(super) fn serve(connection: &Connection, number: u64, here: Here) {
    // From here on, the end of the manager shuts the connection down, or was seen by the check below.
    here.server.connections.lock().insert(number, connection.clone());
    let mut purpose = Purpose::Unknown;
    converse(connection, number, here, &mut purpose);
    match purpose {
        Purpose::Unknown => {}
        Purpose::Keeps(session, _) => session.end(),
        Purpose::Calls(session) => _ = session.upgrade().map(|session| session.leave(number)),
    }
    let last = here.server.connections.lock().remove(&number);
    drop(last);
}

fn converse(connection: &Connection, number: u64, here: Here, purpose: &mut Purpose) {
    let server = here.server;
    while !server.stops() {
        let asked = match connection.try_recv::<Framed<Ask>>() {
            Ok(asked) => asked,
            Err(GetError::Empty) => match purpose.idle(connection) {
                Ok(true) => continue,
                Ok(false) => return,
                Err(_) => {
                    // sleep: the kernel lacks memory for the wait, and may have some later.
                    thread::sleep(LOOK);
                    continue;
                }
            },
            Err(GetError::Interrupted) => continue,
            Err(GetError::Failed(error)) => {
                reply(connection, server, Framed::bare(Reply::Refused(error.to_string())));
                return;
            }
            Err(_) => return,
        };
        let asked_for = asked.head.handle();
        let framed = match purpose.meet(asked, (connection, number), here) {
            Ok(None) => continue,
            Ok(Some(framed)) => framed,
            Err(Unmet::Failed(error)) => Framed::bare(Reply::Failed(error)),
            Err(Unmet::Refused(why)) => {
                reply(connection, server, Framed::bare(Reply::Refused(why)));
                return;
            }
        };
        if !reply(connection, server, framed) {
            if let (Some(handle), Some(session)) = (asked_for, purpose.session()) {
                session.forget(handle);
            }
            return;
        }
    }
}

/// Sends a reply, however long the program takes to receive it. Returns `true` if the reply was sent.
fn reply(connection: &Connection, server: &Server, mut framed: Framed<Reply>) -> bool {
    while !server.stops() {
        match connection.send_timeout(framed, LOOK) {
            Ok(()) => return true,
            Err(PutError::Full(again) | PutError::Interrupted(again)) => framed = again,
            Err(PutError::Failed { error, .. }) => {
                // For example, the result is too long.
                let error = CallError::Value { why: error.to_string(), undecodable: None };
                return connection.send_timeout(Framed::bare(Reply::Failed(error)), LOOK).is_ok();
            }
            Err(_) => return false,
        }
    }
    false
}

impl Purpose {
    fn session(&self) -> Option<Arc<Session>> {
        match self {
            Purpose::Unknown => None,
            Purpose::Keeps(session, _) => Some(Arc::clone(session)),
            Purpose::Calls(session) => session.upgrade(),
        }
    }

    /// Waits until there is a message, or the connection ends. Returns `false` if the process of the session
    /// has ended, because a fork of it may have its socket.
    fn idle(&self, connection: &Connection) -> Result<bool, GetError> {
        let socket = connection.as_fd()?;
        let ready = match self {
            Purpose::Keeps(_, Some(life)) => peer::until_readable(&[socket, life.as_fd()]),
            _ => peer::until_readable(&[socket]),
        };
        Ok(ready.map_err(mp_reduce::Error::from)?.get(1) != Some(&true))
    }

    fn meet(
        &mut self,
        asked: Framed<Ask>,
        (connection, number): (&Connection, u64),
        here: Here,
    ) -> Result<Option<Framed<Reply>>, Unmet> {
        let Framed { head, body } = asked;
        match (&*self, head) {
            (Purpose::Unknown, Ask::Open { version: VERSION, travels }) => {
                let life = match connection.peer_pid().filter(|_| !travels).map_or(Life::Unknown, peer::life)
                {
                    Life::Lives(life) => Some(life),
                    Life::Unknown => None,
                    Life::Ended => return Err(Unmet::Refused("its process has ended".into())),
                };
                let session = here.named.open();
                let opened = Reply::Opened { session: session.number, server: std::process::id() };
                *self = Purpose::Keeps(session, life);
                Ok(Some(Framed::bare(opened)))
            }
            (Purpose::Unknown, Ask::Open { version, .. }) => {
                let why = format!("it speaks version {version}, and the manager's server {VERSION}");
                Err(Unmet::Refused(why))
            }
            (Purpose::Unknown, Ask::Join { session }) => {
                let open = here.named.session(session).filter(|session| {
                    session.upgrade().is_some_and(|session| session.join(number, connection))
                });
                let ended = || Unmet::Refused(format!("there is no session {session}"));
                *self = Purpose::Calls(open.ok_or_else(ended)?);
                Ok(Some(Framed::bare(Reply::Joined)))
            }
            (_, head) => {
                let out_of_order = || Unmet::Refused("it is not of a session that goes on".into());
                let session = self.session().ok_or_else(out_of_order)?;
                session.meet(head, body.into_incoming(), connection, here)
            }
        }
    }
}

impl Session {
    fn meet(
        &self,
        asked: Ask,
        args: Incoming,
        connection: &Connection,
        here: Here,
    ) -> Result<Option<Framed<Reply>>, Unmet> {
        let Here { server, named } = here;
        let framed = match asked {
            Ask::Open { .. } | Ask::Join { .. } => {
                return Err(Unmet::Refused("the connection is of a session already".into()));
            }
            Ask::Names => {
                let types = named.types.lock();
                let types = types.values().map(|known| (known.name.clone(), known.method_names())).collect();
                let objects = named.objects.lock();
                let objects =
                    objects.iter().map(|(name, handle)| (name.clone(), handle.registered.name.clone()));
                Framed::bare(Reply::Names(Names { types, objects: objects.collect() }))
            }
            Ask::Create { type_name, handle } => {
                let registered = named.registered(&type_name)?;
                let call = CallName::here("constructor", type_name);
                let Some(constructor) = registered.constructor.clone() else {
                    return Err(CallError::NoSuchMethod { call, known: registered.method_names() }.into());
                };
                let link = Arc::new(make(server, constructor, args, call)?);
                held(self.hold(handle, Handle { link, registered }))?
            }
            Ask::Find { name, handle } => held(self.hold(handle, named.published(&name)?))?,
            Ask::Share { session, of, handle } => {
                let other = named.session(session).and_then(|session| session.upgrade());
                let none = || Unmet::Refused(format!("there is no handle {of} in a session {session}"));
                held(self.hold(handle, other.and_then(|other| other.handle(of)).ok_or_else(none)?))?
            }
            Ask::Call { handle, method, object } => {
                let called = Called::new(&self.held(handle)?, method, object.is_some(), named)?;
                let value = called.call(args, connection)?;
                match object {
                    None => called.value(value)?,
                    Some(number) => held(self.hold(number, called.object(value)?))?,
                }
            }
            Ask::Free { handle } => {
                let Handle { link, registered } = self.held(handle)?;
                let call = CallName::here("RemoteProxy::free", registered.name.clone());
                link.free(None, call, || connection.is_disconnected())?;
                Framed::bare(Reply::Freed)
            }
            Ask::Forget { handles } => {
                handles.into_iter().for_each(|handle| self.forget(handle));
                return Ok(None);
            }
        };
        Ok(Some(framed))
    }

    fn held(&self, handle: u64) -> Result<Handle, Unmet> {
        self.handle(handle).ok_or_else(|| Unmet::Refused(format!("it has no handle {handle}")))
    }
}

/// Returns the reply with a handle.
fn held(held: Result<(u64, String), NoHandle>) -> Result<Framed<Reply>, Unmet> {
    let (object, type_name) = held.map_err(|no| match no {
        NoHandle::Ended => Unmet::Refused("its session has ended".into()),
        NoHandle::Taken => Unmet::Refused("it has a handle by that number".into()),
    })?;
    Ok(Framed::bare(Reply::Object { object, type_name }))
}

/// Creates an object, which has its own thread like any other.
fn make(
    server: &'static Server,
    constructor: Constructor,
    args: Incoming,
    call: CallName,
) -> Result<Link, CallError> {
    let (requests, object) = channel::<Request>()?;
    server.serve(object).map_err(|error| CallError::NoThread { why: error.to_string() })?;
    let maker: Closure<(), MakeObject> = Closure::from_parts(
        (constructor, (ByteString(args.rest().to_vec()), ())),
        |(constructor, (args, ())): &(Constructor, (ByteString, ())), (): ()| {
            constructor.call(ByteString(args.0.clone()))
        },
    );
    Link::make(requests, std::process::id(), maker, call, || server.stops())
}

/// Method call of a program.
struct Called {
    handle: Handle,
    /// Index of the method in its type.
    method: usize,
    /// Type of the returned object, if the program expects one.
    returned: Option<Arc<Registered>>,
    call: CallName,
}

impl Called {
    fn new(handle: &Handle, method: String, to_object: bool, named: &Named) -> Result<Called, CallError> {
        let (registered, call) = (&handle.registered, CallName::here(method, handle.registered.name.clone()));
        let found = registered.methods.iter().enumerate().find(|(_, method)| method.name == call.closure);
        let Some((method, found)) = found else {
            return Err(CallError::NoSuchMethod { call, known: registered.method_names() });
        };
        let returned = match (&found.object, to_object) {
            (Some(object), true) => Some(named.registered(&object.name)?),
            (None, false) => None,
            (Some(_), false) => {
                return Err(unlike(
                    "an object, which stays in the server: `call_to_object` has a handle to it",
                ));
            }
            (None, true) => return Err(unlike("a value, and no object: `call` has it")),
        };
        Ok(Called { handle: handle.clone(), method, returned, call })
    }

    /// Calls the method, and waits for its result while the program is connected.
    fn call(&self, args: Incoming, connection: &Connection) -> Result<Body, CallError> {
        let Handle { link, registered } = &self.handle;
        let Some(method) = registered.methods.get(self.method) else {
            return Err(CallError::NoSuchMethod {
                call: self.call.clone(),
                known: registered.method_names(),
            });
        };
        let received = || mp_core::Error::Malformed("arguments with attachments came over a socket".into());
        let body = args.into_outgoing().map(Box::new).ok_or_else(received)?;
        // Registered types and their methods are never moved, so the address identifies the method.
        let id = std::ptr::from_ref(method).addr();
        let gone = || connection.is_disconnected();
        let answer = link.ask(None, &self.call, gone, |link, caller| {
            let (code, new) = caller.code(id);
            if new {
                let task = Late::Out(method.task.clone());
                send(&link.requests, Request::Learn { caller: caller.number(), code, task }, link.server)?;
            }
            Ok(Request::Call { caller: caller.number(), code, body: Body::Out(body) })
        })?;
        match answer {
            Answer::Done(value) => Ok(value),
            other => Err(refused(other, link.server, self.call.clone())),
        }
    }

    /// Returns the reply with a value.
    fn value(&self, value: Body) -> Result<Framed<Reply>, CallError> {
        let body = plain(value.into_incoming()).ok_or_else(|| CallError::Value {
            why: "a tensor, queue, lock or descriptor is in the memory of the manager's program, which another program does not \
                  have: return what is in it"
                .into(),
            undecodable: None,
        })?;
        Ok(Framed { head: Reply::Done, body: Body::Out(body) })
    }

    /// Returns the handle of the returned object.
    fn object(self, value: Body) -> Result<Handle, CallError> {
        // The registered method determines the type.
        let link = Arc::clone(read_value::<Proxy<()>>(value)?.link());
        if link.server != std::process::id() {
            let why = format!("the object is of another manager, whose server is pid {}", link.server);
            return Err(CallError::Value { why, undecodable: None });
        }
        let registered = self.returned.ok_or_else(|| unlike("a value"))?;
        Ok(Handle { link, registered })
    }
}

/// Returns the error of a call that expects another kind of result. The method was not called.
fn unlike(what: &str) -> CallError {
    CallError::Value { why: format!("the method returns {what}"), undecodable: None }
}

/// Returns the message if nothing is attached to it.
fn plain(value: Incoming) -> Option<Box<Outgoing>> {
    value.into_outgoing().filter(|out| out.plain().is_some()).map(Box::new)
}
