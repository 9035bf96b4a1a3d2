//! Planning and sending of batches.

use crate::error::failure::BatchFailure;
use crate::loader::prefetch::Prefetch;
use crate::loader::source::{BatchSlot, BatchSlotState, BatchSource, PlanStep};
use crate::settings::OnError;

impl<K: BatchSource> Prefetch<K> {
    /// Plans and sends as many batches as may be in flight.
    pub(crate) fn fill(&mut self) {
        let threads = self.inner.settings.threads;
        while !self.planning_ended && self.has_room() {
            match K::plan(&self.inner.plan, &mut self.cursor, &self.slots, self.last) {
                PlanStep::Batch { epoch, turn, number, contents, waits } => {
                    let mut slot = BatchSlot::new(epoch, turn, number, contents, threads);
                    if waits {
                        slot.state = BatchSlotState::Waiting;
                    }
                    self.slots.push_back(slot);
                    if !waits {
                        self.send(self.slots.len() - 1);
                    }
                }
                PlanStep::Blocked => return,
                PlanStep::End => self.planning_ended = true,
                PlanStep::NoBatch { epoch, number, contents } => {
                    self.planning_ended = true;
                    let mut slot = BatchSlot::new(epoch, 0, number, contents, threads);
                    let error = self.no_batch_error(&slot, None);
                    slot.state = BatchSlotState::Ready(Box::new(Err(error)));
                    self.slots.push_back(slot);
                }
                PlanStep::Failed { epoch, number, contents, source, continues } => {
                    self.planning_ended |= !continues;
                    let mut slot = BatchSlot::new(epoch, 0, number, contents, threads);
                    let failure = BatchFailure { attempts: 0, ..BatchFailure::new(source) };
                    let error = self.error(&slot, None, failure);
                    slot.state = BatchSlotState::Ready(Box::new(Err(error)));
                    self.slots.push_back(slot);
                    if self.inner.settings.on_error == OnError::SkipBatch {
                        self.skip_batch(self.slots.len() - 1);
                    }
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        let settings = &self.inner.settings;
        let in_flight = self.slots.len();
        let Some(first) = self.slots.front() else { return true };
        let of_a_worker = settings.prefetch.unwrap_or_else(|| self.inner.meter().prefetch());
        if in_flight >= settings.num_workers.saturating_mul(of_a_worker)
            || self.slots.iter().any(BatchSlot::is_out_of_memory)
        {
            return false;
        }
        if !settings.in_order && K::is_too_far_ahead(&self.cursor, first) {
            return false;
        }
        let Some(budget) = settings.budget else { return true };
        // The size of batches is unknown before the first one has arrived.
        let most = self.inner.meter().most_bytes;
        most.is_some_and(|most| most.saturating_mul(in_flight + 1) <= budget)
    }

    pub(crate) fn send_out_of_memory(&mut self) {
        if let Some(i) = self.slots.iter().position(BatchSlot::is_out_of_memory) {
            self.send(i);
        }
    }

    pub(crate) fn send(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        let Some(stream) = &self.stream else {
            slot.state = BatchSlotState::Sent(0);
            return;
        };
        let task = K::task(&self.cursor, slot);
        let pushed = match K::lane(&slot.contents) {
            Some(lane) => stream.push_to(lane, task),
            None => stream.push(task),
        };
        match pushed {
            Ok(ticket) => slot.state = BatchSlotState::Sent(ticket.number()),
            Err(error) => self.fail_all(BatchFailure::fatal(error.to_string())),
        }
    }
}
