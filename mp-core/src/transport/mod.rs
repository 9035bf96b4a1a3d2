//! Messages in the arena: from the buffer in which a value is encoded to the buffer from which it is decoded.
//!
//! A message is written to an [`Outgoing`](outgoing::Outgoing), which `pack` (or `broadcast`, for several
//! receivers) turns into an [`Envelope`](envelope::Envelope). A consumer may `lease` the envelope, and reads
//! the message as an [`Incoming`](incoming::Incoming). `attachments` is for descriptors that are sent in
//! messages or stay with an object, `exclusive_objects` for objects that move with their message. `promise`
//! passes an envelope to a process without a queue. `between_arenas` copies messages from one arena to
//! another, and `peek` copies messages that stay in their queue.

use std::collections::HashMap;

use crate::arena::{Arena, view};
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::error::{MessagesInFlight, QueuedMessages};
use crate::mem::Mem;
use crate::members::Members;
use crate::words::{BlockId, Holder, Owner, RingPlace, Seat};

pub(crate) mod attachments;
pub(crate) mod between_arenas;
pub(crate) mod bytes;
pub(crate) mod envelope;
pub(crate) mod exclusive_objects;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
pub(crate) mod fuzz;
pub(crate) mod incoming;
pub(crate) mod lease;
pub(crate) mod outgoing;
pub(crate) mod peek;
pub(crate) mod promise;

pub use attachments::Claimed;
pub use incoming::{Buffer, Incoming, ReceivedAttachments};
pub use outgoing::{Attached, LoanedValue, Outgoing, UnsentValues};

view! {
    /// Messages of an arena: packing, and the numbers of messages in flight.
    pub struct Messages;
}

/// Appends the result of `make` to a list. `make` is called after the list has room for the value, as in the
/// standard library's `extend` for `OnceWith`, whose length it trusts.
///
/// If the value were created before, and growing the list panicked, the value would have to be dropped. So
/// the compiler would place the value in memory, and copy it from there. Such a copy is slow if the value was
/// written in pieces just before (for example eight bytes and four bytes), and is read as a whole. Store
/// forwarding can't serve the read: the processor waits until the pieces are in its cache.
#[inline(always)]
fn push<T>(list: &mut Vec<T>, make: impl FnOnce() -> T) {
    list.extend(std::iter::once_with(make));
}

/// Maximum size in bytes of a buffer that is retained for the next message.
pub(crate) const KEEP: usize = 1 << 16;

/// Maximum number of queues that [`MessagesInFlight`] lists, and of processes that it lists for each queue.
const NAMED: usize = 4;

impl Messages {
    /// Returns the present numbers of messages in flight, by queue, with the processes that hold the queues.
    /// `asked` is the queue of the failed call, which has `asked_has` messages. Reads all envelopes.
    pub fn on_their_way(self, asked: BlockId, asked_has: u64) -> MessagesInFlight {
        let (map, layout) = (self.map(), self.layout());
        let (mut by_queue, mut owned) = (HashMap::<BlockId, u64>::new(), 0);
        for e in Envelopes(self.0).envelopes_in_use(0) {
            match Owner::unpack(map.load(Envelopes(self.0).owner_words().of(e))).holder {
                Holder::Free => {}
                Holder::Member(_) => owned += 1,
                Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                    let place = RingPlace::unpack(map.load_relaxed(Envelopes(self.0).place_words().of(e)));
                    *by_queue.entry(place.ring).or_default() += 1;
                }
            }
        }
        let mut all: Vec<_> = by_queue.into_iter().collect();
        all.sort_unstable_by_key(|&(block, messages)| (std::cmp::Reverse(messages), block));
        let others = all.iter().skip(NAMED).map(|&(_, messages)| messages).sum();
        let queues = all.iter().take(NAMED).map(|&(block, messages)| {
            let pids = self.pids_with(block);
            QueuedMessages { block, messages, pids }
        });
        let kept = layout.envelopes - layout.ordinary();
        MessagesInFlight {
            asked,
            asked_has,
            limit: layout.envelopes,
            kept,
            queues: queues.collect(),
            others,
            owned,
        }
    }

    /// Returns the ids of processes that hold a block, at most [`NAMED`].
    fn pids_with(self, block: BlockId) -> Vec<u32> {
        if !Blocks(self.0).block_exists(block) {
            return Vec::new();
        }
        let members = Members(self.0).members();
        let mut pids = Vec::new();
        Blocks(self.0).each_seat(block, |word| {
            if let Seat::Member(m) = Seat::unpack(self.map().load(word)) {
                pids.extend(members.iter().find(|info| info.member == m).map(|info| info.pid));
            }
        });
        pids.sort_unstable();
        pids.dedup();
        pids.truncate(NAMED);
        pids
    }
}

#[cfg(test)]
mod tests;
