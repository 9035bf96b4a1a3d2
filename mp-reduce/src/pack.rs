//! A value into an envelope, and out of it.

use std::any::type_name;
use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::thread::LocalKey;

use mp_core::message::level::afresh;
use mp_core::message::{Codec, Incoming, Message, Outgoing, Undecodable};
use mp_core::users::drop_caught;
use mp_core::{Arena, Envelope, Repeated, fnv1a};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::MessagePack;
use crate::error::{Error, Result};

/// The fingerprint of a message type: a hash of its name. A sender of many computes it once and keeps it.
pub struct TypeFingerprint<T>(u64, PhantomData<fn(T) -> T>);

impl<T> Clone for TypeFingerprint<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for TypeFingerprint<T> {}

impl<T> fmt::Debug for TypeFingerprint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {}", self.0, type_name::<T>())
    }
}

impl<T> Default for TypeFingerprint<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> TypeFingerprint<T> {
    /// Of `T`.
    pub fn new() -> Self {
        Self(fnv1a(type_name::<T>().as_bytes()), PhantomData)
    }

    /// As a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// A value that could not be packed.
pub struct PackError<T> {
    /// The value, as it was.
    pub value: T,
    /// Why.
    pub error: Error,
}

impl<T> fmt::Debug for PackError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for PackError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for PackError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

thread_local! {
    static OUTGOING: Cell<Option<Box<Outgoing>>> = const { Cell::new(None) };
    static INCOMING: Cell<Option<Box<Incoming>>> = const { Cell::new(None) };
}

/// The buffers for this thread's next message. A value that itself sends messages while it is written has others.
#[inline]
fn take<T: Default>(buffers: &'static LocalKey<Cell<Option<Box<T>>>>) -> Box<T> {
    buffers.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

/// Keeps buffers for the next message of this thread.
#[inline]
fn keep<T>(buffers: &'static LocalKey<Cell<Option<Box<T>>>>, used: Box<T>) {
    _ = buffers.try_with(|b| b.set(Some(used)));
}

/// Packs a value into an envelope of the current arena.
///
/// # Errors
/// When the value's `Serialize` refuses, or there is no memory; the value comes back.
pub fn pack<T: Message>(value: T) -> Result<Envelope, PackError<T>> {
    match Arena::current() {
        Ok(arena) => {
            let (envelope, kept) = pack_as(arena, TypeFingerprint::new(), value)?;
            // The message is the value now.
            kept.sent();
            Ok(envelope)
        }
        Err(e) => Err(PackError { value, error: e.into() }),
    }
}

/// As [`pack`], with the arena and the fingerprint at hand; the value lives on until it is known whether the envelope leaves.
///
/// # Errors
/// As [`pack`].
#[inline]
pub fn pack_as<T: Message>(
    arena: Arena,
    fingerprint: TypeFingerprint<T>,
    value: T,
) -> Result<(Envelope, Kept<T>), PackError<T>> {
    match pack_unless(arena, fingerprint, value, |_| None::<Infallible>)? {
        Written::Envelope(envelope, kept) => Ok((envelope, kept)),
        Written::Plain(never, _) => match never {},
    }
}

/// A value whose message is in an envelope that has not left yet. When it has, the value is [`sent`](Self::sent); until then
/// it can be had [back](Self::back).
///
/// What is exclusive in the value is in the message: in the value, such tensors are empty meanwhile.
pub struct Kept<T> {
    value: T,
    lent: Lent,
}

/// The buffers of a message with something exclusive in it, where is written what that was.
struct Lent(Option<Box<Outgoing>>);

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        if let Some(out) = self.0.take() {
            used(out);
        }
    }
}

/// The buffers of a message that is on its way, for the next one.
#[inline(always)]
fn used(mut out: Box<Outgoing>) {
    if out.reuse() {
        keep(&OUTGOING, out);
    }
}

impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept<{}>", type_name::<T>())
    }
}

impl<T> Kept<T> {
    /// Its message has left: the value is dropped, and a panic of its `Drop` ends here.
    #[inline]
    pub fn sent(self) {
        drop_caught(self.value);
    }
}

