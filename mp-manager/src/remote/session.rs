//! A program that is connected, as the server has it.

use std::sync::{Arc, Weak};

use mp_core::message::{Incoming, Outgoing};
use mp_core::sent::ByteString;
use mp_queue::{Connection, GetError, PutError, channel};
use mp_spawn::Closure;

use crate::answer::{Answer, Body};
use crate::caller::send;
use crate::error::{CallError, CallName};
use crate::named::methods::Constructor;
use crate::named::{Handle, Session};
use crate::object::MakeObject;
use crate::proxy::{Link, refused};
use crate::remote::wire::{Ask, Framed, Names, Reply, VERSION};
use crate::request::{Late, Request};
use crate::server::{LOOK, Server};

/// What a connection is for.
enum Purpose {
    /// Its program has not said yet.
    Unknown,
    Keeps(Arc<Session>),
    Calls(Weak<Session>),
}

/// Why a request has no result, and whether the connection is of use after it.
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
pub(super) fn serve(connection: &Connection, server: &'static Server) {
    let mut purpose = Purpose::Unknown;
    converse(connection, server, &mut purpose);
    if let Purpose::Keeps(session) = purpose {
        session.end();
    }
}

fn converse(connection: &Connection, server: &'static Server, purpose: &mut Purpose) {
    while !server.stops() {
        let asked = match connection.recv_timeout::<Framed<Ask>>(LOOK) {
            Ok(asked) => asked,
            Err(GetError::Empty | GetError::Interrupted) => continue,
            Err(GetError::Failed(error)) => {
                reply(connection, server, Framed::bare(Reply::Refused(error.to_string())));
                return;
            }
            Err(_) => return,
        };
        let framed = match purpose.meet(asked, connection, server) {
            Ok(None) => continue,
            Ok(Some(framed)) => framed,
            Err(Unmet::Failed(error)) => Framed::bare(Reply::Failed(error)),
            Err(Unmet::Refused(why)) => {
                reply(connection, server, Framed::bare(Reply::Refused(why)));
                return;
            }
        };
        let object = match framed.head {
            Reply::Object { object, .. } => Some(object),
            _ => None,
        };
        if !reply(connection, server, framed) {
            if let (Some(object), Some(session)) = (object, purpose.session()) {
                session.forget(object);
            }
            return;
        }
    }
}

/// Sends a reply, for as long as the program needs to take it; whether it has left.
fn reply(connection: &Connection, server: &Server, mut framed: Framed<Reply>) -> bool {
    while !server.stops() {
        match connection.send_timeout(framed, LOOK) {
            Ok(()) => return true,
            Err(PutError::Full(again) | PutError::Interrupted(again)) => framed = again,
            Err(PutError::Failed { error, .. }) => {
                // Too long, for instance.
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
            Purpose::Keeps(session) => Some(Arc::clone(session)),
            Purpose::Calls(session) => session.upgrade(),
        }
    }

    fn meet(
        &mut self,
        asked: Framed<Ask>,
        connection: &Connection,
        server: &'static Server,
    ) -> Result<Option<Framed<Reply>>, Unmet> {
        let Framed { head, body } = asked;
        match (&*self, head) {
            (Purpose::Unknown, Ask::Open { version: VERSION }) => {
                let session = server.named.open();
                let opened = Reply::Opened { session: session.number, server: std::process::id() };
                *self = Purpose::Keeps(session);
                Ok(Some(Framed::bare(opened)))
            }
            (Purpose::Unknown, Ask::Open { version }) => {
                let why = format!("it speaks version {version}, and the manager's server {VERSION}");
                Err(Unmet::Refused(why))
            }
            (Purpose::Unknown, Ask::Join { session }) => {
                let ended = || Unmet::Refused(format!("there is no session {session}"));
                *self = Purpose::Calls(server.named.session(session).ok_or_else(ended)?);
                Ok(Some(Framed::bare(Reply::Joined)))
            }
            (_, head) => {
                let out_of_order = || Unmet::Refused("it is not of a session that goes on".into());
                let session = self.session().ok_or_else(out_of_order)?;
                session.meet(head, body.into_incoming(), connection, server)
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
        server: &'static Server,
    ) -> Result<Option<Framed<Reply>>, Unmet> {
        let named = &server.named;
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
            Ask::Create { type_name } => {
                let registered = named.registered(&type_name)?;
                let call = CallName::here("constructor", type_name);
                let Some(constructor) = registered.constructor.clone() else {
                    return Err(CallError::NoSuchMethod { call, known: registered.method_names() }.into());
                };
                let link = Arc::new(make(server, constructor, args, call)?);
                handle(self.hold(Handle { link, registered }))?
            }
            Ask::Find { name } => handle(self.hold(named.published(&name)?))?,
            Ask::Call { object, method } => call(&self.held(object)?, method, args, connection)?,
            Ask::Free { object } => {
                let Handle { link, registered } = self.held(object)?;
                let call = CallName::here("RemoteProxy::free", registered.name.clone());
                link.free(None, call, || connection.is_disconnected())?;
                Framed::bare(Reply::Freed)
            }
            Ask::Forget { objects } => {
                objects.into_iter().for_each(|object| self.forget(object));
                return Ok(None);
            }
        };
        Ok(Some(framed))
    }

    fn held(&self, object: u64) -> Result<Handle, Unmet> {
        self.handle(object).ok_or_else(|| Unmet::Refused(format!("it has no handle to object {object}")))
    }
}

/// The reply that brings a handle.
fn handle(held: Option<(u64, String)>) -> Result<Framed<Reply>, Unmet> {
    let (object, type_name) = held.ok_or_else(|| Unmet::Refused("its session has ended".into()))?;
    Ok(Framed::bare(Reply::Object { object, type_name }))
}

/// Makes an object, in a thread of its own as any other.
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

/// Calls a method, and waits for its result as long as its program does.
fn call(
    handle: &Handle,
    method: String,
    args: Incoming,
    connection: &Connection,
) -> Result<Framed<Reply>, CallError> {
    let Handle { link, registered } = handle;
    let (found, call) = (
        registered.methods.iter().find(|(name, _)| *name == method),
        CallName::here(method.clone(), registered.name.clone()),
    );
    let Some((_, task)) = found else {
        return Err(CallError::NoSuchMethod { call, known: registered.method_names() });
    };
    let received = || mp_core::Error::Malformed("arguments with attachments came over a socket".into());
    let body = args.into_outgoing().ok_or_else(received)?;
    // A registered type stays where it is, and so do its methods.
    let id = std::ptr::from_ref(task).addr();
    let gone = || connection.is_disconnected() && !mp_core::mutant!("manager.remote.gone-program-waited-for");
    let answer = link.ask(None, &call, gone, |link, caller| {
        let (code, new) = caller.code(id);
        if new {
            let learn = Request::Learn { caller: caller.number(), code, task: Late::Out(task.clone()) };
            send(&link.requests, learn, link.server)?;
        }
        Ok(Request::Call { caller: caller.number(), code, body: Body::Out(body) })
    })?;
    match answer {
        Answer::Done(value) => {
            let body = plain(value.into_incoming()).ok_or_else(|| CallError::Value {
                why: "a tensor, queue, lock or descriptor is in the memory of the manager's program, which another program does not \
                      have: return what is in it"
                    .into(),
                undecodable: None,
            })?;
            Ok(Framed { head: Reply::Done, body: Body::Out(body) })
        }
        other => Err(refused(other, link.server, call)),
    }
}

/// What nothing is attached to.
fn plain(value: Incoming) -> Option<Outgoing> {
    value.into_outgoing().filter(|out| out.plain().is_some())
}
