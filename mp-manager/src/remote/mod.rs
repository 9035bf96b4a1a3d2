//! Objects for other programs: types and objects get names, the server listens at an address, and other programs connect to it.
//!
//! The server has a thread for each connection. It is a caller of objects as any other process is, so that order, panics, deaths and
//! limits are those of all calls. Nothing of the other program is in shared memory.
//!
//! A program has one connection that keeps its **session**, and one more for each call that it makes at once, which is used again.
//!
//! | the program is killed, or closes | in the server |
//! |---|---|
//! | a connection for calls, before its request is whole | the thread ends |
//! | that, later | the call runs, unless the session has ended meanwhile; its result is dropped when it can't be sent; the thread ends |
//! | the connection that keeps the session | the session's handles are dropped: an object is freed if those were the last; further requests of the session are refused |
//!
//! | the server is killed, or ends | in the program |
//! |---|---|
//! | at any time | the kernel closes the sockets: calls that wait, and each later one, are `ServerGone` |

pub(crate) mod client;
mod connected;
pub(crate) mod key;
pub(crate) mod proxy;
mod session;
mod wire;

use std::any::type_name;
use std::thread;

use mp_queue::{Address, ConnectError, Listener, OptionParts, SocketOptions};
use mp_spawn::{Closure, closure};

use crate::caller::LOOK;
use crate::error::CallError;
use crate::manager::ManagerHandle;
use crate::named::Named;
use crate::named::methods::{Methods, Registered};
use crate::object::Object;
use crate::proxy::Proxy;
use crate::remote::key::AuthKey;
use crate::remote::session::Here;
use crate::server::{Backoff, Server};

/// The server as a program's owner has it, for other programs.
impl ManagerHandle {
    /// Gives a type, its constructor and its methods names, by which other programs use them: see [`Methods`].
    ///
    /// # Errors
    /// [`CallError::Raised`] when there is a type by that name already, or two methods have one name; else see the table at
    /// [`CallError`].
    #[track_caller]
    pub fn register<T: 'static>(&self, methods: Methods<T>) -> Result<(), CallError> {
        let maker =
            Closure::from_parts((methods.registered, ()), |(registered, ()): &(Registered, ()), (): ()| {
                Named::here()?.register(registered.clone()).map(Object::new)
            });
        self.make::<()>("ManagerHandle::register", maker).map(drop)
    }

    /// Gives an object a name, by which other programs find it. Its type is [registered](Self::register) already. It lives until that
    /// is [taken back](Self::unpublish), or the manager ends.
    ///
    /// ```
    /// use mp_manager::{Manager, Methods, RemoteManager};
    /// use mp_spawn::closure;
    ///
    /// let manager = Manager::start()?;
    /// manager.register(Methods::<Vec<u32>>::of("Scores").method("push", closure!([] |all: &mut Vec<u32>, n: u32| all.push(n))))?;
    /// let scores = manager.create(Vec::<u32>::new)?;
    /// manager.publish("scores", &scores)?;
    /// manager.serve("@example-of-publish", b"a secret")?;
    ///
    /// RemoteManager::connect("@example-of-publish", b"a secret")?.get("scores")?.call::<()>("push", 7_u32)?; // another program
    /// assert_eq!(scores.call(closure!([] |all: &mut Vec<u32>| all.clone()))?, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CallError::Raised`] when its type is not registered, or the name is taken; else see the table at [`CallError`].
    #[track_caller]
    pub fn publish<T: 'static>(&self, name: impl Into<String>, object: &Proxy<T>) -> Result<(), CallError> {
        let captures = (name.into(), (object.clone(), ()));
        let maker =
            Closure::from_parts(captures, |(name, (object, ())): &(String, (Proxy<T>, ())), (): ()| {
                Named::here()?.publish(name, type_name::<T>(), object.link()).map(Object::new)
            });
        self.make::<()>("ManagerHandle::publish", maker).map(drop)
    }

    /// Takes a name back: programs find the object no more, and those that have found it keep it. Whether there was one.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn unpublish(&self, name: impl Into<String>) -> Result<bool, CallError> {
        let maker = Closure::from_parts((name.into(), ()), |(name, ()): &(String, ()), (): ()| {
            Ok(Object::new(Named::here()?.objects.lock().remove(name).is_some()))
        });
        self.make::<bool>("ManagerHandle::unpublish", maker)?.call(closure!([] |was: &mut bool| *was))
    }

    /// Lets other programs connect to the server ([`RemoteManager::connect`](crate::RemoteManager::connect))
    /// at an address, until the manager ends: a path, or `@` and a name, for programs of this user, or a host
    /// and a port ([`Address::tcp`]). They have to know the key, unless it is [`no_key()`](crate::no_key).
    /// For limits and time-outs, the key is in [`SocketOptions`].
    ///
    /// The server listens when this returns. Returns the address, with the port that was chosen for port 0.
    /// It may listen at several addresses.
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
    /// TCP is authenticated, and not encrypted: see [`Address`].
    ///
    /// # Errors
    /// [`CallError::Raised`] when it can't listen there: another process does, for instance, the key is
    /// empty, or other machines can reach the address and there is none.
    #[doc(alias = "get_server")]
    #[doc(alias = "serve_forever")]
    #[track_caller]
    pub fn serve(&self, address: impl Into<Address>, authkey: impl AuthKey) -> Result<Address, CallError> {
        let raised = |source| mp_core::Error::Os { what: "the current directory", source };
        let address = address.into().absolute().map_err(raised)?;
        type Captures = (Address, (OptionParts, ()));
        let captures: Captures = (address, (authkey.into_options().to_parts(), ()));
        let maker = Closure::from_parts(captures, |(address, (parts, ())): &Captures, (): ()| {
            let listener = SocketOptions::from_parts(parts.clone()).listen(address)?;
            let address = listener.address().clone();
            let (server, named) = (Server::current()?, Named::here()?);
            let here = Here { server, named };
            server.start("connections".into(), move || accept(&listener, here))?;
            Ok(Object::new(address))
        });
        self.make::<Address>("ManagerHandle::serve", maker)?
            .call(closure!([] |address: &mut Address| address.clone()))
    }
}

/// Starts a thread for each program that connects, until the manager ends.
fn accept(listener: &Listener, here: Here) {
    let server = here.server;
    let mut backoff = Backoff::default();
    while !server.stops() {
        let started = match listener.accept_timeout(LOOK) {
            Ok(Some(connection)) => {
                let number = here.named.number();
                server.start("connection".into(), move || session::serve(&connection, number, here))
            }
            // This process lacks descriptors, for instance.
            Err(ConnectError::Io { source, .. }) => Err(source),
            // A program that was refused has its own error.
            Ok(None) | Err(_) => Ok(()),
        };
        match started {
            Ok(()) => backoff.over(),
            // A connection without a thread is closed: its program is told that the server is gone.
            Err(_) => thread::sleep(backoff.failed()),
        }
    }
}
