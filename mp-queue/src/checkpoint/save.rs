//! Writing of a queue that other processes use meanwhile.
//!
//! Nothing in the queue is changed, so a kill of this process loses nothing. Messages are copied while they
//! are in their slots or leased. A copy counts only if its message is still there afterwards.
//!
//! At the end, all messages that were taken meanwhile are removed from the list, and then the position of the
//! next message is read. If no message was put since the last copy, the list is what the queue contained at
//! that instant. It may also have messages that were taken between these two reads.
//!
//! In a queue with leases, messages move from their slots to their holders. Between the two reads, all
//! envelopes are scanned for held messages, and no message may leave a slot meanwhile. Otherwise the scan
//! could miss it, or find it twice.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use mp_core::sync::{Ordering, fence};
use mp_core::words::Access;
use mp_core::{Error, Messages, Recovery};

use super::checksum::Checksum;
use super::error::CheckpointError;
use super::file::{CheckpointWriter, each_chunk};
use super::format::{FileRange, SavedBlock, SavedMessage, SavedQueue};
use crate::raw::RawQueue;
use crate::raw::memory::RingMemory;
use crate::raw::memory::peek::{HeldEnvelope, PeekedSlot, QueuePosition, SlotMessage};
use crate::raw::options::QueueOptions;

/// Time after the first pass in which an instant without changes must be found.
const RETRY_TIME: Duration = Duration::from_secs(10);
/// Number of bytes of taken messages from which on the file is begun again, if they are the larger part.
const SURPLUS: u64 = 64 << 20;
/// Number of steps of a pass in addition to those for the messages that there are at its start.
const MORE_STEPS: usize = 1 << 12;

struct Saver<'a> {
    raw: &'a RawQueue,
    file: CheckpointWriter,
    /// Messages that were in slots.
    queued: VecDeque<(QueuePosition, SavedMessage)>,
    /// Messages that had a holder, by envelope and owner word.
    held: BTreeMap<(u32, u64), SavedMessage>,
    next: QueuePosition,
    deadline: Option<Instant>,
}

/// Writes all messages into a complete file. Returns their number.
pub(super) fn save(raw: &RawQueue, file: CheckpointWriter) -> Result<usize, CheckpointError> {
    raw.arena().me()?;
    let (queued, held) = (VecDeque::new(), BTreeMap::new());
    let next = raw.memory().first_position();
    let mut saver = Saver { raw, file, queued, held, next, deadline: None };
    loop {
        saver.reach_an_instant()?;
        let queue = saver.contents();
        match saver.file.finish(&queue)? {
            Ok(()) => return Ok(queue.messages.len()),
            Err((file, needed)) => {
                let (queued, held) = (VecDeque::new(), BTreeMap::new());
                saver = Saver { raw, file, queued, held, next, deadline: None };
                saver.restart(2 * needed)?;
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

    fn restart(&mut self, header: u64) -> Result<(), CheckpointError> {
        self.file.restart(header)?;
        self.queued.clear();
        self.held.clear();
        self.next = self.memory().first_position();
        Ok(())
    }

    /// Returns everything that is written.
    fn contents(&mut self) -> SavedQueue {
        let memory = *self.memory();
        let queued = self.queued.drain(..).map(|(_, message)| message);
        let messages = queued.chain(std::mem::take(&mut self.held).into_values()).collect();
        SavedQueue {
            fingerprint: memory.fingerprint(),
            type_name: memory.type_name(),
            options: options_of(&memory),
            closed: memory.is_put_closed(),
            messages,
        }
    }

    /// Copies messages until the copies are the contents of the queue at an instant.
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

    /// Copies the messages in slots, up to the newest one, or more than there were at first.
    fn copy_queued(&mut self) -> Result<(), CheckpointError> {
        let memory = *self.memory();
        let mut steps = 2 * memory.len() + MORE_STEPS;
        while steps > 0 {
            steps -= 1;
            let at = self.next;
            self.next = match memory.peek_slot(at) {
                PeekedSlot::End => return Ok(()),
                PeekedSlot::NextSegment => memory.next_segment(at),
                PeekedSlot::Taken => memory.first_position(),
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

    /// Removes the messages that are gone, and copies new held messages. Returns `true` if the copies are the
    /// contents of the queue at an instant.
    fn is_complete(&mut self) -> Result<bool, CheckpointError> {
        let memory = *self.memory();
        let oldest_is_taken = |saver: &Self| saver.queued.front().is_some_and(|(at, _)| memory.is_taken(*at));
        while oldest_is_taken(self) {
            self.queued.pop_front();
        }
        if memory.has_held_messages() {
            let Some(found) = memory.held_messages() else { return Ok(false) };
            let mut earlier = std::mem::take(&mut self.held);
            for held in found {
                let key = (held.envelope, held.owner);
                match earlier.remove(&key) {
                    Some(copy) => _ = self.held.insert(key, copy),
                    None => self.copy_held(held)?,
                }
            }
            if oldest_is_taken(self) {
                return Ok(false);
            }
        }
        let kept: u64 = self.queued.iter().map(|(_, m)| m.len()).sum::<u64>()
            + self.held.values().map(SavedMessage::len).sum::<u64>();
        if self.file.data_len() > 2 * kept + SURPLUS {
            self.restart(self.file.header_room())?;
            return Ok(false);
        }
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

    /// Copies a message. Returns `None` if it is no longer there.
    fn copy(
        &mut self,
        message: SlotMessage,
        number: usize,
        is_there: impl Fn() -> bool,
    ) -> Result<Option<SavedMessage>, CheckpointError> {
        // The copy is read before its place is.
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
