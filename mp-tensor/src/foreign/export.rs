//! Copies of tensors for processes outside of the arena.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::{Element, FrozenTensor, SharedTensor, Tensor};
use mp_core::Result;
use mp_core::SharedMemory;
use mp_core::foreign;

macro_rules! export {
    ($name:ident, |$t:ident, $then:ident| $bytes:expr) => {
        impl<T: Element> $name<T> {
            fn with_bytes<R>(&self, $then: impl FnOnce(&[u8]) -> R) -> R {
                let $t = self;
                $bytes
            }

            /// Copies the elements into a new memfd, in row-major order.
            ///
            /// Any process that gets the memfd (inherited, or over a socket) can read and write it. The
            /// length of the memfd is sealed, so that mapping it can't cause a SIGBUS.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`](mp_core::Error::OutOfMemory) or [`Error::Os`](mp_core::Error::Os).
            #[doc(alias = "_share_fd_cpu_")]
            pub fn to_memfd(&self) -> Result<OwnedFd> {
                self.with_bytes(foreign::memfd_of)
            }

            /// Copies the elements into POSIX shared memory under a new name, in row-major order.
            ///
            /// # Errors
            /// See [`SharedMemory::create`]. Also fails for a tensor without elements.
            #[doc(alias = "_share_filename_cpu_")]
            pub fn to_shm(&self, name: &str) -> Result<SharedMemory> {
                self.with_bytes(|bytes| {
                    let memory = SharedMemory::create(name, bytes.len())?;
                    memory.write_at(0, bytes)?;
                    Ok(memory)
                })
            }

            /// Writes the elements to a new file, in row-major order.
            ///
            /// # Errors
            /// [`Error::Os`](mp_core::Error::Os), also if the file exists.
            pub fn to_file(&self, path: impl AsRef<Path>) -> Result<()> {
                self.with_bytes(|bytes| foreign::file_of(path.as_ref(), bytes))
            }
        }
    };
}

export!(Tensor, |t, then| match t.as_slice() {
    Ok(elements) => then(bytemuck::cast_slice(elements)),
    Err(_) => then(bytemuck::cast_slice(&t.to_vec())),
});
export!(FrozenTensor, |t, then| match t.as_slice() {
    Ok(elements) => then(bytemuck::cast_slice(elements)),
    Err(_) => then(bytemuck::cast_slice(&t.to_vec())),
});
export!(SharedTensor, |t, then| then(bytemuck::cast_slice(&t.to_vec())));
