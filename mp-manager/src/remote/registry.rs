//! Types and objects that other programs use by name, and sessions, which contain the handles of each
//! program.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock, Weak};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use mp_queue::Connection;

use crate::error::CallError;
use crate::object::BoxedError;
use crate::proxy::ObjectLink;
use crate::remote::methods::RegisteredType;
use crate::server::ManagerServer;

/// Names and sessions of a server.
#[derive(Default)]
pub(crate) struct NameRegistry {
    pub(crate) types: Mutex<BTreeMap<String, Arc<RegisteredType>>>,
    pub(crate) objects: Mutex<BTreeMap<String, ObjectHandle>>,
    sessions: Mutex<Sessions>,
    /// Number of the next connection.
    connections: Mutex<u64>,
}

/// Programs that are connected.
struct Sessions {
    open: BTreeMap<u64, Weak<ServerSession>>,
    next: u64,
    /// Offset of the numbers of objects: programs compare objects of several servers, which may have the same
    /// process id on several hosts.
    objects: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        // Random, so that no program takes a session of this server for a session of another server at the
        // same address.
        let random = RandomState::new();
        let next = random.hash_one("session");
        Sessions { open: BTreeMap::new(), next, objects: random.hash_one("objects") }
    }
}

/// Object that other programs can call.
#[derive(Clone)]
pub(crate) struct ObjectHandle {
    pub(crate) link: Arc<ObjectLink>,
    pub(crate) registered: Arc<RegisteredType>,
}

/// Session of a program.
pub(crate) struct ServerSession {
    pub(crate) number: u64,
    /// Offset of the numbers of objects.
    objects: u64,
    /// `None` after the session has ended.
    resources: Mutex<Option<SessionResources>>,
}

/// Resources of a session.
#[derive(Default)]
struct SessionResources {
    /// Handles of the program, by the numbers that it chose.
    handles: BTreeMap<u64, ObjectHandle>,
    /// Connections for calls.
    connections: BTreeMap<u64, Connection>,
}

/// Reason why a session can't add a handle.
pub(crate) enum HandleError {
    Ended,
    /// The number is in use.
    Taken,
}

impl ServerSession {
    fn new(number: u64, objects: u64) -> Self {
        ServerSession { number, objects, resources: Mutex::new(Some(SessionResources::default())) }
    }

    /// Adds a handle. Returns the object's number, and the name of its type.
    pub(crate) fn insert(&self, number: u64, handle: ObjectHandle) -> Result<(u64, String), HandleError> {
        let object = self.objects.wrapping_add(handle.link.object);
        let type_name = handle.registered.name.clone();
        let mut resources = self.resources.lock();
        let held = &mut resources.as_mut().ok_or(HandleError::Ended)?.handles;
        if held.contains_key(&number) {
            return Err(HandleError::Taken);
        }
        held.insert(number, handle);
        Ok((object, type_name))
    }

    /// Removes a handle, if there is one with this number.
    pub(crate) fn remove(&self, number: u64) {
        let _forgotten =
            self.resources.lock().as_mut().and_then(|resources| match resources.handles.entry(number) {
                Entry::Occupied(entry) => Some(entry.remove()),
                Entry::Vacant(_) => None,
            });
    }

    pub(crate) fn handle(&self, number: u64) -> Option<ObjectHandle> {
        self.resources.lock().as_ref()?.handles.get(&number).cloned()
    }

    /// Adds a connection with a unique number. Returns `false` if the session has ended.
    pub(crate) fn join(&self, number: u64, connection: &Connection) -> bool {
        let mut resources = self.resources.lock();
        resources.as_mut().map(|resources| resources.connections.insert(number, connection.clone())).is_some()
    }

    /// Removes a connection.
    pub(crate) fn leave(&self, number: u64) {
        let left = self.resources.lock().as_mut().and_then(|resources| resources.connections.remove(&number));
        drop(left);
    }

