//! Packing of values into envelopes, and unpacking.

use std::any::type_name;
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::thread::LocalKey;

use mp_core::message::nesting_depth::{as_separate_message, with_nested_message};
use mp_core::message::{Codec, Incoming, Message, Outgoing, Undecodable, taken};
use mp_core::user_code::drop_caught;
use mp_core::{Arena, Envelope, Messages, Repeated, fnv1a};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{MessagePack, all_bytes};
use crate::error::{Error, Result};

/// Fingerprint of a message type: a hash of its name. Senders of many messages compute it once.
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

impl<T: Message> Default for TypeFingerprint<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Message> TypeFingerprint<T> {
    /// Computes the fingerprint of `T`.
    pub fn new() -> Self {
        match T::schema() {
            Some(schema) => Self(fnv1a(schema.as_bytes()), PhantomData),
            None => Self(fnv1a(type_name::<T>().as_bytes()), PhantomData),
        }
    }
}

impl<T> TypeFingerprint<T> {
    /// Computes the fingerprint of a serde type. The name of a serde type is always that in Rust.
    #[doc(hidden)]
    pub fn of_rust_name() -> Self {
        Self(fnv1a(type_name::<T>().as_bytes()), PhantomData)
    }

    /// Creates a fingerprint from a stored number, for a type with a dynamic schema.
    #[doc(hidden)]
    pub fn stored(fingerprint: u64) -> Self {
        Self(fingerprint, PhantomData)
    }

    /// Returns the fingerprint as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Returns the name of a message type: the schema of a named message, or else the name in Rust.
pub fn name_of<T: Message>() -> Cow<'static, str> {
    T::schema().map_or(Cow::Borrowed(type_name::<T>()), Cow::Owned)
}

/// Error of a value that could not be packed. Contains the value.
pub struct PackError<T> {
    /// Value that was not packed, unchanged.
    pub value: T,
    /// Cause of the failure.
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

/// Takes this thread's buffers for the next message. If the buffers are in use, because a value sends
/// messages while it is encoded, returns new buffers.
#[inline]
fn take_buffers<T: Default>(buffers: &'static LocalKey<Cell<Option<Box<T>>>>) -> Box<T> {
    buffers.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

/// Stores buffers for the next message of this thread.
#[inline]
fn store_buffers<T>(buffers: &'static LocalKey<Cell<Option<Box<T>>>>, used: Box<T>) {
    _ = buffers.try_with(|b| b.set(Some(used)));
}

/// Packs a value into an envelope of the current arena.
///
/// # Errors
/// Returns an error if the value's `Serialize` returns an error, or memory is exhausted. The error contains
/// the value.
pub fn pack<T: Message>(mut value: T) -> Result<Envelope, PackError<T>> {
    let packed = match Arena::current() {
        Ok(arena) => {
            let fingerprint = TypeFingerprint::<T>::new().get();
            pack_as(&mut value, |out| Messages(arena).pack_for_queue(out, fingerprint, None))
        }
        Err(e) => Err(e.into()),
    };
    match packed {
        Ok((envelope, lent)) => {
            // The message owns the value's contents now.
            lent.commit();
            drop_caught(value);
            Ok(envelope)
        }
        Err(error) => Err(PackError { value, error }),
    }
}

/// Encodes a value, and calls `seal` to put the encoded bytes into an envelope. The caller keeps the
/// value. Its exclusive parts are in the message until the message is [committed](LoanedParts::commit) or the
/// value gets them [back](LoanedParts::restore).
///
/// # Errors
/// Returns an error if the value's `Serialize` or `seal` returns an error. The value is then unchanged.
#[inline]
pub fn pack_as<T: Message>(
    value: &mut T,
    seal: impl FnOnce(&mut Outgoing) -> mp_core::Result<Envelope>,
) -> Result<(Envelope, LoanedParts)> {
    pack_unless(value, |_| None, seal)
}

/// Exclusive parts of a value that are in its unsent message. Meanwhile, the value's exclusive tensors are
/// empty.
///
/// Contains the buffers of the message, or nothing if the message has no exclusive parts.
pub struct LoanedParts(Option<Box<Outgoing>>);

impl fmt::Debug for LoanedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoanedParts({})", self.0.is_some())
    }
}

