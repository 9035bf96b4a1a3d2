//! A message being read: its bytes, and what arrived with it.

use std::os::fd::OwnedFd;

use crate::arena::messages::Outgoing;
use crate::arena::messages::bytes::spilled;
use crate::arena::messages::{KEEP, push};
use crate::arena::{Arena, AttachRequest, Hold, Spill};
use crate::error::Error;
use crate::error::Result;
use crate::words::{Access, BlockId, Grant, Kind};

/// As what a buffer is attached: as frozen elements are, of any type.
pub(in crate::arena) const BUFFER: Grant = Grant::new(Access::Frozen, 0);

/// As what a handle is attached that gives no access to memory by itself.
pub(in crate::arena) const OBJECT: Grant = Grant::new(Access::Object, 0);

/// As what the block is attached that stands for a message's descriptors: so a receiver finds it without a look at other blocks.
pub(in crate::arena) const DESCRIPTORS: Grant = Grant::new(Access::Object, 1);

/// A long text, byte string or row of numbers that arrived beside its message's bytes: memory of its own, which no process
/// writes any more, and which lives as long as this.
///
/// In a forked copy of the process it has no bytes.
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
struct Given {
    hold: Option<Hold>,
    grant: Grant,
    /// How often it was read as a buffer.
    reads: u8,
}

/// How often a buffer can be read. A writer mentions each once, and what is read is read once more for the error of a message that
/// can't be: a few bytes that mention one again and again would make the reader copy it each time.
const MOST_READS: u8 = 8;

impl From<AttachRequest> for Given {
    fn from(a: AttachRequest) -> Self {
        Self { hold: Some(a.hold), grant: a.grant, reads: 0 }
    }
}

#[cold]
fn wrong(attachment: u32, why: &str) -> Error {
    Error::Malformed(format!("attachment {attachment} of the message {why}"))
}

impl Given {
    #[cold]
    fn differs(&self, attachment: u32, read_as: Grant) -> Error {
        wrong(attachment, &format!("was sent as {:?} and is read as {read_as:?}", self.grant))
    }
}

/// What is attached to a message being read.
#[derive(Debug, Default)]
pub struct Arrived {
    list: Vec<Given>,
    /// Descriptors that were taken out of the locker, and not by the value yet.
    claimed: Claimed,
    /// Why it could not be read, where the codec's error has only the text of it.
    refusal: Option<Error>,
}

/// Copies of the descriptors of a message.
#[derive(Debug, Default)]
pub struct Claimed(Vec<(BlockId, Vec<Option<OwnedFd>>)>);

impl Claimed {
    /// Copies those of one more block.
    pub(in crate::arena) fn add(&mut self, arena: Arena, block: BlockId) -> Result<()> {
        let files = arena.descriptors_of(block)?.into_iter().map(Some).collect();
        self.0.retain(|(there, _)| *there != block);
        self.0.push((block, files));
        Ok(())
    }

    fn take(&mut self, block: BlockId, number: u32) -> Option<OwnedFd> {
        let (_, files) = self.0.iter_mut().find(|(there, _)| *there == block)?;
        files.get_mut(number as usize)?.take()
    }

