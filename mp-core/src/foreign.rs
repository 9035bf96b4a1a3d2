//! Files of other programs, as tensors and named lists need them: read, written, mapped and locked. For the crates above.

pub use crate::mem::bytes::{read, write};
pub use crate::shared_memory::checked;
pub use crate::sys::foreign::{
    Seals, file_of, is_writable, length, memfd_of, open, open_to_read, read_at, seal_shrink, seals,
};
pub use crate::sys::locks::{try_lock_file, unlock_file};
pub use crate::sys::region::{MapFor, Region};
