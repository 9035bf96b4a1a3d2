//! Outcomes of the batches that were sent.

use std::time::Duration;

use mp_core::Arena;
use mp_core::user_code::catch_panic;

use crate::error::failure::BatchFailure;
use crate::error::text::{NoSamplesLeft, without_batch_name};
use crate::loader::prefetch::{BreakState, Prefetch};
use crate::loader::source::{
    AfterSkip, BatchSlot, BatchSlotState, BatchSource, FailedSample, HISTORY, ReplyOf, skipped,
};
use crate::plan::PlanError;
use crate::settings::OnError;
use crate::worker::batch_maker::WorkerReply;
use crate::{Batch, BatchInfo, LoadError, LoadedBatch};

impl<K: BatchSource> Prefetch<K> {
    pub(crate) fn receive_reply(&mut self, ticket: usize, made: Result<ReplyOf<K>, BatchFailure>) {
        let is_it = |slot: &BatchSlot<_>| matches!(slot.state, BatchSlotState::Sent(sent) if sent == ticket);
        let Some(i) = self.slots.iter().position(is_it) else { return };
        match made {
            Ok(WorkerReply { no_memory: Some(why), worker, .. }) => self.no_memory(i, why, worker),
            Err(BatchFailure { no_memory: true, source, worker, .. }) => {
                self.no_memory(i, source.to_string(), worker);
            }
            Ok(made) => {
                self.arrived(i, made);
                self.send_out_of_memory();
            }
            Err(failure) => {
                self.failed(i, failure);
                self.send_out_of_memory();
            }
        }
    }

    /// Records the reply to a task. The reply contains the batch, unless the batch doesn't exist because its
    /// lane has ended or all of its samples were skipped.
    fn arrived(&mut self, i: usize, mut made: ReplyOf<K>) {
        let slot = &mut self.slots[i];
        let continues = self.source.record_arrival(&mut slot.contents, &mut made);
        let lane = K::lane(&slot.contents);
        match made.batch {
            Some(batch) => {
                let elapsed = Duration::from_nanos(made.nanos);
                self.inner.meter().record_batch(elapsed, Duration::from_nanos(made.began), batch.bytes());
                let mut info = BatchInfo {
                    epoch: slot.epoch,
                    number: slot.number,
                    items: Vec::new(),
                    shards: Vec::new(),
                    valid: 0,
                    skipped: std::mem::take(&mut slot.skipped),
                    worker: made.worker,
                    pid: made.pid,
                    elapsed,
                };
                K::fill_info(&mut slot.contents, &mut info);
                slot.state = BatchSlotState::Ready(Box::new(Ok(LoadedBatch::new(info, batch))));
            }
            None if slot.skipped.is_empty() => drop(self.slots.remove(i)),
            None => {
                let (epoch, number) = (slot.epoch, slot.number);
                let why = slot.skipped.iter().map(|skipped| {
                    // The skipped samples belong to this batch.
                    without_batch_name(&skipped.why, epoch, number).to_owned()
                });
                let why = NoSamplesLeft(why.collect());
                let failure = BatchFailure { worker: made.worker, ..BatchFailure::new(why) };
                // The error names the last skipped sample.
                let at = slot.skipped.last().map(|skipped| FailedSample {
                    item: skipped.item,
                    shard: skipped.shard,
                    reading: skipped.rest_of_shard,
                });
                let error = self.error(&self.slots[i], at, failure);
                self.slots[i].state = BatchSlotState::Ready(Box::new(Err(error)));
                self.skip_batch(i);
            }
        }
        self.start_next_in_lane(lane, continues);
    }

    /// Sends the next batch of a lane after the previous batch has arrived or is lost. If `continues` is
    /// `false`, the lane has ended, and its waiting batches are removed.
    fn start_next_in_lane(&mut self, lane: Option<u64>, continues: bool) {
        let is_its = |slot: &BatchSlot<K>| K::lane(&slot.contents) == lane;
        let waits = |slot: &BatchSlot<K>| matches!(slot.state, BatchSlotState::Waiting) && is_its(slot);
        if !continues {
            self.slots.retain(|slot| !waits(slot));
        } else if let Some(i) = self.slots.iter().position(waits) {
            self.send(i);
        }
    }

    /// Handles a batch for which shared memory was exhausted. The batch waits while other batches can free
    /// memory. If none can, the batch is sent once more, and fails if memory is exhausted again.
    fn no_memory(&mut self, i: usize, why: String, worker: Option<usize>) {
        self.slots[i].state = BatchSlotState::OutOfMemory;
        let first = self.slots.front().map(|slot| (slot.epoch, slot.turn));
        let can_give = |slot: &BatchSlot<_>| slot.is_done() && Some((slot.epoch, slot.turn)) == first;
        let ahead = if self.inner.settings.in_order { 1 } else { self.slots.len() };
        let can_wait =
            self.slots.iter().any(BatchSlot::is_sent) || self.slots.iter().take(ahead).any(can_give);
        if can_wait {
            return;
        }
        // Nothing is in flight, and nothing can be delivered: ready batches after the first unfinished one
        // use the memory.
        if self.slots.iter_mut().rev().any(BatchSlot::release_memory) {
            self.send_out_of_memory();
            return;
        }
        let Some(first) = self.slots.iter().position(BatchSlot::is_out_of_memory) else { return };
        if !self.slots[first].alone {
            self.slots[first].alone = true;
            self.send(first);
            return;
        }
        let failure = BatchFailure { worker, attempts: 2, ..BatchFailure::new(why + &memory_in_use()) };
        self.failed(first, failure);
    }

