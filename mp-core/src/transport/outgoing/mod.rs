//! A message being written: its bytes, and its attachments.
//!
//! # Safety
//! No function here dereferences a pointer. Three functions are `unsafe`. If a caller attaches memory with a
//! wrong grant, its receiver reads memory that another process writes. If a caller describes a loan wrongly,
//! the loan restores a value that the lender did not have.
#![allow(unsafe_code)]

pub(crate) mod broadcast;
pub(crate) mod pack;

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::{BUFFER, DESCRIPTORS, OBJECT};
use crate::error::{Error, Result};
use crate::sync::shared::{AtomicU64, Ordering};
use crate::transport::attachments::AttachRequest;
use crate::transport::attachments::FdBatch;
use crate::transport::bytes::write_own;
use crate::transport::envelope::{Envelope, MAX_ATTACHMENTS};
use crate::transport::incoming::{Incoming, ReceivedAttachments};
use crate::transport::{KEEP, push};
use crate::words::{Access, BlockId, BlockKind, Grant};

/// A message being written.
///
/// Attachments are boxed, so that they are moved as one word. A message is moved about ten times while it is
/// written. Moving a large struct just after its fields were written stalls the processor.
#[derive(Debug, Default)]
pub struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    pub(crate) attached: Option<Box<Attached>>,
}

/// Attachments of a message being written.
#[derive(Debug, Default)]
pub struct Attached {
    list: Vec<AttachRequest>,
    /// Hash index of the list, for long lists. An entry is one more than the position of a block in the list,
    /// or 0 if the entry is free. The search for a block begins at the entry to which the block's number
    /// hashes, and continues with the following entries. At least half of the entries are free.
    index: Vec<u32>,
    /// Loans of the exclusive attachments, in the order in which they were attached.
    lent: Vec<LoanedValue>,
    /// Number of this message, if it has exclusive attachments, and number of the next message.
    numbers: [u64; 2],
    /// `true` if long buffers stay among the bytes.
    in_band: bool,
    /// Compartment for the next descriptors, and the number of the attachment that contains it.
    parking: Option<(FdBatch, u32)>,
    /// Cause of a failed attempt to write the message, if callers can handle it. The codec's own error
    /// contains only the text of the cause.
    refusal: Option<Error>,
}

/// Number of attachments of a message after which no buffer is attached. The remaining numbers are reserved
/// for attachments that can't be copied.
const MOST_BUFFERS: usize = MAX_ATTACHMENTS / 2;

/// Number of message numbers that an `Attached` reserves at a time.
const RANGE: u64 = 1 << 6;

/// Reserves [`RANGE`] message numbers, which no other message of this process has. Returns the first of them.
#[cold]
fn numbers() -> u64 {
    // fork: a child continues from the parent's number, so its numbers differ from those in inherited values.
    // Values of other processes have no such numbers.
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(RANGE, Ordering::Relaxed)
}

/// Returns the mark by which a value takes back a handle that it has moved into a message. The mark consists
/// of the number of the message and the number of the attachment, which is at most [`MAX_ATTACHMENTS`]. A
/// mark has 61 bits, which leaves three bits of a word for other uses. (Message numbers wrap after 2^45
/// messages.)
fn mark(message: u64, attachment: u32) -> u64 {
    (message << u16::BITS | u64::from(attachment)) & (u64::MAX >> 3)
}

/// Loan of an exclusive value: the data from which the value is restored when it takes back a handle that it
/// has moved into a message.
#[derive(Debug)]
pub struct LoanedValue {
    /// Number of the attachment in the message.
    pub attachment: u32,
    /// Grant of the attached memory.
    pub grant: Grant,
    /// Size of the value's storage in bytes.
    pub bytes: usize,
    /// Other data of the value's type, such as a view.
    pub beside: Arc<dyn Any + Send + Sync>,
    /// Additional bits of the value's type.
    pub note: u64,
}

