//! Columns whose rows have any length: one buffer of values, and the offset of each row.

use std::fmt;

use mp_core::message::{Codec, Incoming, Level, Message, Outgoing, UnsentValues};
use mp_tensor::{Element, Tensor};

use super::rows::ColumnInfo;
use super::spare_rows;
use super::traits::{Batch, ColumnData, Fill};
use crate::AnyResult;

/// Column of rows of any length: all values in one buffer, and the offset of each row. Nested tensors of the
/// layout "jagged" have the same form.
///
/// ```
/// use mp_data::Ragged;
///
/// let tokens = Ragged::<u32>::from_rows(&[vec![1, 2, 3], vec![], vec![4]])?;
/// assert_eq!(tokens.row(0)?, [1, 2, 3]);
/// assert_eq!(tokens.offsets().to_vec(), [0, 3, 3, 4]);
/// assert_eq!(tokens.values().shape(), [4]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[doc(alias = "nested_tensor_from_jagged")]
pub struct Ragged<T: Element> {
    values: Tensor<T>,
    offsets: Tensor<i64>,
}

impl<T: Element> fmt::Debug for Ragged<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ragged({} rows, {} values)", self.len(), self.values.len())
    }
}

impl<T: Element> Ragged<T> {
    /// Copies these rows into shared memory.
    ///
    /// # Errors
    /// Shared memory is exhausted.
    pub fn from_rows(rows: &[impl AsRef<[T]>]) -> AnyResult<Self> {
        Ragged::of(rows, AsRef::as_ref)
    }

    /// Copies the values of each row into shared memory.
    fn of<R>(rows: &[R], values_of: impl Fn(&R) -> &[T]) -> AnyResult<Self> {
        let total: usize = rows.iter().map(|row| values_of(row).len()).sum();
        let (mut values, mut offsets) = (Tensor::empty([total])?, Tensor::empty([rows.len() + 1])?);
        let (mut all, ends) = (values.as_mut_slice()?, offsets.as_mut_slice()?);
        let mut end = 0;
        for (row, offset) in rows.iter().zip(&mut *ends) {
            let row = values_of(row);
            *offset = end;
            end += row.len() as i64;
            let (here, rest) = all.split_at_mut(row.len());
            here.copy_from_slice(row);
            all = rest;
        }
        if let Some(last) = ends.last_mut() {
            *last = end;
        }
        Ok(Ragged { values, offsets })
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns `true` if there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the values of a row.
    ///
    /// # Errors
    /// The column has no such row.
    pub fn row(&self, row: usize) -> AnyResult<&[T]> {
        let ends = self.offsets.as_slice()?.get(row..).unwrap_or_default();
        let &[from, to, ..] = ends else {
            return Err(format!("row {row} of a column of {} rows", self.len()).into());
        };
        let range = usize::try_from(from)?..usize::try_from(to)?;
        let outside = || format!("row {row} is {range:?} of {} values", self.values.len());
        Ok(self.values.as_slice()?.get(range.clone()).ok_or_else(outside)?)
    }

    /// Returns all values, one row after the other.
    #[must_use]
    pub fn values(&self) -> &Tensor<T> {
        &self.values
    }

    /// Returns the offset of each row in `self.values()`, and the end of the last row.
    #[must_use]
    pub fn offsets(&self) -> &Tensor<i64> {
        &self.offsets
    }

    /// Returns values and offsets.
    #[must_use]
    pub fn into_parts(self) -> (Tensor<T>, Tensor<i64>) {
        (self.values, self.offsets)
    }
}

impl<T: Element> Batch for Ragged<T> {
    type Shapes<'s> = ();
    type Builder = Vec<Vec<T>>;
    type Row<'r> = &'r mut Vec<T>;

    fn begin(rows: usize, (): (), _: Fill) -> AnyResult<Vec<Vec<T>>> {
        Ok(spare_rows::take(rows))
    }

    fn rows(builder: &mut Vec<Vec<T>>) -> AnyResult<Vec<&mut Vec<T>>> {
        Ok(builder.iter_mut().collect())
    }

