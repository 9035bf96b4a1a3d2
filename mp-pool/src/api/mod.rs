//! Public types: the pool, its builder, calls and pending results.

pub(crate) mod as_completed;
pub(crate) mod builder;
pub(crate) mod call;
mod call_methods;
pub(crate) mod imap;
pub(crate) mod pool;
#[cfg(feature = "indicatif")]
pub(crate) mod progress;
pub(crate) mod resize;
pub(crate) mod result;
#[cfg(feature = "net")]
pub(crate) mod served;
pub(crate) mod state_pool;
pub(crate) mod stream;
pub(crate) mod tuple_fn;
