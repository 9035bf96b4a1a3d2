//! What a message is: bytes, and blocks attached to them.
//!
//! The contract between values and codecs. A codec (in `mp-reduce`) turns serde values into bytes; a value
//! whose memory must not be copied attaches its block instead, and writes which attachment it is.

use std::collections::HashMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arena::{AttachRequest, Hold, MAX_ATTACHMENTS, Received, Shipment, Spill};
use crate::error::Error;
pub use crate::error::Result;
use crate::words::{Access, BlockId};

/// A value that can be sent to another process.
///
/// Every type that is `Serialize + DeserializeOwned` is one: numbers, strings, your own structs and enums, and
/// among them frozen and shared tensors and queues. Types that contain an exclusive [`Tensor`](crate::Tensor) are no
/// serde types, so that nobody can send them twice; for them there is `#[derive(Message)]`.
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
}

impl<T: Serialize + DeserializeOwned + 'static> Message for T {
    #[inline]
    fn encode<C: Codec>(&self, out: &mut Outgoing) -> Result<()> {
        C::write(out, self)
    }

    #[inline]
    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        C::read(inc)
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
}

/// A message being written.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    attached: Attached,
}

/// What is attached to a message being written.
#[derive(Debug, Default)]
pub struct Attached {
    list: Vec<AttachRequest>,
    /// Where each block is in the list, once the list is long.
    index: HashMap<BlockId, u32>,
}

/// Lists up to this length are searched as they are.
const SHORT: usize = 32;

impl Attached {
    /// Attaches a handle that gives no access to memory by itself: a queue's, for example. Its number.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there are too many attachments.
    pub fn attach_object(&mut self, hold: &Hold) -> Result<u32> {
        self.attach(hold, Access::Object, 0)
    }

    /// Attaches a block, or finds it among the attachments already: two views of one storage arrive as views of one.
    pub(crate) fn attach(&mut self, hold: &Hold, access: Access, tag: u8) -> Result<u32> {
        match self.position(hold.block()) {
            Some(_) if access == Access::Exclusive => {
                Err(Error::Malformed("an exclusive tensor can't be in a message twice".into()))
            }
            Some(i) => Ok(i),
            None if self.list.len() >= MAX_ATTACHMENTS => {
                let why =
                    format!("more than {MAX_ATTACHMENTS} tensors or queues in one message; send several");
                Err(Error::Malformed(why))
            }
            None => {
                let i = self.list.len() as u32;
                self.list.push(AttachRequest { hold: hold.clone(), access, tag });
                if self.list.len() > SHORT {
                    let all = self.list.iter().zip(0..).skip(self.index.len());
                    self.index.extend(all.map(|(a, i)| (a.hold.block(), i)));
                }
                Ok(i)
            }
        }
    }

    fn position(&self, block: BlockId) -> Option<u32> {
        if self.list.len() > SHORT {
            return self.index.get(&block).copied();
        }
        self.list.iter().position(|a| a.hold.block() == block).map(|i| i as u32)
    }
}

impl Outgoing {
    /// An empty one, which reuses `bytes` as a buffer.
    #[inline]
    pub fn new(mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        Self { bytes, attached: Attached::default() }
    }

    /// The bytes written so far, to append to.
    #[inline]
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What is attached so far.
    pub fn attached(&mut self) -> &mut Attached {
        &mut self.attached
    }

    /// What is to be packed.
    #[inline]
    pub fn shipment(&mut self, fingerprint: u64) -> Shipment<'_> {
        Shipment { bytes: &self.bytes, attachments: std::mem::take(&mut self.attached).list, fingerprint }
    }

    /// Reads the message back on this side: what could not be packed or put returns to its sender like that.
    pub fn into_incoming(self, attachments: Vec<AttachRequest>) -> Incoming {
        let arrived = Arrived(attachments.into_iter().map(Given::from).collect());
        Incoming { bytes: self.bytes, spill: None, at: 0, arrived }
    }

    /// Whether the exclusive tensors in it can leave: each is known to the value and to this message only.
    ///
    /// # Errors
    /// [`Error::Malformed`] when other handles to one of them exist in this process, or it was frozen or shared.
    pub fn check_exclusive(&self) -> Result<()> {
        // With the value's own handle, which is dropped before the message is packed, there are two.
        let stays = |a: &&AttachRequest| a.access == Access::Exclusive && a.hold.count() != 2;
        match self.attached.list.iter().find(stays) {
            None => Ok(()),
            Some(_) => Err(not_exclusive()),
        }
    }

    /// The buffer, for the next message.
    #[inline]
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

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
#[derive(Debug)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Where the bytes are, if they did not fit into the envelope.
    spill: Option<Spill>,
    at: usize,
    arrived: Arrived,
}

