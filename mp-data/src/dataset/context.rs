//! Context of a call of `fetch`: rows in shared memory, threads and random numbers.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use mp_core::mutex::Mutex;
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_core::user_code::catch_panic;
use mp_spawn::CaughtPanic;

use crate::batch::Fill;
use crate::batch::rows::{UnwrittenRow, UnwrittenRowError};
use crate::dataset::info::WorkerInfo;
use crate::dataset::row_threads::RowThreads;
use crate::dataset::samples::Samples;
use crate::dataset::stream_position::Moment;
use crate::plan::{RngPurpose, SampleRng, epoch_key};
use crate::{AnyResult, Batch, Item};

/// Tools with which [`Dataset::fetch`](crate::Dataset::fetch) makes a batch.
pub struct Context<B> {
    worker: WorkerInfo,
    epoch: u64,
    /// Key from which the random numbers of the samples are derived.
    key: u64,
    items: Arc<[Item]>,
    threads: usize,
    row_threads: Arc<RowThreads>,
    fill: Fill,
    /// `true` if the context searches for rows that contain only the fill byte.
    checks_unwritten: bool,
    /// Rows that contain only the fill byte, each with the item of its sample. Used for streams only.
    unwritten: Vec<(Item, UnwrittenRow)>,
    /// Note that identifies the current item in errors: the number of the item in the batch, from 1. In a
    /// stream, the note consists of a [`Moment`] and a position.
    at: AtomicU64,
    in_stream: bool,
    batch: PhantomData<fn() -> B>,
}

impl<B> fmt::Debug for Context<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(epoch {}, {} items, {} threads)", self.epoch, self.items.len(), self.threads)
    }
}

/// Byte that fills unwritten rows in builds with debug assertions.
pub(crate) const FIRST_FILL: u8 = 0xa5;
/// Byte that fills unwritten rows when a batch is made again to find them.
pub(crate) const SECOND_FILL: u8 = 0x5a;

/// Error or panic of the function that writes a row.
enum RowFailure {
    Error(Box<dyn std::error::Error + Send + Sync>),
    Panic(CaughtPanic),
}

impl<B> Context<B> {
    /// Creates a context. Rows that are not written contain the byte `poison` if it is given.
    pub(crate) fn new(
        worker: WorkerInfo,
        (seed, epoch): (u64, u64),
        items: Arc<[Item]>,
        (threads, row_threads): (usize, Arc<RowThreads>),
        poison: Option<u8>,
    ) -> Self {
        let (at, unwritten, in_stream) = (AtomicU64::new(0), Vec::new(), false);
        let batch = PhantomData;
        // `verify` chooses the fill byte, and compares batches instead of searching for it.
        let checks_unwritten = cfg!(debug_assertions) && poison.is_none();
        let fill =
            poison.or(cfg!(debug_assertions).then_some(FIRST_FILL)).map_or(Fill::Unchanged, Fill::Byte);
        Context {
            worker,
            epoch,
            key: epoch_key(seed, epoch, RngPurpose::Sample),
            items,
            threads,
            row_threads,
            fill,
            checks_unwritten,
            unwritten,
            at,
            in_stream,
            batch,
        }
    }

    /// Enables the search for unwritten rows.
    pub(crate) fn check_unwritten(self) -> Self {
        Context { checks_unwritten: true, ..self }
    }

    /// Returns the rows of a stream's batch that contain only the fill byte.
    pub(crate) fn unwritten(&self) -> &[(Item, UnwrittenRow)] {
        &self.unwritten
    }

    /// Marks the context as the context of a stream. The items of a stream are unknown until they have been
    /// read.
    pub(crate) fn for_stream(self) -> Self {
        Context { in_stream: true, ..self }
    }

    /// Returns the items of the batch. In a stream, returns the items that were read so far.
    pub(crate) fn items(&self) -> Arc<[Item]> {
        Arc::clone(&self.items)
    }

    /// Calls `make`, which makes a batch of a dataset inside another dataset. The batch has the items `inner`
    /// of the inner dataset, which are the items `items` of the outer dataset. Errors name the outer items.
    pub(crate) fn with_items<R>(
        &mut self,
        items: &[Item],
        inner: &Arc<[Item]>,
        make: impl FnOnce(&mut Self) -> R,
    ) -> R {
        // If `items` is only a part of the batch, numbers in `inner` are not numbers in the batch. So
        // `self.items` stays, and an item whose index differs from the outer index gets the note 0.
        if *self.items != *items {
            return make(self);
        }
        let items = std::mem::replace(&mut self.items, Arc::clone(inner));
        let made = make(self);
        self.items = items;
        made
    }

    pub(crate) fn set_items(&mut self, items: &[Item]) {
        self.items = items.into();
    }

    /// Records the activity and the position of this worker in a stream, for errors.
    pub(crate) fn note_moment(&self, moment: Moment, position: u64) {
        self.note(moment.note(position));
    }

