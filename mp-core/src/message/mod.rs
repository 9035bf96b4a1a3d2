//! Messages: bytes, and blocks attached to them.
//!
//! This module is the contract between values and codecs. A codec (in `mp-reduce`) turns serde values into
//! bytes. A value whose memory must not be copied attaches its block instead, and writes the number of the
//! attachment.

pub mod memo;
pub mod nesting_depth;
mod outcome;
mod plain;
pub mod schema;
pub mod scope;

use std::any::{Any, TypeId};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
pub use crate::error::Result;
pub use crate::error::{Undecodable, in_field};
pub use crate::transport::{
    Attached, Buffer, Claimed, Incoming, LoanedValue, Outgoing, ReceivedAttachments, UnsentValues,
};
pub use nesting_depth::{Level, MAX_NESTING};
pub use outcome::{IntoOutcome, PlainOutcome};
pub use plain::{AsBytes, SmallBytes, as_bytes};
#[doc(hidden)]
pub use plain::{read_as_bytes_into, read_as_bytes_plain, write_as_bytes};
pub use schema::Schema;

/// Value that can be sent to another process.
///
/// Implemented for every type that is `Serialize + DeserializeOwned`: numbers, strings, your own structs and
/// enums, and also frozen and shared tensors and queues. Types that contain an exclusive `Tensor` do not
/// implement serde's traits, so that they can't be sent twice. Use `#[derive(Message)]` for them.
///
/// For a `&str` or `&[T]` the compiler reports that an "implementation of `Deserialize` is not general
/// enough": the referenced data is in the memory of this process. A `String` or `Vec` can be sent.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be sent to another process",
    label = "not a message",
    note = "plain data: derive `Serialize` and `Deserialize`; what contains an exclusive `Tensor`: \
    `#[derive(Message)]`",
    note = "a tuple, `Vec` or `Option` of such: `mp::Bundle`; a type of another crate: `#[serde(with = \
    \"mp::message::reduced\")]`",
    note = "a reference: what it points to, as `String` or `Vec`; an `Rc` or `Arc`: what is in it; a file: \
    its path; a lock, a guard or \
            a channel of the standard library: the lock or queue of `mp` itself"
)]
pub trait Message: Sized + 'static {
    /// Writes the value. Exclusive parts move into the message: an exclusive tensor is empty afterwards.
    ///
    /// The value is kept until its message has been sent or has failed. After success it is dropped. After a
    /// failure, [`take_back`](Self::take_back) returns the moved parts to the value, and the value is
    /// returned to the sender.
    ///
    /// # Errors
    /// Any error that prevents the value from being written. The sender gets the value back.
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()>;

    /// Takes back the parts that [`encode`](Self::encode) moved into a message that was not sent.
    /// Implementations call this for each part, in the order in which `encode` wrote them. Parts that
    /// `encode` did not reach stay unchanged.
    fn take_back(&mut self, back: &mut UnsentValues);

    /// Returns the schema of a named message: see `name` in `#[derive(Message)]`. Returns `None` for other
    /// types, which have only a Rust name.
    #[doc(hidden)]
    fn schema() -> Option<String> {
        None
    }

    /// `true` if the schema is a property of each queue instead of the type, as in dynamically typed
    /// languages.
    #[doc(hidden)]
    const DYNAMIC: bool = false;

    /// Calls `read` once. During the call, [`schema`](Self::schema) returns the given schema. For types with
    /// a dynamic schema.
    #[doc(hidden)]
    fn with_schema<R>(_schema: &str, read: impl FnOnce() -> R) -> R {
        read()
    }

    /// Returns the bytes that [`encode`](Self::encode) writes, if they are few, have no attachments and are
    /// written without user code. Implementations may return `None` for any value.
    #[doc(hidden)]
    #[inline(always)]
    fn to_small_bytes<C: Codec>(&self) -> Option<SmallBytes> {
        None
    }

    /// Reads the value that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the bytes or attachments do not encode a `Self`.
    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self>;

    /// Reads the value like [`decode`](Self::decode), into the empty `slot`. Faster than `decode` if the
    /// value passes through several callers, because each of them would copy a returned value.
    ///
    /// # Errors
    /// The same as for `decode`.
    #[doc(hidden)]
    #[inline]
    fn decode_into<C: Codec>(inc: &mut Incoming, slot: &mut Option<Self>) -> Result<()> {
        *slot = Some(Self::decode::<C>(inc)?);
        Ok(())
    }

    /// `true` if [`decode`](Self::decode) leaves attachments to be read later. A queue then delivers the
    /// message even if the receiving process has no room for the attached descriptors. The code that reads
    /// the attachments later must check that there is room.
    #[doc(hidden)]
    const READ_LATER: bool = false;

    /// Reads the value of a message without attachments from its bytes.
    ///
    /// # Errors
    /// The same as for [`decode`](Self::decode).
    #[doc(hidden)]
    #[inline]
    fn decode_plain<C: Codec>(bytes: &[u8]) -> Result<Self> {
        Self::decode::<C>(&mut Incoming::from_plain(bytes.to_vec()))
    }

    /// Reads a value that [`to_small_bytes`](Self::to_small_bytes) wrote, without user code. Returns `None`
    /// for bytes that need [`decode_plain`](Self::decode_plain).
    #[doc(hidden)]
    #[inline(always)]
    fn from_small_bytes<C: Codec>(_bytes: SmallBytes) -> Option<Self> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + 'static> Message for T {
    #[inline]
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        // The match is resolved at compile time for each type.
        match PlainNumber::of(self) {
            Some(number) => C::write_number(out, number),
            None => C::write_whole(out, self),
        }
    }

    #[inline]
    fn take_back(&mut self, _: &mut UnsentValues) {
        // The value has no exclusive parts: it still holds everything that it has attached.
    }

    #[inline]
    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        C::read(inc)
    }

    #[inline]
    fn decode_into<C: Codec>(inc: &mut Incoming, slot: &mut Option<Self>) -> Result<()> {
        C::read_into(inc, slot)
    }

    #[inline]
    fn decode_plain<C: Codec>(bytes: &[u8]) -> Result<Self> {
        if const { PlainNumber::is_possible::<Self>() } && PlainNumber::has::<Self>() {
            C::read_plain_number(bytes)
        } else {
            C::read_plain(bytes)
        }
    }

    #[inline(always)]
    fn to_small_bytes<C: Codec>(&self) -> Option<SmallBytes> {
        C::number_to_small_bytes(PlainNumber::of(self)?)
    }

    #[inline(always)]
    fn from_small_bytes<C: Codec>(small_bytes: SmallBytes) -> Option<Self> {
        decode_number::<Self, C>(small_bytes.as_slice())
    }
}

