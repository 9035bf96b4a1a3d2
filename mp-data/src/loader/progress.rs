//! Progress bar of an iterator of batches.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use mp_core::user_code::catch_panic;

use crate::{LoadError, LoadedBatch};

/// Interval between updates of the text.
const TICK: Duration = Duration::from_millis(500);

/// Iterator of batches that updates a progress bar, returned by
/// [`Batches::with_progress`](crate::Batches::with_progress) and
/// [`StreamBatches::with_progress`](crate::StreamBatches::with_progress).
///
/// Dereferences to the iterator of batches, so [`state`](crate::Batches::state) and other methods can be
/// called.
#[derive(Debug)]
#[must_use = "it gives nothing until it is iterated"]
pub struct WithProgress<B> {
    batches: B,
    bar: ProgressBar,
    /// Time since which the displayed samples and waits are counted.
    since: Option<Instant>,
    samples: usize,
    waited: Duration,
}

impl<B> WithProgress<B> {
    /// Shows `given` of `all` batches as already delivered.
    pub(crate) fn new(batches: B, bar: &ProgressBar, (given, all): (u64, Option<u64>)) -> Self {
        match all {
            Some(all) => bar.set_length(all),
            None => bar.unset_length(),
        }
        bar.set_position(given);
        WithProgress { batches, bar: bar.clone(), since: None, samples: 0, waited: Duration::ZERO }
    }

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

impl<B, T> std::iter::FusedIterator for WithProgress<B> where
    B: std::iter::FusedIterator<Item = Result<LoadedBatch<T>, LoadError>>
{
}

impl<B, T> Iterator for WithProgress<B>
where
    B: Iterator<Item = Result<LoadedBatch<T>, LoadError>>,
{
    type Item = Result<LoadedBatch<T>, LoadError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        let begun = Instant::now();
        self.since.get_or_insert(begun);
        let batch = self.batches.next();
        self.waited += begun.elapsed();
        match &batch {
            Some(Ok(batch)) => self.samples += batch.info.items.len(),
            Some(Err(_)) => {}
            None => {
                catch_panic(|| self.show(true));
                return None;
            }
        }
        // The bar's style may be user code. Its panic must not lose a batch.
        catch_panic(|| {
            self.bar.inc(1);
            self.show(false);
        });
        batch
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.batches.size_hint()
    }
}

impl<B> Deref for WithProgress<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.batches
    }
}

impl<B> DerefMut for WithProgress<B> {
    fn deref_mut(&mut self) -> &mut B {
        &mut self.batches
    }
}
