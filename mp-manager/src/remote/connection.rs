//! Server side of a connection of another program.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;

use mp_core::message::Incoming;
use mp_core::peer::{self, Liveness};
use mp_core::serde_with::ByteString;
use mp_queue::{Connection, GetError, PutError, Sender, channel};
use mp_spawn::{Closure, LazyClosure};

use crate::answer::{CallAnswer, MessageBody};
use crate::caller::{CHECK_INTERVAL, Caller, send};
use crate::error::{CallError, CallName};
use crate::object::{ObjectCall, ObjectResult};
use crate::proxy::{ObjectLink, answer_error};
use crate::remote::methods::{Constructor, find_method, returned_object};
use crate::remote::registry::{NameRegistry, ObjectHandle, RequestError, ServerSession};
use crate::remote::wire::{Ask, Framed, OfferedNames, Reply, VERSION};
use crate::request::ObjectRequest;
use crate::server::{ManagerServer, RemoteConnection};

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
    /// Keeps the session alive. The descriptor becomes readable when the process that has connected ends.
    /// There is no descriptor if the session can outlive that process.
    Keeps(Arc<ServerSession>, Option<OwnedFd>),
    Calls(Weak<ServerSession>),
}

/// Serves one connection until its program closes it, or the manager ends.
pub(super) fn serve(connection: &Connection, number: u64, context: ServerContext) {
    // A manager that ends after this insertion shuts the connection down. An earlier end is seen by the check
    // in `serve_requests`.
    let remote = RemoteConnection { connection: connection.clone(), session: None };
    context.server.connections.lock().insert(number, remote);
    let mut role = ConnectionRole::Unknown;
    serve_requests(connection, number, context, &mut role);
    if let ConnectionRole::Keeps(session, _) = role {
        // The handles are dropped even while a call of the session runs.
        let _handles = session.end();
        // The session's connections are shut down, even if a fork of the program still has their sockets.
        let connections = context.server.connections.lock();
        let its = connections.values().filter(|remote| remote.session == Some(session.number));
        its.for_each(|remote| remote.connection.shut_down());
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

/// Sends a reply, and waits without a time-out until the program has room for it. Returns `true` if the reply
/// was sent, and `false` if the program or the manager has ended.
fn reply(connection: &Connection, server: &ManagerServer, mut framed: Framed<Reply>) -> bool {
    while !server.is_stopping() {
        match connection.send_timeout(framed, CHECK_INTERVAL) {
            Ok(()) => return true,
            Err(PutError::Full(again) | PutError::Interrupted(again)) => framed = again,
            Err(PutError::Failed { error, .. }) => {
                // The send can fail, for example, because the result is too long.
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
    /// has ended. The socket alone does not report the end of the process if a fork of the process still has
    /// the socket.
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
                // Recorded before the check: a session that ends later finds the connection, and one that has
                // ended before fails the check.
                if let Some(remote) = context.server.connections.lock().get_mut(&number) {
                    remote.session = Some(session);
                }
                let open = context.registry.session(session).filter(|session| session.is_open());
                let ended = || RequestError::Refused(format!("there is no session {session}"));
                *self = ConnectionRole::Calls(Arc::downgrade(&open.ok_or_else(ended)?));
                Ok(Some(Framed::bare(Reply::Joined)))
            }
            (_, head) => {
                let out_of_order =
                    || RequestError::Refused("its connection belongs to no open session".into());
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
                self.insert(handle, ObjectHandle { link, registered })?
            }
            Ask::Find { name, handle } => self.insert(handle, registry.published(&name)?)?,
            Ask::Share { session, of, handle } => {
                let other = registry.session(session);
                let none =
                    || RequestError::Refused(format!("there is no handle {of} in a session {session}"));
                self.insert(handle, other.and_then(|other| other.handle(of)).ok_or_else(none)?)?
            }
            Ask::Call { handle, method, object } => {
                self.call(self.find_handle(handle)?, method, object, args, connection, registry)?
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

    /// Calls a method, and waits for its result while the program is connected. `number` is the handle for
    /// the returned object, if the program expects an object.
    fn call(
        &self,
        ObjectHandle { link, registered }: ObjectHandle,
        method: String,
        number: Option<u64>,
        args: Incoming,
        connection: &Connection,
        registry: &NameRegistry,
    ) -> Result<Framed<Reply>, RequestError> {
        let call = CallName::at_caller(method, registered.name.clone());
        let method = find_method(&registered.methods, &call, number.is_some())?;
        let returned = match (&method.signature.object, number) {
            (Some(object), Some(number)) => Some((registry.registered(&object.name)?, number)),
            _ => None,
        };
        let received = || mp_core::Error::Malformed("arguments with attachments came over a socket".into());
        let body = args.into_outgoing().map(Box::new).ok_or_else(received).map_err(CallError::from)?;
        let gone = || connection.is_disconnected();
        let answer = link.request(None, &call, gone, |link, caller| {
            let id = std::ptr::from_ref(method).addr();
            let task = || method.task.clone();
            method_request((id, task), caller, &link.requests, link.server, MessageBody::Out(body))
        })?;
        let value = match answer {
            CallAnswer(Ok(value)) => value,
            other => return Err(answer_error(other, link.server, call).into()),
        };
        let Some((registered, number)) = returned else {
            return Ok(Framed { head: Reply::Done, body: plain_result(value)? });
        };
        let link = returned_object(value, std::process::id())?;
        self.insert(number, ObjectHandle { link, registered })
    }
}

/// Returns the request for a call of a method. If the object does not know the method yet, sends the method
/// first. The address of the method identifies it, so the method must not move as long as the object has
/// callers.
pub(super) fn method_request(
    (id, task): (usize, impl FnOnce() -> Closure<(), ObjectCall>),
    caller: &mut Caller,
    requests: &Sender<ObjectRequest>,
    server: u32,
    body: MessageBody,
) -> Result<ObjectRequest, CallError> {
    let (code, new) = caller.code(id);
    if new {
        let task = LazyClosure::ToSend(task());
        send(requests, ObjectRequest::Learn { caller: caller.number(), code, task }, server)?;
    }
    Ok(ObjectRequest::Call { caller: caller.number(), code, body })
}

/// Returns the result of a call if another program can receive it. Returns an error if the result has
/// attachments.
pub(super) fn plain_result(value: MessageBody) -> Result<MessageBody, CallError> {
    let out = value.into_incoming().into_outgoing().filter(|out| out.plain().is_some());
    out.map(|out| MessageBody::Out(Box::new(out))).ok_or_else(|| {
        let why = "a tensor, queue, lock or descriptor is in the memory of the manager's program, which \
                   another program does not have: return what is in it";
        CallError::Value { why: why.into(), undecodable: None }
    })
}

/// Creates an object, which has its own thread like all objects.
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
