//! Managers: server processes that hold objects, which all processes of a program can call.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use mp_manager::{Manager, Proxy};
//! use mp_spawn::{Process, closure};
//!
//! type Scores = BTreeMap<String, u32>;
//!
//! // Runs in another process: a proxy can be sent there, as an argument or in any message.
//! fn play(scores: Proxy<Scores>) -> Result<(), mp_manager::CallError> {
//!     let name = format!("player {}", std::process::id());
//!     scores.call(closure!([name] |scores: &mut Scores| *scores.entry(name.clone()).or_default() += 3))
//! }
//!
//! let manager = Manager::start()?;
//! let scores = manager.create(Scores::new)?;
//! let players = [Process::spawn(play, scores.clone())?, Process::spawn(play, scores.clone())?];
//! for player in players {
//!     player.join()?;
//! }
//! assert_eq!(scores.call(closure!([] |scores: &mut Scores| scores.values().sum::<u32>()))?, 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The three main types are [`Manager`], the owner's handle of the server; [`Proxy`], a handle of an object
//! in the server, for any process; and [`CallError`], the error of a call.
//!
//! | items | purpose |
//! |---|---|
//! | [`Manager`], [`ManagerHandle`] | the server, and creation of objects in it from any process |
//! | [`Proxy`] | an object in the server: a closure is called there with `&mut T`, and its result is returned |
//! | [`ClusterProxy`], [`ManagerHandle::publish_in`] | objects for other members of a cluster (feature `net`) |
//! | [`Dict`], [`List`], [`Namespace`] | ready-made objects; for queues, locks and numbers, shared memory is faster: [`ManagerHandle`] creates them there |
//! | [`CallError`], [`CallName`], [`CallLocation`] | errors, with a table of all failures |
//!
//! # Guarantees
//! - **An object is freed when its last proxy is dropped**, in all processes. A killed process counts as
//!   having dropped its proxies, and proxies in messages count as well. The object's `Drop` runs in the
//!   server.
//! - **Calls of one object run one after the other**, in the order in which they were sent. Calls of
//!   different objects run concurrently.
//! - **A panic in a call is an error for its caller.** The object remains as the panic left it, and other
//!   objects are not affected.
//! - **When the server dies**, all pending and later calls return [`CallError::ServerGone`].
//! - **The death of a caller** does not affect others. A call that the caller had sent still runs.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod builtin;
mod call_cycle;
mod caller;
mod error;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod manager;
mod object;
mod proxy;
#[cfg(feature = "authkey")]
mod remote;
mod request;
mod server;

pub use builtin::Entry;
pub use builtin::dict::Dict;
pub use builtin::list::List;
#[doc(hidden)]
pub use builtin::namespace::AttributeMap;
pub use builtin::namespace::Namespace;
pub use error::{CallError, CallLocation, CallName, ManagerError};
pub use manager::{Manager, ManagerHandle};
pub use mp_core::message::IntoOutcome;
pub use mp_spawn::{Closure, StateClosure, closure};
pub use proxy::Proxy;
#[cfg(feature = "authkey")]
pub use remote::client::RemoteManager;
#[cfg(feature = "net")]
#[cfg_attr(docsrs, doc(cfg(feature = "net")))]
pub use remote::cluster::proxy::ClusterProxy;
#[cfg(feature = "authkey")]
pub use remote::key_argument::{IntoAuthKey, NoKey, no_key};
#[cfg(feature = "authkey")]
pub use remote::methods::Methods;
#[cfg(feature = "authkey")]
pub use remote::proxy::RemoteProxy;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
