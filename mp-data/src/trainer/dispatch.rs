//! Planning and sending of batches.

use crate::error::failure::Failure;
use crate::settings::OnError;
use crate::trainer::kind::{At, Kind, Planned, Slot};
use crate::trainer::prefetch::Prefetch;

impl<K: Kind> Prefetch<K> {
    /// Plans and sends as many batches as may be on their way.
    pub(crate) fn fill(&mut self) {
        let threads = self.inner.settings.threads;
        while !self.over && self.has_room() {
            match K::plan(&self.inner.plan, &mut self.cursor, &self.slots, self.last) {
                Planned::Batch { epoch, turn, number, part, waits } => {
                    let mut slot = Slot::new(epoch, turn, number, part, threads);
                    if waits {
                        slot.at = At::Waits;
                    }
                    self.slots.push_back(slot);
                    if !waits {
                        self.send(self.slots.len() - 1);
                    }
                }
                Planned::NotYet => return,
                Planned::Over => self.over = true,
                Planned::NoBatch { epoch, number, part } => {
                    self.over = true;
                    let mut slot = Slot::new(epoch, 0, number, part, threads);
                    let error = self.nothing_delivered(&slot, None);
                    slot.at = At::Ready(Box::new(Err(error)));
                    self.slots.push_back(slot);
                }
                Planned::Broken { epoch, number, part, source, goes_on } => {
                    self.over |= !goes_on;
                    let mut slot = Slot::new(epoch, 0, number, part, threads);
                    let failure = Failure { attempts: 0, ..Failure::of(source) };
                    let error = self.error(&slot, None, failure);
                    slot.at = At::Ready(Box::new(Err(error)));
                    self.slots.push_back(slot);
                    if self.inner.settings.on_error == OnError::SkipBatch {
                        self.leave_out(self.slots.len() - 1);
                    }
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        let settings = &self.inner.settings;
        let under_way = self.slots.len();
        let Some(first) = self.slots.front() else { return true };
        let of_a_worker = settings.prefetch.unwrap_or_else(|| self.inner.meter().prefetch());
        if under_way >= settings.num_workers.saturating_mul(of_a_worker)
            || self.slots.iter().any(Slot::is_held)
        {
            return false;
        }
        if !settings.in_order && K::is_far(&self.cursor, first) {
            return false;
        }
        let Some(budget) = settings.budget else { return true };
        // Before the first is there, nothing is known of their size.
        let most = self.inner.meter().most_bytes;
        most.is_some_and(|most| most.saturating_mul(under_way + 1) <= budget)
    }

    pub(crate) fn send_held(&mut self) {
        if let Some(i) = self.slots.iter().position(Slot::is_held) {
            self.send(i);
        }
    }

    pub(crate) fn send(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        let Some(stream) = &self.stream else {
            slot.at = At::Sent(0);
            return;
        };
        let task = K::task(&self.cursor, slot);
        let pushed = match K::lane(&slot.part) {
            Some(lane) => stream.push_to(lane, task),
            None => stream.push(task),
        };
        match pushed {
            Ok(ticket) => slot.at = At::Sent(ticket.number()),
            Err(error) => self.breaks(Failure::fatal(error.to_string())),
        }
    }
}
