//! Server side of a connected program.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;

use mp_core::message::{Incoming, Outgoing};
use mp_core::peer::{self, Liveness};
use mp_core::serde_with::ByteString;
use mp_queue::{Connection, GetError, PutError, channel};
use mp_spawn::Closure;

use crate::answer::{CallAnswer, MessageBody};
use crate::caller::CHECK_INTERVAL;
use crate::caller::send;
use crate::error::{CallError, CallName};
use crate::object::ObjectResult;
use crate::proxy::{ObjectLink, Proxy, answer_error, read_value};
use crate::remote::methods::{Constructor, RegisteredType};
use crate::remote::registry::{HandleError, NameRegistry, ObjectHandle, ServerSession};
use crate::remote::wire::{Ask, Framed, OfferedNames, Reply, VERSION};
use crate::request::{LazyClosure, ObjectRequest};
use crate::server::ManagerServer;

/// Server of this process, with its named types and objects.
#[derive(Clone, Copy)]
pub(super) struct ServerContext {
    pub(super) server: &'static ManagerServer,
    pub(super) registry: &'static NameRegistry,
}

/// Purpose of a connection.
enum ConnectionRole {
    /// The program has not sent its role yet.
    Unknown,
    /// Keeps the session alive. The descriptor, unless the session may outlive the process that has
    /// connected, becomes readable when that process ends.
    Keeps(Arc<ServerSession>, Option<OwnedFd>),
    Calls(Weak<ServerSession>),
}

/// Reason why a request has no result; `Refused` makes the connection unusable.
enum RequestError {
    Failed(CallError),
    Refused(String),
}

impl From<CallError> for RequestError {
    fn from(error: CallError) -> Self {
        RequestError::Failed(error)
    }
}

/// Serves one connection until its program closes it, or the manager ends.
pub(super) fn serve(connection: &Connection, number: u64, context: ServerContext) {
    // From here on, the end of the manager shuts the connection down, or was seen by the check below.
    context.server.connections.lock().insert(number, connection.clone());
    let mut role = ConnectionRole::Unknown;
    serve_requests(connection, number, context, &mut role);
    match role {
        ConnectionRole::Unknown => {}
        ConnectionRole::Keeps(session, _) => session.end(),
        ConnectionRole::Calls(session) => _ = session.upgrade().map(|session| session.leave(number)),
    }
    let last = context.server.connections.lock().remove(&number);
    drop(last);
}