/// Values of a message that was not sent. Their owners take them back.
#[derive(Debug)]
pub struct UnsentValues {
    arrived: ReceivedAttachments,
    /// Loans in the order of their attachment numbers.
    lent: Vec<LoanedValue>,
    /// Number of the message.
    number: u64,
}

impl UnsentValues {
    /// Returns the handle and the loan that were [lent](Attached::lends) under this mark with this grant.
    /// Returns `None` if they were taken before, or the mark is of another message.
    pub fn take(&mut self, mark: u64, grant: Grant) -> Option<(Hold, &LoanedValue)> {
        let at =
            self.lent.binary_search_by_key(&mark, |lent| self::mark(self.number, lent.attachment)).ok()?;
        let lent = &self.lent[at];
        if lent.grant != grant {
            return None;
        }
        let hold = self.arrived.take(lent.attachment, grant).ok()?;
        Some((hold, lent))
    }
}

/// Maximum length of lists that are searched linearly.
const SHORT: usize = 8;

/// Returns the position at which the search for a block begins in the index. `len` is the length of the
/// index, a power of two greater than one. (Knuth's multiplicative hashing: blocks are often numbered
/// consecutively or in steps. Senders don't choose their numbers.)
#[inline]
fn hashed(block: BlockId, len: usize) -> usize {
    (block.wrapping_mul(0x9e37_79b9) >> (u32::BITS - len.trailing_zeros())) as usize
}

impl Attached {
    /// Attaches a handle that gives no access to memory by itself, such as a queue's. Returns its number.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] if there are too many attachments, [`Error::Unsendable`] if the memory is
    /// attached with another grant.
    #[inline]
    pub fn attach_object(&mut self, hold: &Hold) -> Result<u32> {
        self.attach_as(hold, OBJECT)
    }

    /// Attaches a block, unless it is attached already. Returns the number of its attachment. So two views of
    /// one storage arrive as views of one storage.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] if there are too many attachments. [`Error::Unsendable`] if the tensor was
    /// already sent, or the block is attached with another grant. [`Error::Forked`] in a forked child, for
    /// handles of the parent.
    ///
    /// # Safety
    /// The caller may access the memory as permitted by `grant`, and so may any other process that holds it:
    /// frozen memory is never written again, and shared memory is accessed by atomics of the width of the
    /// element type in the grant's tag.
    pub unsafe fn attach(&mut self, hold: &Hold, grant: Grant) -> Result<u32> {
        self.attach_as(hold, grant)
    }

    fn attach_as(&mut self, hold: &Hold, grant: Grant) -> Result<u32> {
        self.place(hold, grant)?.or_else(|free| Ok(self.add(|| hold.clone(), grant, free)))
    }

    /// Copies bytes into a separate block, which no process writes afterwards, and attaches the block.
    /// Returns the number of the attachment, by which the receiver gets the bytes as a
    /// [`Buffer`](crate::message::Buffer). Returns `None` if the bytes must stay among the message's bytes:
    /// the message will [leave this memory](Outgoing::in_band), memory is exhausted, or there are too many
    /// attachments.
    pub fn attach_buffer(&mut self, bytes: &[u8]) -> Option<u32> {
        if self.in_band || self.list.len() >= MOST_BUFFERS {
            return None;
        }
        let arena = Arena::current().ok()?;
        let hold = Allocator(arena).alloc_kind(bytes.len() as u64, BlockKind::Frozen).ok()?;
        write_own(arena.map(), Blocks(arena).data_of(hold.block()).0, bytes);
        // No other handle of the block is attached: the block was free.
        let free = self.place(&hold, BUFFER).ok()?.err()?;
        Some(self.add(|| hold, BUFFER, free))
    }

