//! # Safety
//! Bytes of a structure, for the layer that created it. Nothing here dereferences anything. The function is
//! `unsafe` because a caller that breaks its contract could create two owners of the same memory.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::Structure;

impl Structure {
    /// Returns the address of `len` bytes from word `i` on. The first word is at a multiple of 64.
    ///
    /// # Panics
    /// If there are fewer than `len` bytes.
    ///
    /// # Safety
    /// The bytes are used for nothing else, and only by holders of the lock or permit that protects them.
    pub unsafe fn bytes(&self, i: u64, len: usize) -> NonNull<u8> {
        let room = self.len().saturating_sub(i) * 8;
        assert!(len as u64 <= room, "{len} bytes at word {i} of {}", self.len());
        self.arena().map().bytes(self.first().plus(i).offset(), len as u64)
    }
}
