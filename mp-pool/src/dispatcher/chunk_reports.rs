//! Outcomes of the items of a chunk, from replies and from the state left by a dead worker.

use std::sync::Arc;
use std::time::Duration;

use crate::dispatcher::settlements::{FailedTask, Settlements};
use crate::error::TaskError;
use crate::steps::journal::JournalResults;
use crate::tasks::chunk::{Chunk, next_chunk};
use crate::tasks::outcome_run::{OutcomeData, OutcomeRun};
use crate::worker::values::ReceivedValues;
use crate::workers::worker::Worker;

/// Reports outcomes of items of a chunk, some of which may have been reported before. Missing items before
/// them are lost; no correct worker skips an item.
pub(crate) fn report_items(
    chunk: &mut Chunk,
    item: usize,
    (count, run_time): (usize, Option<Duration>),
    data: OutcomeData,
    settled: &mut Settlements<'_>,
) {
    let end = item.saturating_add(count).min(chunk.end);
    if item > chunk.reported && end > item {
        let missing = chunk.first + chunk.reported..chunk.first + item;
        settled
            .add_run(&chunk.job, OutcomeRun::failed(missing, TaskError::value("the worker did not send it")));
        chunk.reported = item;
    }
    if let OutcomeData::Failed(error) = data {
        if end > chunk.reported {
            let (job, index, tries) = (Arc::clone(&chunk.job), chunk.first + chunk.reported, chunk.tries);
            let saved = if job.options.retry.times > 0 { chunk.take_saved(chunk.reported) } else { None };
            settled.add_failed(FailedTask { job, index, tries, saved, error: *error, run_time });
            chunk.reported = end;
        }
    } else if end > chunk.reported {
        settled.add_run(
            &chunk.job,
            OutcomeRun { first: chunk.first + chunk.reported, count: end - chunk.reported, data, run_time },
        );
        chunk.reported = end;
    }
}

/// Cuts a chunk whose call was cancelled or ended with the pool, when its worker replies: at the time of the
/// cancellation, the worker had taken the chunk and not begun it.
pub(crate) fn cut_if_cancelled(worker: &mut Worker, id: u64, settled: &mut Settlements<'_>) {
    let is_cancelled = |chunk: &&mut Chunk| chunk.remaining() > 0 && chunk.job.is_cancelled();
    let Some(job) = worker.chunk(id).filter(is_cancelled).map(|chunk| Arc::clone(&chunk.job)) else { return };
    let (rest, emptied_chunks) = worker.cut_all_of(&job, next_chunk());
    if let Some(rest) = rest {
        let final_error = job.transit.error_of_returned(rest.remaining()).unwrap_or(TaskError::Cancelled);
        settled.add(rest, final_error);
    }
    emptied_chunks.into_iter().for_each(|chunk| settled.drop_later(chunk));
}

/// Reports new results from a worker's journal, up to an item.
pub(crate) fn report_journal(
    chunk: &mut Chunk,
    found: &JournalResults,
    before: usize,
    settled: &mut Settlements<'_>,
) {
    let JournalResults { first, ends, bytes } = found;
    let count = ends.len().min(before.saturating_sub(*first));
    if *first <= chunk.reported && first + count > chunk.reported {
        let data = OutcomeData::Values(ReceivedValues::from_journal(ends, bytes), chunk.reported - first);
        report_items(chunk, *first, (count, None), data, settled);
    }
}

/// Takes apart a chunk of a dead worker: the running task is lost, and tasks that were not begun are
/// returned.
pub(crate) fn take_apart(
    worker: &Worker,
    mut chunk: Chunk,
    condemned: Option<(u64, usize)>,
    lost: &mut Vec<(Chunk, usize)>,
    settled: &mut Settlements<'_>,
) -> Option<Chunk> {
    let word = worker.shared_words.word();
    let over = condemned.filter(|(id, _)| *id == chunk.id).map(|(_, item)| item);
    if word.is_of(chunk.id)
        && let Some(found) = worker.shared_words.journal_results(chunk.id)
    {
        report_journal(&mut chunk, &found, over.unwrap_or(usize::MAX), settled);
    }
    let claimed = word.claimed_before_death(chunk.id, over, chunk.reported, chunk.end);
    let rest = chunk.split_off(claimed, next_chunk());
    let from = chunk.reported;
    for item in (from + 1..claimed).rev() {
        if let Some(one) = chunk.split_off(item, next_chunk()) {
            lost.push((one, 0));
        }
    }
    if from < claimed {
        lost.push((chunk, from));
    } else {
        settled.drop_later(chunk);
    }
    rest
}
