//! Types and objects that other programs use by name, and sessions, which contain the handles of each
//! program.

pub(crate) mod methods;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock, Weak};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use mp_queue::Connection;

use crate::error::CallError;
use crate::named::methods::Registered;
use crate::object::Failure;
use crate::proxy::Link;
use crate::server::Server;

/// Names and sessions of a server.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) types: Mutex<BTreeMap<String, Arc<Registered>>>,
    pub(crate) objects: Mutex<BTreeMap<String, Handle>>,
    sessions: Mutex<Sessions>,
    /// Number of the next connection.
    connections: Mutex<u64>,
}

/// Programs that are connected.
struct Sessions {
    open: BTreeMap<u64, Weak<Session>>,
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
pub(crate) struct Handle {
    pub(crate) link: Arc<Link>,
    pub(crate) registered: Arc<Registered>,
}

/// Session of a program.
pub(crate) struct Session {
    pub(crate) number: u64,
    /// Offset of the numbers of objects.
    objects: u64,
    /// `None` after the session has ended.
    has: Mutex<Option<Has>>,
}

/// Resources of a session.
#[derive(Default)]
struct Has {
    /// Handles of the program, by the numbers that it chose.
    handles: BTreeMap<u64, Handle>,
    /// Connections for calls.
    connections: BTreeMap<u64, Connection>,
}

/// Reason why a session can't add a handle.
pub(crate) enum NoHandle {
    Ended,
    /// The number is in use.
    Taken,
}

impl Session {
    fn new(number: u64, objects: u64) -> Self {
        Session { number, objects, has: Mutex::new(Some(Has::default())) }
    }

    /// Adds a handle. Returns the object's number, and the name of its type.
    pub(crate) fn hold(&self, number: u64, handle: Handle) -> Result<(u64, String), NoHandle> {
        let object = self.objects.wrapping_add(handle.link.object);
        let type_name = handle.registered.name.clone();
        let mut has = self.has.lock();
        let held = &mut has.as_mut().ok_or(NoHandle::Ended)?.handles;
        if held.contains_key(&number) {
            return Err(NoHandle::Taken);
        }
        held.insert(number, handle);
        Ok((object, type_name))
    }

    /// Removes a handle, if there is one with this number.
    pub(crate) fn forget(&self, number: u64) {
        let _forgotten = self.has.lock().as_mut().and_then(|has| match has.handles.entry(number) {
            Entry::Occupied(entry) => Some(entry.remove()),
            Entry::Vacant(_) => None,
        });
    }

    pub(crate) fn handle(&self, number: u64) -> Option<Handle> {
        self.has.lock().as_ref()?.handles.get(&number).cloned()
    }

    /// Adds a connection with a unique number. Returns `false` if the session has ended.
    pub(crate) fn join(&self, number: u64, connection: &Connection) -> bool {
        let mut has = self.has.lock();
        has.as_mut().map(|has| has.connections.insert(number, connection.clone())).is_some()
    }

    /// Removes a connection.
    pub(crate) fn leave(&self, number: u64) {
        let left = self.has.lock().as_mut().and_then(|has| has.connections.remove(&number));
        drop(left);
    }

    /// Ends the session after its program has ended: drops its handles, even while one of its calls runs, and
    /// shuts down its connections, even if a fork of the program has them.
    pub(crate) fn end(&self) {
        let has = self.has.lock().take();
        if let Some(has) = &has {
            has.connections.values().for_each(Connection::shut_down);
        }
        drop(has);
    }
}

static NAMED: PerProcess<OnceLock<Named>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

impl Named {
    /// Returns the names of the server that this process is.
    pub(crate) fn here() -> Result<&'static Named, Failure> {
        Server::current()?;
        Ok(NAMED.get_or_init(Named::default))
    }

    pub(crate) fn register(&self, registered: Registered) -> Result<(), Failure> {
        let names = registered.method_names();
        if let Some(twice) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            return Err(format!("`{}` has two methods by the name `{}`", registered.name, twice.1).into());
        }
        let mut types = self.types.lock();
        if let Some(there) = types.get(&registered.name) {
            let Registered { name, type_name, .. } = &**there;
            return Err(format!("there is a type by the name `{name}` already: `{type_name}`").into());
        }
        let others = types.values().map(|other| &**other).chain([&registered]);
        let wrong = others.flat_map(|other| [registered.misnames(other), other.misnames(&registered)]);
        let wrong = wrong.flatten().next();
        if let Some(why) = wrong {
            return Err(why.into());
        }
        types.insert(registered.name.clone(), Arc::new(registered));
        Ok(())
    }

    pub(crate) fn publish(&self, name: &str, type_name: &str, link: &Arc<Link>) -> Result<(), Failure> {
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
        objects.insert(name.to_string(), Handle { link: Arc::clone(link), registered });
        Ok(())
    }

    pub(crate) fn registered(&self, name: &str) -> Result<Arc<Registered>, CallError> {
        let types = self.types.lock();
        types.get(name).cloned().ok_or_else(|| CallError::NoSuchType {
            name: name.to_string(),
            known: types.keys().cloned().collect(),
        })
    }

    pub(crate) fn published(&self, name: &str) -> Result<Handle, CallError> {
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
    pub(crate) fn open(&self) -> Arc<Session> {
        let Sessions { open, next, objects } = &mut *self.sessions.lock();
        // Removes sessions that have ended.
        open.retain(|_, session| session.strong_count() > 0);
        let session = Arc::new(Session::new(*next, *objects));
        open.insert(*next, Arc::downgrade(&session));
        *next = next.wrapping_add(1);
        session
    }

    pub(crate) fn session(&self, number: u64) -> Option<Weak<Session>> {
        self.sessions.lock().open.get(&number).filter(|session| session.strong_count() > 0).cloned()
    }
}