    pub(crate) fn failed(&mut self, i: usize, failure: BatchFailure) {
        if failure.fatal {
            self.fail_all(failure);
            return;
        }
        let settings = &self.inner.settings;
        let (on_error, threads) = (settings.on_error, settings.threads);
        let slot = &mut self.slots[i];
        slot.attempts += failure.attempts;
        let again = slot.attempts <= settings.retries as usize
            || (slot.threads > 1 && on_error == OnError::SkipSample);
        if failure.lost && threads > 1 && again {
            // One thread makes the batch again, so the note names the sample. (With a single thread, the pool
            // has retried the task.)
            slot.threads = 1;
            self.send(i);
            return;
        }
        let exact = !(failure.lost && slot.threads > 1);
        let at = failure.note.filter(|_| exact).and_then(|note| K::locate_failure(&slot.contents, note));
        let error = self.error(&self.slots[i], at, failure);
        let slot = &mut self.slots[i];
        let how = match (on_error, at) {
            (OnError::SkipSample, Some(at)) => match self.source.skip_sample(&mut slot.contents, &at) {
                AfterSkip::Impossible => OnError::Report,
                without => {
                    let text = catch_panic(|| error.to_string());
                    let why = text.unwrap_or_else(|| "an error whose text can't be made".into());
                    slot.skipped.push(skipped(&at, why));
                    (slot.attempts, slot.threads) = (0, threads);
                    if matches!(without, AfterSkip::Retry) {
                        self.send(i);
                        return;
                    }
                    OnError::SkipBatch
                }
            },
            (OnError::SkipSample, None) => OnError::Report,
            (how, _) => how,
        };
        self.source.record_loss(&mut slot.contents, at.as_ref());
        let lane = K::lane(&slot.contents);
        slot.state = BatchSlotState::Ready(Box::new(Err(error)));
        if how == OnError::SkipBatch {
            self.skip_batch(i);
        }
        self.start_next_in_lane(lane, true);
    }

    /// Returns the error that replaces a batch that can't be made. The error has no description if the
    /// dataset's `describe` panics.
    pub(crate) fn error(
        &self,
        slot: &BatchSlot<K>,
        at: Option<FailedSample>,
        failure: BatchFailure,
    ) -> LoadError {
        let attempts = slot.attempts.max(failure.attempts.min(1));
        LoadError {
            item: at.map(|at| at.item),
            shard: at.and_then(|at| at.shard),
            description: at.and_then(|at| self.described(&at)),
            worker: failure.worker,
            ..LoadError::new(slot.epoch, slot.number, attempts, failure.source)
        }
    }

    pub(crate) fn described(&self, at: &FailedSample) -> Option<String> {
        catch_panic(|| K::describe(&self.inner.dataset, at)).flatten()
    }

    /// Skips a batch that can't be made, and stores its error for `skipped_batches`.
    pub(crate) fn skip_batch(&mut self, i: usize) {
        let before = std::mem::replace(&mut self.slots[i].state, BatchSlotState::Skipped);
        let BatchSlotState::Ready(result) = before else {
            return;
        };
        let Err(error) = *result else { return };
        if self.skipped_batches.len() == HISTORY {
            self.skipped_batches.remove(0);
        }
        self.skipped_batches.push(error);
    }

    /// Returns the error that ends an iterator in the place of this slot: all batches of the previous epoch
    /// or pass were skipped.
    ///
    /// `turn` is that epoch and pass. `None` means that the shards have too few samples for a batch.
    pub(crate) fn no_batch_error(&self, slot: &BatchSlot<K>, turn: Option<(u64, u64)>) -> LoadError {
        let other_epoch = turn.map(|turn| turn.0).filter(|epoch| *epoch != slot.epoch);
        let mut reason = match (turn, other_epoch) {
            (None, _) => "the shards of this rank have not enough samples for one batch".to_owned(),
            (_, None) => "each batch of a whole pass over the shards of this rank was left out".to_owned(),
            (_, Some(epoch)) => format!("each batch of epoch {epoch} was left out"),
        };
        // Batches of the next turn may have been prefetched and skipped. Lanes may skip in another order.
        let place = |error: &&LoadError| (error.epoch, error.batch);
        let before = self.skipped_batches.iter().filter(|error| place(error) < (slot.epoch, slot.number));
        if let Some(last) = before.max_by_key(place) {
            reason += &format!("; the last one that was left out: {last}");
        }
        let failure = match other_epoch {
            Some(_) => BatchFailure::new(reason),
            None => BatchFailure::new(PlanError::Setting { setting: "steps", reason }),
        };
        self.error(slot, None, BatchFailure { attempts: 0, ..failure })
    }

    /// Ends the iterator, since no batch can be made. Ready batches before the first unfinished batch are
    /// delivered, and after them the error of the unfinished batch. That batch does not count as delivered.
    pub(crate) fn fail_all(&mut self, failure: BatchFailure) {
        self.planning_ended = true;
        if !matches!(self.break_state, BreakState::Working) {
            return;
        }
        let Some(first) = self.slots.iter().find(|slot| !slot.is_done()).or(self.slots.back()) else {
            return;
        };
        let error = self.error(first, None, failure);
        self.break_state = BreakState::Failed(Box::new(error));
    }
}

/// Returns a text about the memory that this process holds.
fn memory_in_use() -> String {
    let Ok(arena) = Arena::current() else { return String::new() };
    let pid = std::process::id();
    let stats = arena.memory_stats();
    let Some(mine) = stats.by_member.iter().find(|member| member.live && member.pid == pid) else {
        return String::new();
    };
    let (blocks, bytes) = (mine.blocks, mine.bytes);
    format!(
        " (this process holds {bytes} bytes in {blocks} blocks; batches that the trainer keeps are among \
         them)"
    )
}
