//! Pointers of C callers.
//!
//! # Safety
//! Unsafe, because it follows pointers of other code; sound, because
//! - no code here creates a pointer: each is an argument of a function of the driver, whose caller guarantees
//!   that it is valid;
//! - each pointer is checked for null before it is used, and the data is copied at once.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

use crate::codes;

/// Pointer to bytes of a caller.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer(*mut u8);

impl Buffer {
    pub(super) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    pub(super) fn read(self, bytes: usize) -> Result<Vec<u8>, u32> {
        if self.0.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller guarantees this many bytes.
        Ok(unsafe { std::slice::from_raw_parts(self.0, bytes) }.to_vec())
    }

    /// Returns the value at this index of an array.
    pub(super) fn item<T: Copy>(self, i: usize) -> Result<T, u32> {
        if self.0.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller guarantees an array of this type and length.
        Ok(unsafe { self.0.cast::<T>().wrapping_add(i).read_unaligned() })
    }

    pub(super) fn write(self, bytes: &[u8]) -> Result<(), u32> {
        if self.0.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller guarantees this many bytes, which do not overlap memory of this library.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
        Ok(())
    }
}

/// Pointer to a text of a caller, which ends with a zero byte.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Text(*const c_char);

impl Text {
    pub(super) fn get(self) -> Result<String, u32> {
        if self.0.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller guarantees the zero byte at the end.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Pointers to the arguments of a kernel.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments(*mut *mut c_void);

impl Arguments {
    /// Reads the arguments with these sizes.
    pub(super) fn read(self, sizes: &[u32]) -> Result<Vec<Vec<u8>>, u32> {
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        let one = |(i, size): (usize, &u32)| {
            // SAFETY: the caller passes as many pointers as the kernel has parameters.
            let argument = Buffer(unsafe { self.0.wrapping_add(i).read() }.cast());
            argument.read(*size as usize)
        };
        sizes.iter().enumerate().map(one).collect()
    }
}
