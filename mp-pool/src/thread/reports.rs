//! Outcomes of the items of a chunk, from replies and from the state left by a dead worker.

use std::sync::Arc;
use std::time::Duration;

use crate::calls::chunk::Chunk;
use crate::calls::outcomes::{Run, What};
use crate::dispatch::settled::{Failed, Settled};
use crate::error::TaskError;
use crate::run::values::Many;
use crate::steps::journal::Finished;
use crate::workers::state::{Worker, next_chunk};

/// Reports outcomes of items of a chunk, some of which may have been reported before. Missing items before
/// them are lost; no correct worker skips an item.
pub(crate) fn report(
    chunk: &mut Chunk,
    item: usize,
    (count, ran): (usize, Option<Duration>),
    what: What,
    settled: &mut Settled<'_>,
) {
    let end = item.saturating_add(count).min(chunk.end);
    if item > chunk.reported && end > item {
        let missing = chunk.first + chunk.reported..chunk.first + item;
        settled.add_run(&chunk.job, Run::failed(missing, TaskError::value("the worker did not send it")));
        chunk.reported = item;
    }
    if let What::Failed(error) = what {
        if end > chunk.reported {
            let (job, index, tries) = (Arc::clone(&chunk.job), chunk.first + chunk.reported, chunk.tries);
            let kept = if job.terms.retry.times > 0 { chunk.keep(chunk.reported) } else { None };
            settled.add_failed(Failed { job, index, tries, kept, error: *error, ran });
            chunk.reported = end;
        }
    } else if end > chunk.reported {
        settled.add_run(
            &chunk.job,
            Run { first: chunk.first + chunk.reported, count: end - chunk.reported, what, ran },
        );
        chunk.reported = end;
    }
}

/// Cuts a chunk whose call was cancelled or ended with the pool, when its worker replies: at the time of the
/// cancellation, the worker had taken the chunk and not begun it.
pub(crate) fn cut_if_cancelled(worker: &mut Worker, id: u64, settled: &mut Settled<'_>) {
    let is_cancelled = |chunk: &&mut Chunk| chunk.left() > 0 && chunk.job.is_cancelled();
    let Some(job) = worker.chunk(id).filter(is_cancelled).map(|chunk| Arc::clone(&chunk.job)) else { return };
    let (rest, emptied) = worker.cut_all_of(&job, next_chunk());
    if let Some(rest) = rest {
        let fate = job.hand.fate_of_late(rest.left()).unwrap_or(TaskError::Cancelled);
        settled.add(rest, fate);
    }
    emptied.into_iter().for_each(|chunk| settled.drop_later(chunk));
}

/// Reports new results from a worker's journal, up to an item.
pub(crate) fn found_in_journal(
    chunk: &mut Chunk,
    found: &Finished,
    before: usize,
    settled: &mut Settled<'_>,
) {
    let Finished { first, ends, bytes } = found;
    let count = ends.len().min(before.saturating_sub(*first));
    if *first <= chunk.reported && first + count > chunk.reported {
        let what = What::Values(Many::found(ends, bytes), chunk.reported - first);
        report(chunk, *first, (count, None), what, settled);
    }
}

/// Takes apart a chunk of a dead worker: the running task is lost, and tasks that were not begun are
/// returned.
pub(crate) fn take_apart(
    worker: &Worker,
    mut chunk: Chunk,
    condemned: Option<(u64, usize)>,
    lost: &mut Vec<(Chunk, usize)>,
    settled: &mut Settled<'_>,
) -> Option<Chunk> {
    let word = worker.watch.word();
    let over = condemned.filter(|(id, _)| *id == chunk.id).map(|(_, item)| item);
    if word.is_of(chunk.id)
        && let Some(found) = worker.watch.finished(chunk.id)
    {
        found_in_journal(&mut chunk, &found, over.unwrap_or(usize::MAX), settled);
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
