//! What a message is: bytes, and blocks attached to them.
//!
//! The contract between values and codecs. A codec (in `mp-reduce`) turns serde values into bytes; a value
//! whose memory must not be copied attaches its block instead, and writes which attachment it is.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arena::{AttachRequest, Hold, Received, Shipment};
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
    attachments: Vec<AttachRequest>,
}

impl Outgoing {
    /// An empty one, which reuses `bytes` as a buffer.
    pub fn new(mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        Self { bytes, attachments: Vec::new() }
    }

    /// The bytes written so far, to append to.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Attaches a handle that gives no access to memory by itself: a queue's, for example. Its number.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there are too many attachments.
    pub fn attach_object(&mut self, hold: &Hold) -> Result<u32> {
        self.attach(hold, Access::Object, 0)
    }

    /// Attaches a block, or finds it among the attachments already: two views of one storage arrive as views of one.
    pub(crate) fn attach(&mut self, hold: &Hold, access: Access, tag: u8) -> Result<u32> {
        let same = |a: &AttachRequest| a.hold.block() == hold.block();
        match self.attachments.iter().position(same) {
            Some(_) if access == Access::Exclusive => {
                Err(Error::Malformed("an exclusive tensor can't be in a message twice".into()))
            }
            Some(i) => Ok(i as u32),
            None => {
                self.attachments.push(AttachRequest { hold: hold.clone(), access, tag });
                Ok(self.attachments.len() as u32 - 1)
            }
        }
    }

    /// What is to be packed.
    pub fn shipment(&mut self, fingerprint: u64) -> Shipment<'_> {
        Shipment { bytes: &self.bytes, attachments: std::mem::take(&mut self.attachments), fingerprint }
    }

    /// Reads the message back on this side: what could not be packed or put returns to its sender like that.
    pub fn into_incoming(self, attachments: Vec<AttachRequest>) -> Incoming {
        let given = attachments.into_iter().map(Given::from).collect();
        Incoming { bytes: Source::Own(self.bytes), at: 0, attachments: given }
    }

    /// The buffer, for the next message.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

/// The error of a derived [`Message::decode`] for a variant number that the enum doesn't have.
#[doc(hidden)]
pub fn no_such_variant(name: &str, variant: u32) -> Error {
    Error::Malformed(format!("enum {name} has no variant {variant}"))
}

#[derive(Debug)]
enum Source {
    Own(Vec<u8>),
    Received(Box<Received>),
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

/// A message being read.
#[derive(Debug)]
pub struct Incoming {
    bytes: Source,
    at: usize,
    attachments: Vec<Given>,
}

impl Incoming {
    /// To read a message that arrived.
    pub fn new(mut received: Received) -> Self {
        let given = std::mem::take(&mut received.attachments);
        let attachments = given.into_iter().map(Given::from).collect();
        Self { bytes: Source::Received(Box::new(received)), at: 0, attachments }
    }

    /// The bytes not read yet.
    pub fn rest(&self) -> &[u8] {
        let all = match &self.bytes {
            Source::Own(bytes) => bytes,
            Source::Received(received) => received.bytes(),
        };
        &all[self.at.min(all.len())..]
    }

    /// Notes that `n` bytes were read.
    pub fn advance(&mut self, n: usize) {
        self.at += n;
    }

    /// A handle that gives no access to memory by itself.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there is no such attachment, or it is of another kind.
    pub fn take_object(&mut self, attachment: u32) -> Result<Hold> {
        self.take(attachment, Access::Object, 0)
    }

