//! Check of the numbers of rows of a batch.

use super::rows::ColumnInfo;
use super::traits::Batch;
use crate::AnyResult;

/// Checks that each column has a row for each sample.
pub(crate) fn check<B: Batch>(batch: B, samples: usize) -> AnyResult<B> {
    let columns = batch.columns();
    let is_wrong = |column: &&ColumnInfo| column.rows.is_some_and(|rows| rows != samples);
    let wrong = columns.iter().filter(is_wrong);
    let wrong: Vec<String> = wrong
        .map(|column| format!("{} has {}", column.named(), rows(column.rows.unwrap_or_default())))
        .collect();
    if wrong.is_empty() {
        return Ok(batch);
    }
    let samples = if samples == 1 { "one sample".to_owned() } else { format!("{samples} samples") };
    let wrong = wrong.join(", ");
    Err(format!(
        "`fetch` was to make a batch of {samples}, a row each, but {wrong} (a column that a batch has as a \
         whole is a `Whole`)"
    )
    .into())
}

fn rows(count: usize) -> String {
    if count == 1 { "one row".to_owned() } else { format!("{count} rows") }
}
