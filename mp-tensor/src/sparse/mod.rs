//! Sparse tensors. They consist of tensors of indices and values, and are sent as these parts, whose storages
//! are shared.
//!
//! The parts are validated when a sparse tensor is created and received. Any holder may change parts in
//! shared memory afterwards, so every use of an index checks it again.

mod compressed;
mod coo;

pub use compressed::{Layout, SparseCompressed};
pub use coo::SparseCoo;

use crate::view::misfit;
use mp_core::{Error, Result};

/// Returns the error of invalid indices.
fn malformed<T>(why: String) -> Result<T> {
    Err(Error::Malformed(why))
}

/// Checks that an index is below `n`.
fn index(i: i64, n: usize, what: &str) -> Result<usize> {
    match usize::try_from(i) {
        Ok(i) if i < n => Ok(i),
        _ => Err(Error::OutOfBounds(format!("{what} {i} of a sparse tensor, in a dimension of {n} entries"))),
    }
}

#[cfg(test)]
mod tests;
