//! Column that belongs to the batch as a whole.

use std::ops::{Deref, DerefMut};

use mp_core::message::{Codec, Incoming, Outgoing, UnsentValues};

use super::rows::{ColumnInfo, UnwrittenRow, without_rows};
use super::traits::{Batch, ColumnData, Fill};
use crate::AnyResult;

/// Column whose number of rows is independent of the number of samples: the edges of a batch of graphs, or a
/// table that all samples share.
///
/// ```
/// use mp_data::{AnyResult, Batch, Context, DataLoader, Dataset, Item, Tensor, Whole};
///
/// /// Several graphs, merged into one.
/// #[derive(Batch)]
/// struct Graphs {
///     label: Tensor<i64>,
///     /// Start and end node of each edge, of shape [2, edges].
///     edges: Whole<Tensor<i64>>,
/// }
///
/// /// Rings with these numbers of nodes.
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Rings(Vec<i64>);
///
/// impl Dataset for Rings {
///     type Batch = Graphs;
///
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///
///     fn fetch(&mut self, items: &[Item], _: &mut Context<Graphs>) -> AnyResult<Graphs> {
///         let (mut label, mut from, mut to, mut before) = (Vec::new(), Vec::new(), Vec::new(), 0);
///         for nodes in items.iter().map(|item| self.0[item.index]) {
///             label.push(nodes);
///             from.extend((0..nodes).map(|node| before + node));
///             to.extend((0..nodes).map(|node| before + (node + 1) % nodes));
///             before += nodes;
///         }
///         let edges = [from, to].concat();
///         let shape = [2, edges.len() / 2];
///         Ok(Graphs {
///             label: Tensor::from_slice(&label, [label.len()])?,
///             edges: Whole(Tensor::from_slice(&edges, shape)?),
///         })
///     }
/// }
///
/// let loader = DataLoader::builder(Rings(vec![3, 5, 4])).batch_size(3).num_workers(1).build()?;
/// let Graphs { label, edges } = loader.epoch(0).next().unwrap()?.into_inner();
/// assert_eq!((label.to_vec(), edges.shape()), (vec![3, 5, 4], &[2, 12][..]));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// In [`Context::rows`](crate::Context::rows) the column works like the inner column, with a row for each
/// sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole<C>(pub C);

impl<C> Whole<C> {
    /// Returns the inner column.
    pub fn into_inner(self) -> C {
        self.0
    }
}

impl<C> Deref for Whole<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

impl<C> DerefMut for Whole<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.0
    }
}

impl<B: Batch> Batch for Whole<B> {
    type Shapes<'s> = B::Shapes<'s>;
    type Builder = B::Builder;
    type Row<'r> = B::Row<'r>;

    fn begin(rows: usize, shapes: Self::Shapes<'_>, fill: Fill) -> AnyResult<Self::Builder> {
        B::begin(rows, shapes, fill)
    }

    fn rows(builder: &mut Self::Builder) -> AnyResult<Vec<Self::Row<'_>>> {
        B::rows(builder)
    }

    fn unwritten(builder: &mut Self::Builder, byte: u8) -> AnyResult<Vec<UnwrittenRow>> {
        B::unwritten(builder, byte)
    }

    fn finish(builder: Self::Builder) -> AnyResult<Self> {
        B::finish(builder).map(Whole)
    }

    fn send<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        self.0.send::<C>(out)
    }

    fn get_back(&mut self, back: &mut UnsentValues) {
        self.0.get_back(back);
    }

    fn receive<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        B::receive::<C>(inc).map(Whole)
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn row_bytes(&self, row: usize, rows: usize) -> Vec<Vec<u8>> {
        self.0.row_bytes(row, rows)
    }

    fn columns(&self) -> Vec<ColumnInfo> {
        without_rows(self.0.columns())
    }

    fn into_column(self) -> AnyResult<ColumnData> {
        self.0.into_column()
    }
}
