//! A message being read: its bytes and its attachments. `open` receives it.

pub(crate) mod open;

use std::os::fd::OwnedFd;

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::blocks::Blocks;
use crate::envelopes::{BUFFER, DESCRIPTORS, OBJECT};
use crate::error::{Error, Result};
use crate::transport::attachments::{AttachRequest, Claimed};
use crate::transport::bytes::{Spill, spilled};
use crate::transport::{KEEP, Messages, push};
use crate::words::{Access, BlockId, BlockKind, Grant};

/// A long text, byte string or number array that arrived in a separate block of memory. No process writes
/// this memory, and it lives as long as this value.
///
/// In a forked child it has no bytes.
#[derive(Clone, Debug)]
pub struct Buffer {
    hold: Hold,
    len: usize,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match self.hold.memory() {
            (_, 0) => &[],
            _ => spilled(&self.hold, 0, self.len),
        }
    }
}

/// An attachment that arrived.
#[derive(Debug)]
struct ReceivedAttachment {
    hold: Option<Hold>,
    grant: Grant,
    /// Number of times that the attachment was read as a buffer.
    reads: u8,
}

/// Maximum number of times that a buffer can be read. A writer references each buffer once, and an invalid
/// message is read once more for its error. Without a limit, a few bytes that reference a buffer repeatedly
/// would make the reader copy it each time.
const MOST_READS: u8 = 8;

impl From<AttachRequest> for ReceivedAttachment {
    fn from(a: AttachRequest) -> Self {
        Self { hold: Some(a.hold), grant: a.grant, reads: 0 }
    }
}

#[cold]
fn wrong(attachment: u32, why: &str) -> Error {
    Error::Malformed(format!("attachment {attachment} of the message {why}"))
}

impl ReceivedAttachment {
    #[cold]
    fn differs(&self, attachment: u32, read_as: Grant) -> Error {
        wrong(attachment, &format!("was sent as {:?} and is read as {read_as:?}", self.grant))
    }
}

/// Attachments of a message being read.
#[derive(Debug, Default)]
pub struct ReceivedAttachments {
    list: Vec<ReceivedAttachment>,
    /// Descriptors that were copied from the locker, but not yet taken by the value.
    claimed: Claimed,
    /// Cause of a failed attempt to read the message, if callers can handle it. The codec's own error
    /// contains only the text of the cause.
    refusal: Option<Error>,
}

impl From<Vec<AttachRequest>> for ReceivedAttachments {
    fn from(attached: Vec<AttachRequest>) -> Self {
        Self { list: attached.into_iter().map(ReceivedAttachment::from).collect(), ..Self::default() }
    }
}

impl ReceivedAttachments {
    /// Returns the handle of an object, which gives no access to memory by itself.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the attachment doesn't exist, or has another grant.
    #[inline]
    pub fn take_object(&mut self, attachment: u32) -> Result<Hold> {
        self.take(attachment, OBJECT)
    }

    /// Returns the first `len` bytes of a buffer that
    /// [`Attached::attach_buffer`](crate::message::Attached::attach_buffer) attached under this number.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the attachment doesn't exist, has another grant or fewer bytes, or is
    /// referenced repeatedly.
    pub fn buffer(&mut self, attachment: u32, len: u64) -> Result<Buffer> {
        let hold = self.take(attachment, BUFFER)?;
        if let Some(given) = self.list.get_mut(attachment as usize) {
            if given.reads == MOST_READS {
                return Err(wrong(attachment, "is a buffer that is mentioned again and again"));
            }
            given.reads = given.reads.saturating_add(1);
        }
        let (at, room) = hold.memory();
        if len > room {
            return Err(wrong(
                attachment,
                &format!("has {room} bytes of memory, and a buffer of {len} is read there"),
            ));
        }
        Allocator(hold.arena()).populate(hold.block(), at, room);
        Ok(Buffer { hold, len: len as usize })
    }

