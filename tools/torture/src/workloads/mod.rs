//! Work of the workers, with a file for each kind of structure.

pub(crate) mod cuda;
pub(crate) mod files;
pub(crate) mod futures;
mod host_calls;
pub(crate) mod hosts;
pub(crate) mod leaving;
pub(crate) mod loader;
pub(crate) mod locks;
pub(crate) mod newest;
pub(crate) mod objects;
pub(crate) mod pool;
pub(crate) mod select;
pub(crate) mod sockets;
pub(crate) mod stream;
pub(crate) mod work;
