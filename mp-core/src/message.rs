//! What a message is: bytes, and blocks attached to them.
//!
//! The contract between values and codecs. A codec (in `mp-reduce`) turns serde values into bytes; a value
//! whose memory must not be copied attaches its block instead, and writes which attachment it is.

pub mod scope;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arena::{AttachRequest, Hold, MAX_ATTACHMENTS, Spill};
use crate::error::Error;
pub use crate::error::Result;
use crate::words::{Access, BlockId};

/// A value that can be sent to another process.
///
/// Every type that is `Serialize + DeserializeOwned` is one: numbers, strings, your own structs and enums, and
/// among them frozen and shared tensors and queues. Types that contain an exclusive [`Tensor`](crate::Tensor) are no
/// serde types, so that nobody can send them twice; for them there is `#[derive(Message)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be sent to another process",
    label = "not a message",
    note = "plain data: derive `Serialize` and `Deserialize`; what contains an exclusive `Tensor`: `#[derive(Message)]`",
    note = "a tuple, `Vec` or `Option` of such: `mp::Bundle`; somebody else's type: `#[serde(with = \"mp::reduced\")]`"
)]
pub trait Message: Sized + 'static {
    /// Writes the value. The caller drops it afterwards, and only then sends what was written.
    ///
    /// # Errors
    /// Whatever keeps the value from being written; then it is given back to the sender.
    fn encode<C: Codec>(&self, out: &mut Outgoing) -> Result<()>;

    /// Reads the value that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`Error::Malformed`] when these are not its bytes and attachments.
    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self>;

    /// Reads the value of a message to which nothing is attached: of its bytes alone.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode).
    #[doc(hidden)]
    #[inline]
    fn decode_plain<C: Codec>(bytes: &[u8]) -> Result<Self> {
        Self::decode::<C>(&mut Incoming::from_plain(bytes.to_vec()))
    }
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + 'static> Message for T {
    #[inline]
    fn encode<C: Codec>(&self, out: &mut Outgoing) -> Result<()> {
        C::write(out, self)
    }

    #[inline]
    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        C::read(inc)
    }

    #[inline]
    fn decode_plain<C: Codec>(bytes: &[u8]) -> Result<Self> {
        C::read_plain(bytes)
    }
}

/// How serde values become bytes.
pub trait Codec {
    /// Appends a value.
    ///
    /// # Errors
    /// [`Error::Malformed`] with the reason of the value's `Serialize`.
    fn write<T: Serialize + ?Sized>(out: &mut Outgoing, value: &T) -> Result<()>;

    /// Reads the next value.
    ///
    /// # Errors
    /// [`Error::Malformed`] with the reason of the value's `Deserialize`.
    fn read<T: DeserializeOwned>(inc: &mut Incoming) -> Result<T>;

    /// Reads the first value of bytes to which nothing is attached.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn read_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T>;
}

/// A message being written.
///
/// What is attached is boxed, so that it goes to the scope and back as one word: a struct that was just written in parts and
/// is then moved as a whole stalls the processor, and a message would move it ten times.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    attached: Option<Box<Attached>>,
}

/// What is attached to a message being written.
#[derive(Debug, Default)]
pub struct Attached {
    list: Vec<AttachRequest>,
    /// Where each block is in the list, once the list is long: one more than its place, at or after the place that its number
    /// hashes to; 0 is free. More than half of it always is.
    index: Vec<u32>,
}

/// Lists up to this length are searched as they are.
const SHORT: usize = 8;

/// Where the search for a block begins, in an index of this length, which is a power of two and more than one. (Knuth's
/// multiplicative hashing: blocks are often numbered in a row, or in steps. Nobody chooses their numbers.)
#[inline]
fn hashed(block: BlockId, len: usize) -> usize {
    (block.wrapping_mul(0x9e37_79b9) >> (u32::BITS - len.trailing_zeros())) as usize
}

impl Attached {
    /// Attaches a handle that gives no access to memory by itself: a queue's, for example. Its number.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there are too many attachments.
    pub fn attach_object(&mut self, hold: &Hold) -> Result<u32> {
        self.attach(hold, Access::Object, 0)
    }

    /// Attaches a block, or finds it among the attachments already: two views of one storage arrive as views of one.
    ///
    /// One that was copied along when a process was copied is the original's: [`Error::Forked`].
    pub(crate) fn attach(&mut self, hold: &Hold, access: Access, tag: u8) -> Result<u32> {
        hold.arena().me()?;
        let free = match self.position(hold.block()) {
            Ok(_) if access == Access::Exclusive => {
                return Err(Error::Malformed("an exclusive tensor can't be in a message twice".into()));
            }
            Ok(i) => return Ok(i),
            Err(free) => free,
        };
        let i = self.list.len();
        if i >= MAX_ATTACHMENTS {
            let why = format!("more than {MAX_ATTACHMENTS} tensors or queues in one message; send several");
            return Err(Error::Malformed(why));
        }
        self.list.push(AttachRequest { hold: hold.clone(), access, tag });
        let room = 2 * i < self.index.len();
        match self.index.get_mut(free) {
            Some(at) if room => *at = i as u32 + 1,
            _ => self.renew_index(),
        }
        Ok(i as u32)
    }

    /// Where a block is in the list; else where the index has room for it.
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

