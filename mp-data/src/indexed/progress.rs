//! A progress bar beside the batches.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use mp_core::user_code::caught;

use crate::{Batches, Dataset, LoadError, Loaded};

/// How often the text is made anew.
const TICK: Duration = Duration::from_millis(500);

/// Batches, beside which a bar says how far they are: made by [`Batches::with_progress`].
///
/// It is the batches, too: [`state`](Batches::state) and all else can be called.
#[derive(Debug)]
#[must_use = "it gives nothing until it is iterated"]
pub struct WithProgress<D: Dataset> {
    batches: Batches<D>,
    bar: ProgressBar,
    /// Since when samples and waits are counted.
    since: Option<Instant>,
    samples: usize,
    waited: Duration,
}

impl<D: Dataset> Batches<D> {
    /// The same batches; meanwhile the bar shows how many were given of how many, and as its message samples a second and which share
    /// of the time the trainer waited for them, of the last half second: `12800 samples/s, waiting 3 %`.
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
    /// The number of batches of an epoch counts, also of those before a resume; of several epochs, all of them. Where only making them
    /// tells how many there are, the bar has no length.
    #[doc(alias = "tqdm")]
    pub fn with_progress(self, bar: &ProgressBar) -> WithProgress<D> {
        let (next, all) = self.progress();
        match all {
            Some(all) => bar.set_length(all),
            None => bar.unset_length(),
        }
        bar.set_position(next);
        WithProgress { batches: self, bar: bar.clone(), since: None, samples: 0, waited: Duration::ZERO }
    }
}

impl<D: Dataset> WithProgress<D> {
    fn show(&mut self, at_last: bool) {
        let Some(since) = self.since else { return };
        let elapsed = since.elapsed();
        if elapsed < TICK && !at_last && !self.bar.message().is_empty() {
            return;
        }
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let share = (100.0 * self.waited.as_secs_f64() / seconds).clamp(0.0, 100.0);
        self.bar.set_message(format!("{:.0} samples/s, waiting {share:.0} %", self.samples as f64 / seconds));
        if elapsed >= TICK {
            (self.since, self.samples, self.waited) = (Some(Instant::now()), 0, Duration::ZERO);
        }
    }
}

impl<D: Dataset> std::iter::FusedIterator for WithProgress<D> {}

impl<D: Dataset> Iterator for WithProgress<D> {
    type Item = Result<Loaded<D::Batch>, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let begun = Instant::now();
        self.since.get_or_insert(begun);
        let batch = self.batches.next();
        self.waited += begun.elapsed();
        match &batch {
            Some(Ok(batch)) => self.samples += batch.info.items.len(),
            Some(Err(_)) => {}
            None => {
                caught(|| self.show(true));
                return None;
            }
        }
        // The bar's style may be code of the user's: its panic costs no batch.
        caught(|| {
            self.bar.inc(1);
            self.show(false);
        });
        batch
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.batches.size_hint()
    }
}

impl<D: Dataset> Deref for WithProgress<D> {
    type Target = Batches<D>;

    fn deref(&self) -> &Batches<D> {
        &self.batches
    }
}

impl<D: Dataset> DerefMut for WithProgress<D> {
    fn deref_mut(&mut self) -> &mut Batches<D> {
        &mut self.batches
    }
}
