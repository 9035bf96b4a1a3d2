//! Check that a dataset makes the same batch each time.

use std::collections::VecDeque;
use std::fmt;

use mp_core::user_code::catch_panic;

use crate::dataset::context::{FIRST_FILL, SECOND_FILL};
use crate::error::failure::BatchFailure;
use crate::error::text::FORKED;
use crate::loader::shared::{LoaderShared, Workers};
use crate::loader::source::{BatchSlot, BatchSource, FailedSample, PlanStep, ReplyOf};
use crate::{Batch, Item, LoadError};

/// Bytes that fill unwritten rows in the first and in the second attempt.
pub(crate) const POISON: [u8; 2] = [FIRST_FILL, SECOND_FILL];

/// Result of [`DataLoader::verify`](crate::DataLoader::verify).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct VerifyReport {
    /// Number of batches that were made twice.
    pub batches: usize,
    /// Number of batches for which both attempts were made by the same process, because the loader has no
    /// workers. Differences between processes are not found in these batches.
    pub by_one_worker: usize,
    /// First difference of each batch that differs.
    pub differences: Vec<Difference>,
}

/// Sample that differs between two attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Number of the batch in epoch 0.
    pub batch: u64,
    /// Sample that differs.
    pub item: Item,
    /// Shard of the sample, in a stream. The item's index is its number in that shard.
    pub shard: Option<usize>,
    /// Description of the sample or its shard by the dataset.
    pub description: Option<String>,
    /// Number of the column, from 0.
    pub column: usize,
    /// Name of the column for messages: by its field, ``column `pixels` ``, or by its number, `column 2`.
    pub column_name: String,
    /// `true` if the row or a part of it was not written; `false` if two different values were written.
    pub not_written: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch {}, sample {}", self.batch, self.item.index)?;
        if let Some(shard) = self.shard {
            write!(f, " of shard {shard}")?;
        }
        if let Some(description) = &self.description {
            write!(f, " ({description})")?;
        }
        let how = if self.not_written { "is not written, or not all of it" } else { "is not the same twice" };
        write!(f, ": {} {how}", self.column_name)
    }
}

impl VerifyReport {
    /// Returns `true` if all batches were equal.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let batches = mp_core::quantity(self.batches, "batch");
        write!(f, "{batches} made twice; different: {}", self.differences.len())?;
        if self.by_one_worker > 0 {
            write!(f, "; made by one process alone, since there are no workers: {}", self.by_one_worker)?;
        }
        self.differences.iter().try_for_each(|difference| write!(f, "\n  {difference}"))
    }
}

/// Makes each of the first batches of epoch 0 several times with `make`, and compares the results. `most` is
/// the maximum number of batches.
pub(crate) fn verify<K: BatchSource>(
    inner: &LoaderShared<K>,
    mut source: K,
    most: u64,
    mut make: impl FnMut(&K, &BatchSlot<K>) -> Result<Vec<ReplyOf<K>>, BatchFailure>,
) -> Result<VerifyReport, Box<LoadError>> {
    if inner.is_forked() {
        return Err(Box::new(LoadError::new(0, 0, 1, FORKED.into())));
    }
    let threads = inner.settings.threads;
    let describe = |at: &FailedSample| catch_panic(|| K::describe(&inner.dataset, at)).flatten();
    let mut report = VerifyReport { batches: 0, by_one_worker: 0, differences: Vec::new() };
    while (report.batches as u64) < most {
        let (number, contents) = match source.plan(&VecDeque::new(), 0) {
            PlanStep::Batch { number, contents, .. } => (number, contents),
            PlanStep::Failed { number, source, .. } => {
                return Err(Box::new(LoadError::new(0, number, 1, source)));
            }
            PlanStep::Blocked | PlanStep::End | PlanStep::NoBatch { .. } => break,
        };
        let mut slot = BatchSlot::<K>::new(0, 0, number, contents, threads);
        let made =
            make(&source, &slot).and_then(|made| match made.iter().find_map(|made| made.no_memory.clone()) {
                Some(why) => Err(BatchFailure::new(why)),
                None => Ok(made),
            });
        let mut made = made.map_err(|failure| {
            let exact = !(failure.lost && threads > 1);
            let at = failure.note.filter(|_| exact);
            let at = at.and_then(|note| K::locate_failure(&slot.contents, note));
            Box::new(LoadError {
                item: at.map(|at| at.item),
                shard: at.and_then(|at| at.shard),
                description: at.as_ref().and_then(describe),
                worker: failure.worker,
                ..LoadError::new(0, number, failure.attempts, failure.source)
            })
        })?;
        let Some((first, others)) = made.split_first_mut() else { break };
        let (items, shards) = K::samples(&slot.contents, first);
        let differs = others.iter().find_map(|other| {
            // Compares the samples first, then the bytes.
            let (theirs, _) = K::samples(&slot.contents, other);
            let mut rows = 0..items.len().max(theirs.len());
            let row = rows.find(|row| items.get(*row) != theirs.get(*row)).map(|row| (row, 0, false));
            let compare = || difference(&items, first.batch.as_ref()?, other.batch.as_ref()?);
            let (row, column, not_written) = row.or_else(compare)?;
            Some((row, *items.get(row).or(theirs.get(row))?, column, not_written))
        });
        report.differences.extend(differs.map(|(row, item, column, not_written)| {
            let shard = shards.get(row).copied();
            let description = describe(&FailedSample { item, shard, reading: false });
            let column_name = first.batch.as_ref().map(|batch| name_of(batch, column)).unwrap_or_default();
            Difference { batch: number, item, shard, description, column, column_name, not_written }
        }));
        let is_there = usize::from(first.batch.is_some());
        report.batches += is_there;
        if matches!(inner.workers, Workers::InProcess(_)) {
            report.by_one_worker += is_there;
        }
        source.record_arrival(&mut slot.contents, first);
    }
    Ok(report)
}

/// Returns the name of a column.
fn name_of<B: Batch>(batch: &B, column: usize) -> String {
    let columns = batch.columns();
    let named = columns.get(column).filter(|column| column.has_name());
    named.map_or_else(|| format!("column {column}"), |column| column.named())
}

/// Returns the row and the column of the first difference, and `true` if the row was not written in that
/// column.
fn difference<B: Batch>(items: &[Item], first: &B, second: &B) -> Option<(usize, usize, bool)> {
    for row in 0..items.len() {
        let (one, other) = (first.row_bytes(row, items.len()), second.row_bytes(row, items.len()));
        let Some(column) = one.iter().zip(&other).position(|(one, other)| one != other) else { continue };
        let (one, other) = (&one[column], &other[column]);
        let mut differing = one.iter().zip(other).filter(|(one, other)| one != other);
        let same_length = one.len() == other.len();
        let not_written = same_length && differing.all(|(one, other)| [*one, *other] == POISON);
        return Some((row, column, not_written));
    }
    None
}