impl LoanedParts {
    /// Returns the loan of a message without exclusive parts.
    #[inline(always)]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Ends the loan after the message was sent. The receiver owns the parts.
    #[inline(always)]
    pub fn commit(self) {
        if let Some(out) = self.0 {
            recycle(out);
        }
    }

    /// Moves the loaned parts of an unsent message back into its value.
    #[cold]
    pub fn restore<T: Message>(self, value: &mut T, envelope: Envelope) {
        match self.0 {
            Some(mut out) => {
                let mut back = out.returned(Some(envelope));
                with_nested_message(|| value.take_back(&mut back));
            }
            // The value still has all its handles.
            None => envelope.received(),
        }
    }
}

/// Stores the buffers of a sent message for the next message of this thread.
#[inline(always)]
fn recycle(mut out: Box<Outgoing>) {
    if out.reuse() {
        store_buffers(&OUTGOING, out);
    }
}

/// Moves the loaned parts back into a value that could not be packed. Returns the error.
#[cold]
fn restore_after_error<T: Message>(value: &mut T, out: &mut Outgoing, error: mp_core::Error) -> Error {
    if out.lends() {
        let mut back = out.returned(None);
        with_nested_message(|| value.take_back(&mut back));
    }
    error.into()
}

/// Encodes a value like [`pack_as`]. If the message has no attachments, first calls `plain` with the encoded
/// bytes. If `plain` returns a message, that message is the result, without loaned parts.
///
/// # Errors
/// See [`pack_as`].
#[inline]
pub fn pack_unless<T: Message, M>(
    value: &mut T,
    plain: impl FnOnce(&[u8]) -> Option<M>,
    seal: impl FnOnce(&mut Outgoing) -> mp_core::Result<M>,
) -> Result<(M, LoanedParts)> {
    let mut out = take_buffers(&OUTGOING);
    if let Err(e) = as_separate_message::<T, _>(|| value.encode::<MessagePack>(&mut out)) {
        let error = out.refusal().unwrap_or(e);
        return Err(restore_after_error(value, &mut out, error));
    }
    match sealed(out, plain, seal) {
        Ok(sealed) => Ok(sealed),
        Err((mut out, e)) => Err(restore_after_error(value, &mut out, e)),
    }
}

/// Completes an encoded message, like [`pack_unless`]. After an error, also returns the buffers.
#[cfg_attr(not(debug_assertions), inline(always))]
fn sealed<M>(
    mut out: Box<Outgoing>,
    plain: impl FnOnce(&[u8]) -> Option<M>,
    seal: impl FnOnce(&mut Outgoing) -> mp_core::Result<M>,
) -> std::result::Result<(M, LoanedParts), (Box<Outgoing>, mp_core::Error)> {
    if let Some(taken) = out.plain().and_then(plain) {
        recycle(out);
        return Ok((taken, LoanedParts(None)));
    }
    match seal(&mut out) {
        Ok(sealed) if out.lends() => Ok((sealed, LoanedParts(Some(out)))),
        Ok(sealed) => {
            recycle(out);
            Ok((sealed, LoanedParts(None)))
        }
        Err(e) => Err((out, e)),
    }
}

/// Encoded value that can be packed for several receivers. Its bytes are stored in shared memory only once.
/// The value must be a serde type, because serde types own no memory exclusively.
///
/// ```
/// use mp_core::Arena;
/// use mp_reduce::{Encoded, unpack};
///
/// let names = vec!["a name".to_string(); 10_000];
/// let encoded = Encoded::new(Arena::current()?, &names)?;
/// let envelopes = [encoded.pack()?, encoded.pack()?];
/// drop(encoded); // the envelopes hold the bytes
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
    /// Returns an error if the value's `Serialize` returns an error, or memory is exhausted.
    pub fn new(arena: Arena, value: &T) -> Result<Encoded<T>> {
        let mut out = Outgoing::default();
        with_nested_message(|| MessagePack::write_whole(&mut out, value))?;
        Encoded::finish(arena, out)
    }

    /// Creates an `Encoded` from a message that is already encoded.
    ///
    /// # Errors
    /// Returns an error if memory is exhausted.
    pub fn finish(arena: Arena, out: Outgoing) -> Result<Encoded<T>> {
        Ok(Encoded(Repeated::new(arena, out, TypeFingerprint::<T>::new().get())?, PhantomData))
    }

    /// Packs the value for another receiver. The receiver of the envelope unpacks it with [`unpack`].
    ///
    /// # Errors
    /// Returns an error if memory is exhausted, or too many messages are in flight.
    pub fn pack(&self) -> Result<Envelope> {
        Ok(self.0.pack()?)
    }
}