    /// Makes the index anew, with more room, if the list is long.
    #[cold]
    fn renew_index(&mut self) {
        if self.list.len() <= SHORT {
            return;
        }
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
    /// The bytes written so far, to append to.
    #[inline]
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What is attached so far.
    pub fn attached(&mut self) -> &mut Attached {
        self.attached.get_or_insert_default()
    }

    /// The bytes, if there are at most `most` and nothing is attached: such a message needs no shared memory on its way.
    /// [`Incoming::from_plain`] reads them. Else the message, as it is.
    ///
    /// # Errors
    /// The message.
    pub fn into_plain(self, most: usize) -> std::result::Result<Vec<u8>, Self> {
        let attached = self.attached.as_deref().is_some_and(|a| !a.list.is_empty());
        if attached || self.bytes.len() > most { Err(self) } else { Ok(self.bytes) }
    }

    /// The bytes, if nothing is attached: whoever can send them otherwise needs no envelope. [`Message::decode_plain`] reads
    /// them.
    #[inline]
    pub fn plain(&self) -> Option<&[u8]> {
        let attached = self.attached.as_deref().is_some_and(|a| !a.list.is_empty());
        if attached { None } else { Some(&self.bytes) }
    }

    /// What is to be packed.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&[u8], Option<&mut Vec<AttachRequest>>) {
        (&self.bytes, self.attached.as_deref_mut().map(|a| &mut a.list).filter(|list| !list.is_empty()))
    }

    /// What is to be packed more than once.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<AttachRequest>) {
        (self.bytes, self.attached.map(|a| a.list).unwrap_or_default())
    }

    /// Reads the message back on this side: what could not be packed or put returns to its sender like that.
    pub fn into_incoming(self) -> Incoming {
        let list = self.attached.map(|a| a.list).unwrap_or_default();
        let arrived = Arrived(list.into_iter().map(Given::from).collect());
        Incoming { bytes: self.bytes, arrived: Some(Box::new(arrived)), ..Incoming::default() }
    }

    /// Whether the exclusive tensors in it can leave: each is known to the value and to this message only.
    ///
    /// # Errors
    /// [`Error::Malformed`] when other handles to one of them exist in this process, or it was frozen or shared.
    #[inline]
    pub fn check_exclusive(&self) -> Result<()> {
        // With the value's own handle, which is dropped before the message is packed, there are two.
        let stays = |a: &AttachRequest| a.access == Access::Exclusive && a.hold.count() != 2;
        match &self.attached {
            Some(attached) if attached.list.iter().any(stays) => Err(not_exclusive()),
            _ => Ok(()),
        }
    }

    /// Empties it for the next message; whether its buffers are worth keeping.
    #[inline]
    pub fn reuse(&mut self) -> bool {
        self.bytes.clear();
        // Packing took the list; the index stays.
        if let Some(attached) = self.attached.as_deref_mut() {
            attached.list.clear();
            if !attached.index.is_empty() {
                attached.index.clear();
            }
        }
        self.bytes.capacity() <= KEEP
    }
}

/// Larger buffers are not kept for the next message.
const KEEP: usize = 1 << 16;

/// Why an exclusive tensor can't leave.
pub(crate) fn not_exclusive() -> Error {
    let why = "an exclusive tensor can't be sent while other handles to its storage exist in this process";
    Error::Malformed(why.into())
}

/// The error of a derived [`Message::decode`] for a variant number that the enum doesn't have.
#[doc(hidden)]
pub fn no_such_variant(name: &str, variant: u32) -> Error {
    Error::Malformed(format!("enum {name} has no variant {variant}"))
}

/// An attachment that arrived.
#[derive(Debug)]
struct Given {
    hold: Option<Hold>,
    access: Access,
    tag: u8,
}

impl From<AttachRequest> for Given {
    fn from(a: AttachRequest) -> Self {
        Self { hold: Some(a.hold), access: a.access, tag: a.tag }
    }
}

/// What is attached to a message being read.
#[derive(Debug, Default)]
pub struct Arrived(Vec<Given>);

impl Arrived {
    /// A handle that gives no access to memory by itself.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there is no such attachment, or it is of another kind.
    pub fn take_object(&mut self, attachment: u32) -> Result<Hold> {
        self.take(attachment, Access::Object, 0)
    }

    pub(crate) fn take(&mut self, attachment: u32, access: Access, tag: u8) -> Result<Hold> {
        let wrong = |why: &str| Error::Malformed(format!("attachment {attachment} of the message {why}"));
        let given = self.0.get_mut(attachment as usize).ok_or_else(|| wrong("does not exist"))?;
        if (given.access, given.tag) != (access, tag) {
            let sent = format!("{:?} (element type {})", given.access, given.tag);
            return Err(wrong(&format!("was sent as {sent} and is read as {access:?} (element type {tag})")));
        }
        if access != Access::Exclusive {
            return given.hold.clone().ok_or_else(|| wrong("was taken already"));
        }
        let hold = given.hold.take().ok_or_else(|| wrong("was taken already"))?;
        // A message that never left (it is given back to its sender) while the value it was made of lives on, or
        // was frozen or shared since.
        if !hold.is_exclusive() {
            return Err(wrong("is exclusive, and other handles to it exist"));
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
    arrived: Option<Box<Arrived>>,
}

impl Incoming {
    /// Of bytes that [`Outgoing::into_plain`] gave, or any others: they are checked when they are read.
    pub fn from_plain(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
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
    pub(crate) fn arrives(&mut self, attachment: AttachRequest) {
        self.arrived().0.push(attachment.into());
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

    /// Notes that `n` bytes were read.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        self.at += n;
    }

    /// What is attached.
    pub fn arrived(&mut self) -> &mut Arrived {
        self.arrived.get_or_insert_default()
    }

    /// Blocks that are attached, for diagnosis.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let given = self.arrived.iter().flat_map(|arrived| &arrived.0);
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
        if let Some(arrived) = self.arrived.as_deref_mut().filter(|a| !a.0.is_empty()) {
            arrived.0.clear();
        }
        self.bytes.capacity() <= KEEP
    }
}