impl<T: Message> Kept<T> {
    /// The value, as it was: its message stays.
    pub fn back(mut self, envelope: Envelope) -> T {
        if let Some(mut out) = self.lent.0.take() {
            let mut back = out.returned(Some(envelope));
            afresh(|| self.value.take_back(&mut back));
        }
        self.value
    }
}

/// A value that could not be packed, as it was.
#[cold]
fn unpacked<T: Message>(mut value: T, out: &mut Outgoing, error: Error) -> PackError<T> {
    if out.lends() {
        let mut back = out.returned(None);
        afresh(|| value.take_back(&mut back));
    }
    PackError { value, error }
}

/// A value that was written.
#[derive(Debug)]
pub enum Written<S, T> {
    /// It is in an envelope, and lives on until it is known whether that leaves.
    Envelope(Envelope, Kept<T>),
    /// Its bytes were taken as they are, as this; the value itself.
    Plain(S, T),
}

/// As [`pack_as`], unless nothing is attached and `plain` takes the bytes.
///
/// # Errors
/// As [`pack`].
#[inline]
pub fn pack_unless<T: Message, S>(
    arena: Arena,
    fingerprint: TypeFingerprint<T>,
    mut value: T,
    plain: impl FnOnce(&[u8]) -> Option<S>,
) -> Result<Written<S, T>, PackError<T>> {
    let mut out = take(&OUTGOING);
    if let Err(e) = afresh(|| value.encode::<MessagePack>(&mut out)) {
        return Err(unpacked(value, &mut out, e.into()));
    }
    if let Some(taken) = out.plain().and_then(plain) {
        used(out);
        return Ok(Written::Plain(taken, value));
    }
    match arena.pack_for_queue(&mut out, fingerprint.get()) {
        Ok(envelope) => {
            let lent = if out.lends() {
                Lent(Some(out))
            } else {
                used(out);
                Lent(None)
            };
            Ok(Written::Envelope(envelope, Kept { value, lent }))
        }
        Err(error) => Err(unpacked(value, &mut out, error.into())),
    }
}

/// A value that was encoded once, to be packed for each of several receivers: its bytes are in shared memory once. Serde
/// values allow that, for they hold nothing exclusively.
///
/// ```
/// use mp_core::Arena;
/// use mp_reduce::{Encoded, unpack};
///
/// let names = vec!["a name".to_string(); 10_000];
/// let encoded = Encoded::new(Arena::current()?, &names)?;
/// let envelopes = [encoded.pack()?, encoded.pack()?];
/// drop(encoded); // the envelopes keep what they need
/// for envelope in envelopes {
///     assert_eq!(unpack::<Vec<String>>(envelope)?, names);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Encoded<T>(Repeated, PhantomData<fn(T)>);

impl<T: Serialize + DeserializeOwned + 'static> Encoded<T> {
    /// Encodes a value.
    ///
    /// # Errors
    /// When the value's `Serialize` refuses, or there is no memory.
    pub fn new(arena: Arena, value: &T) -> Result<Encoded<T>> {
        let mut out = Outgoing::default();
        afresh(|| MessagePack::write_whole(&mut out, value))?;
        Encoded::finish(arena, out)
    }

    /// What was encoded already.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn finish(arena: Arena, out: Outgoing) -> Result<Encoded<T>> {
        Ok(Encoded(Repeated::new(arena, out, TypeFingerprint::<T>::new().get())?, PhantomData))
    }

    /// Packs it once more; the receiver of the envelope takes the value out of it by [`unpack`].
    ///
    /// # Errors
    /// When there is no memory, or too many messages are on their way.
    pub fn pack(&self) -> Result<Envelope> {
        Ok(self.0.pack()?)
    }
}

/// Takes a value out of an envelope.
///
/// # Errors
/// [`Error::TypeMismatch`] when it is of another type, [`Error::Memory`] when its bytes make no sense. Both have the
/// message's bytes ([`Error::bytes`]); what was attached is released.
pub fn unpack<T: Message>(envelope: Envelope) -> Result<T> {
    unpack_as(TypeFingerprint::new(), envelope)
}