/// Decodes the value of the message in an envelope.
///
/// # Errors
/// Returns [`Error::TypeMismatch`] if the message has another type, and [`Error::Memory`] if its bytes can't
/// be decoded. Both errors contain the message's bytes ([`Error::bytes`]). Attachments are released.
pub fn unpack<T: Message>(envelope: Envelope) -> Result<T> {
    unpack_as(TypeFingerprint::new(), envelope)
}

/// Works like [`unpack`], with a precomputed fingerprint.
///
/// # Errors
/// See [`unpack`].
#[inline]
pub fn unpack_as<T: Message>(fingerprint: TypeFingerprint<T>, mut envelope: Envelope) -> Result<T> {
    // The envelope is emptied, and free for the next message, before any code of `T` runs.
    unpack_with(fingerprint, |inc| envelope.open(inc))
}

/// Works like [`unpack_with`], but stores the value in `slot`, which must be empty. A returned value would be
/// copied by each caller in a chain of calls.
///
/// # Errors
/// See `unpack_with`.
#[doc(hidden)]
#[inline]
pub fn unpack_into<T: Message>(
    fingerprint: TypeFingerprint<T>,
    open: impl FnOnce(&mut Incoming) -> mp_core::Result<()>,
    slot: &mut Option<T>,
) -> Result<()> {
    unpack_opened(fingerprint, opened(open)?, slot)
}

/// Calls `open`, which stores a message in this thread's buffers, and returns the buffers.
#[cfg_attr(not(debug_assertions), inline(always))]
fn opened(open: impl FnOnce(&mut Incoming) -> mp_core::Result<()>) -> mp_core::Result<Box<Incoming>> {
    let mut inc = take_buffers(&INCOMING);
    open(&mut inc)?;
    Ok(inc)
}

#[cfg_attr(not(debug_assertions), inline(always))]
fn unpack_opened<T: Message>(
    fingerprint: TypeFingerprint<T>,
    mut inc: Box<Incoming>,
    slot: &mut Option<T>,
) -> Result<()> {
    if inc.fingerprint() != fingerprint.get() {
        return Err(mismatch::<T>(all_bytes(&mut inc)));
    }
    decode_into(&mut inc, slot)?;
    if inc.reuse() {
        store_buffers(&INCOMING, inc);
    }
    Ok(())
}

/// Decodes bytes of type `T` that were sent without an envelope, see [`pack_unless`].
///
/// # Errors
/// See [`unpack`].
#[inline]
pub fn unpack_plain<T: Message>(bytes: &[u8]) -> Result<T> {
    match as_separate_message::<T, _>(|| T::decode_plain::<MessagePack>(bytes)) {
        Ok(value) => Ok(value),
        Err(e) => Err(undecodable::<T>(e, bytes)),
    }
}

/// Works like [`unpack_as`], for a message that `open` puts into an empty [`Incoming`].
///
/// # Errors
/// See [`unpack`], and the errors of `open`.
#[inline]
pub fn unpack_with<T: Message>(
    fingerprint: TypeFingerprint<T>,
    open: impl FnOnce(&mut Incoming) -> mp_core::Result<()>,
) -> Result<T> {
    let mut slot = None;
    unpack_into(fingerprint, open, &mut slot)?;
    Ok(taken(slot)?)
}

