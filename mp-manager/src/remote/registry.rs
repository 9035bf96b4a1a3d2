//! Types and objects that other programs use by name, and sessions, which contain the handles of each
//! program.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock, Weak};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::error::CallError;
use crate::object::BoxedError;
use crate::proxy::ObjectLink;
use crate::remote::methods::RegisteredType;
use crate::remote::wire::{Framed, Reply};
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

/// Open sessions of programs.
struct Sessions {
    open: BTreeMap<u64, Weak<ServerSession>>,
    next: u64,
    /// Random offset that is added to the numbers of objects. Programs compare objects of several servers,
    /// and servers on several hosts may have the same process id.
    objects: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        // Random, so that no program mistakes a session of this server for a session of another server at the
        // same address.
        let random = RandomState::new();
        let next = random.hash_one("session");
        Sessions { open: BTreeMap::new(), next, objects: random.hash_one("objects") }
    }
}

/// Object that other programs can call, with its registered type.
#[derive(Clone)]
pub(crate) struct ObjectHandle {
    pub(crate) link: Arc<ObjectLink>,
    pub(crate) registered: Arc<RegisteredType>,
}

/// Session of a program.
pub(crate) struct ServerSession {
    pub(crate) number: u64,
    /// Random offset of the server, which is added to the numbers of objects.
    objects: u64,
    /// Handles of the program by number. `None` after the session has ended.
    handles: Mutex<Option<BTreeMap<u64, ObjectHandle>>>,
}

/// Reason why a request has no result. After `Refused`, the server closes the connection.
pub(super) enum RequestError {
    Failed(CallError),
    Refused(String),
}

impl From<CallError> for RequestError {
    fn from(error: CallError) -> Self {
        RequestError::Failed(error)
    }
}

impl ServerSession {
    fn new(number: u64, objects: u64) -> Self {
        ServerSession { number, objects, handles: Mutex::new(Some(BTreeMap::new())) }
    }

    /// Adds a handle. Returns the reply.
    pub(super) fn insert(&self, number: u64, handle: ObjectHandle) -> Result<Framed<Reply>, RequestError> {
        let object = self.objects.wrapping_add(handle.link.object);
        let type_name = handle.registered.name.clone();
        let mut handles = self.handles.lock();
        let refused = |why: &str| RequestError::Refused(why.into());
        match handles.as_mut().ok_or_else(|| refused("its session has ended"))?.entry(number) {
            Entry::Occupied(_) => Err(refused("it has a handle by that number")),
            Entry::Vacant(entry) => {
                entry.insert(handle);
                Ok(Framed::bare(Reply::Object { object, type_name }))
            }
        }
    }

    /// Removes the handle with this number, if the session has it.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self.handles.lock().as_mut().and_then(|handles| handles.remove(&number));
        // Dropped after the lock is released, because the drop may free the object.
        drop(removed);
    }

    pub(crate) fn handle(&self, number: u64) -> Option<ObjectHandle> {
        self.handles.lock().as_ref()?.get(&number).cloned()
    }

    pub(super) fn is_open(&self) -> bool {
        self.handles.lock().is_some()
    }

    /// Ends the session after its program has ended. Returns its handles.
    pub(super) fn end(&self) -> Option<BTreeMap<u64, ObjectHandle>> {
        self.handles.lock().take()
    }
}

static NAMED: PerProcess<OnceLock<NameRegistry>> = mp_core::per_process!(OnceLock::new());

impl NameRegistry {
    /// Returns the names of the manager's server that runs in this process.
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

    /// Returns the registered type of an object of this server.
    pub(crate) fn type_of(
        &self,
        link: &ObjectLink,
        type_name: &str,
    ) -> Result<Arc<RegisteredType>, BoxedError> {
        if link.server != std::process::id() {
            return Err(
                format!("the object is of another manager, whose server is pid {}", link.server).into()
            );
        }
        let registered: Vec<_> =
            self.types.lock().values().filter(|known| known.type_name == type_name).cloned().collect();
        match &registered[..] {
            [] => Err(format!("register the type `{type_name}` first: its methods need names").into()),
            [registered] => Ok(Arc::clone(registered)),
            [first, second, ..] => {
                let names = [&first.name, &second.name];
                Err(format!("`{type_name}` is registered by several names, {names:?} among them").into())
            }
        }
    }

    pub(crate) fn publish(
        &self,
        name: &str,
        type_name: &str,
        link: &Arc<ObjectLink>,
    ) -> Result<(), BoxedError> {
        let registered = self.type_of(link, type_name)?;
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

    /// Returns the random offset that is added to the numbers of objects.
    #[cfg(feature = "net")]
    pub(crate) fn offset(&self) -> u64 {
        self.sessions.lock().objects
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

    pub(crate) fn session(&self, number: u64) -> Option<Arc<ServerSession>> {
        self.sessions.lock().open.get(&number)?.upgrade()
    }
}