/// Writes a value like [`Message::encode`], but writes all numbers of a type in the same number of bytes. So
/// a sequence of numbers is written and read faster, and the positions of its elements need not be stored.
///
/// # Errors
/// The same as for `encode`.
#[doc(hidden)]
#[inline]
pub fn encode_wide<T: Message, C: Codec>(value: &mut T, out: &mut Outgoing) -> Result<()> {
    match PlainNumber::of(value) {
        Some(number) => C::write_wide_number(out, number, PlainNumber::size::<T>()),
        None => value.encode::<C>(out),
    }
}

/// Reads a number in a few instructions. Returns `None` if the type has no numbers, and for bytes that need
/// [`Message::decode_plain`].
#[doc(hidden)]
#[inline(always)]
pub fn decode_number<T: 'static, C: Codec>(bytes: &[u8]) -> Option<T> {
    if const { PlainNumber::is_possible::<T>() } && PlainNumber::has::<T>() {
        C::read_quickly(bytes)
    } else {
        None
    }
}

/// Value that is a number, an option of a number, or `()`. It can't have attachments, so it is written
/// without preparations.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PlainNumber {
    /// `u8` to `u64`, and `usize`.
    Unsigned(u64),
    /// `i8` to `i64`, and `isize`.
    Signed(i64),
    /// `f32`.
    F32(f32),
    /// `f64`.
    F64(f64),
    /// `None` of an optional number, or `()`.
    None,
}

