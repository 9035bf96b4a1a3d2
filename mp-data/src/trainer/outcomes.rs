//! Outcomes of the batches that were sent.

use std::time::Duration;

use mp_core::Arena;
use mp_core::user_code::catch_panic;

use crate::error::failure::Failure;
use crate::error::text::{NoneLeft, without_its_batch};
use crate::plan::PlanError;
use crate::settings::OnError;
use crate::trainer::kind::{At, Failed, HISTORY, Kind, MadeOf, Slot, Without, skipped};
use crate::trainer::prefetch::{Broken, Prefetch};
use crate::worker::Made;
use crate::{Batch, BatchInfo, LoadError, Loaded};

impl<K: Kind> Prefetch<K> {
    pub(crate) fn came(&mut self, ticket: usize, made: Result<MadeOf<K>, Failure>) {
        let is_it = |slot: &Slot<_>| matches!(slot.at, At::Sent(sent) if sent == ticket);
        let Some(i) = self.slots.iter().position(is_it) else { return };
        match made {
            Ok(Made { no_memory: Some(why), worker, .. }) => self.no_memory(i, why, worker),
            Err(Failure { no_memory: true, source, worker, .. }) => {
                self.no_memory(i, source.to_string(), worker);
            }
            Ok(made) => {
                self.arrived(i, made);
                self.send_held();
            }
            Err(failure) => {
                self.failed(i, failure);
                self.send_held();
            }
        }
    }

    /// A batch was made, or it turned out that there is none.
    fn arrived(&mut self, i: usize, mut made: MadeOf<K>) {
        let slot = &mut self.slots[i];
        let goes_on = K::arrived(&mut self.cursor, &mut slot.part, &mut made);
        let lane = K::lane(&slot.part);
        match made.batch {
            Some(batch) => {
                let took = Duration::from_nanos(made.nanos);
                self.inner.meter().made(took, Duration::from_nanos(made.began), batch.bytes());
                let mut info = BatchInfo {
                    epoch: slot.epoch,
                    number: slot.number,
                    items: Vec::new(),
                    shards: Vec::new(),
                    valid: 0,
                    skipped: std::mem::take(&mut slot.skipped),
                    worker: made.worker,
                    pid: made.pid,
                    took,
                };
                K::fill_in(&mut slot.part, &mut info);
                slot.at = At::Ready(Box::new(Ok(Loaded::new(info, batch))));
            }
            None if slot.skipped.is_empty() => drop(self.slots.remove(i)),
            None => {
                let (epoch, number) = (slot.epoch, slot.number);
                let why = slot.skipped.iter().map(|skipped| {
                    // Their batch is this one.
                    without_its_batch(&skipped.why, epoch, number).to_owned()
                });
                let why = NoneLeft(why.collect());
                let failure = Failure { worker: made.worker, ..Failure::of(why) };
                // At the last one that it lacks: without that it would have had some.
                let at = slot.skipped.last().map(|skipped| Failed {
                    item: skipped.item,
                    shard: skipped.shard,
                    reading: skipped.rest_of_shard,
                });
                let error = self.error(&self.slots[i], at, failure);
                self.slots[i].at = At::Ready(Box::new(Err(error)));
                self.leave_out(i);
            }
        }
        self.follow(lane, goes_on);
    }

    /// A batch of this lane is there, or will never be: the next one begins, unless it was the last.
    fn follow(&mut self, lane: Option<u64>, goes_on: bool) {
        let waits = |slot: &Slot<K>| matches!(slot.at, At::Waits) && K::lane(&slot.part) == lane;
        if !goes_on {
            self.slots.retain(|slot| !waits(slot));
        } else if let Some(i) = self.slots.iter().position(waits) {
            self.send(i);
        }
    }

    /// There was no memory for a batch: it waits for what others have, if there are others.
    fn no_memory(&mut self, i: usize, why: String, worker: Option<usize>) {
        self.slots[i].at = At::Held;
        let first = self.slots.front().map(|slot| (slot.epoch, slot.turn));
        let can_give = |slot: &Slot<_>| slot.is_done() && Some((slot.epoch, slot.turn)) == first;
        let ahead = if self.inner.settings.in_order { 1 } else { self.slots.len() };
        let can_wait = self.slots.iter().any(Slot::is_sent) || self.slots.iter().take(ahead).any(can_give);
        if can_wait {
            return;
        }
        // Nothing is on its way, and nothing can be given: what is ready behind the first one that is not has
        // the memory.
        if self.slots.iter_mut().rev().any(Slot::give_up) {
            self.send_held();
            return;
        }
        let Some(first) = self.slots.iter().position(Slot::is_held) else { return };
        if !self.slots[first].alone {
            self.slots[first].alone = true;
            self.send(first);
            return;
        }
        let failure = Failure { worker, attempts: 2, ..Failure::of(why + &held_here()) };
        self.failed(first, failure);
    }