    /// Returns a descriptor that [`Attached::attach_descriptor`](crate::message::Attached::attach_descriptor)
    /// sent under these numbers. The returned descriptor is a copy, and close-on-exec. The sent descriptor is
    /// closed when its message is released.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`] if this process can't open more descriptors. [`Error::Malformed`] if the
    /// attachment doesn't exist or has another grant.
    pub fn take_descriptor(&mut self, attachment: u32, number: u32) -> Result<OwnedFd> {
        let hold = self.take(attachment, DESCRIPTORS)?;
        if let Some(file) = self.claimed.take(hold.block(), number) {
            return Ok(file);
        }
        // Not claimed yet, or already read by a serde variant that failed.
        let claimed = self.claimed.add(hold.arena(), hold.block());
        claimed.inspect_err(|error| self.refusal = error.as_refusal())?;
        let file = self.claimed.take(hold.block(), number);
        file.ok_or_else(|| wrong(attachment, &format!("has no descriptor {number}")))
    }

    /// Copies all attached descriptors, or none.
    fn claim(&mut self) -> Result<()> {
        let objects = self.list.iter().filter(|given| given.grant == DESCRIPTORS);
        for hold in objects.filter_map(|given| given.hold.as_ref()) {
            let (arena, block) = (hold.arena(), hold.block());
            if Blocks(arena).kind_of(block) == BlockKind::Descriptors
                && !self.claimed.has(block)
                && let Err(error) = self.claimed.add(arena, block)
            {
                self.claimed = Claimed::default();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the handles of exclusive tensors, because the message from which this list was copied has
    /// them, too. All other attachments keep their numbers.
    pub(crate) fn without_exclusive(mut self) -> Self {
        let exclusive = |given: &&mut ReceivedAttachment| given.grant.access() == Access::Exclusive;
        self.list.iter_mut().filter(exclusive).for_each(|given| given.hold = None);
        self
    }

    /// Returns the handle of the attachment with this number, if it has this grant. The handle gives no
    /// access to memory by itself.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the attachment doesn't exist, has another grant, or is exclusive and was taken
    /// already.
    #[inline]
    pub fn take(&mut self, attachment: u32, grant: Grant) -> Result<Hold> {
        let wrong = |why: &str| wrong(attachment, why);
        let given = self.list.get_mut(attachment as usize).ok_or_else(|| wrong("does not exist"))?;
        if given.grant != grant {
            return Err(given.differs(attachment, grant));
        }
        if grant.access() != Access::Exclusive {
            return given.hold.clone().ok_or_else(|| wrong("was taken already"));
        }
        let hold = given.hold.take().ok_or_else(|| wrong("was taken already"))?;
        // The only tensor with access moved its handle here, so other handles of the memory are not checked.
        if !Messages(hold.arena()).may_be_exclusive(&hold, grant) {
            return Err(wrong("is exclusive, and its memory was frozen or shared, or is for something else"));
        }
        Ok(hold)
    }
}

/// A message being read: its bytes, and its attachments.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Location of the bytes, if they did not fit into the envelope.
    spill: Option<Spill>,
    at: usize,
    fingerprint: u64,
    pub(crate) arrived: Option<Box<ReceivedAttachments>>,
}

impl Incoming {
    /// Creates a message from bytes that [`Outgoing::into_plain`](crate::message::Outgoing::into_plain)
    /// returned, or from any other bytes. Reading the message checks the bytes.
    pub fn from_plain(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Returns the unread bytes and the attachments, or `None` if the value has taken an attachment.
    pub(crate) fn into_parts(mut self) -> Option<(Vec<u8>, Vec<AttachRequest>)> {
        let bytes = self.rest().to_vec();
        let list = self.arrived.take().map(|arrived| arrived.list).unwrap_or_default();
        let list =
            list.into_iter().map(|given| Some(AttachRequest { hold: given.hold?, grant: given.grant }));
        Some((bytes, list.collect::<Option<_>>()?))
    }

    /// Creates a message from the parts of a message that was not sent.
    pub(crate) fn returned(bytes: Vec<u8>, attached: Vec<AttachRequest>) -> Self {
        Self { bytes, arrived: Some(Box::new(attached.into())), ..Self::default() }
    }

    /// Returns the vector for the bytes of a message that is being taken out of its envelope.
    #[inline]
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Records the spill block, which contains the bytes of the message.
    pub(crate) fn spilled(&mut self, spill: Spill) {
        self.spill = Some(spill);
    }

    /// Records the fingerprint of the message's type, as claimed by the sender.
    #[inline]
    pub(crate) fn typed(&mut self, fingerprint: u64) {
        self.fingerprint = fingerprint;
    }

    /// Adds an attachment that arrived.
    #[inline(always)]
    pub(crate) fn arrives(&mut self, attachment: impl FnOnce() -> AttachRequest) {
        push(&mut self.arrived().list, || attachment().into());
    }

    /// Returns the fingerprint of the message's type, as claimed by the sender.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the bytes that were not read yet.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        let all = self.whole();
        &all[self.at.min(all.len())..]
    }

    /// Returns the unread bytes, which count as read afterwards. Copies them only if some bytes were read
    /// before, or if the bytes are in a spill block.
    pub fn take_rest(&mut self) -> Vec<u8> {
        let rest = match &self.spill {
            None if self.at == 0 => std::mem::take(&mut self.bytes),
            _ => self.rest().to_vec(),
        };
        self.at += rest.len();
        rest
    }

    /// Returns all bytes, including those that were read.
    #[inline]
    pub fn whole(&self) -> &[u8] {
        match &self.spill {
            None => &self.bytes,
            Some(spill) => spill.bytes(),
        }
    }

    /// Records that `n` bytes were read.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        self.at += n;
    }

    /// Returns the attachments.
    pub fn arrived(&mut self) -> &mut ReceivedAttachments {
        self.arrived.get_or_insert_default()
    }

    /// Adds descriptors that were [claimed](crate::Envelope::claim) before the message was opened.
    pub fn brings(&mut self, claimed: Claimed) {
        self.arrived().claimed = claimed;
    }

    /// Copies the descriptors of the message before it is read: all or none. If this process has too few free
    /// descriptors, the message is unchanged, and can be read later.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`] if this process can't open more descriptors, and the errors of the locker.
    pub fn claim(&mut self) -> Result<()> {
        self.arrived.as_deref_mut().map_or(Ok(()), ReceivedAttachments::claim)
    }

    /// Closes descriptors that were [claimed](Self::claim), and that no value has taken.
    pub fn unclaim(&mut self) {
        if let Some(arrived) = self.arrived.as_deref_mut() {
            arrived.claimed = Claimed::default();
        }
    }

    /// Returns the cause of a failed attempt to read the message, if callers can handle it. The codec's own
    /// error contains only the text of the cause.
    pub fn refusal(&mut self) -> Option<Error> {
        self.arrived.as_deref_mut()?.refusal.take()
    }

    /// Returns the attached blocks, for diagnosis.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let given = self.arrived.iter().flat_map(|arrived| &arrived.list);
        given.filter_map(|given| given.hold.as_ref().map(Hold::block))
    }

    /// Empties the message for reuse, and releases attachments that were not taken. Returns `true` if the
    /// message's memory is small enough to keep for the next message.
    #[inline]
    pub fn reuse(&mut self) -> bool {
        self.bytes.clear();
        self.at = 0;
        if self.spill.is_some() {
            self.spill = None;
        }
        if let Some(arrived) = self.arrived.as_deref_mut().filter(|a| !a.list.is_empty()) {
            arrived.list.clear();
            arrived.claimed = Claimed::default();
            arrived.refusal = None;
        }
        self.bytes.capacity() <= KEEP
    }
}
