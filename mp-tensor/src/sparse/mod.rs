//! Sparse tensors, as their parts: tensors of indices and values, which travel with each part's storage shared.
//!
//! What is in the parts is checked when a sparse tensor is made, and again when it is received. Parts of shared
//! memory may be changed by any holder afterwards; so whatever follows an index looks whether it is one.

mod compressed;
mod coo;

pub use compressed::{Layout, SparseCompressed};
pub use coo::SparseCoo;

use mp_core::{Error, Result};

/// Parts that do not fit each other.
fn misfit<T>(why: String) -> Result<T> {
    Err(Error::Shape(why))
}

/// Indices that are none of a sparse tensor.
fn malformed<T>(why: String) -> Result<T> {
    Err(Error::Malformed(why))
}

/// An index that is below `n`.
fn index(i: i64, n: usize, what: &str) -> Result<usize> {
    match usize::try_from(i) {
        Ok(i) if i < n => Ok(i),
        _ => Err(Error::OutOfBounds(format!("{what} {i} of a sparse tensor, in a dimension of {n} entries"))),
    }
}

#[cfg(test)]
mod tests;
