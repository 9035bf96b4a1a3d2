//! Python's `multiprocessing` over mp.
//!
//! This crate is the extension module `multiproc._multiproc` as a shared library. As a Rust library, it is
//! for extensions of your own: [`object`] converts Python objects to messages and back.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod command;
pub mod connection;
pub mod error;
mod library_copies;
pub mod memory;
mod names;
pub mod object;
pub mod pool;
pub mod process;
pub mod python_loader;
pub mod queue;
pub mod rust_loader;
pub mod shared_memory;
pub mod strategy;
pub mod sync;
pub mod typed;
pub mod value;
pub mod wait;

use pyo3::prelude::*;

/// Adds the classes and functions of this package to an extension of your own. Objects of the extension
/// then use its copy of the library: it shares no queues with the module `multiproc` in the same process.
///
/// # Errors
/// `RuntimeError` if the function was called for another module before, and `ImportError` in a
/// subinterpreter.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::refuse_subinterpreters(module.py())?;
    object::pickle::set_home(module)?;
    mp_core::fork::keep_memory_readable();
    module.add("LoadError", module.py().get_type::<error::LoadError>())?;
    module.add("PeerLost", module.py().get_type::<error::PeerLost>())?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<typed::TypedQueue>()?;
    module.add_class::<rust_loader::LoaderIterator>()?;
    module.add_class::<object::array::MemoryBuffer>()?;
    module.add_function(wrap_pyfunction!(object::array::memoryview, module)?)?;
    module.add_function(wrap_pyfunction!(object::pickle::array, module)?)?;
    module.add_function(wrap_pyfunction!(object::pickle::handle, module)?)
}

#[pymodule(gil_used = false)]
mod _multiproc {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::command::run_command;
    #[pymodule_export]
    use crate::connection::{Connection, Invitation, SocketListener, connect, pipe};
    #[pymodule_export]
    use crate::error::{LoadError, PeerLost};
    #[pymodule_export]
    use crate::object::array::{MemoryBuffer, alloc, contains, memoryview};
    #[pymodule_export]
    use crate::object::handle::PyFd;
    #[pymodule_export]
    use crate::object::pickle::{array, can_pickle, handle, register_base};
    #[pymodule_export]
    use crate::pool::{Completions, Pool, Tasks};
    #[pymodule_export]
    use crate::process::{Child, child_main, start};
    #[pymodule_export]
    use crate::python_loader::plan::PyPlan;
    #[pymodule_export]
    use crate::python_loader::stack::{allocate, stack_samples};
    #[pymodule_export]
    use crate::python_loader::workers::{LoaderEpoch, LoaderSetup, LoaderTasks, LoaderWorkers, note};
    #[pymodule_export]
    use crate::queue::{JoinableQueue, Lease, Queue, SimpleQueue};
    #[pymodule_export]
    use crate::rust_loader::LoaderIterator;
    #[pymodule_export]
    use crate::shared_memory::NamedMemory;
    #[pymodule_export]
    use crate::strategy::{get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy};
    #[pymodule_export]
    use crate::sync::barrier::BarrierState;
    #[pymodule_export]
    use crate::sync::event::Event;
    #[pymodule_export]
    use crate::sync::lock::{Lock, RLock};
    #[pymodule_export]
    use crate::sync::semaphore::{BoundedSemaphore, Semaphore};
    #[pymodule_export]
    use crate::sync::waiters::Waiters;
    #[pymodule_export]
    use crate::typed::{TypedQueue, child, register_schema, start_guest};

    /// Runs when the module is imported.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::process::refuse_subinterpreters(module.py())?;
        crate::object::pickle::set_home(module)?;
        mp_core::fork::keep_memory_readable();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