/// As [`unpack`], with the fingerprint at hand.
///
/// # Errors
/// As [`unpack`].
#[inline]
pub fn unpack_as<T: Message>(fingerprint: TypeFingerprint<T>, envelope: Envelope) -> Result<T> {
    // The envelope is empty and free for the next message before any code of `T` runs.
    unpack_with(fingerprint, |inc| envelope.open(inc))
}

/// Takes a value out of bytes that had no envelope, see [`pack_unless`], and are of its type.
///
/// # Errors
/// As [`unpack`].
#[inline]
pub fn unpack_plain<T: Message>(bytes: &[u8]) -> Result<T> {
    match afresh(|| T::decode_plain::<MessagePack>(bytes)) {
        Ok(value) => Ok(value),
        Err(e) => Err(undecodable::<T>(e, bytes)),
    }
}

/// As [`unpack_as`], with `open` putting the message into an empty [`Incoming`].
///
/// # Errors
/// As [`unpack`], and those of `open`.
#[inline]
pub fn unpack_with<T: Message>(
    fingerprint: TypeFingerprint<T>,
    open: impl FnOnce(&mut Incoming) -> mp_core::Result<()>,
) -> Result<T> {
    let mut inc = take(&INCOMING);
    open(&mut inc)?;
    if inc.fingerprint() != fingerprint.get() {
        return Err(mismatch::<T>(inc.fingerprint(), inc.whole()));
    }
    let value = decode(&mut inc)?;
    if inc.reuse() {
        keep(&INCOMING, inc);
    }
    Ok(value)
}

/// A value as bytes, for a way out of the arena: a socket, say. Its type's fingerprint travels beside them.
///
/// ```
/// use mp_reduce::{from_bytes, to_bytes, TypeFingerprint};
///
/// let bytes = to_bytes(&mut vec![1_u64, 2])?;
/// let there = TypeFingerprint::<Vec<u64>>::new().get();
/// assert_eq!(from_bytes::<Vec<u64>>(bytes, there)?, [1, 2]);
/// # Ok::<(), mp_reduce::Error>(())
/// ```
///
/// # Errors
/// When its `Serialize` refuses, or it has tensors, queues or locks in it: those are in the memory of this tree of processes.
pub fn to_bytes<T: Message>(value: &mut T) -> Result<Vec<u8>> {
    let mut out = Outgoing::default();
    let written = afresh(|| value.encode::<MessagePack>(&mut out)).and_then(|()| {
        let stays =
            "tensors, queues or locks are in a value that is to leave this memory; send their contents instead";
        out.plain().map(drop).ok_or_else(|| mp_core::Error::NotShared(stays.into()))
    });
    if out.lends() {
        let mut back = out.returned(None);
        afresh(|| value.take_back(&mut back));
    }
    written?;
    Ok(std::mem::take(out.bytes()))
}

/// A value out of bytes from elsewhere, of which anything may be wrong.
///
/// # Errors
/// As [`unpack`].
pub fn from_bytes<T: Message>(bytes: Vec<u8>, fingerprint: u64) -> Result<T> {
    if fingerprint != TypeFingerprint::<T>::new().get() {
        return Err(mismatch::<T>(fingerprint, &bytes));
    }
    decode(&mut Incoming::from_plain(bytes))
}

/// Reads the value; if it can't be, the error has the bytes.
#[inline]
fn decode<T: Message>(inc: &mut Incoming) -> Result<T> {
    match afresh(|| T::decode::<MessagePack>(inc)) {
        Ok(value) => Ok(value),
        Err(e) => Err(undecodable::<T>(e, inc.whole())),
    }
}

/// The sender's type is another one.
#[cold]
fn undecodable<T>(error: mp_core::Error, bytes: &[u8]) -> Error {
    Undecodable::of_message::<T>(error, bytes).into()
}

#[cold]
fn mismatch<T>(found: u64, bytes: &[u8]) -> Error {
    let found = format!("with fingerprint {found:016x}");
    Error::TypeMismatch { expected: type_name::<T>(), found, bytes: bytes.to_vec() }
}
