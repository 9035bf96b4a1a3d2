//! A server process that holds objects, which all processes of a program call: the manager of `mp`.
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
//! The three types to know: [`Manager`], the server, as its owner has it; [`Proxy`], an object in it, as any process has it; and
//! [`CallError`], why a call has no result.
//!
//! | | |
//! |---|---|
//! | [`Manager`], [`ManagerHandle`] | the server, and what makes objects in it from any process |
//! | [`Proxy`] | an object in the server: a closure is called there with `&mut T`, and its result comes back |
//! | [`Dict`], [`List`], [`Namespace`] | such objects ready-made; queues, locks and numbers are better in shared memory: [`ManagerHandle`] hands them out |
//! | [`CallError`], [`CallName`], [`CallLocation`] | what can go wrong, in a table |
//!
//! # What holds
//! - **An object is freed when its last proxy is gone**: dropped in all processes, or gone with its process; messages on their way
//!   count. Its `Drop` runs in the server.
//! - **Calls of one object run one after the other**, in the order in which they were sent; calls of different objects run at once.
//! - **A panic in a call is its caller's error.** The object lives on as the panic left it, and so do all others.
//! - **When the server dies** every call that waits, and each one after that, is an error: [`CallError::ServerGone`].
//! - **A caller that is killed** costs the others nothing: a call that it had sent still runs.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod caller;
mod error;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod manager;
#[cfg(feature = "authkey")]
mod named;
mod object;
mod proxy;
mod ready;
#[cfg(feature = "authkey")]
mod remote;
mod request;
mod ring;
mod server;

pub use error::{CallError, CallLocation, CallName, ManagerError};
pub use manager::{Manager, ManagerHandle};
pub use mp_core::message::IntoOutcome;
pub use mp_spawn::{Closure, StateClosure, closure};
#[cfg(feature = "authkey")]
pub use named::methods::Methods;
pub use proxy::Proxy;
pub use ready::Entry;
pub use ready::dict::Dict;
pub use ready::list::List;
#[doc(hidden)]
pub use ready::namespace::Attributes;
pub use ready::namespace::Namespace;
#[cfg(feature = "authkey")]
pub use remote::client::RemoteManager;
#[cfg(feature = "authkey")]
pub use remote::key::{AuthKey, NoKey, no_key};
#[cfg(feature = "authkey")]
pub use remote::proxy::RemoteProxy;

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