    /// Attaches a copy of a descriptor. Returns the numbers for the receiver: the attachment, and the
    /// descriptor within it. The caller may close its descriptor at any time.
    ///
    /// # Errors
    /// [`Error::TooManyDescriptors`] or [`Error::OutOfDescriptors`] at a limit of the system or this process.
    /// [`Error::LimitExceeded`] for too many attachments. [`Error::Unsendable`] if the message will [leave
    /// this memory](Outgoing::in_band). [`Error::Unsupported`] if the system can't store descriptors.
    pub fn attach_descriptor(&mut self, fd: BorrowedFd<'_>) -> Result<(u32, u32)> {
        self.send_along(fd).inspect_err(|error| self.refusal = error.as_refusal())
    }

    fn send_along(&mut self, fd: BorrowedFd<'_>) -> Result<(u32, u32)> {
        if self.in_band {
            let why = "a descriptor is in a value that is to leave this memory: send it through a queue, a \
            channel or a pipe, as an \
                       argument or as a result; another program gets such a queue by an invitation \
                       (Connection::invite), or connects \
                       to a unix socket of your own, by SCM_RIGHTS";
            return Err(Error::Unsendable(why.into()));
        }
        if let Some((parking, attachment)) = &mut self.parking
            && let Some(number) = parking.push(fd)?
        {
            return Ok((*attachment, number));
        }
        let mut parking = FdBatch::new()?;
        let attachment = self.attach_as(parking.hold(), DESCRIPTORS)?;
        let number =
            parking.push(fd)?.ok_or_else(|| Error::Malformed("a compartment is full at once".into()))?;
        self.parking = Some((parking, attachment));
        Ok((attachment, number))
    }

    /// Moves the handle of an exclusive value into the message.
    ///
    /// # Errors
    /// Same as for [`attach`](Self::attach). After an error, the handle is unchanged. [`Error::Unsendable`]
    /// also if the memory was [opened to others](crate::Storage::share_as): no receiver would accept it as
    /// exclusive.
    ///
    /// # Safety
    /// The value of this handle was the only one, in all processes, that accessed the memory. It does not
    /// access the memory unless it takes the handle [back](UnsentValues::take).
    pub unsafe fn attach_own(&mut self, hold: &mut Hold, grant: Grant) -> Result<u32> {
        let place = self.place(hold, grant)?;
        let exclusive = grant.access() == Access::Exclusive;
        if exclusive && !hold.was_never_opened() {
            let why = "the memory of an exclusive tensor was opened to other processes, by \
            `Storage::share_as` beside it: \
                       freeze or share the tensor, and send that";
            return Err(Error::Unsendable(why.into()));
        }
        place.or_else(|free| Ok(self.add(|| hold.take(), grant, free)))
    }

    /// Records a loan: the data that a value needs to take back a handle that was [moved
    /// here](Self::attach_own). Returns the mark, of 61 bits, by which the value [takes](UnsentValues::take)
    /// the handle back. The mark is invalid for other messages.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no attachment has this number and grant, if the attachment is not
    /// exclusive, or if a loan of this attachment or of one with a greater number was recorded before.
    ///
    /// # Safety
    /// `lent` describes the value as it was before its handle was moved here under this number: the value's
    /// type restores the value from `bytes`, `beside` and `note`.
    pub unsafe fn lends(&mut self, lent: LoanedValue) -> Result<u64> {
        self.record_loan(lent)
    }

    /// Records a loan. [`UnsentValues::take`] searches the loans by their numbers, so these must ascend.
    pub(crate) fn record_loan(&mut self, lent: LoanedValue) -> Result<u64> {
        let attached = self.list.get(lent.attachment as usize);
        let is_lent =
            attached.is_some_and(|a| a.grant == lent.grant && a.grant.access() == Access::Exclusive);
        let is_next = self.lent.last().is_none_or(|last| last.attachment < lent.attachment);
        if !(is_lent && is_next) {
            let why = format!(
                "attachment {} can't be lent as {:?}: it was lent before, or is something else",
                lent.attachment, lent.grant
            );
            return Err(Error::InvalidArgument(why));
        }
        let [number, next] = &mut self.numbers;
        if self.lent.is_empty() {
            *number = if next.is_multiple_of(RANGE) { numbers() } else { *next };
            *next = *number + 1;
        }
        let mark = mark(*number, lent.attachment);
        self.lent.push(lent);
        Ok(mark)
    }

