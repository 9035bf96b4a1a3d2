//! Columns of a batch, each with a row for each sample.

mod columns;
mod ragged;
pub(crate) mod rows;
mod spare_rows;
pub(crate) mod traits;
mod whole;

pub use columns::Objects;
pub use ragged::{Ragged, Strings};
pub use traits::{Batch, ColumnData, Fill};
pub use whole::Whole;

/// Items used by the code that `#[derive(Batch)]` generates.
#[doc(hidden)]
pub mod derive {
    pub use mp_core::Result;
    pub use mp_core::message::{Codec, Incoming, Level, Outgoing, UnsentValues};

    pub use super::rows::{ColumnInfo, UnwrittenRow, prefix_columns, prefix_error, prefix_unwritten};
    pub use super::{ColumnData, Fill};
    pub use crate::AnyResult;
}