    pub(crate) fn take(&mut self, attachment: u32, access: Access, tag: u8) -> Result<Hold> {
        let wrong = |why: &str| Error::Malformed(format!("attachment {attachment} of the message {why}"));
        let given = self.attachments.get_mut(attachment as usize).ok_or_else(|| wrong("does not exist"))?;
        if (given.access, given.tag) != (access, tag) {
            let sent = format!("{:?} (element type {})", given.access, given.tag);
            return Err(wrong(&format!("was sent as {sent} and is read as {access:?} (element type {tag})")));
        }
        if access != Access::Exclusive {
            return given.hold.clone().ok_or_else(|| wrong("was taken already"));
        }
        let hold = given.hold.take().ok_or_else(|| wrong("was taken already"))?;
        // A message that never left (it is given back to its sender) while the value it was made of lives on.
        if hold.count() != 1 {
            return Err(wrong("is exclusive, and other handles to it exist in this process"));
        }
        Ok(hold)
    }

    /// Blocks that are attached, for diagnosis.
    pub fn attached(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.attachments.iter().filter_map(|given| given.hold.as_ref().map(Hold::block))
    }
}

/// Where serde types that carry attachments find the message they are in.
///
/// serde passes no context through `Serialize`, so that it waits in a variable of the thread. A codec puts the message
/// there for the time of one call.
pub mod scope {
    use std::cell::RefCell;

    use super::{Error, Incoming, Outgoing, Result};

    thread_local! {
        static OUTGOING: RefCell<Vec<Outgoing>> = const { RefCell::new(Vec::new()) };
        static INCOMING: RefCell<Vec<Incoming>> = const { RefCell::new(Vec::new()) };
    }

    /// Takes the value back out of the scope, also when `f` panics.
    struct Back<'a, T: 'static> {
        to: &'a mut T,
        from: &'static std::thread::LocalKey<RefCell<Vec<T>>>,
    }

    impl<T: 'static> Drop for Back<'_, T> {
        fn drop(&mut self) {
            if let Ok(Some(v)) = self.from.try_with(|s| s.borrow_mut().pop()) {
                *self.to = v;
            }
        }
    }

    /// Calls `f` while serde values can attach to `out`. `f` writes to a buffer of its own.
    pub fn with_outgoing<R>(out: &mut Outgoing, f: impl FnOnce() -> R) -> R {
        let given = Outgoing { bytes: Vec::new(), attachments: std::mem::take(&mut out.attachments) };
        OUTGOING.with_borrow_mut(|s| s.push(given));
        let mut inner = Outgoing::default();
        let result = {
            let _back = Back { to: &mut inner, from: &OUTGOING };
            f()
        };
        out.attachments = inner.attachments;
        result
    }

    /// Calls `f` while serde values can take attachments of `inc`. `f` reads from bytes of its own.
    pub fn with_incoming<R>(inc: &mut Incoming, f: impl FnOnce(&[u8]) -> R) -> R {
        let attachments = std::mem::take(&mut inc.attachments);
        let given = Incoming { bytes: super::Source::Own(Vec::new()), at: 0, attachments };
        INCOMING.with_borrow_mut(|s| s.push(given));
        let mut inner = Incoming { bytes: super::Source::Own(Vec::new()), at: 0, attachments: Vec::new() };
        let result = {
            let _back = Back { to: &mut inner, from: &INCOMING };
            f(inc.rest())
        };
        inc.attachments = inner.attachments;
        result
    }

    /// The message that the caller's value is being written into. `what` names the value in the error.
    ///
    /// # Errors
    /// [`Error::OutsideMessage`] when there is none, or what `f` returns.
    pub fn outgoing<R>(what: &'static str, f: impl FnOnce(&mut Outgoing) -> Result<R>) -> Result<R> {
        OUTGOING.with_borrow_mut(|s| f(s.last_mut().ok_or(Error::OutsideMessage(what))?))
    }

    /// The message that the caller's value is being read from. `what` names the value in the error.
    ///
    /// # Errors
    /// [`Error::OutsideMessage`] when there is none, or what `f` returns.
    pub fn incoming<R>(what: &'static str, f: impl FnOnce(&mut Incoming) -> Result<R>) -> Result<R> {
        INCOMING.with_borrow_mut(|s| f(s.last_mut().ok_or(Error::OutsideMessage(what))?))
    }
}