    /// Returns the note (number for errors) of the current item, or of the item that failed. Returns 0 if the
    /// item is unknown.
    pub(crate) fn last_note(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Returns the worker that runs this code.
    #[must_use]
    pub fn worker(&self) -> &WorkerInfo {
        &self.worker
    }

    /// Returns the epoch of the batch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the random number generator of an item. It depends only on seed, epoch and position, so it is
    /// the same in each worker.
    #[must_use]
    pub fn rng(&self, item: Item) -> SampleRng {
        SampleRng::at(self.key, item.position)
    }

    /// Records the item that `fetch` makes next, so that errors name it. [`rows`](Self::rows) and
    /// [`map`](Self::map) call this for each item.
    pub fn begin(&self, item: Item) {
        self.note(self.note_of(usize::MAX, item));
    }

    /// Fills rows with zeros, so that `fetch` may leave them unwritten. Without this call, unwritten rows
    /// have arbitrary contents. In builds with debug assertions, rows are filled with the byte 0xa5. In such
    /// builds, a tensor's row that is not written at all is an error, which names the sample and the column.
    ///
    /// A written row may also contain only 0xa5. So the sample of such a row is made again in memory that is
    /// filled with 0x5a. The row counts as unwritten if it contains only 0x5a afterwards. This check never
    /// fails for a written row of a reproducible sample. In a stream, the whole batch is made again, by
    /// readers that are opened where the batch begins. [`DataLoader::verify`] finds rows that are written in
    /// part.
    ///
    /// [`DataLoader::verify`]: crate::DataLoader::verify
    pub fn zeroed(&mut self) -> &mut Self {
        (self.fill, self.checks_unwritten) = (Fill::Byte(0), false);
        self
    }

    fn note(&self, note: u64) {
        self.at.store(note, Ordering::Relaxed);
        mp_pool::note(note);
    }

    /// Returns the note (number for errors) of an item: its number in the task, from 1, or its position in a
    /// stream. Returns 0 for an unknown item. The search for the item begins at index `n`.
    fn note_of(&self, n: usize, item: Item) -> u64 {
        if self.in_stream {
            return Moment::Row.note(item.position);
        }
        if self.items.get(n) == Some(&item) {
            return n as u64 + 1;
        }
        self.items.iter().position(|one| *one == item).map_or(0, |n| n as u64 + 1)
    }

    /// Calls a function for each sample of a stream, as [`map`](Self::map) does for items.
    ///
    /// # Errors
    /// The error of the first sample that fails.
    pub fn map_from<S, T, F>(&mut self, samples: Samples<S>, function: F) -> AnyResult<Vec<T>>
    where
        S: Send,
        T: Send,
        F: Fn(S, &mut SampleRng) -> AnyResult<T> + Sync,
    {
        let Samples { items, samples } = samples;
        let mut results: Vec<Option<T>> = items.iter().map(|_| None).collect();
        self.each(&items, samples.into_iter().zip(&mut results).collect(), |_, rng, (sample, slot)| {
            *slot = Some(function(sample, rng)?);
            Ok(())
        })?;
        Ok(results.into_iter().flatten().collect())
    }

    /// Calls a function for each item, and returns the results in the order of the items. If the loader has
    /// several [threads for each worker](crate::DataLoaderBuilder::threads_per_worker), these call the
    /// function concurrently.
    ///
    /// # Errors
    /// The error of the first item that fails.
    pub fn map<T, F>(&mut self, items: &[Item], function: F) -> AnyResult<Vec<T>>
    where
        T: Send,
        F: Fn(Item, &mut SampleRng) -> AnyResult<T> + Sync,
    {
        self.map_from(Samples { items: items.to_vec(), samples: items.to_vec() }, function)
    }

    fn each<R, F>(&self, items: &[Item], rows: Vec<R>, function: F) -> AnyResult<()>
    where
        R: Send,
        F: Fn(Item, &mut SampleRng, R) -> AnyResult<()> + Sync,
    {
        let work = items.iter().copied().zip(rows).enumerate();
        if self.threads <= 1 || items.len() <= 1 {
            for (n, (item, row)) in work {
                self.note(self.note_of(n, item));
                function(item, &mut self.rng(item), row)?;
            }
            self.note(0);
            return Ok(());
        }
        let (work, failed) = (Mutex::new(work), Mutex::new(None::<(usize, u64, RowFailure)>));
        let next = || {
            if failed.lock().is_some() {
                return None;
            }
            work.lock().next()
        };
        let thread = || {
            while let Some((n, (item, row))) = next() {
                let note = self.note_of(n, item);
                self.note(note);
                let how = match CaughtPanic::catch(|| function(item, &mut self.rng(item), row)) {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => RowFailure::Error(error),
                    Err(panic) => RowFailure::Panic(panic),
                };
                // Threads take rows in order, so the first failing row was taken before any row had failed.
                let mut failed = failed.lock();
                let is_first = failed.as_ref().is_none_or(|(before, ..)| n < *before);
                if is_first {
                    *failed = Some((n, note, how));
                }
            }
        };
        self.row_threads.run(self.threads.min(items.len()) - 1, &thread);
        let failed = failed.lock().take();
        let (note, how) = failed.map_or((0, None), |(_, note, how)| (note, Some(how)));
        self.note(note);
        match how {
            None => Ok(()),
            Some(RowFailure::Error(error)) => Err(error),
            // The thread of the row has already recorded the panic's location.
            Some(RowFailure::Panic(panic)) => panic.resume(),
        }
    }
}

impl<B: Batch> Context<B> {
    /// Makes a batch with a row for each item, which the function writes. A tensor's row is `&mut [T]` in the
    /// shared memory that the training process receives. With
    /// [`threads_per_worker`](crate::DataLoaderBuilder::threads_per_worker) several rows are written at once.
    ///
    /// `shapes` has the shape of a row for each tensor, and `()` for each other column: `(&[3, 224, 224],
    /// &[], ())`.
    ///
    /// [`zeroed`](Self::zeroed) describes unwritten rows.
    ///
    /// # Errors
    /// The error of the first item that fails, or shared memory is exhausted. In builds with debug
    /// assertions, also if a row of a tensor was not written.
    ///
    /// # Panics
    /// If the function panics, with the panic of the first item.
    #[doc(alias = "default_collate")]
    pub fn rows<F>(&mut self, items: &[Item], shapes: B::Shapes<'_>, function: F) -> AnyResult<B>
    where
        F: for<'r> Fn(Item, &mut SampleRng, B::Row<'r>) -> AnyResult<()> + Sync,
    {
        let mut builder = B::begin(items.len(), shapes, self.fill)?;
        self.each(items, B::rows(&mut builder)?, &function)?;
        for row in self.unwritten_rows(&mut builder)? {
            let item = items[row.row];
            self.begin(item);
            if self.is_unwritten_again(item, &row.column, shapes, &function) {
                return Err(UnwrittenRowError::from(row).into());
            }
            self.note(0);
        }
        self.finish(items, builder)
    }