macro_rules! numbers {
    ($($variant:ident as $number:ty: $($t:ty)*;)*) => {
        impl PlainNumber {
            /// Returns the number in a value.
            #[inline(always)]
            fn of<T: 'static>(value: &T) -> Option<Self> {
                if const { !Self::is_possible::<T>() } {
                    return None;
                }
                let value: &dyn Any = value;
                $($(
                    if const { size_of::<T>() == size_of::<$t>() }
                        && let Some(n) = value.downcast_ref::<$t>()
                    {
                        return Some(Self::$variant(*n as $number));
                    }
                    if const { size_of::<T>() == size_of::<Option<$t>>() }
                        && let Some(n) = value.downcast_ref::<Option<$t>>()
                    {
                        return Some(n.map_or(Self::None, |n| Self::$variant(n as $number)));
                    }
                )*)*
                value.is::<()>().then_some(Self::None)
            }

            /// Returns `true` if all values of a type are numbers, options of numbers, or `()`.
            #[inline(always)]
            pub fn has<T: 'static>() -> bool {
                let this = TypeId::of::<T>();
                $($(this == TypeId::of::<$t>() || this == TypeId::of::<Option<$t>>() ||)*)*
                    this == TypeId::of::<()>()
            }

            /// Returns the size in bytes of the numbers of a type, or 0 if its values are not numbers.
            #[inline(always)]
            fn size<T: 'static>() -> usize {
                if const { !Self::is_possible::<T>() } {
                    return 0;
                }
                let this = TypeId::of::<T>();
                $($(
                    if this == TypeId::of::<$t>() || this == TypeId::of::<Option<$t>>() {
                        return size_of::<$t>();
                    }
                )*)*
                0
            }
        }
    };
}

macro_rules! integers {
    ($($t:ty)*) => {
        impl PlainNumber {
            /// Returns an integer as a value of type `T`, if `T` is an integer type, or an option of an
            /// integer type, and the integer fits.
            #[inline(always)]
            pub fn integer_as<T: 'static, N: Copy>(n: N) -> Option<T>
            where
                $($t: TryFrom<N>,)*
            {
                let mut value: Option<T> = None;
                // The downcasts are resolved at compile time for each type.
                let slot: &mut dyn Any = &mut value;
                $(
                    if const { size_of::<T>() == size_of::<$t>() }
                        && let Some(slot) = slot.downcast_mut::<Option<$t>>()
                    {
                        *slot = <$t>::try_from(n).ok();
                        return value;
                    }
                    if const { size_of::<T>() == size_of::<Option<$t>>() }
                        && let Some(slot) = slot.downcast_mut::<Option<Option<$t>>>()
                    {
                        *slot = <$t>::try_from(n).ok().map(Some);
                        return value;
                    }
                )*
                None
            }
        }
    };
}

integers! { u8 u16 u32 u64 usize i8 i16 i32 i64 isize }

impl PlainNumber {
    /// Returns `false` if the size or the destructor of a type shows that its values are not numbers. If
    /// `if const { … }` checks this first, the code for numbers is not compiled for such a type, even without
    /// optimisation.
    pub(super) const fn is_possible<T>() -> bool {
        size_of::<T>() <= size_of::<Option<u64>>() && !std::mem::needs_drop::<T>()
    }

    /// Returns `float` as a value of type `T`, if `T` is `F` or `Option<F>`.
    #[inline(always)]
    pub fn float_as<T: 'static, F: Copy + 'static>(float: F) -> Option<T> {
        let mut value: Option<T> = None;
        let slot: &mut dyn Any = &mut value;
        if let Some(slot) = slot.downcast_mut::<Option<F>>() {
            *slot = Some(float);
        } else if let Some(slot) = slot.downcast_mut::<Option<Option<F>>>() {
            *slot = Some(Some(float));
        }
        value
    }

    /// Returns `()` as a value of type `T`, if `T` is `()`.
    #[inline(always)]
    pub fn unit_as<T: 'static>() -> Option<T> {
        let mut value: Option<T> = None;
        let slot: &mut dyn Any = &mut value;
        if let Some(slot) = slot.downcast_mut::<Option<()>>() {
            *slot = Some(());
        }
        value
    }
}

numbers! {
    Unsigned as u64: u8 u16 u32 u64 usize;
    Signed as i64: i8 i16 i32 i64 isize;
    F32 as f32: f32;
    F64 as f64: f64;
}

/// Encoding of serde values as bytes.
pub trait Codec {
    /// Appends a value.
    ///
    /// # Errors
    /// [`Error::Unsendable`] with the error of the value's `Serialize`.
    fn write<T: Serialize + ?Sized>(out: &mut Outgoing, value: &T) -> Result<()>;

    /// Appends a value that is a whole message or a whole field, like [`write`](Self::write), and checks that
    /// it can be read.
    ///
    /// # Errors
    /// The same as for `write`, and if the value's `Deserialize` could not read the written bytes.
    fn write_whole<T: Serialize + DeserializeOwned>(out: &mut Outgoing, value: &T) -> Result<()> {
        Self::write(out, value)
    }

