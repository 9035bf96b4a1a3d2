//! Files of other programs: reading, writing, mapping and locking. Used by the crates above for tensors and
//! named lists.

pub use crate::mem::bytes::{read, write};
pub use crate::shared_memory::checked;
pub use crate::sys::foreign::{
    Seals, file_of, is_writable, length, memfd_of, open, open_to_read, read_at, seal_shrink, seals,
};
pub use crate::sys::locks::{try_lock_file, unlock_file};
pub use crate::sys::region::{MapMode, Region};
