//! Short lists with a number for each dimension.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::view::MAX_RANK;
use mp_core::{Error, Result};

/// Up to [`MAX_RANK`] numbers, without an allocation.
#[derive(Clone, Copy)]
pub(crate) struct Dims<N> {
    len: usize,
    n: [N; MAX_RANK],
}

impl<N: Copy> Dims<N> {
    /// Creates a list of one number.
    pub(crate) const fn one(n: N) -> Self {
        Self { len: 1, n: [n; MAX_RANK] }
    }

    /// Creates a list of `len` equal numbers, at most [`MAX_RANK`].
    pub(crate) fn filled(len: usize, n: N) -> Self {
        Self { len: len.min(MAX_RANK), n: [n; MAX_RANK] }
    }
}

impl<N: Copy + Default> Dims<N> {
    pub(crate) fn new() -> Self {
        Self { len: 0, n: [N::default(); MAX_RANK] }
    }

    /// Creates a list of these numbers.
    ///
    /// # Errors
    /// If there are more than [`MAX_RANK`] numbers.
    pub(crate) fn from_slice(all: &[N]) -> Result<Self> {
        let mut dims = Self::new();
        let Some(to) = dims.n.get_mut(..all.len()) else { return Err(too_many(all.len())) };
        to.copy_from_slice(all);
        dims.len = all.len();
        Ok(dims)
    }

    pub(crate) fn insert(&mut self, at: usize, n: N) -> Result<()> {
        let len = self.len();
        if len == MAX_RANK {
            return Err(too_many(len + 1));
        }
        self.n.copy_within(at..len, at + 1);
        self.n[at] = n;
        self.len += 1;
        Ok(())
    }

    pub(crate) fn remove(&mut self, at: usize) {
        // A loop instead of a memmove, since the lists are short.
        for d in at + 1..self.len() {
            self.n[d - 1] = self.n[d];
        }
        self.len -= 1;
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

fn too_many(n: usize) -> Error {
    Error::LimitExceeded(format!("{n} dimensions; at most {MAX_RANK} are supported"))
}

impl<N> Deref for Dims<N> {
    type Target = [N];
    #[inline]
    fn deref(&self) -> &[N] {
        &self.n[..self.len]
    }
}

impl<N> DerefMut for Dims<N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [N] {
        &mut self.n[..self.len]
    }
}

impl<N: fmt::Debug> fmt::Debug for Dims<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<N: Serialize> Serialize for Dims<N> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_seq(self.iter())
    }
}

impl<'de, N: Deserialize<'de> + Copy + Default> Deserialize<'de> for Dims<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        Self::from_slice(&Vec::deserialize(d)?).map_err(D::Error::custom)
    }
}
