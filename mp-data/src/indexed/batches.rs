//! Batches of a dataset with indices.

use std::fmt;

use crate::indexed::saved_state::LoaderState;
use crate::indexed::source::{IndexedPosition, IndexedSource};
use crate::loader::methods::batches_methods;
use crate::loader::prefetch::{BreakState, Prefetch};
use crate::{Dataset, LoadError, LoadedBatch, OnError};

/// Iterator over the batches of one or several epochs, returned by
/// [`DataLoader::epoch`](crate::DataLoader::epoch).
///
/// Dropping the iterator cancels batches that no worker has begun. It does not wait for the batches that
/// workers are making.
///
/// If a caller waits longer than 10 s for a batch, a report on stderr names the worker, its process and the
/// sample. A series of calls that return without a batch counts as one wait. With the feature `log`, the
/// report is also in the log. The report is repeated after 20 s, 40 s and so on. `MP_STALL=off` in the
/// environment disables it.
pub struct Batches<D: Dataset>(pub(super) Prefetch<IndexedSource<D>>);

impl<D: Dataset> fmt::Debug for Batches<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (epoch, number) = self.0.place().next;
        write!(f, "Batches(next is {number} of epoch {epoch}, {} in flight)", self.0.slots.len())
    }
}

impl<D: Dataset> Batches<D> {
    fn state_at(&self, place: IndexedPosition) -> LoaderState {
        let IndexedPosition { next: (epoch, next), out_of_order, window } = place;
        let plan = &self.0.inner.plan;
        let rank = plan.rank();
        let plan = plan.state(epoch, next).in_window(window);
        LoaderState::new(plan, rank, out_of_order)
    }

    /// Shows the progress of this iterator in a bar. The message of the bar has the samples per second and
    /// the share of time spent waiting for batches during the last half second: `12800 samples/s, waiting 3
    /// %`.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, DataLoader, Dataset, Item};
    /// # use mp_tensor::Tensor;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Numbers(usize);
    /// # impl Dataset for Numbers {
    /// #     type Batch = Tensor<i64>;
    /// #     fn len(&self) -> usize { self.0 }
    /// #     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
    /// #         cx.rows(items, &[], |item, _, row| { row[0] = item.index as i64; Ok(()) })
    /// #     }
    /// # }
    /// use indicatif::{ProgressBar, ProgressStyle};
    ///
    /// let style = ProgressStyle::with_template("{bar:40} {pos}/{len} batches, {msg}")?;
    /// let bar = ProgressBar::hidden().with_style(style);
    /// let loader = DataLoader::builder(Numbers(100)).batch_size(8).num_workers(2).build()?;
    /// for batch in loader.epoch(0).with_progress(&bar) {
    ///     let batch = batch?; // …
    /// }
    /// assert_eq!((bar.position(), bar.length()), (13, Some(13)));
    /// assert!(bar.message().contains("samples/s, waiting"));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// The length of the bar is the number of batches of the epoch or epochs, including batches before a
    /// resume. The bar has no length if the number of batches is unknown until they are made.
    #[cfg(feature = "indicatif")]
    #[cfg_attr(docsrs, doc(cfg(feature = "indicatif")))]
    #[doc(alias = "tqdm")]
    pub fn with_progress(self, bar: &indicatif::ProgressBar) -> crate::WithProgress<Self> {
        let (epoch, next) = self.0.place().next;
        let epochs = self.0.last.saturating_sub(epoch).saturating_add(1);
        let order = &self.0.source.order;
        let each = self.0.source.batches().filter(|_| epochs == 1 || order.has_fixed_length());
        let all = each.map(|each| each.saturating_mul(epochs));
        crate::WithProgress::new(self, bar, (next, all))
    }

    /// Returns the maximum number of remaining batches. Returns `None` if code of the user determines the
    /// number, or if no worker can run. Skipped batches reduce the number.
    fn remaining(&self) -> Option<usize> {
        let Prefetch { source, slots, planning_ended, break_state, last, .. } = &self.0;
        let IndexedSource { order, next: (epoch, next), delivered, .. } = source;
        // An epoch of 2⁴⁸ draws or more is an error at its first batch.
        let is_known = order.has_fixed_length() && order.samples() >> 48 == 0;
        if !is_known || !matches!(break_state, BreakState::Working) || self.0.inner.is_forked() {
            return None;
        }
        if *planning_ended {
            return Some(slots.len());
        }
        let each = order.batches()?;
        let is_planned = |number: &u64| *number < each;
        let out_of_order = delivered.out_of_order((*epoch, *next)).into_iter().filter(is_planned).count();
        let here = each.saturating_sub(*next).checked_sub(out_of_order as u64)?;
        let all = each.checked_mul(last.checked_sub(*epoch)?)?.checked_add(here)?;
        usize::try_from(all).ok()?.checked_add(slots.len())
    }

    batches_methods!(LoaderState);
}

impl<D: Dataset> std::iter::FusedIterator for Batches<D> {}

impl<D: Dataset> Iterator for Batches<D> {
    type Item = Result<LoadedBatch<D::Batch>, LoadError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    /// Returns exact bounds if the number of batches is known beforehand
    /// ([`batches_in_epoch`](crate::DataLoader::batches_in_epoch), without samplers of your own) and no batch
    /// is ever skipped ([`OnError::Report`]). Otherwise the lower bound is 0, and the upper bound is the
    /// number of batches if it is known. The iterator ends early only if no worker can run.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let Some(left) = self.remaining() else { return self.0.size_hint() };
        let all_come = self.0.inner.settings.on_error == OnError::Report;
        (if all_come { left } else { 0 }, Some(left))
    }
}
