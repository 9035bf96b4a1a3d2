//! Calls that are sent again after a reconnect.
//!
//! A frame of HTTP/2 can be read only when all of it has arrived. If all calls were sent at once, a
//! connection that always breaks before their last byte would transfer none of them. So the first group is
//! one call, and each further group has twice as many. A call without an effect (a probe) follows each group
//! but the last. Its reply confirms that the home has read the group, whose own calls may wait for long.
//!
//! Calls that the home has not read are sent first, so each connection makes progress. Calls that give
//! messages back are sent before other calls of the same group, although their numbers are higher: a later
//! flush must not overtake them.

use std::collections::{BTreeMap, VecDeque};

use crate::link::PendingCall;

/// Calls to send again in one stream.
#[derive(Default)]
pub(super) struct ResendQueue {
    waiting: VecDeque<u64>,
    /// Calls of the last group that was sent.
    group: Vec<u64>,
    /// Maximum number of calls of the next group.
    size: usize,
    /// Probe that follows the last group, until its reply arrives.
    probe: Option<u64>,
    /// Number of groups that the home has read.
    groups: u64,
}

impl ResendQueue {
    /// Begins a new stream with a group of one call. Removes the probe of the former stream.
    pub(super) fn start(&mut self, pending: &mut BTreeMap<u64, Box<PendingCall>>) {
        if let Some(probe) = self.probe.take() {
            pending.remove(&probe);
        }
        let sent = pending.values().filter(|pending| pending.sent);
        let mut calls: Vec<_> = sent.map(|call| (call.group, call.gives_back.is_none(), call.id)).collect();
        calls.sort_unstable();
        self.waiting = calls.into_iter().map(|(_, _, id)| id).collect();
        (self.group, self.size) = (Vec::new(), 1);
    }

    /// Returns the calls of the next group. Returns no calls while the probe after the last group is
    /// unanswered.
    pub(super) fn next_group(&mut self, pending: &BTreeMap<u64, Box<PendingCall>>) -> &[u64] {
        if self.probe.is_some() {
            return &[];
        }
        // The replies to some of these calls may have arrived meanwhile.
        self.waiting.retain(|id| pending.contains_key(id));
        self.group = self.waiting.drain(..self.size.min(self.waiting.len())).collect();
        &self.group
    }

    /// Puts all remaining calls into the next group. That group is sent without waiting for the last group's
    /// probe.
    pub(super) fn skip_probes(&mut self) {
        (self.probe, self.size) = (None, usize::MAX);
    }

    /// Returns `true` if another group follows.
    pub(super) fn has_more(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Records the probe that follows the last group.
    pub(super) fn set_probe(&mut self, id: u64) {
        self.probe = Some(id);
    }

    /// Records a reply. If it is the reply to the probe, the home has read the last group, and the next group
    /// can be sent.
    pub(super) fn replied(&mut self, id: u64, pending: &mut BTreeMap<u64, Box<PendingCall>>) {
        if self.probe != Some(id) {
            return;
        }
        (self.probe, self.groups, self.size) = (None, self.groups + 1, self.size.saturating_mul(2));
        for id in self.group.drain(..) {
            if let Some(pending) = pending.get_mut(&id) {
                pending.group = self.groups;
            }
        }
    }

    /// Returns `true` while the queue has calls that the home has not read. New calls must not overtake these
    /// calls.
    pub(super) fn delays_new_calls(&self, pending: &BTreeMap<u64, Box<PendingCall>>) -> bool {
        let first = self.waiting.iter().find_map(|id| pending.get(id));
        first.is_some_and(|first| first.group == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::CallValues;
    use crate::wire::messages::RemoteCall;

    fn sent(id: u64) -> (u64, Box<PendingCall>) {
        let call = RemoteCall { id, ..RemoteCall::default() };
        let mut pending = PendingCall::new(call, CallValues::None, None);
        pending.sent = true;
        (id, Box::new(pending))
    }

    #[test]
    fn resend_groups_double_and_unread_calls_come_first() {
        let mut pending: BTreeMap<_, _> = (1..=9).map(sent).collect();
        let mut resend = ResendQueue::default();
        resend.start(&mut pending);
        for (probe, group) in [(20, vec![1]), (21, vec![2, 3])] {
            assert_eq!(resend.next_group(&pending), group);
            assert!(resend.has_more() && resend.delays_new_calls(&pending));
            resend.set_probe(probe);
            pending.extend([sent(probe)]);
            assert!(resend.next_group(&pending).is_empty());
            pending.remove(&probe);
            resend.replied(probe, &mut pending);
        }
        // The connection breaks while the home reads this group.
        assert_eq!(resend.next_group(&pending), [4, 5, 6, 7]);
        resend.set_probe(22);
        pending.extend([sent(22)]);
        resend.start(&mut pending);
        let mut order = Vec::new();
        for probe in 23.. {
            order.extend_from_slice(resend.next_group(&pending));
            assert_eq!(resend.delays_new_calls(&pending), order.len() < 6);
            if !resend.has_more() {
                break;
            }
            resend.set_probe(probe);
            resend.replied(probe, &mut pending);
        }
        assert_eq!(order, [4, 5, 6, 7, 8, 9, 1, 2, 3]);
    }
}