    /// Appends a number: the same bytes as [`write`](Self::write), regardless of the type of the number.
    ///
    /// # Errors
    /// The same as for `write`.
    fn write_number(out: &mut Outgoing, number: PlainNumber) -> Result<()>;

    /// Returns the bytes that [`write_number`](Self::write_number) appends, if they are few.
    #[doc(hidden)]
    #[inline(always)]
    fn number_to_small_bytes(_number: PlainNumber) -> Option<SmallBytes> {
        None
    }

    /// Appends a number in the given size in bytes, which is the same for all numbers of its type. The number
    /// is read like other numbers.
    ///
    /// # Errors
    /// The same as for `write`.
    #[inline]
    fn write_wide_number(out: &mut Outgoing, number: PlainNumber, _size: usize) -> Result<()> {
        Self::write_number(out, number)
    }

    /// Appends a few bytes, like [`write`](Self::write) of a value that is
    /// [bytes](serde::Serializer::serialize_bytes).
    ///
    /// # Errors
    /// The same as for `write`.
    fn write_bytes(out: &mut Outgoing, bytes: &[u8]) -> Result<()>;

    /// Reads the next value.
    ///
    /// # Errors
    /// [`Error::Undecodable`] with the error of the value's `Deserialize`.
    fn read<T: DeserializeOwned>(inc: &mut Incoming) -> Result<T>;

    /// Reads the next value into `slot`, which is empty: see [`Message::decode_into`].
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    #[doc(hidden)]
    #[inline]
    fn read_into<T: DeserializeOwned>(inc: &mut Incoming, slot: &mut Option<T>) -> Result<()> {
        *slot = Some(Self::read(inc)?);
        Ok(())
    }

    /// Reads the next value. If [`write_bytes`](Self::write_bytes) wrote it, passes the bytes to
    /// `read`, which converts them.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read), and any error of the closure.
    fn read_bytes<T: DeserializeOwned>(
        inc: &mut Incoming,
        read: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T>;

    /// Passes the next value to `read` and returns `true`, if the value was written as [a few
    /// bytes](Self::write_bytes). Otherwise returns `false` and does not advance. Codecs implement this if
    /// [`read`](Self::read) can't read what [`write_bytes`](Self::write_bytes) wrote.
    ///
    /// # Errors
    /// Any error of `read`, and an error if the message is too short.
    #[doc(hidden)]
    #[inline]
    fn read_small_bytes(_inc: &mut Incoming, _read: impl FnOnce(&[u8]) -> Result<()>) -> Result<bool> {
        Ok(false)
    }

    /// Reads the first value from bytes without attachments.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    fn read_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T>;

    /// Reads a value like [`read_plain`](Self::read_plain), for a type whose values are only
    /// [numbers](PlainNumber).
    ///
    /// # Errors
    /// The same as for `read_plain`.
    #[inline]
    fn read_plain_number<T: DeserializeOwned + 'static>(bytes: &[u8]) -> Result<T> {
        Self::read_plain(bytes)
    }

    /// Reads a value like [`read_plain_number`](Self::read_plain_number), if `bytes` is exactly what
    /// [`write_number`](Self::write_number) writes for the type. Returns `None` otherwise.
    #[inline(always)]
    fn read_quickly<T: 'static>(_bytes: &[u8]) -> Option<T> {
        None
    }
}

/// Implements [`Message::decode`] by [`Message::decode_into`].
///
/// # Errors
/// Any error of `decode_into`, and [`Error::Malformed`] if it leaves the slot empty.
#[doc(hidden)]
#[inline]
pub fn decode_by_slot<T: Message, C: Codec>(inc: &mut Incoming) -> Result<T> {
    let mut slot = None;
    T::decode_into::<C>(inc, &mut slot)?;
    taken(slot)
}

/// Returns the value that was read into a slot.
///
/// # Errors
/// [`Error::Malformed`] if the slot is empty.
#[doc(hidden)]
#[inline]
pub fn taken<T>(slot: Option<T>) -> Result<T> {
    #[cold]
    fn empty() -> Error {
        Error::Malformed("a value was decoded without an error, but is missing".into())
    }
    slot.ok_or_else(empty)
}

/// Creates the error of a derived [`Message::decode`] for an unknown variant number.
#[doc(hidden)]
pub fn no_such_variant(name: &str, variant: u32) -> Error {
    Error::Malformed(format!("enum {name} has no variant {variant}"))
}