    fn finish(builder: Vec<Vec<T>>) -> AnyResult<Self> {
        let made = Ragged::from_rows(&builder);
        spare_rows::keep(builder);
        made
    }

    fn send<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let _level = Level::enter()?;
        self.values.encode::<C>(out)?;
        self.offsets.encode::<C>(out)
    }

    fn get_back(&mut self, back: &mut UnsentValues) {
        let Ok(_level) = Level::enter() else { return };
        self.values.take_back(back);
        self.offsets.take_back(back);
    }

    fn receive<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let _level = Level::enter()?;
        Ok(Ragged { values: Tensor::decode::<C>(inc)?, offsets: Tensor::decode::<C>(inc)? })
    }

    fn bytes(&self) -> usize {
        self.values.nbytes() + self.offsets.nbytes()
    }

    fn row_bytes(&self, row: usize, _: usize) -> Vec<Vec<u8>> {
        vec![self.row(row).map(|row| bytemuck::cast_slice(row).to_vec()).unwrap_or_default()]
    }

    fn columns(&self) -> Vec<ColumnInfo> {
        vec![ColumnInfo::new(Some(self.len()))]
    }

    fn into_column(self) -> AnyResult<ColumnData> {
        Ok(ColumnData::Ragged { values: self.values.into(), offsets: self.offsets })
    }
}

/// Column of strings: the bytes of all strings, and the start of each string.
///
/// ```
/// use mp_data::Strings;
///
/// let names = Strings::from_rows(&["a.jpg", "", "ü.png"])?;
/// assert_eq!(names.get(2)?, "ü.png");
/// assert_eq!(names.to_vec()?.concat(), "a.jpgü.png");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Strings(Ragged<u8>);

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Strings({} rows, {} bytes)", self.len(), self.0.values.len())
    }
}

impl Strings {
    /// Copies these strings into shared memory.
    ///
    /// # Errors
    /// Shared memory is exhausted.
    pub fn from_rows(rows: &[impl AsRef<str>]) -> AnyResult<Self> {
        Ragged::of(rows, |row| row.as_ref().as_bytes()).map(Strings)
    }

    /// Returns the number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no strings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a string. Each call checks that it is UTF-8.
    ///
    /// # Errors
    /// The column has no such row, or the row is not valid UTF-8.
    pub fn get(&self, row: usize) -> AnyResult<&str> {
        Ok(str::from_utf8(self.0.row(row)?)?)
    }

    /// Copies each string.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn to_vec(&self) -> AnyResult<Vec<String>> {
        (0..self.len()).map(|row| self.get(row).map(str::to_owned)).collect()
    }

    /// Returns bytes and offsets.
    #[must_use]
    pub fn into_ragged(self) -> Ragged<u8> {
        self.0
    }
}

impl Batch for Strings {
    type Shapes<'s> = ();
    type Builder = Vec<String>;
    type Row<'r> = &'r mut String;

    fn begin(rows: usize, (): (), _: Fill) -> AnyResult<Vec<String>> {
        Ok(spare_rows::take(rows))
    }

    fn rows(builder: &mut Vec<String>) -> AnyResult<Vec<&mut String>> {
        Ok(builder.iter_mut().collect())
    }

    fn finish(builder: Vec<String>) -> AnyResult<Self> {
        let made = Strings::from_rows(&builder);
        spare_rows::keep(builder);
        made
    }

    fn send<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        self.0.send::<C>(out)
    }

    fn get_back(&mut self, back: &mut UnsentValues) {
        self.0.get_back(back);
    }

    fn receive<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        Ragged::receive::<C>(inc).map(Strings)
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn row_bytes(&self, row: usize, rows: usize) -> Vec<Vec<u8>> {
        self.0.row_bytes(row, rows)
    }

    fn columns(&self) -> Vec<ColumnInfo> {
        self.0.columns()
    }

    fn into_column(self) -> AnyResult<ColumnData> {
        Ok(ColumnData::Strings { text: self.0.values, offsets: self.0.offsets })
    }
}