    fn has(&self, block: BlockId) -> bool {
        self.0.iter().any(|(there, _)| *there == block)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<AttachRequest>> for Arrived {
    fn from(attached: Vec<AttachRequest>) -> Self {
        Self { list: attached.into_iter().map(Given::from).collect(), ..Self::default() }
    }
}

impl Arrived {
    /// A handle that gives no access to memory by itself.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there is no such attachment, or it is of another kind.
    #[inline]
    pub fn take_object(&mut self, attachment: u32) -> Result<Hold> {
        self.take(attachment, OBJECT)
    }

    /// What [`Attached::attach_buffer`](crate::message::Attached::attach_buffer) attached under this number: its first `len` bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there is no such attachment, it was attached as something else, has fewer bytes, or is mentioned
    /// again and again.
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
        hold.arena().populate(hold.block(), at, room);
        Ok(Buffer { hold, len: len as usize })
    }

    /// A descriptor that [`Attached::attach_descriptor`](crate::message::Attached::attach_descriptor) sent under these numbers: a copy,
    /// which is close-on-exec. What was sent is closed when its message is gone.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`] when this process may open no more; [`Error::Malformed`] when there is no such attachment, or it was
    /// attached as something else.
    pub fn take_descriptor(&mut self, attachment: u32, number: u32) -> Result<OwnedFd> {
        let hold = self.take(attachment, DESCRIPTORS)?;
        if let Some(file) = self.claimed.take(hold.block(), number) {
            return Ok(file);
        }
        // Not claimed yet; or it was read before, where serde tries variants.
        self.claimed.add(hold.arena(), hold.block()).inspect_err(|error| {
            if let Error::OutOfDescriptors(why) = error {
                self.refusal = Some(Error::OutOfDescriptors(why.clone()));
            }
        })?;
        let file = self.claimed.take(hold.block(), number);
        file.ok_or_else(|| wrong(attachment, &format!("has no descriptor {number}")))
    }

    /// Copies all descriptors that are attached, or none.
    fn claim(&mut self) -> Result<()> {
        let objects = self.list.iter().filter(|given| given.grant == DESCRIPTORS);
        for hold in objects.filter_map(|given| given.hold.as_ref()) {
            let (arena, block) = (hold.arena(), hold.block());
            if arena.kind_of(block) == Kind::Descriptors
                && !self.claimed.has(block)
                && let Err(error) = self.claimed.add(arena, block)
            {
                self.claimed = Claimed::default();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Without the memory of exclusive tensors: another list has that. All others keep their numbers.
    pub(in crate::arena) fn without_exclusive(mut self) -> Self {
        let exclusive = |given: &&mut Given| given.grant.access() == Access::Exclusive;
        self.list.iter_mut().filter(exclusive).for_each(|given| given.hold = None);
        self
    }

    /// The handle of what was attached under this number, if it was attached as that. It gives no access to memory by itself.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there is no such attachment, it was attached as something else, or it is exclusive and was
    /// taken already.
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
        // It was moved here by the only tensor that had access to it, so that it is not asked what else keeps
        // its memory.
        if !hold.arena().may_be_exclusive(&hold, grant) {
            return Err(wrong("is exclusive, and its memory was frozen or shared, or is for something else"));
        }
        Ok(hold)
    }
}

/// A message being read.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Where the bytes are, if they did not fit into the envelope.
    spill: Option<Spill>,
    at: usize,
    fingerprint: u64,
    pub(crate) arrived: Option<Box<Arrived>>,
}

impl Incoming {
    /// Of bytes that [`Outgoing::into_plain`](crate::message::Outgoing::into_plain) gave, or any other bytes: they are
    /// checked when they are read.
    pub fn from_plain(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Of a message that never left.
    pub(in crate::arena) fn returned(bytes: Vec<u8>, attached: Vec<AttachRequest>) -> Self {
        Self { bytes, arrived: Some(Box::new(attached.into())), ..Self::default() }
    }

    /// The buffer of a message that is being taken out of its envelope.
    #[inline]
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Its bytes are elsewhere.
    pub(crate) fn spilled(&mut self, spill: Spill) {
        self.spill = Some(spill);
    }

    /// Notes the fingerprint of its type, as the sender said.
    #[inline]
    pub(crate) fn typed(&mut self, fingerprint: u64) {
        self.fingerprint = fingerprint;
    }

    /// Notes that an attachment arrived.
    #[inline(always)]
    pub(crate) fn arrives(&mut self, attachment: impl FnOnce() -> AttachRequest) {
        push(&mut self.arrived().list, || attachment().into());
    }

    /// Fingerprint of its type, as the sender said.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The bytes not read yet.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        let all = match &self.spill {
            None => &self.bytes[..],
            Some(spill) => spill.bytes(),
        };
        &all[self.at.min(all.len())..]
    }

    /// All its bytes, those that were read among them.
    #[inline]
    pub fn whole(&self) -> &[u8] {
        match &self.spill {
            None => &self.bytes,
            Some(spill) => spill.bytes(),
        }
    }

    /// Notes that `n` bytes were read.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        self.at += n;
    }

    /// What is attached.
    pub fn arrived(&mut self) -> &mut Arrived {
        self.arrived.get_or_insert_default()
    }

    /// Notes descriptors that were [claimed](crate::Envelope::claim) before the message was opened.
    pub fn brings(&mut self, claimed: Claimed) {
        self.arrived().claimed = claimed;
    }

    /// Copies the descriptors in it, before it is read: all or none. Where this process has too few to spare, the message is as it was,
    /// and can be read later.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`] when this process may open no more, and those of the locker.
    pub fn claim(&mut self) -> Result<()> {
        self.arrived.as_deref_mut().map_or(Ok(()), Arrived::claim)
    }

    /// Closes what was [claimed](Self::claim) and not read.
    pub fn unclaim(&mut self) {
        if let Some(arrived) = self.arrived.as_deref_mut() {
            arrived.claimed = Claimed::default();
        }
    }

    /// What is left of it as a message that can be sent on, with all that is attached. `None` if something exclusive was taken out of it.
    pub fn into_outgoing(mut self) -> Option<Outgoing> {
        let bytes = self.rest().to_vec();
        let list = self.arrived.take().map(|arrived| arrived.list).unwrap_or_default();
        let list =
            list.into_iter().map(|given| Some(AttachRequest { hold: given.hold?, grant: given.grant }));
        Some(Outgoing::again(bytes, list.collect::<Option<_>>()?))
    }

    /// Why it could not be read, if a caller can do something about that: its codec says only the text.
    pub fn refusal(&mut self) -> Option<Error> {
        self.arrived.as_deref_mut()?.refusal.take()
    }

    /// Blocks that are attached, for diagnosis.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let given = self.arrived.iter().flat_map(|arrived| &arrived.list);
        given.filter_map(|given| given.hold.as_ref().map(Hold::block))
    }

    /// Empties it for the next message, and releases what was attached and not taken; whether its buffers are worth keeping.
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