    /// Returns the number of the attachment that contains this block. If no attachment contains the block,
    /// returns the free position for the block in the index.
    pub(crate) fn place(&self, hold: &Hold, grant: Grant) -> Result<std::result::Result<u32, usize>> {
        if hold.is_nowhere() {
            let why = "this tensor was sent already: what is left of it in the value that it was in is empty";
            return Err(Error::Unsendable(why.into()));
        }
        hold.arena().me()?;
        match self.position(hold.block()) {
            Ok(_) if grant.access() == Access::Exclusive => {
                Err(Error::Unsendable("an exclusive tensor can't be in a message twice".into()))
            }
            Ok(i) if self.list[i as usize].grant != grant => {
                let (as_this, as_that) = (self.list[i as usize].grant, grant);
                let why = format!(
                    "memory can't be in a message as {as_this:?} and as {as_that:?}: send two messages"
                );
                Err(Error::Unsendable(why))
            }
            Err(_) if self.list.len() >= MAX_ATTACHMENTS => {
                let why =
                    format!("more than {MAX_ATTACHMENTS} tensors or queues in one message; send several");
                Err(Error::LimitExceeded(why))
            }
            found => Ok(found),
        }
    }

    /// Attaches a block that is not yet attached, and returns its number.
    pub(crate) fn add(&mut self, hold: impl FnOnce() -> Hold, grant: Grant, free: usize) -> u32 {
        let i = self.list.len();
        push(&mut self.list, || AttachRequest { hold: hold(), grant });
        let room = 2 * i < self.index.len();
        match self.index.get_mut(free) {
            Some(at) if room => *at = i as u32 + 1,
            _ if i >= SHORT => self.renew_index(),
            _ => {}
        }
        i as u32
    }

    #[inline(never)]
    fn clear(&mut self) {
        self.list.clear();
        self.index.clear();
        self.lent.clear();
        self.parking = None;
        self.refusal = None;
    }