impl Incoming {
    /// To read a message that arrived.
    #[inline]
    pub fn new(received: Received) -> Self {
        let Received { bytes, spill, attachments, .. } = received;
        let arrived = Arrived(attachments.into_iter().map(Given::from).collect());
        Self { bytes, spill, at: 0, arrived }
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
        &mut self.arrived
    }

    /// Blocks that are attached, for diagnosis.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.arrived.0.iter().filter_map(|given| given.hold.as_ref().map(Hold::block))
    }

    /// The buffer, for the next message.
    #[inline]
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

/// Where serde types that carry attachments find those of the message they are in.
///
/// serde passes no context through `Serialize`, so that it waits in a variable of the thread. A codec puts it there for
/// the time of one call.
pub mod scope {
    use std::cell::Cell;
    use std::thread::LocalKey;

    use super::{Arrived, Attached, Error, Incoming, Outgoing, Result};

    thread_local! {
        static ATTACHED: Cell<Option<Attached>> = const { Cell::new(None) };
        static ARRIVED: Cell<Option<Arrived>> = const { Cell::new(None) };
    }

    /// What was in the variable before, and goes back into it, also after a panic.
    struct Scope<T: 'static> {
        variable: &'static LocalKey<Cell<Option<T>>>,
        before: Option<T>,
    }

    impl<T: 'static> Scope<T> {
        #[inline]
        fn enter(variable: &'static LocalKey<Cell<Option<T>>>, value: T) -> Self {
            let before = variable.try_with(|v| v.replace(Some(value))).ok().flatten();
            Self { variable, before }
        }

        #[inline]
        fn leave(mut self) -> Option<T> {
            let before = self.before.take();
            let inner = self.variable.try_with(|v| v.replace(before)).ok().flatten();
            std::mem::forget(self);
            inner
        }
    }

    impl<T: 'static> Drop for Scope<T> {
        fn drop(&mut self) {
            let before = self.before.take();
            // Dropped outside of the variable: that runs code.
            drop(self.variable.try_with(|v| v.replace(before)));
        }
    }

    /// Calls `f` while serde values can attach to `out`. `f` writes to a buffer of its own.
    #[inline]
    pub fn with_outgoing<R>(out: &mut Outgoing, f: impl FnOnce() -> R) -> R {
        let scope = Scope::enter(&ATTACHED, std::mem::take(&mut out.attached));
        let result = f();
        out.attached = scope.leave().unwrap_or_default();
        result
    }

    /// Calls `f` with the bytes of `inc` while serde values can take its attachments.
    #[inline]
    pub fn with_incoming<R>(inc: &mut Incoming, f: impl FnOnce(&[u8]) -> R) -> R {
        let scope = Scope::enter(&ARRIVED, std::mem::take(&mut inc.arrived));
        let result = f(inc.rest());
        inc.arrived = scope.leave().unwrap_or_default();
        result
    }

    fn within<T, R>(
        variable: &'static LocalKey<Cell<Option<T>>>,
        what: &'static str,
        f: impl FnOnce(&mut T) -> Result<R>,
    ) -> Result<R> {
        let mut value = variable.take().ok_or(Error::OutsideMessage(what))?;
        let result = f(&mut value);
        variable.set(Some(value));
        result
    }

    /// What is attached to the message that the caller's value is being written into. `what` names the value in the error.
    ///
    /// # Errors
    /// [`Error::OutsideMessage`] when there is none, or what `f` returns.
    pub fn outgoing<R>(what: &'static str, f: impl FnOnce(&mut Attached) -> Result<R>) -> Result<R> {
        within(&ATTACHED, what, f)
    }

    /// What is attached to the message that the caller's value is being read from. `what` names the value in the error.
    ///
    /// # Errors
    /// [`Error::OutsideMessage`] when there is none, or what `f` returns.
    pub fn incoming<R>(what: &'static str, f: impl FnOnce(&mut Arrived) -> Result<R>) -> Result<R> {
        within(&ARRIVED, what, f)
    }
}
