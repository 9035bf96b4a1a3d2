//! Objects for other programs: types and objects have names, the server listens at an address, and other
//! programs connect to it.
//!
//! The server has a thread for each connection. The thread calls objects like any other process, so order,
//! panics, deaths and limits are the same as for all calls. The other program has no access to shared memory.
//!
//! A program has one connection that keeps its **session** alive, and a reusable connection for each
//! concurrent call.
//!
//! | the program is killed, or closes | effect in the server |
//! |---|---|
//! | a connection for calls, before its request is complete | the thread ends |
//! | a connection for calls, after its request is complete | the call runs, unless the session has ended before; its result is dropped if it can't be sent; the thread ends |
//! | the connection that keeps the session alive | the session's handles are dropped: an object is freed if these were its last; later requests of the session are refused |
//!
//! | the server is killed, or ends | effect in the program |
//! |---|---|
//! | at any time | the kernel closes the sockets: all pending and later calls return `ServerGone` |

pub(crate) mod client;
mod client_session;
#[cfg(feature = "net")]
pub(crate) mod cluster;
mod connection;
pub(crate) mod key_argument;
pub(crate) mod methods;
pub(crate) mod proxy;
mod registry;
mod wire;

use std::any::type_name;
use std::thread;

use mp_queue::{Address, ConnectError, Listener, OptionParts, SocketOptions};
use mp_spawn::{Closure, closure};

use crate::caller::CHECK_INTERVAL;
use crate::error::CallError;
use crate::manager::ManagerHandle;
use crate::object::ServedObject;
use crate::proxy::Proxy;
use crate::remote::connection::ServerContext;
use crate::remote::key_argument::IntoAuthKey;
use crate::remote::methods::{Methods, RegisteredType};
use crate::remote::registry::NameRegistry;
use crate::server::{ManagerServer, RetryPause};

