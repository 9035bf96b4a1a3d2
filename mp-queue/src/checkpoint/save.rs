//! Saving of a queue to a file while other processes use the queue.
//!
//! Saving changes nothing in the queue, so a kill of this process loses nothing. Messages are copied while
//! they are in their slots or leased. The copy of an envelope is kept only if the message is still in its
//! slot or leased after the copy.
//!
//! After all messages are copied, the saver removes the copies of messages that were taken meanwhile. After
//! that, it checks the position after the last copied message. If no message is published there, the copies
//! include all messages that the queue contained at the time of this check. The copies may also include
//! messages that were taken shortly before the check. Before the check, the saver reads whether the queue is
//! closed: a closed queue gets no more messages.
//!
//! In a queue with leases, a message may move from its slot to a leaseholder. Between the removal and the
//! check, the saver scans all envelopes for leased and returned messages. If a message leaves its slot during
//! the scan, the scan may have missed the message, or found it in addition to the copy from its slot. The
//! saver then repeats these steps. If messages leave their slots during every scan, the call fails.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use mp_core::sync::{Ordering, fence};
use mp_core::words::Access;
use mp_core::{Error, Messages, Recovery};

use super::checksum::Checksum;
use super::error::CheckpointError;
use super::file::{CheckpointWriter, each_chunk, room_for};
use super::format::{FileRange, SavedBlock, SavedMessage, SavedQueue};
use crate::raw::RawQueue;
use crate::raw::memory::RingMemory;
use crate::raw::memory::peek::{HeldEnvelope, PeekedSlot, QueuePosition, SlotMessage};
use crate::raw::options::QueueOptions;

/// Time limit for finding a consistent set of copies, counted from the end of the first pass over the slots.
/// Also the time limit of one pass, counted from the first message that a consumer took before the message
/// was copied.
const RETRY_TIME: Duration = Duration::from_secs(10);
/// Maximum number of bytes of the file in addition to twice the size of the valid copies. A larger file is
/// written again from the start.
const SURPLUS: u64 = 64 << 20;
/// Number of slots that one pass reads in addition to twice the number of messages in the queue.
const MORE_STEPS: usize = 1 << 12;

struct Saver<'a> {
    raw: &'a RawQueue,
    file: CheckpointWriter,
    /// Copies of messages that were in slots, in their order.
    queued: VecDeque<(QueuePosition, SavedMessage)>,
    /// Copies of leased and returned messages, by envelope and owner word.
    held: BTreeMap<(u32, u64), SavedMessage>,
    next: QueuePosition,
    /// `true` if the queue was closed when the copies were last checked.
    closed: bool,
    deadline: Option<Instant>,
}

/// Saves all messages of a queue and completes the file. Returns the number of messages.
pub(super) fn save(raw: &RawQueue, file: CheckpointWriter) -> Result<usize, CheckpointError> {
    raw.arena().me()?;
    let mut writer = file;
    loop {
        let (queued, held) = (VecDeque::new(), BTreeMap::new());
        let next = raw.memory().first_position();
        let mut saver = Saver { raw, file: writer, queued, held, next, closed: false, deadline: None };
        saver.reach_an_instant()?;
        let queue = saver.contents();
        match saver.file.finish(&queue)? {
            Ok(()) => return Ok(queue.messages.len()),
            Err((mut file, needed)) => {
                file.restart(room_for(needed))?;
                writer = file;
            }
        }
    }
}

/// Returns the options with which a queue was created.
fn options_of(memory: &RingMemory) -> QueueOptions {
    QueueOptions {
        capacity: (!memory.is_unbounded()).then_some(memory.capacity() as usize),
        growing: memory.is_unbounded() || memory.segments() > 1,
        deliveries: memory.deliveries(),
        bytes: memory.byte_bound(),
        deserted: memory.deserted_when(),
        spin: memory.spin(),
    }
}

