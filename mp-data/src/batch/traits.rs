//! Columns of a batch, each with a row for each sample.

use std::fmt;

use mp_core::message::{Codec, Incoming, Level, Outgoing, UnsentValues};

use mp_tensor::{AnyTensor, Tensor};

use super::rows::{self, ColumnInfo};
use crate::AnyResult;

/// Contents of a row before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Fill {
    /// Previous contents of the memory.
    Unchanged,
    /// This byte, repeated.
    Byte(u8),
}

/// Batch of a [`Dataset`](crate::Dataset): a column, a tuple of up to six columns, or a struct of columns
/// that derives this trait. Columns are [`Tensor`](mp_tensor::Tensor), [`Ragged`](crate::Ragged),
/// [`Strings`](crate::Strings) and [`Objects`](crate::Objects), and [`Whole`](crate::Whole) with one of
/// these.
///
/// ```
/// use mp_data::{AnyResult, Batch, Context, DataLoader, Dataset, Item, Strings, Tensor};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Batch)]
/// struct Images {
///     pixels: Tensor<f32>,
///     class: Tensor<i64>,
///     path: Strings,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct Folder(Vec<String>);
///
/// impl Dataset for Folder {
///     type Batch = Images;
///
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///
///     fn fetch(&mut self, items: &[Item], cx: &mut Context<Images>) -> AnyResult<Images> {
///         // The derive has made `ImagesSpec` and `ImagesRow`.
///         cx.rows(items, ImagesSpec { pixels: &[3, 2, 2], class: &[], path: () }, |item, rng, row| {
///             row.pixels.fill(rng.f32());
///             row.class[0] = item.index as i64;
///             row.path.push_str(&self.0[item.index]);
///             Ok(())
///         })
///     }
/// }
///
/// let folder = Folder(vec!["a.png".into(), "b.png".into()]);
/// let loader = DataLoader::builder(folder).batch_size(2).num_workers(1).build()?;
/// let Images { pixels, class, path } = loader.epoch(0).next().unwrap()?.into_inner();
/// assert_eq!((pixels.shape(), class.to_vec(), path.get(1)?), (&[2, 3, 2, 2][..], vec![0, 1], "b.png"));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// | column | shape | row | in shared memory |
/// |---|---|---|---|
/// | `Tensor<T>` | `&[usize]`, the shape of a row | `&mut [T]`, its elements | written in place |
/// | `Ragged<T>` | `()` | `&mut Vec<T>` | written into a buffer that the worker keeps, and copied once, when the batch is complete |
/// | `Strings` | `()` | `&mut String` | written into a buffer that the worker keeps, and copied once, when the batch is complete |
/// | `Objects<T>` | `()` | `&mut Option<T>` | encoded with serde |
///
/// Each column must have as many rows as the batch has samples. Otherwise the batch is an error that names
/// the column. [`Whole`](crate::Whole) is a column with any number of rows. (A tensor without dimensions has
/// no rows, and is not checked.)
///
/// Columns correspond to the results of torch's `default_collate`. Numbers and tensors of equal shape become
/// a `Tensor`, texts `Strings`, and anything else `Objects`. A mapping or a named tuple becomes a struct of
/// columns, and a sequence a tuple of columns.
///
/// Only the loader calls the methods.
#[doc(alias = "default_collate")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a column of a batch",
    label = "a batch has a row of it for each sample",
    note = "numbers: `Tensor`, or `Ragged` if rows have different lengths; text: `Strings`; any serde type, \
            one a sample: `Objects`",
    note = "several columns: a tuple of up to six, or a struct with `#[derive(Batch)]`"
)]
pub trait Batch: Send + Sized + 'static {
    /// Shapes of the rows, which must be known before the rows are written.
    type Shapes<'s>: Copy + PartialEq + fmt::Debug;
    /// Batch whose rows are being written.
    #[doc(hidden)]
    type Builder;
    /// Row of one sample.
    type Row<'r>: Send;

    #[doc(hidden)]
    fn begin(rows: usize, shapes: Self::Shapes<'_>, fill: Fill) -> AnyResult<Self::Builder>;
    #[doc(hidden)]
    fn rows(builder: &mut Self::Builder) -> AnyResult<Vec<Self::Row<'_>>>;
    /// Returns the rows of tensors that contain only this byte, except empty rows. With the fill byte, these
    /// rows were probably not written.
    #[doc(hidden)]
    fn unwritten(_: &mut Self::Builder, _: u8) -> AnyResult<Vec<rows::UnwrittenRow>> {
        Ok(Vec::new())
    }
    #[doc(hidden)]
    fn finish(builder: Self::Builder) -> AnyResult<Self>;
    #[doc(hidden)]
    fn send<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()>;
    #[doc(hidden)]
    fn get_back(&mut self, back: &mut UnsentValues);
    #[doc(hidden)]
    fn receive<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self>;
    /// Returns the number of bytes of shared memory.
    #[doc(hidden)]
    fn bytes(&self) -> usize;
    /// Returns the bytes of row `row` in each column, to compare two batches. `rows` is the number of rows of
    /// the batch.
    #[doc(hidden)]
    fn row_bytes(&self, row: usize, rows: usize) -> Vec<Vec<u8>>;
    /// Returns the columns, in the order of `row_bytes`.
    #[doc(hidden)]
    fn columns(&self) -> Vec<rows::ColumnInfo>;
    /// Converts the batch into columns without Rust types, for programs that pass them to another language.
    ///
    /// ```
    /// use mp_data::{Batch, ColumnData, Tensor};
    ///
    /// let batch = (Tensor::<f32>::zeros([4, 2])?, Tensor::<i64>::zeros([4])?);
    /// let ColumnData::Tuple(columns) = batch.into_column()? else { panic!() };
    /// assert!(matches!(&columns[0], ColumnData::Numbers(pixels) if pixels.shape() == [4, 2]));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// A value in an [`Objects`](crate::Objects) can't be encoded without shared memory.
    fn into_column(self) -> AnyResult<ColumnData>;
}

