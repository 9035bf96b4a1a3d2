//! Python's `multiprocessing` over mp.
//!
//! As a shared library, this crate is the extension module `multiproc._multiproc`. As a Rust library, it is
//! for extensions of your own: [`object`] converts Python objects to messages and back.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod connection;
pub mod error;
pub mod memory;
pub mod object;
pub mod pool;
pub mod process;
pub mod queue;
pub mod strategy;
pub mod wait;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _multiproc {
    #[pymodule_export]
    use crate::connection::{Connection, SocketListener, connect, pipe};
    #[pymodule_export]
    use crate::error::PeerLost;
    #[pymodule_export]
    use crate::object::array::{MemoryBuffer, memoryview};
    #[pymodule_export]
    use crate::object::handle::PyFd;
    #[pymodule_export]
    use crate::object::pickle::{array, handle};
    #[pymodule_export]
    use crate::pool::{Completions, Pool, Tasks};
    #[pymodule_export]
    use crate::process::{Child, child_main, start};
    #[pymodule_export]
    use crate::queue::{JoinableQueue, Lease, Queue, SimpleQueue};
    #[pymodule_export]
    use crate::strategy::{get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy};
}