    /// Returns the position of a block in the list. If the list does not contain the block, returns the free
    /// position for the block in the index.
    #[inline]
    fn position(&self, block: BlockId) -> std::result::Result<u32, usize> {
        if self.list.len() <= SHORT {
            let at = self.list.iter().position(|a| a.hold.block() == block);
            return at.map(|i| i as u32).ok_or(usize::MAX);
        }
        let mut at = hashed(block, self.index.len());
        loop {
            let Some(i) = self.index[at].checked_sub(1) else { return Err(at) };
            if self.list.get(i as usize).is_some_and(|a| a.hold.block() == block) {
                return Ok(i);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// Rebuilds the index of a list that has become long, with enough free entries.
    #[cold]
    fn renew_index(&mut self) {
        self.index.clear();
        self.index.resize((4 * self.list.len()).next_power_of_two(), 0);
        for (a, number) in self.list.iter().zip(1..) {
            let mut at = hashed(a.hold.block(), self.index.len());
            while self.index[at] != 0 {
                at = (at + 1) & (self.index.len() - 1);
            }
            self.index[at] = number;
        }
    }
}

impl Outgoing {
    /// Creates a message whose long buffers stay among its bytes, because the message will leave this memory,
    /// or its bytes will be stored without attachments.
    pub fn in_band() -> Self {
        let attached = Attached { in_band: true, ..Attached::default() };
        Self { bytes: Vec::new(), attached: Some(Box::new(attached)) }
    }

    /// Creates a message to send from the parts of a message that arrived.
    pub(crate) fn again(bytes: Vec<u8>, list: Vec<AttachRequest>) -> Self {
        let mut attached = Attached { list, ..Attached::default() };
        attached.renew_index();
        Self { bytes, attached: Some(Box::new(attached)) }
    }

    /// Returns the bytes written so far. The caller appends to them.
    #[inline]
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Returns the attachments so far.
    #[inline]
    pub fn attached(&mut self) -> &mut Attached {
        self.attached.get_or_insert_default()
    }

    /// Returns the bytes, if there are at most `most` and no attachments. Such a message needs no shared
    /// memory. [`Incoming::from_plain`] reads them.
    ///
    /// # Errors
    /// The unchanged message.
    pub fn into_plain(self, most: usize) -> std::result::Result<Vec<u8>, Self> {
        if self.plain().is_none_or(|bytes| bytes.len() > most) { Err(self) } else { Ok(self.bytes) }
    }

    /// Returns the bytes, if there are no attachments. A caller that has another way to send bytes then needs
    /// no envelope. [`Message::decode_plain`](crate::message::Message::decode_plain) reads them.
    #[inline]
    pub fn plain(&self) -> Option<&[u8]> {
        let attached = self.attached.as_deref().is_some_and(|a| !a.list.is_empty());
        if attached { None } else { Some(&self.bytes) }
    }

    /// Appends a separately written message: its bytes and its attachments. This message must have no
    /// attachments, because the numbers in the appended bytes would refer to wrong attachments.
    ///
    /// # Errors
    /// [`Error::Unsendable`] if this message has attachments. This message is then unchanged.
    pub fn append(&mut self, other: Outgoing) -> Result<()> {
        if self.plain().is_none() {
            return Err(Error::Unsendable("what has attachments is not appended to".into()));
        }
        self.bytes.extend_from_slice(&other.bytes);
        if other.attached.is_some() {
            self.attached = other.attached;
        }
        Ok(())
    }

    /// Returns the bytes, and the attachments if there are any, for packing.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&[u8], Option<&mut Vec<AttachRequest>>) {
        (&self.bytes, self.attached.as_deref_mut().map(|a| &mut a.list).filter(|list| !list.is_empty()))
    }

    /// Returns the attachments.
    pub(crate) fn requests(&self) -> &[AttachRequest] {
        self.attached.as_deref().map_or(&[], |attached| &attached.list)
    }

    /// Returns the bytes and attachments of a message that is packed more than once.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<AttachRequest>) {
        (self.bytes, self.attached.map(|a| a.list).unwrap_or_default())
    }

    /// Returns the cause of a failed attempt to write the message, if callers can handle it. The codec's own
    /// error contains only the text of the cause.
    pub fn refusal(&mut self) -> Option<Error> {
        self.attached.as_deref_mut()?.refusal.take()
    }

    /// Returns `true` if a value has lent its memory to the message. If the message is not sent, the value
    /// must take the memory back.
    #[inline]
    pub fn lends(&self) -> bool {
        self.attached.as_deref().is_some_and(|a| !a.lent.is_empty())
    }

    /// Returns the values that were moved into the message, for
    /// [`Message::take_back`](crate::message::Message::take_back). If the message was packed, `envelope`
    /// contains them.
    #[cold]
    pub fn returned(&mut self, envelope: Option<Envelope>) -> UnsentValues {
        let attached = self.attached.take().map(|attached| *attached).unwrap_or_default();
        let arrived = match envelope {
            None => attached.list.into(),
            Some(mut envelope) => {
                let mut inc = Incoming::default();
                // This process has packed the message. Only a forked child can't open it, and the child has
                // no access to the values' memory anyway.
                _ = envelope.open(&mut inc);
                std::mem::take(inc.arrived())
            }
        };
        UnsentValues { arrived, lent: attached.lent, number: attached.numbers[0] }
    }

    /// Empties the message for reuse. Returns `true` if the message's memory is small enough to keep for the
    /// next message.
    #[inline]
    pub fn reuse(&mut self) -> bool {
        self.bytes.clear();
        // Packing took the list, but not the index.
        if let Some(attached) = self.attached.as_deref_mut()
            && !(attached.list.is_empty()
                && attached.index.is_empty()
                && attached.lent.is_empty()
                && attached.parking.is_none())
        {
            attached.clear();
        }
        self.bytes.capacity() <= KEEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    /// A message with two kinds of access to one block would be unreadable for the receiver.
    #[test]
    fn message_refuses_a_block_with_two_kinds_of_access() {
        let arena = Arena::current().unwrap();
        let [object, shared] = [Grant::new(Access::Object, 0), Grant::new(Access::Shared, 3)];
        for (first, second) in [(object, FROZEN), (FROZEN, object), (shared, Grant::new(Access::Shared, 4))] {
            let (hold, mut out) = (Allocator(arena).alloc(64).unwrap(), Outgoing::default());
            out.attached().attach_as(&hold, first).unwrap();
            let refused = out.attached().attach_as(&hold, second);
            assert!(matches!(refused, Err(Error::Unsendable(_))), "{first:?}, {second:?}: {refused:?}");
            assert_eq!(out.attached().attach_as(&hold, first).unwrap(), 0);
        }
    }

    const FROZEN: Grant = Grant::new(Access::Frozen, 0);

    /// The same message is reused for short and long lists, like the buffers of a thread.
    #[test]
    fn block_repeated_in_a_message_is_attached_once() {
        let arena = Arena::current().unwrap();
        let holds: Vec<Hold> = (0..700).map(|_| Allocator(arena).alloc(64).unwrap()).collect();
        let mut out = Outgoing::default();
        for n in [3, 8, 9, 10, 33, 700, 12, 8, 1] {
            let attached = out.attached();
            for (i, hold) in holds.iter().take(n).enumerate() {
                assert_eq!(attached.attach_as(hold, FROZEN).unwrap(), i as u32);
                let earlier = i / 2;
                assert_eq!(attached.attach_as(&holds[earlier], FROZEN).unwrap(), earlier as u32);
                assert!(attached.attach_as(&holds[earlier], Grant::new(Access::Exclusive, 0)).is_err());
            }
            assert_eq!(attached.list.len(), n);
            // Half of the messages are packed, which takes the list and leaves the index.
            if n % 2 == 0 {
                attached.list.clear();
            } else {
                out.reuse();
            }
        }
    }

    #[test]
    fn received_buffer_is_freed_after_its_last_handle() {
        let arena = Arena::current().unwrap();
        let mut out = Outgoing::default();
        let bytes: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        let number = out.attached().attach_buffer(&bytes).unwrap();
        let mut inc = out.into_incoming();
        let block = inc.blocks().next().unwrap();
        let generation = Blocks(arena).generation(block);
        let buffer = inc.arrived().buffer(number, 100_000).unwrap();
        assert!(inc.arrived().buffer(number, 1 << 30).is_err());
        // A message that references a buffer a thousand times makes its reader copy it a few times.
        let reads = (0..1000).take_while(|_| inc.arrived().buffer(number, 100_000).is_ok()).count();
        assert!((2..10).contains(&reads), "{reads}");
        drop(inc);
        assert_eq!(buffer.as_ref(), bytes);
        assert!(Allocator(arena).is_held(block, generation));
        drop(buffer);
        assert!(!Allocator(arena).is_held(block, generation));
    }

    /// Half of the list is reserved for attachments that can't stay among the bytes.
    #[test]
    fn buffers_beyond_the_attachment_list_stay_in_band() {
        let arena = Arena::current().unwrap();
        assert_eq!(Outgoing::in_band().attached().attach_buffer(&[7; 100]), None);
        let holds: Vec<Hold> = (0..MOST_BUFFERS).map(|_| Allocator(arena).alloc(64).unwrap()).collect();
        let mut out = Outgoing::default();
        for hold in &holds[1..] {
            out.attached().attach_object(hold).unwrap();
        }
        let last = out.attached().attach_buffer(&[7; 100]);
        assert_eq!(last, Some(MOST_BUFFERS as u32 - 1));
        assert_eq!(out.attached().attach_buffer(&[7; 100]), None);
        assert_eq!(out.attached().attach_object(&holds[0]).unwrap(), MOST_BUFFERS as u32);
    }
}