    /// Ends the session after its program has ended: drops its handles, even while one of its calls runs, and
    /// shuts down its connections, even if a fork of the program has them.
    pub(crate) fn end(&self) {
        let resources = self.resources.lock().take();
        if let Some(resources) = &resources {
            resources.connections.values().for_each(Connection::shut_down);
        }
        drop(resources);
    }
}

static NAMED: PerProcess<OnceLock<NameRegistry>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

impl NameRegistry {
    /// Returns the names of the server that this process is.
    pub(crate) fn of_server() -> Result<&'static NameRegistry, BoxedError> {
        ManagerServer::current()?;
        Ok(NAMED.get_or_init(NameRegistry::default))
    }

    pub(crate) fn register(&self, registered: RegisteredType) -> Result<(), BoxedError> {
        let names = registered.method_names();
        if let Some(twice) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            return Err(format!("`{}` has two methods by the name `{}`", registered.name, twice.1).into());
        }
        let mut types = self.types.lock();
        if let Some(there) = types.get(&registered.name) {
            let RegisteredType { name, type_name, .. } = &**there;
            return Err(format!("there is a type by the name `{name}` already: `{type_name}`").into());
        }
        let others = types.values().map(|other| &**other).chain([&registered]);
        let wrong =
            others.flat_map(|other| [registered.name_conflict(other), other.name_conflict(&registered)]);
        let wrong = wrong.flatten().next();
        if let Some(why) = wrong {
            return Err(why.into());
        }
        types.insert(registered.name.clone(), Arc::new(registered));
        Ok(())
    }

    pub(crate) fn publish(
        &self,
        name: &str,
        type_name: &str,
        link: &Arc<ObjectLink>,
    ) -> Result<(), BoxedError> {
        if link.server != std::process::id() {
            return Err(
                format!("the object is of another manager, whose server is pid {}", link.server).into()
            );
        }
        let registered: Vec<_> =
            self.types.lock().values().filter(|known| known.type_name == type_name).cloned().collect();
        let registered = match &registered[..] {
            [] => return Err(format!("register the type `{type_name}` first: its methods need names").into()),
            [registered] => Arc::clone(registered),
            [first, second, ..] => {
                let names = [&first.name, &second.name];
                return Err(
                    format!("`{type_name}` is registered by several names, {names:?} among them").into()
                );
            }
        };
        let mut objects = self.objects.lock();
        if objects.contains_key(name) {
            return Err(format!("there is an object by the name `{name}` already: unpublish it first").into());
        }
        objects.insert(name.to_string(), ObjectHandle { link: Arc::clone(link), registered });
        Ok(())
    }

    pub(crate) fn registered(&self, name: &str) -> Result<Arc<RegisteredType>, CallError> {
        let types = self.types.lock();
        types.get(name).cloned().ok_or_else(|| CallError::NoSuchType {
            name: name.to_string(),
            known: types.keys().cloned().collect(),
        })
    }

    pub(crate) fn published(&self, name: &str) -> Result<ObjectHandle, CallError> {
        let objects = self.objects.lock();
        objects.get(name).cloned().ok_or_else(|| CallError::NoSuchObject {
            name: name.to_string(),
            known: objects.keys().cloned().collect(),
        })
    }

    /// Returns a unique number for a connection.
    pub(crate) fn number(&self) -> u64 {
        let mut next = self.connections.lock();
        *next += 1;
        *next
    }

    /// Opens a new session.
    pub(crate) fn open(&self) -> Arc<ServerSession> {
        let Sessions { open, next, objects } = &mut *self.sessions.lock();
        // Removes sessions that have ended.
        open.retain(|_, session| session.strong_count() > 0);
        let session = Arc::new(ServerSession::new(*next, *objects));
        open.insert(*next, Arc::downgrade(&session));
        *next = next.wrapping_add(1);
        session
    }

    pub(crate) fn session(&self, number: u64) -> Option<Weak<ServerSession>> {
        self.sessions.lock().open.get(&number).filter(|session| session.strong_count() > 0).cloned()
    }
}