/// Contents of a batch without its Rust type, from [`Batch::into_column`].
#[derive(Debug)]
#[non_exhaustive]
pub enum ColumnData {
    /// Tensor with elements of any type.
    Numbers(AnyTensor),
    /// Rows of any length: all values in one buffer, and the offsets of the rows.
    Ragged {
        /// All values, one row after the other.
        values: AnyTensor,
        /// Offset of each row in elements, and the end of the last row.
        offsets: Tensor<i64>,
    },
    /// Texts in one buffer, and their offsets.
    Strings {
        /// All texts in UTF-8, one after the other.
        text: Tensor<u8>,
        /// Offset of each text in bytes, and the end of the last text.
        offsets: Tensor<i64>,
    },
    /// Values of a serde type, each as MessagePack.
    Objects(Vec<Vec<u8>>),
    /// Columns of a tuple.
    Tuple(Vec<ColumnData>),
    /// Columns of a struct, with their names.
    Struct(Vec<(&'static str, ColumnData)>),
}

macro_rules! tuples {
    ($($($column:ident $at:tt)+;)*) => {$(
        impl<$($column: Batch),+> Batch for ($($column,)+) {
            type Shapes<'s> = ($($column::Shapes<'s>,)+);
            type Builder = ($($column::Builder,)+);
            type Row<'r> = ($($column::Row<'r>,)+);

            fn begin(rows: usize, shapes: Self::Shapes<'_>, fill: Fill) -> AnyResult<Self::Builder> {
                Ok(($($column::begin(rows, shapes.$at, fill)?,)+))
            }

            #[allow(non_snake_case)]
            fn rows(builder: &mut Self::Builder) -> AnyResult<Vec<Self::Row<'_>>> {
                $(let mut $column = $column::rows(&mut builder.$at)?.into_iter();)+
                let mut rows = Vec::new();
                while let ($(Some($column),)+) = ($($column.next(),)+) {
                    rows.push(($($column,)+));
                }
                Ok(rows)
            }

            fn unwritten(builder: &mut Self::Builder, byte: u8) -> AnyResult<Vec<rows::UnwrittenRow>> {
                let mut all = Vec::new();
                $(
                    let rows = $column::unwritten(&mut builder.$at, byte)?;
                    all.extend(rows::prefix_unwritten(stringify!($at), rows));
                )+
                Ok(all)
            }

            fn finish(builder: Self::Builder) -> AnyResult<Self> {
                let named = rows::prefix_error;
                Ok(($($column::finish(builder.$at).map_err(|why| named(stringify!($at), why))?,)+))
            }

            fn send<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
                let _level = Level::enter()?;
                $(self.$at.send::<C>(out)?;)+
                Ok(())
            }

            fn get_back(&mut self, back: &mut UnsentValues) {
                let Ok(_level) = Level::enter() else { return };
                $(self.$at.get_back(back);)+
            }

            fn receive<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
                let _level = Level::enter()?;
                Ok(($($column::receive::<C>(inc)?,)+))
            }

            fn bytes(&self) -> usize {
                0 $(+ self.$at.bytes())+
            }

            fn row_bytes(&self, row: usize, rows: usize) -> Vec<Vec<u8>> {
                let mut all = Vec::new();
                $(all.extend(self.$at.row_bytes(row, rows));)+
                all
            }

            fn columns(&self) -> Vec<rows::ColumnInfo> {
                let mut all = Vec::new();
                $(all.extend(rows::prefix_columns(stringify!($at), self.$at.columns()));)+
                all
            }

            fn into_column(self) -> AnyResult<ColumnData> {
                Ok(ColumnData::Tuple(vec![$(self.$at.into_column()?),+]))
            }
        }
    )*};
}

tuples! {
    A 0;
    A 0 B 1;
    A 0 B 1 C2 2;
    A 0 B 1 C2 2 D 3;
    A 0 B 1 C2 2 D 3 E 4;
    A 0 B 1 C2 2 D 3 E 4 F 5;
}

/// Returns the batch if each column has as many rows as there are samples. Otherwise returns an error.
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