/// Methods that make objects available to other programs.
impl ManagerHandle {
    /// Registers a type, its constructor and its methods under names, by which other programs use them: see
    /// [`Methods`].
    ///
    /// # Errors
    /// [`CallError::Raised`] if a type with that name exists, or two methods have the same name. For other
    /// errors see the table at [`CallError`].
    #[track_caller]
    pub fn register<T: 'static>(&self, methods: Methods<T>) -> Result<(), CallError> {
        let maker = Closure::from_parts(
            (methods.registered, ()),
            |(registered, ()): &(RegisteredType, ()), (): ()| {
                NameRegistry::of_server()?.register(registered.clone()).map(ServedObject::new)
            },
        );
        self.make::<()>("ManagerHandle::register", maker).map(drop)
    }

    /// Publishes an object under a name, by which other programs find it. The type of the object must be
    /// [registered](Self::register). The object lives until the name is [unpublished](Self::unpublish), or
    /// the manager ends.
    ///
    /// ```
    /// use mp_manager::{Manager, Methods, RemoteManager};
    /// use mp_spawn::closure;
    ///
    /// let manager = Manager::start()?;
    /// let push = closure!([] |all: &mut Vec<u32>, n: u32| all.push(n));
    /// manager.register(Methods::<Vec<u32>>::of("Scores").method("push", push))?;
    /// let scores = manager.create(Vec::<u32>::new)?;
    /// manager.publish("scores", &scores)?;
    /// manager.serve("@example-of-publish", b"a secret")?;
    ///
    /// // In another program:
    /// let remote = RemoteManager::connect("@example-of-publish", b"a secret")?;
    /// remote.get("scores")?.call::<()>("push", 7_u32)?;
    /// assert_eq!(scores.call(closure!([] |all: &mut Vec<u32>| all.clone()))?, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CallError::Raised`] if the type is not registered, or the name is in use. For other errors see the
    /// table at [`CallError`].
    #[track_caller]
    pub fn publish<T: 'static>(&self, name: impl Into<String>, object: &Proxy<T>) -> Result<(), CallError> {
        let captures = (name.into(), (object.clone(), ()));
        let maker =
            Closure::from_parts(captures, |(name, (object, ())): &(String, (Proxy<T>, ())), (): ()| {
                NameRegistry::of_server()?
                    .publish(name, type_name::<T>(), object.link())
                    .map(ServedObject::new)
            });
        self.make::<()>("ManagerHandle::publish", maker).map(drop)
    }

    /// Removes a published name: programs can no longer find the object. Programs that have found the object
    /// before keep it. Returns `true` if the name was published.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn unpublish(&self, name: impl Into<String>) -> Result<bool, CallError> {
        let maker = Closure::from_parts((name.into(), ()), |(name, ()): &(String, ()), (): ()| {
            Ok(ServedObject::new(NameRegistry::of_server()?.objects.lock().remove(name).is_some()))
        });
        self.make::<bool>("ManagerHandle::unpublish", maker)?.call(closure!([] |was: &mut bool| *was))
    }

    /// Lets other programs connect to the server ([`RemoteManager::connect`](crate::RemoteManager::connect))
    /// at an address, until the manager ends. The address is a path, or `@` and a name, for programs of this
    /// user, or a host and a port ([`Address::tcp`]). Programs must know the key, unless it is
    /// [`no_key()`](crate::no_key). For limits and time-outs, pass the key in [`SocketOptions`].
    ///
    /// The server is listening when this method returns. Returns the address, with the chosen port if port 0
    /// was given. The server may listen at several addresses.
    ///
    /// ```
    /// use mp_manager::{Manager, Methods, RemoteManager};
    /// use mp_queue::Address;
    /// use mp_spawn::closure;
    ///
    /// let manager = Manager::start()?;
    /// let next = closure!([] |n: &mut u32| { *n += 1; *n });
    /// manager.register(Methods::<u32>::of("Count").constructor(closure!([] || 0)).method("next", next))?;
    /// let address = manager.serve(Address::tcp(("localhost", 0))?, b"a secret")?;
    ///
    /// let count = RemoteManager::connect(address, b"a secret")?.create("Count", ())?; // another program
    /// assert_eq!(count.call::<u32>("next", ())?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// TCP is authenticated, but not encrypted: see [`Address`].
    ///
    /// # Errors
    /// [`CallError::Raised`] if the server can't listen at the address: for example because another process
    /// does, because the key is empty, or because other machines can reach the address and there is no key.
    #[doc(alias = "get_server")]
    #[doc(alias = "serve_forever")]
    #[track_caller]
    pub fn serve(
        &self,
        address: impl Into<Address>,
        authkey: impl IntoAuthKey,
    ) -> Result<Address, CallError> {
        let raised = |source| mp_core::Error::Os { what: "the current directory", source };
        let address = address.into().absolute().map_err(raised)?;
        type Captures = (Address, (OptionParts, ()));
        let captures: Captures = (address, (authkey.into_options().to_parts(), ()));
        let maker = Closure::from_parts(captures, |(address, (parts, ())): &Captures, (): ()| {
            let listener = SocketOptions::from_parts(parts.clone()).listen(address)?;
            let address = listener.address().clone();
            let (server, registry) = (ManagerServer::current()?, NameRegistry::of_server()?);
            let context = ServerContext { server, registry };
            server.start("connections".into(), move || accept(&listener, context))?;
            Ok(ServedObject::new(address))
        });
        self.make::<Address>("ManagerHandle::serve", maker)?
            .call(closure!([] |address: &mut Address| address.clone()))
    }
}

/// Starts a thread for each program that connects, until the manager ends.
fn accept(listener: &Listener, context: ServerContext) {
    let server = context.server;
    let mut backoff = RetryPause::default();
    while !server.is_stopping() {
        let started = match listener.accept_timeout(CHECK_INTERVAL) {
            Ok(Some(connection)) => {
                let number = context.registry.number();
                server.start("connection".into(), move || connection::serve(&connection, number, context))
            }
            // Accepting can fail, for example, because this process lacks descriptors.
            Err(ConnectError::Io { source, .. }) => Err(source),
            // A refused program returns the error itself.
            Ok(None) | Err(_) => Ok(()),
        };
        match started {
            Ok(()) => backoff.reset(),
            // A connection for which no thread starts is closed. Its program then reports that the server has
            // ended.
            Err(_) => thread::sleep(backoff.next_pause()),
        }
    }
}
