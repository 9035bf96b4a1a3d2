//! Function that fork servers call before they make processes.

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use crate::protocol::function::FunctionRef;

static PRELOAD: PerProcess<Mutex<Option<FunctionRef>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// Sets the function, for this process or for a copy of the process that has set it.
pub(crate) fn set(function: Option<FunctionRef>) {
    *PRELOAD.lock() = function;
}

/// Returns the function that was set.
pub(crate) fn get() -> Option<FunctionRef> {
    PRELOAD.lock().clone()
}
