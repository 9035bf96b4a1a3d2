//! Objects in a server process, which all processes of a program call.
//!
//! ```
//! use mp::{Manager, Proxy, closure};
//!
//! fn worker(rank: usize, log: Proxy<Vec<String>>) -> Result<(), mp::manager::CallError> {
//!     log.call(closure!([rank] |log: &mut Vec<String>| log.push(format!("rank {rank}"))))
//! }
//!
//! let manager = Manager::start()?;
//! let log = manager.create(Vec::<String>::new)?;
//! mp::spawn(worker, log.clone(), 2)?;
//! let mut lines = log.call(closure!([] |log: &mut Vec<String>| log.clone()))?;
//! lines.sort();
//! assert_eq!(lines, ["rank 0", "rank 1"]);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with three types: [`Manager`] is the server. [`Proxy`] is an object in it, which any process can
//! call. [`CallError`] is the error of a call, and its documentation has a table of the causes.
//! [`ManagerHandle`] creates objects from any process. [`Dict`], [`List`] and [`Namespace`] are ready-made
//! objects. Another program, of the same user or on another machine, calls methods by name through a
//! [`RemoteManager`]. Members of a cluster do so through a `ClusterProxy` (feature `net`).

#[doc(no_inline)]
pub use crate::{Manager, Proxy};
#[cfg(feature = "net")]
#[cfg_attr(docsrs, doc(cfg(feature = "net")))]
pub use mp_manager::ClusterProxy;
pub use mp_manager::{
    CallError, CallLocation, CallName, Dict, Entry, List, ManagerError, ManagerHandle, Namespace,
};
#[cfg(feature = "authkey")]
pub use mp_manager::{IntoAuthKey, Methods, NoKey, RemoteManager, RemoteProxy, no_key};