/// Encodes a value for a relay to another arena. The exclusive parts of the value are in the message until
/// [`restore_unsent`] moves them back.
///
/// # Errors
/// Returns an error if the value's `Serialize` returns an error, or the value has parts that can't leave this
/// arena. The value is then unchanged.
#[doc(hidden)]
pub fn encode_for_relay<T: Message>(value: &mut T) -> Result<Outgoing> {
    let mut out = Outgoing::default();
    let written = as_separate_message::<T, _>(|| value.encode::<MessagePack>(&mut out));
    match written.and_then(|()| out.relayed_blocks()) {
        Ok(_) => Ok(out),
        Err(e) => {
            let error = out.refusal().unwrap_or(e);
            Err(restore_after_error(value, &mut out, error))
        }
    }
}

/// Moves the exclusive parts of an unsent message back into its value.
#[doc(hidden)]
pub fn restore_unsent<T: Message>(value: &mut T, mut out: Outgoing) {
    if out.lends() {
        let mut back = out.returned(None);
        with_nested_message(|| value.take_back(&mut back));
    }
}

/// Decodes a message of type `T` that arrived from another arena.
///
/// # Errors
/// See [`unpack`].
#[doc(hidden)]
pub fn decode_relayed<T: Message>(out: Outgoing) -> Result<T> {
    let mut slot = None;
    decode_into(&mut out.into_incoming(), &mut slot)?;
    Ok(taken(slot)?)
}

/// Encodes a value as bytes that leave the arena, for example through a socket. The bytes don't contain the
/// type's fingerprint, which the caller sends in addition.
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
/// Returns an error if the value's `Serialize` returns an error, or the value contains tensors, queues or
/// locks, which belong to the memory of this family of processes.
pub fn to_bytes<T: Message>(value: &mut T) -> Result<Vec<u8>> {
    let mut bytes = to_bytes_after(Vec::new(), value)?;
    bytes.shrink_to_fit();
    Ok(bytes)
}

/// Encodes a value like [`to_bytes`], after the bytes in `start`. A frame can thus be encoded after its head,
/// without a copy.
///
/// # Errors
/// See [`to_bytes`].
#[doc(hidden)]
pub fn to_bytes_after<T: Message>(start: Vec<u8>, value: &mut T) -> Result<Vec<u8>> {
    let mut out = Outgoing::in_band();
    *out.bytes() = start;
    let written = with_nested_message(|| value.encode::<MessagePack>(&mut out)).and_then(|()| {
        let stays = "tensors, queues or locks can't leave this memory; send their contents instead";
        out.plain().map(drop).ok_or_else(|| mp_core::Error::Unsendable(stays.into()))
    });
    if out.lends() {
        let mut back = out.returned(None);
        with_nested_message(|| value.take_back(&mut back));
    }
    written?;
    Ok(std::mem::take(out.bytes()))
}

/// Decodes untrusted bytes. `fingerprint` is the fingerprint of the type that was sent.
///
/// # Errors
/// See [`unpack`].
pub fn from_bytes<T: Message>(bytes: Vec<u8>, fingerprint: u64) -> Result<T> {
    if fingerprint != TypeFingerprint::<T>::new().get() {
        return Err(mismatch::<T>(bytes));
    }
    decode(&mut Incoming::from_plain(bytes))
}

/// Decodes a value. If this fails, the error contains the bytes of the message.
#[inline]
pub(crate) fn decode<T: Message>(inc: &mut Incoming) -> Result<T> {
    let mut slot = None;
    decode_into(inc, &mut slot)?;
    Ok(taken(slot)?)
}

#[inline]
fn decode_into<T: Message>(inc: &mut Incoming, slot: &mut Option<T>) -> Result<()> {
    match with_nested_message(|| T::decode_into::<MessagePack>(inc, slot)) {
        Ok(()) => Ok(()),
        Err(e) => match inc.refusal() {
            Some(refusal) => Err(refusal.into()),
            None => Err(undecodable::<T>(e, &all_bytes(inc))),
        },
    }
}

#[cold]
fn undecodable<T>(error: mp_core::Error, bytes: &[u8]) -> Error {
    Undecodable::of_message::<T>(error, bytes).into()
}

/// Returns the error for a message that was sent as another type than `T`.
#[cold]
pub(crate) fn mismatch<T>(bytes: Vec<u8>) -> Error {
    Error::TypeMismatch { expected: type_name::<T>(), found: None, bytes }
}