fn serve_requests(connection: &Connection, number: u64, context: ServerContext, role: &mut ConnectionRole) {
    let server = context.server;
    while !server.is_stopping() {
        let request = match connection.try_recv::<Framed<Ask>>() {
            Ok(request) => request,
            Err(GetError::Empty) => match role.wait(connection) {
                Ok(true) => continue,
                Ok(false) => return,
                Err(_) => {
                    // sleep: the kernel lacks memory for the wait, and may have some later.
                    thread::sleep(CHECK_INTERVAL);
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
        let requested = request.head.handle();
        let framed = match role.handle_request(request, (connection, number), context) {
            Ok(None) => continue,
            Ok(Some(framed)) => framed,
            Err(RequestError::Failed(error)) => Framed::bare(Reply::Failed(error)),
            Err(RequestError::Refused(why)) => {
                reply(connection, server, Framed::bare(Reply::Refused(why)));
                return;
            }
        };
        if !reply(connection, server, framed) {
            if let (Some(handle), Some(session)) = (requested, role.session()) {
                session.remove(handle);
            }
            return;
        }
    }
}

/// Sends a reply, however long the program takes to receive it. Returns `true` if the reply was sent.
fn reply(connection: &Connection, server: &ManagerServer, mut framed: Framed<Reply>) -> bool {
    while !server.is_stopping() {
        match connection.send_timeout(framed, CHECK_INTERVAL) {
            Ok(()) => return true,
            Err(PutError::Full(again) | PutError::Interrupted(again)) => framed = again,
            Err(PutError::Failed { error, .. }) => {
                // For example, the result is too long.
                let error = CallError::Value { why: error.to_string(), undecodable: None };
                return connection.send_timeout(Framed::bare(Reply::Failed(error)), CHECK_INTERVAL).is_ok();
            }
            Err(_) => return false,
        }
    }
    false
}

impl ConnectionRole {
    fn session(&self) -> Option<Arc<ServerSession>> {
        match self {
            ConnectionRole::Unknown => None,
            ConnectionRole::Keeps(session, _) => Some(Arc::clone(session)),
            ConnectionRole::Calls(session) => session.upgrade(),
        }
    }

    /// Waits until there is a message, or the connection ends. Returns `false` if the process of the session
    /// has ended, because a fork of it may have its socket.
    fn wait(&self, connection: &Connection) -> Result<bool, GetError> {
        let socket = connection.as_fd()?;
        let ready = match self {
            ConnectionRole::Keeps(_, Some(life)) => peer::until_readable(&[socket, life.as_fd()]),
            _ => peer::until_readable(&[socket]),
        };
        Ok(ready.map_err(mp_reduce::Error::from)?.get(1) != Some(&true))
    }

    fn handle_request(
        &mut self,
        request: Framed<Ask>,
        (connection, number): (&Connection, u64),
        context: ServerContext,
    ) -> Result<Option<Framed<Reply>>, RequestError> {
        let Framed { head, body } = request;
        match (&*self, head) {
            (ConnectionRole::Unknown, Ask::Open { version: VERSION, travels }) => {
                let life = match connection
                    .peer_pid()
                    .filter(|_| !travels)
                    .map_or(Liveness::Unknown, peer::liveness)
                {
                    Liveness::Alive(life) => Some(life),
                    Liveness::Unknown => None,
                    Liveness::Ended => return Err(RequestError::Refused("its process has ended".into())),
                };
                let session = context.registry.open();
                let opened = Reply::Opened { session: session.number, server: std::process::id() };
                *self = ConnectionRole::Keeps(session, life);
                Ok(Some(Framed::bare(opened)))
            }
            (ConnectionRole::Unknown, Ask::Open { version, .. }) => {
                let why = format!("it speaks version {version}, and the manager's server {VERSION}");
                Err(RequestError::Refused(why))
            }
            (ConnectionRole::Unknown, Ask::Join { session }) => {
                let open = context.registry.session(session).filter(|session| {
                    session.upgrade().is_some_and(|session| session.join(number, connection))
                });
                let ended = || RequestError::Refused(format!("there is no session {session}"));
                *self = ConnectionRole::Calls(open.ok_or_else(ended)?);
                Ok(Some(Framed::bare(Reply::Joined)))
            }
            (_, head) => {
                let out_of_order = || RequestError::Refused("it is not of a session that goes on".into());
                let session = self.session().ok_or_else(out_of_order)?;
                session.handle_request(head, body.into_incoming(), connection, context)
            }
        }
    }
}

impl ServerSession {
    fn handle_request(
        &self,
        request: Ask,
        args: Incoming,
        connection: &Connection,
        context: ServerContext,
    ) -> Result<Option<Framed<Reply>>, RequestError> {
        let ServerContext { server, registry } = context;
        let framed = match request {
            Ask::Open { .. } | Ask::Join { .. } => {
                return Err(RequestError::Refused("the connection is of a session already".into()));
            }
            Ask::Names => {
                let types = registry.types.lock();
                let types = types.values().map(|known| (known.name.clone(), known.method_names())).collect();
                let objects = registry.objects.lock();
                let objects =
                    objects.iter().map(|(name, handle)| (name.clone(), handle.registered.name.clone()));
                Framed::bare(Reply::Names(OfferedNames { types, objects: objects.collect() }))
            }
            Ask::Create { type_name, handle } => {
                let registered = registry.registered(&type_name)?;
                let call = CallName::at_caller("constructor", type_name);
                let Some(constructor) = registered.constructor.clone() else {
                    return Err(CallError::NoSuchMethod { call, known: registered.method_names() }.into());
                };
                let link = Arc::new(make(server, constructor, args, call)?);
                object_reply(self.insert(handle, ObjectHandle { link, registered }))?
            }
            Ask::Find { name, handle } => object_reply(self.insert(handle, registry.published(&name)?))?,
            Ask::Share { session, of, handle } => {
                let other = registry.session(session).and_then(|session| session.upgrade());
                let none =
                    || RequestError::Refused(format!("there is no handle {of} in a session {session}"));
                object_reply(self.insert(handle, other.and_then(|other| other.handle(of)).ok_or_else(none)?))?
            }
            Ask::Call { handle, method, object } => {
                let called = MethodCall::new(&self.find_handle(handle)?, method, object.is_some(), registry)?;
                let value = called.call(args, connection)?;
                match object {
                    None => called.value(value)?,
                    Some(number) => object_reply(self.insert(number, called.object(value)?))?,
                }
            }
            Ask::Free { handle } => {
                let ObjectHandle { link, registered } = self.find_handle(handle)?;
                let call = CallName::at_caller("RemoteProxy::free", registered.name.clone());
                link.free(None, call, || connection.is_disconnected())?;
                Framed::bare(Reply::Freed)
            }
            Ask::Forget { handles } => {
                handles.into_iter().for_each(|handle| self.remove(handle));
                return Ok(None);
            }
        };
        Ok(Some(framed))
    }

    fn find_handle(&self, handle: u64) -> Result<ObjectHandle, RequestError> {
        self.handle(handle).ok_or_else(|| RequestError::Refused(format!("it has no handle {handle}")))
    }
}

/// Returns the reply with a handle.
fn object_reply(inserted: Result<(u64, String), HandleError>) -> Result<Framed<Reply>, RequestError> {
    let (object, type_name) = inserted.map_err(|no| match no {
        HandleError::Ended => RequestError::Refused("its session has ended".into()),
        HandleError::Taken => RequestError::Refused("it has a handle by that number".into()),
    })?;
    Ok(Framed::bare(Reply::Object { object, type_name }))
}

/// Creates an object, which has its own thread like any other.
fn make(
    server: &'static ManagerServer,
    constructor: Constructor,
    args: Incoming,
    call: CallName,
) -> Result<ObjectLink, CallError> {
    let (requests, object) = channel::<ObjectRequest>()?;
    server.serve(object).map_err(|error| CallError::NoThread { why: error.to_string() })?;
    let maker: Closure<(), ObjectResult> = Closure::from_parts(
        (constructor, (ByteString(args.rest().to_vec()), ())),
        |(constructor, (args, ())): &(Constructor, (ByteString, ())), (): ()| {
            constructor.call(ByteString(args.0.clone()))
        },
    );
    ObjectLink::make(requests, std::process::id(), maker, call, || server.is_stopping())
}

/// Method call of a program.
struct MethodCall {
    handle: ObjectHandle,
    /// Index of the method in its type.
    method: usize,
    /// Type of the returned object, if the program expects one.
    returned: Option<Arc<RegisteredType>>,
    call: CallName,
}

impl MethodCall {
    fn new(
        handle: &ObjectHandle,
        method: String,
        to_object: bool,
        registry: &NameRegistry,
    ) -> Result<MethodCall, CallError> {
        let (registered, call) =
            (&handle.registered, CallName::at_caller(method, handle.registered.name.clone()));
        let found = registered.methods.iter().enumerate().find(|(_, method)| method.name == call.closure);
        let Some((method, found)) = found else {
            return Err(CallError::NoSuchMethod { call, known: registered.method_names() });
        };
        let returned = match (&found.object, to_object) {
            (Some(object), true) => Some(registry.registered(&object.name)?),
            (None, false) => None,
            (Some(_), false) => {
                return Err(kind_mismatch(
                    "an object, which stays in the server: `call_to_object` has a handle to it",
                ));
            }
            (None, true) => return Err(kind_mismatch("a value, and no object: `call` has it")),
        };
        Ok(MethodCall { handle: handle.clone(), method, returned, call })
    }

    /// Calls the method, and waits for its result while the program is connected.
    fn call(&self, args: Incoming, connection: &Connection) -> Result<MessageBody, CallError> {
        let ObjectHandle { link, registered } = &self.handle;
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
        let answer = link.request(None, &self.call, gone, |link, caller| {
            let (code, new) = caller.code(id);
            if new {
                let task = LazyClosure::Out(method.task.clone());
                send(
                    &link.requests,
                    ObjectRequest::Learn { caller: caller.number(), code, task },
                    link.server,
                )?;
            }
            Ok(ObjectRequest::Call { caller: caller.number(), code, body: MessageBody::Out(body) })
        })?;
        match answer {
            CallAnswer::Done(value) => Ok(value),
            other => Err(answer_error(other, link.server, self.call.clone())),
        }
    }

    /// Returns the reply with a value.
    fn value(&self, value: MessageBody) -> Result<Framed<Reply>, CallError> {
        let body = plain(value.into_incoming()).ok_or_else(|| CallError::Value {
            why: "a tensor, queue, lock or descriptor is in the memory of the manager's program, which \
                  another program does not have: return what is in it"
                .into(),
            undecodable: None,
        })?;
        Ok(Framed { head: Reply::Done, body: MessageBody::Out(body) })
    }

    /// Returns the handle of the returned object.
    fn object(self, value: MessageBody) -> Result<ObjectHandle, CallError> {
        // The registered method determines the type.
        let link = Arc::clone(read_value::<Proxy<()>>(value)?.link());
        if link.server != std::process::id() {
            let why = format!("the object is of another manager, whose server is pid {}", link.server);
            return Err(CallError::Value { why, undecodable: None });
        }
        let registered = self.returned.ok_or_else(|| kind_mismatch("a value"))?;
        Ok(ObjectHandle { link, registered })
    }
}

/// Returns the error of a call that expects another kind of result. The method was not called.
fn kind_mismatch(what: &str) -> CallError {
    CallError::Value { why: format!("the method returns {what}"), undecodable: None }
}

/// Returns the message if nothing is attached to it.
fn plain(value: Incoming) -> Option<Box<Outgoing>> {
    value.into_outgoing().filter(|out| out.plain().is_some()).map(Box::new)
}