    pub(crate) fn failed(&mut self, i: usize, failure: Failure) {
        if failure.fatal {
            self.breaks(failure);
            return;
        }
        let settings = &self.inner.settings;
        let (on_error, threads) = (settings.on_error, settings.threads);
        let slot = &mut self.slots[i];
        slot.attempts += failure.attempts;
        let again = slot.attempts <= settings.retries as usize
            || (slot.threads > 1 && on_error == OnError::SkipSample);
        if failure.lost && threads > 1 && again {
            // By one thread, so that the sample is known. (Where there is only one, the pool has tried
            // again.)
            slot.threads = 1;
            self.send(i);
            return;
        }
        let exact = !(failure.lost && slot.threads > 1);
        let at = failure.note.filter(|_| exact).and_then(|note| K::failed(&slot.part, note));
        let error = self.error(&self.slots[i], at, failure);
        let slot = &mut self.slots[i];
        let how = match (on_error, at) {
            (OnError::SkipSample, Some(at)) => {
                match K::without(&self.inner.plan, &mut self.cursor, &mut slot.part, &at) {
                    Without::Impossible => OnError::Report,
                    without => {
                        let text = catch_panic(|| error.to_string());
                        let why = text.unwrap_or_else(|| "an error whose text can't be made".into());
                        slot.skipped.push(skipped(&at, why));
                        (slot.attempts, slot.threads) = (0, threads);
                        if matches!(without, Without::Again) {
                            self.send(i);
                            return;
                        }
                        OnError::SkipBatch
                    }
                }
            }
            (OnError::SkipSample, None) => OnError::Report,
            (how, _) => how,
        };
        K::lost(&self.inner.plan, &mut self.cursor, &mut slot.part, at.as_ref());
        let lane = K::lane(&slot.part);
        slot.at = At::Ready(Box::new(Err(error)));
        if how == OnError::SkipBatch {
            self.leave_out(i);
        }
        self.follow(lane, true);
    }

    /// Returns the error in the place of a batch that can't be made. A panic of `describe` costs the name and
    /// nothing else.
    pub(crate) fn error(&self, slot: &Slot<K>, at: Option<Failed>, failure: Failure) -> LoadError {
        LoadError {
            epoch: slot.epoch,
            batch: slot.number,
            item: at.map(|at| at.item),
            shard: at.and_then(|at| at.shard),
            what: at.and_then(|at| self.described(&at)),
            worker: failure.worker,
            attempts: slot.attempts.max(failure.attempts.min(1)),
            source: failure.source,
        }
    }

    pub(crate) fn described(&self, at: &Failed) -> Option<String> {
        catch_panic(|| K::describe(&self.inner.dataset, at)).flatten()
    }

    /// Leaves out the error in the place of a batch.
    pub(crate) fn leave_out(&mut self, i: usize) {
        let At::Ready(result) = std::mem::replace(&mut self.slots[i].at, At::LeftOut) else { return };
        let Err(error) = *result else { return };
        if self.left_out.len() == HISTORY {
            self.left_out.remove(0);
        }
        self.left_out.push(error);
    }

    /// Error in the place of this slot, because the turn before it delivered no batch.
    ///
    /// That turn, an epoch and a pass of it, is `None` if it had no batch that could have been left out.
    pub(crate) fn nothing_delivered(&self, slot: &Slot<K>, turn: Option<(u64, u64)>) -> LoadError {
        let other_epoch = turn.map(|turn| turn.0).filter(|epoch| *epoch != slot.epoch);
        let mut reason = match (turn, other_epoch) {
            (None, _) => "the shards of this rank have not enough samples for one batch".to_owned(),
            (_, None) => "each batch of a whole pass over the shards of this rank was left out".to_owned(),
            (_, Some(epoch)) => format!("each batch of epoch {epoch} was left out"),
        };
        // Batches of the next turn may have been made in advance, and left out.
        let is_before = |error: &&LoadError| (error.epoch, error.batch) < (slot.epoch, slot.number);
        if let Some(last) = self.left_out.iter().rev().find(is_before) {
            reason += &format!("; the last one that was left out: {last}");
        }
        let failure = match other_epoch {
            Some(_) => Failure::of(reason),
            None => Failure::of(PlanError::Setting { setting: "steps", reason }),
        };
        self.error(slot, None, Failure { attempts: 0, ..failure })
    }

    /// No batch will be made any more. What is ready before the first one that is not is given, then the
    /// error of that one. It does not count as given.
    pub(crate) fn breaks(&mut self, failure: Failure) {
        self.over = true;
        if !matches!(self.broken, Broken::Not) {
            return;
        }
        let Some(first) = self.slots.iter().find(|slot| slot.is_open()).or(self.slots.back()) else { return };
        let error = self.error(first, None, failure);
        self.broken = Broken::Because(Box::new(error));
    }
}

/// Returns a text about the memory that this process holds.
fn held_here() -> String {
    let Ok(arena) = Arena::current() else { return String::new() };
    let pid = std::process::id();
    let stats = arena.memory_stats();
    let Some(mine) = stats.by_member.iter().find(|member| member.live && member.pid == pid) else {
        return String::new();
    };
    let (blocks, bytes) = (mine.blocks, mine.bytes);
    format!(
        " (this process holds {bytes} bytes in {blocks} blocks; batches that the trainer keeps are among them)"
    )
}
