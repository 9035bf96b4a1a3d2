//! Names of the columns of a batch, and errors of their rows.

use std::error::Error;
use std::fmt;

/// Name and number of rows of a finished column.
#[derive(Clone, Debug)]
pub struct ColumnInfo {
    /// Path of struct fields and tuple places, separated by points. Empty if the column is the whole batch.
    name: String,
    /// Number of rows. `None` for a column whose rows are not compared with the samples.
    pub(super) rows: Option<usize>,
}

impl ColumnInfo {
    pub(crate) fn new(rows: Option<usize>) -> ColumnInfo {
        ColumnInfo { name: String::new(), rows }
    }

    /// Returns `true` if the column is part of a struct or a tuple.
    pub(crate) fn has_name(&self) -> bool {
        !self.name.is_empty()
    }

    /// Returns the name for error texts: `column `pixels``, or `the column`.
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

fn join_names(outer: &str, name: &str) -> String {
    if name.is_empty() { outer.to_owned() } else { format!("{outer}.{name}") }
}

/// Prefixes the names of the columns of a field with the field's name.
#[must_use]
pub fn prefix_columns(field: &str, columns: Vec<ColumnInfo>) -> Vec<ColumnInfo> {
    let named = columns
        .into_iter()
        .map(|ColumnInfo { name, rows }| ColumnInfo { name: join_names(field, &name), rows });
    named.collect()
}

/// Removes the numbers of rows from columns, so that they are not compared with the number of samples.
pub(crate) fn without_rows(columns: Vec<ColumnInfo>) -> Vec<ColumnInfo> {
    columns.into_iter().map(|column| ColumnInfo { rows: None, ..column }).collect()
}

/// Row of a tensor that contains only the fill byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwrittenRow {
    pub(crate) row: usize,
    pub(crate) column: String,
}

impl UnwrittenRow {
    pub(crate) fn row(row: usize) -> UnwrittenRow {
        UnwrittenRow { row, column: String::new() }
    }
}

/// Prefixes the column names of unwritten rows of a field with the field's name.
#[must_use]
pub fn prefix_unwritten(field: &str, rows: Vec<UnwrittenRow>) -> Vec<UnwrittenRow> {
    rows.into_iter()
        .map(|UnwrittenRow { row, column }| UnwrittenRow { row, column: join_names(field, &column) })
        .collect()
}

/// Error returned when the function that writes a row has left the row unwritten.
pub(crate) struct UnwrittenRowError {
    pub(crate) row: usize,
    column: String,
    /// `true` if the column is a tensor; otherwise a value of a serde type is missing.
    is_of_tensor: bool,
}

impl UnwrittenRowError {
    pub(crate) fn no_value(row: usize) -> UnwrittenRowError {
        UnwrittenRowError { row, column: String::new(), is_of_tensor: false }
    }
}

impl From<UnwrittenRow> for UnwrittenRowError {
    fn from(UnwrittenRow { row, column }: UnwrittenRow) -> UnwrittenRowError {
        UnwrittenRowError { row, column, is_of_tensor: true }
    }
}

impl fmt::Display for UnwrittenRowError {
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

mp_core::readable_debug!(UnwrittenRowError);

impl Error for UnwrittenRowError {}

/// Prefixes the column name in an `UnwrittenRowError` with the field's name. Other errors are unchanged.
#[must_use]
pub fn prefix_error(field: &str, why: Box<dyn Error + Send + Sync>) -> Box<dyn Error + Send + Sync> {
    match why.downcast::<UnwrittenRowError>() {
        Ok(not_written) => {
            let column = join_names(field, &not_written.column);
            UnwrittenRowError { column, ..*not_written }.into()
        }
        Err(why) => why,
    }
}
