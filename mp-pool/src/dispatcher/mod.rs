//! Assignment of tasks to workers and of outcomes to calls, and the pool's thread. That thread handles
//! replies and deaths of workers, replaces workers, enforces time limits, and shuts the pool down.

mod cancel;
mod deadlines;
mod feed;
#[cfg(feature = "net")]
mod forwarders;
#[cfg(feature = "net")]
pub(crate) mod hosts;
mod retry;
mod room_queue;
#[cfg(feature = "net")]
pub(crate) mod served;
pub(crate) mod settings;
mod settlements;
pub(crate) mod shared;
mod shutdown;
pub(crate) mod start;
pub(crate) mod submit;
pub(crate) mod thread;
