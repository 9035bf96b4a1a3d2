//! The columns of a batch by name, and what is wrong with their rows.

use std::error::Error;
use std::fmt;

use crate::{AnyResult, Batch};

/// Name and number of rows of a finished column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Field in a struct or place in a tuple, with a point between one and the next; empty if it is all
    /// of the batch.
    name: String,
    /// `None` if it has no rows.
    rows: Option<usize>,
}

impl Column {
    pub(crate) fn new(rows: Option<usize>) -> Column {
        Column { name: String::new(), rows }
    }

    /// Returns `true` if the batch has several columns.
    pub(crate) fn has_name(&self) -> bool {
        !self.name.is_empty()
    }

    /// Returns the name for texts: `column `pixels``, or `the column`.
    pub(crate) fn named(&self) -> String {
        named(&self.name)
    }
}

fn named(name: &str) -> String {
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    match name {
        "" => "the column".to_owned(),
        _ if is_number => format!("column {name}"),
        _ => format!("column `{name}`"),
    }
}

fn below(outer: &str, name: &str) -> String {
    if name.is_empty() { outer.to_owned() } else { format!("{outer}.{name}") }
}

/// The columns of a field.
#[must_use]
pub fn within(field: &str, columns: Vec<Column>) -> Vec<Column> {
    let named = columns.into_iter().map(|Column { name, rows }| Column { name: below(field, &name), rows });
    named.collect()
}

/// The same columns, of which it does not matter how many rows they have.
pub(crate) fn uncounted(columns: Vec<Column>) -> Vec<Column> {
    columns.into_iter().map(|column| Column { rows: None, ..column }).collect()
}

/// A row of a tensor that holds what it was filled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    pub(crate) row: usize,
    pub(crate) column: String,
}

impl Unwritten {
    pub(crate) fn row(row: usize) -> Unwritten {
        Unwritten { row, column: String::new() }
    }
}

/// The rows of a field's columns.
#[must_use]
pub fn unwritten_in(field: &str, rows: Vec<Unwritten>) -> Vec<Unwritten> {
    rows.into_iter()
        .map(|Unwritten { row, column }| Unwritten { row, column: below(field, &column) })
        .collect()
}

/// The function of a row has not written it.
pub(crate) struct NotWritten {
    pub(crate) row: usize,
    column: String,
    /// `true` if the column is a tensor; otherwise a value of a serde type is missing.
    is_of_tensor: bool,
}

impl NotWritten {
    pub(crate) fn no_value(row: usize) -> NotWritten {
        NotWritten { row, column: String::new(), is_of_tensor: false }
    }
}

impl From<Unwritten> for NotWritten {
    fn from(Unwritten { row, column }: Unwritten) -> NotWritten {
        NotWritten { row, column, is_of_tensor: true }
    }
}

impl fmt::Display for NotWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its row of {} was not written: ", named(&self.column))?;
        if self.is_of_tensor {
            f.write_str(
                "it would hold what its memory held before (`Context::zeroed` makes rows zeros beforehand)",
            )
        } else {
            f.write_str("there is no value")
        }
    }
}

mp_core::readable_debug!(NotWritten);

impl Error for NotWritten {}

/// Says of an error in which field it is, if that matters.
#[must_use]
pub fn in_column(field: &str, why: Box<dyn Error + Send + Sync>) -> Box<dyn Error + Send + Sync> {
    match why.downcast::<NotWritten>() {
        Ok(not_written) => {
            let column = below(field, &not_written.column);
            NotWritten { column, ..*not_written }.into()
        }
        Err(why) => why,
    }
}

/// Checks that each column has a row for each sample.
pub(crate) fn check<B: Batch>(batch: B, samples: usize) -> AnyResult<B> {
    let columns = batch.columns();
    let is_wrong = |column: &&Column| column.rows.is_some_and(|rows| rows != samples);
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
        "`fetch` was to make a batch of {samples}, a row each, but {wrong} (a column that a batch has as a whole is a `Whole`)"
    )
    .into())
}

fn rows(count: usize) -> String {
    if count == 1 { "one row".to_owned() } else { format!("{count} rows") }
}
