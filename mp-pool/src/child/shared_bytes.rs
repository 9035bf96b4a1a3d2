//! # Safety
//! Bytes in shared memory that never change. Unsafe, because [`SharedBytes`] makes a slice of memory that
//! other processes map; sound, because
//! - the bytes are in a [`Structure`] under this crate's name, which no tensor reaches;
//! - they are written once, by [`SharedBytes::new`], before any other handle of the structure exists;
//! - the structure is held as long as the slice is borrowed, and its length is checked wherever a handle is
//!   made.
#![allow(unsafe_code)]

use mp_core::{Error, Result, Structure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NAME: &str = "mp_pool::SharedBytes";

/// Bytes that are stored once in shared memory, for any number of processes.
#[derive(Clone, Debug)]
pub(crate) struct SharedBytes {
    words: Structure,
    len: usize,
}

impl SharedBytes {
    /// Copies bytes into shared memory.
    pub(crate) fn new(bytes: &[u8]) -> Result<SharedBytes> {
        let (len, words) = (bytes.len(), Structure::new(NAME, (bytes.len() as u64).div_ceil(8).max(1))?);
        // SAFETY: no other handle of this structure exists yet.
        let to = unsafe { words.bytes(0, len) };
        // SAFETY: source and target have `len` bytes, and the new memory does not overlap borrowed memory.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        Ok(SharedBytes { words, len })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are only read from now on.
        let from = unsafe { self.words.bytes(0, self.len) };
        // SAFETY: `Structure::bytes` has checked the length; all bytes were written, and never change.
        unsafe { std::slice::from_raw_parts(from.as_ptr(), self.len) }
    }
}

impl Serialize for SharedBytes {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        (self.len as u64, StructureHandle(&self.words)).serialize(s)
    }
}

/// Wrapper that sends and receives the handle of a structure by serde.
struct StructureHandle<S>(S);

impl Serialize for StructureHandle<&Structure> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.send("the arguments of a pool's state", s)
    }
}

impl<'de> Deserialize<'de> for StructureHandle<Structure> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        Structure::receive("the arguments of a pool's state", NAME, d).map(StructureHandle)
    }
}

impl<'de> Deserialize<'de> for SharedBytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let (len, StructureHandle(words)) = <(u64, StructureHandle<Structure>)>::deserialize(d)?;
        match usize::try_from(len) {
            Ok(len) if len as u64 <= 8 * words.len() => Ok(SharedBytes { words, len }),
            _ => {
                let why = format!("{len} bytes in a structure of {} words", words.len());
                Err(serde::de::Error::custom(Error::Malformed(why)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mp_reduce::{pack, unpack};

    use super::*;

    #[test]
    fn shared_bytes_arrive_without_a_copy() {
        for len in [1, 7, 8, 9, 100_000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let shared = SharedBytes::new(&bytes).unwrap();
            let arrived: SharedBytes = unpack(pack(shared.clone()).map_err(|e| e.error).unwrap()).unwrap();
            assert_eq!(arrived.as_slice(), bytes);
            assert_eq!(arrived.as_slice().as_ptr(), shared.as_slice().as_ptr());
        }
    }

    #[test]
    fn shared_bytes_beyond_their_memory_are_refused() {
        let shared = SharedBytes { len: 17, ..SharedBytes::new(&[1; 16]).unwrap() };
        let error = unpack::<SharedBytes>(pack(shared).map_err(|e| e.error).unwrap()).unwrap_err();
        assert!(error.to_string().contains("17 bytes in a structure of 2 words"), "{error}");
    }
}