impl Saver<'_> {
    fn memory(&self) -> &RingMemory {
        self.raw.memory()
    }

    /// Returns the description of the saved queue, without the bytes of messages.
    fn contents(&mut self) -> SavedQueue {
        let memory = *self.memory();
        let queued = self.queued.drain(..).map(|(_, message)| message);
        let messages = queued.chain(std::mem::take(&mut self.held).into_values()).collect();
        SavedQueue {
            fingerprint: memory.fingerprint(),
            type_name: memory.type_name(),
            options: options_of(&memory),
            closed: self.closed,
            messages,
        }
    }

    /// Updates the set of copies until it equals the contents of the queue at one instant.
    fn reach_an_instant(&mut self) -> Result<(), CheckpointError> {
        loop {
            self.copy_queued()?;
            let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + RETRY_TIME);
            if self.is_complete()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(CheckpointError::Busy);
            }
            // A message of a crashed process may have no holder until it is recovered.
            Recovery(self.raw.arena()).reclaim_if_due()?;
            std::thread::yield_now();
        }
    }

    /// Copies the messages in slots up to the newest message. Returns after a limited number of slots, even
    /// if producers add messages faster than they are copied.
    fn copy_queued(&mut self) -> Result<(), CheckpointError> {
        let memory = *self.memory();
        let mut steps = 2 * memory.len() + MORE_STEPS;
        let mut deadline = self.deadline;
        while steps > 0 {
            steps -= 1;
            let at = self.next;
            self.next = match memory.peek_slot(at) {
                PeekedSlot::End => return Ok(()),
                PeekedSlot::NextSegment => memory.next_segment(at),
                PeekedSlot::Taken => {
                    let now = Instant::now();
                    if now > *deadline.get_or_insert(now + RETRY_TIME) {
                        return Err(CheckpointError::Busy);
                    }
                    self.discard_taken()?;
                    memory.first_position()
                }
                PeekedSlot::Message(message) => {
                    let number = self.queued.len();
                    match self.copy(message, number, || !memory.is_taken(at))? {
                        Some(copy) => {
                            self.queued.push_back((at, copy));
                            memory.after(at)
                        }
                        None => at,
                    }
                }
            };
        }
        Ok(())
    }

    fn oldest_is_taken(&self) -> bool {
        self.queued.front().is_some_and(|(at, _)| self.memory().is_taken(*at))
    }

    /// Removes the copies of messages that have left their slots. If most of the file is such copies,
    /// discards all copies, starts the file again, and returns `true`.
    fn discard_taken(&mut self) -> Result<bool, CheckpointError> {
        while self.oldest_is_taken() {
            self.queued.pop_front();
        }
        let len = self.file.data_len();
        if len <= SURPLUS {
            return Ok(false);
        }
        let kept: u64 = self.queued.iter().map(|(_, m)| m.len()).sum::<u64>()
            + self.held.values().map(SavedMessage::len).sum::<u64>();
        if len <= 2 * kept + SURPLUS {
            return Ok(false);
        }
        self.file.restart(self.file.header_room())?;
        self.queued.clear();
        self.held.clear();
        self.next = self.memory().first_position();
        Ok(true)
    }

    /// Updates the set of copies: removes messages that were taken meanwhile, and adds leased and returned
    /// messages. Then returns `true` if the set equals the contents of the queue at one instant.
    fn is_complete(&mut self) -> Result<bool, CheckpointError> {
        let memory = *self.memory();
        if self.discard_taken()? {
            return Ok(false);
        }
        if memory.has_held_messages() {
            let Some(found) = memory.held_messages() else { return Ok(false) };
            let mut earlier = std::mem::take(&mut self.held);
            for held in found {
                let key = (held.envelope, held.owner);
                match earlier.remove(&key) {
                    Some(mut copy) => {
                        // A leaseholder counts its delivery after it has the lease.
                        let deliveries = Messages(self.raw.arena()).deliveries(held.envelope);
                        if memory.is_held(held) {
                            copy.deliveries = deliveries as u8;
                        }
                        self.held.insert(key, copy);
                    }
                    None => self.copy_held(held)?,
                }
            }
            if self.oldest_is_taken() {
                return Ok(false);
            }
        }
        self.closed = memory.is_put_closed();
        Ok(memory.peek_slot(self.next) == PeekedSlot::End)
    }

    fn copy_held(&mut self, held: HeldEnvelope) -> Result<(), CheckpointError> {
        let memory = *self.memory();
        let number = self.queued.len() + self.held.len();
        let copy = self.copy(SlotMessage::Envelope(held.envelope), number, || memory.is_held(held))?;
        if let Some(copy) = copy {
            self.held.insert((held.envelope, held.owner), SavedMessage { set_aside: true, ..copy });
        }
        Ok(())
    }

    /// Copies a message into the file. Returns `None` if the message was taken meanwhile, according to
    /// `is_there`. A small message was copied when its slot was read, so it is not checked again.
    fn copy(
        &mut self,
        message: SlotMessage,
        number: usize,
        is_there: impl Fn() -> bool,
    ) -> Result<Option<SavedMessage>, CheckpointError> {
        // The message is read before its place is checked.
        let is_there = || {
            fence(Ordering::Acquire);
            is_there()
        };
        let mut sum = Checksum::default();
        let start = self.file.position();
        let envelope = match message {
            SlotMessage::Small(small) => {
                let bytes = small.bytes();
                let bytes = bytes.as_slice();
                self.file.append(bytes.len(), &mut sum, |to| {
                    to.copy_from_slice(bytes);
                    Ok(())
                })?;
                let (bytes, checksum) = (FileRange { at: start, len: bytes.len() as u64 }, sum.get());
                let (set_aside, deliveries, blocks) = (false, 0, Vec::new());
                return Ok(Some(SavedMessage { set_aside, deliveries, bytes, blocks, checksum }));
            }
            SlotMessage::Envelope(envelope) => envelope,
        };
        let messages = Messages(self.raw.arena());
        let peeked = match messages.peek(envelope) {
            Ok(peeked) => peeked,
            Err(_) if !is_there() => return Ok(None),
            Err(error @ Error::Unsendable(_)) => {
                return Err(CheckpointError::Unsendable { message: number, error });
            }
            Err(error) => return Err(error.into()),
        };
        let mut ranges = Vec::with_capacity(1 + peeked.blocks.len());
        for (i, from) in std::iter::once(peeked.bytes).chain(peeked.blocks.iter().map(|b| b.1)).enumerate() {
            if i > 0 {
                self.file.align()?;
            }
            let at = self.file.position();
            let mut there = true;
            each_chunk(from.len(), |offset, len| {
                there = there && is_there();
                match there {
                    true => self.file.append(len, &mut sum, |to| {
                        let copied = messages.copy_out(from, offset, to);
                        // The memory of a message that was taken may be gone.
                        if is_there() { copied.map_err(CheckpointError::from) } else { Ok(()) }
                    }),
                    false => Ok(()),
                }
            })?;
            if !there {
                self.file.rewind(start);
                return Ok(None);
            }
            ranges.push(FileRange { at, len: from.len() });
        }
        if !is_there() {
            self.file.rewind(start);
            return Ok(None);
        }
        let block = |((grant, _), range): (&(mp_core::words::Grant, _), &FileRange)| SavedBlock {
            range: *range,
            frozen: grant.access() == Access::Frozen,
            element: grant.tag(),
        };
        let blocks = peeked.blocks.iter().zip(&ranges[1..]).map(block).collect();
        Ok(Some(SavedMessage {
            set_aside: false,
            deliveries: peeked.deliveries as u8,
            bytes: ranges[0],
            blocks,
            checksum: sum.get(),
        }))
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;
    use crate::Queue;
    use crate::checkpoint::fuzz::with_clean_memory;

    fn saver<'a>(queue: &'a Queue<String>, name: &str) -> Saver<'a> {
        let path = std::env::temp_dir().join(format!("mp-queue-{}-{name}", std::process::id()));
        let file = CheckpointWriter::create(&path).unwrap();
        let (raw, next) = (queue.raw(), queue.raw().memory().first_position());
        let (queued, held) = (VecDeque::new(), BTreeMap::new());
        Saver { raw, file, queued, held, next, closed: false, deadline: None }
    }

    #[test]
    fn overtaken_checkpoint_discards_copies_and_times_out() {
        let queue = Queue::bounded(8).unwrap();
        let mut saver = saver(&queue, "overtaken");
        queue.put_many((0..4).map(|n| format!("{n}").repeat(100))).unwrap();
        saver.copy_queued().unwrap();
        assert_eq!(saver.queued.len(), 4);
        let overtake = || {
            queue.put("taken".repeat(100)).unwrap();
            while !queue.is_empty() {
                queue.get().unwrap();
            }
        };
        overtake();
        saver.copy_queued().unwrap();
        assert!(saver.queued.is_empty());
        overtake();
        saver.deadline = Some(Instant::now() - Duration::from_millis(1));
        assert!(matches!(saver.copy_queued(), Err(CheckpointError::Busy)));
    }

    #[test]
    fn saved_leased_message_has_its_latest_delivery_count() {
        let queue = with_clean_memory(|| Queue::bounded(1).unwrap());
        queue.put("text".repeat(100)).unwrap();
        queue.raw().memory().enable_redelivery();
        let mut leased = None;
        queue.raw().memory().lease(0, &mut leased).unwrap();
        let leased = leased.unwrap();
        let mut saver = saver(&queue, "deliveries");
        saver.reach_an_instant().unwrap();
        leased.deliver();
        saver.reach_an_instant().unwrap();
        assert_eq!(saver.contents().messages[0].deliveries, 1);
        assert!(queue.raw().memory().give_back(&leased));
    }
}