    /// Returns the rows that contain only the fill byte, if the search is enabled.
    fn unwritten_rows(&self, builder: &mut B::Builder) -> AnyResult<Vec<UnwrittenRow>> {
        match self.fill {
            Fill::Byte(byte) if self.checks_unwritten => B::unwritten(builder, byte),
            _ => Ok(Vec::new()),
        }
    }

    /// Makes a row again, in memory with another fill byte. Returns `true` if the row contains only the new
    /// byte. Returns `false` if it contains other bytes or can't be made.
    fn is_unwritten_again<F>(&self, item: Item, column: &str, shapes: B::Shapes<'_>, function: &F) -> bool
    where
        F: for<'r> Fn(Item, &mut SampleRng, B::Row<'r>) -> AnyResult<()>,
    {
        let again = || -> AnyResult<bool> {
            let mut one = B::begin(1, shapes, Fill::Byte(SECOND_FILL))?;
            for row in B::rows(&mut one)? {
                function(item, &mut self.rng(item), row)?;
            }
            Ok(B::unwritten(&mut one, SECOND_FILL)?.iter().any(|row| row.column == column))
        };
        matches!(catch_panic(again), Some(Ok(true)))
    }

    /// Returns the finished batch. If a row is missing, the error names the sample of the row.
    fn finish(&self, items: &[Item], builder: B::Builder) -> AnyResult<B> {
        B::finish(builder).inspect_err(|why| {
            let row = why.downcast_ref::<UnwrittenRowError>().map(|not_written| not_written.row);
            if let Some((row, item)) = row.and_then(|row| Some((row, *items.get(row)?))) {
                self.note(self.note_of(row, item));
            }
        })
    }

    /// Makes a batch of a stream's samples, as [`rows`](Self::rows) does for items: each sample is passed to
    /// the function that writes its row.
    ///
    /// # Errors
    /// The error of the first sample that fails, or shared memory is exhausted. In builds with debug
    /// assertions, also if a row of a tensor was not written.
    ///
    /// # Panics
    /// If the function panics, with the panic of the first sample.
    pub fn rows_from<S, F>(&mut self, samples: Samples<S>, shapes: B::Shapes<'_>, function: F) -> AnyResult<B>
    where
        S: Send,
        F: for<'r> Fn(S, &mut SampleRng, B::Row<'r>) -> AnyResult<()> + Sync,
    {
        let Samples { items, samples } = samples;
        let mut builder = B::begin(items.len(), shapes, self.fill)?;
        let rows = samples.into_iter().zip(B::rows(&mut builder)?).collect();
        self.each(&items, rows, |_, rng, (sample, row)| function(sample, rng, row))?;
        // The samples were moved into the function, so the worker makes the whole batch again.
        let seen = self.unwritten_rows(&mut builder)?;
        self.unwritten.extend(seen.into_iter().map(|row| (items[row.row], row)));
        self.finish(&items, builder)
    }
}
