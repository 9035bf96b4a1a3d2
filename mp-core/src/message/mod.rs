//! What a message is: bytes, and blocks attached to them.
//!
//! The contract between values and codecs. A codec (in `mp-reduce`) turns serde values into bytes; a value
//! whose memory must not be copied attaches its block instead, and writes which attachment it is.

mod few;
pub mod level;
pub mod memo;
mod outcome;
mod plain;
pub mod scope;

use std::any::{Any, TypeId};

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::arena::messages::{Arrived, Attached, Buffer, Claimed, Incoming, Lent, Outgoing, Returned};
use crate::error::Error;
pub use crate::error::Result;
pub use crate::error::{Undecodable, in_field};
pub use few::FewBytes;
pub use level::{Level, MAX_NESTING};
pub use outcome::{IntoOutcome, PlainOutcome};
pub use plain::{AsBytes, as_bytes};
#[doc(hidden)]
pub use plain::{read_as_bytes_into, read_as_bytes_plain, write_as_bytes};

/// A value that can be sent to another process.
///
/// Every type that is `Serialize + DeserializeOwned` is one: numbers, strings, your own structs and enums, and
/// among them frozen and shared tensors and queues. Types that contain an exclusive `Tensor` are no
/// serde types, so that they can't be sent twice; for them there is `#[derive(Message)]`.
///
/// Of a `&str` or `&[T]` the compiler says that an "implementation of `Deserialize` is not general enough": what it points to is in
/// the memory of this process. A `String` or `Vec` can be sent.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be sent to another process",
    label = "not a message",
    note = "plain data: derive `Serialize` and `Deserialize`; what contains an exclusive `Tensor`: `#[derive(Message)]`",
    note = "a tuple, `Vec` or `Option` of such: `mp::Bundle`; a type of another crate: `#[serde(with = \"mp::message::reduced\")]`",
    note = "a reference: what it points to, as `String` or `Vec`; an `Rc` or `Arc`: what is in it; a file: its path; a lock, a guard or \
            a channel of the standard library: the lock or queue of `mp` itself"
)]
pub trait Message: Sized + 'static {
    /// Writes the value. What is exclusive in it moves into the message: an exclusive tensor is empty afterwards.
    ///
    /// The value lives on until it is known whether its message leaves. If it does, the value is dropped; if not, it gets
    /// by [`take_back`](Self::take_back) what has moved, and is given back to its sender.
    ///
    /// # Errors
    /// Whatever keeps the value from being written; then it is given back to the sender.
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()>;

    /// Takes back what [`encode`](Self::encode) moved into a message that does not leave: calls this of each part, in the order
    /// in which `encode` wrote them. (Parts that `encode` didn't come to stay as they are.)
    fn take_back(&mut self, back: &mut Returned);

    /// As [`encode`](Self::encode); but a number takes as many bytes as all numbers of its type do. Many of them in a row are written
    /// and read in less time, and where each is need not be said.
    ///
    /// # Errors
    /// As for `encode`.
    #[doc(hidden)]
    #[inline]
    fn encode_wide<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        self.encode::<C>(out)
    }

    /// The bytes that [`encode`](Self::encode) writes, if they are few, nothing is attached to them or moves into them, and no code of
    /// the user writes them. `None` says nothing.
    #[doc(hidden)]
    #[inline(always)]
    fn to_few_bytes<C: Codec>(&self) -> Option<FewBytes> {
        None
    }

    /// Reads the value that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`Error::Malformed`] when these are not its bytes and attachments.
    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self>;

    /// As [`decode`](Self::decode), into `slot`, which is empty: a result on its way through several callers would be copied by each.
    ///
    /// # Errors
    /// As for `decode`.
    #[doc(hidden)]
    #[inline]
    fn decode_into<C: Codec>(inc: &mut Incoming, slot: &mut Option<Self>) -> Result<()> {
        *slot = Some(Self::decode::<C>(inc)?);
        Ok(())
    }

    /// Whether [`decode`](Self::decode) leaves what is attached to be read later: then a queue hands the message out also where its
    /// receiver has no descriptors to spare for those in it, and its reader has to look after that.
    #[doc(hidden)]
    const READ_LATER: bool = false;

    /// Reads the value of a message to which nothing is attached: of its bytes alone.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode).
    #[doc(hidden)]
    #[inline]
    fn decode_plain<C: Codec>(bytes: &[u8]) -> Result<Self> {
        Self::decode::<C>(&mut Incoming::from_plain(bytes.to_vec()))
    }

    /// Reads a number in a few instructions; `None` if the type has none, and for bytes that [`decode_plain`](Self::decode_plain) looks at.
    #[doc(hidden)]
    #[inline(always)]
    fn decode_number<C: Codec>(_bytes: &[u8]) -> Option<Self> {
        None
    }

    /// Reads a value that [`to_few_bytes`](Self::to_few_bytes) wrote, without any code of the user; `None` for bytes that
    /// [`decode_plain`](Self::decode_plain) is to look at.
    #[doc(hidden)]
    #[inline(always)]
    fn from_few_bytes<C: Codec>(_bytes: FewBytes) -> Option<Self> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + 'static> Message for T {
    #[inline]
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        // Known when this is compiled, for each type.
        match Number::of(self) {
            Some(number) => C::write_number(out, number),
            None => C::write_whole(out, self),
        }
    }

    #[inline]
    fn encode_wide<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        match Number::of(self) {
            Some(number) => C::write_wide_number(out, number, Number::size::<Self>()),
            None => C::write_whole(out, self),
        }
    }

    #[inline]
    fn take_back(&mut self, _: &mut Returned) {
        // It holds nothing exclusively: what is attached of it is in it, too.
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
        // As when it is written.
        if Number::has::<Self>() { C::read_plain_number(bytes) } else { C::read_plain(bytes) }
    }

    #[inline(always)]
    fn to_few_bytes<C: Codec>(&self) -> Option<FewBytes> {
        C::number_in_few(Number::of(self)?)
    }

    #[inline(always)]
    fn decode_number<C: Codec>(bytes: &[u8]) -> Option<Self> {
        if Number::has::<Self>() { C::read_quickly(bytes) } else { None }
    }

    #[inline(always)]
    fn from_few_bytes<C: Codec>(few: FewBytes) -> Option<Self> {
        Self::decode_number::<C>(few.as_slice())
    }
}

/// A value that is nothing but a number, an option of one, or `()`: nothing can be attached to it, so that it is written without
/// further ado.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    /// `u8` to `u64`, and `usize`.
    Unsigned(u64),
    /// `i8` to `i64`, and `isize`.
    Signed(i64),
    /// `f32`.
    F32(f32),
    /// `f64`.
    F64(f64),
    /// `None`, where a number could be; or `()`.
    None,
}

macro_rules! numbers {
    ($($variant:ident as $number:ty: $($t:ty)*;)*) => {
        impl Number {
            /// The number that a value is.
            #[inline(always)]
            fn of<T: 'static>(value: &T) -> Option<Self> {
                let value: &dyn Any = value;
                $($(
                    if let Some(n) = value.downcast_ref::<$t>() {
                        return Some(Self::$variant(*n as $number));
                    }
                    if let Some(n) = value.downcast_ref::<Option<$t>>() {
                        return Some(n.map_or(Self::None, |n| Self::$variant(n as $number)));
                    }
                )*)*
                value.is::<()>().then_some(Self::None)
            }

            /// Whether all values of a type are numbers, or options of them, or `()`.
            #[inline(always)]
            pub fn has<T: 'static>() -> bool {
                let this = TypeId::of::<T>();
                $($(this == TypeId::of::<$t>() || this == TypeId::of::<Option<$t>>() ||)*)*
                    this == TypeId::of::<()>()
            }

            /// How many bytes the numbers of a type have: 0 if its values are no numbers.
            #[inline(always)]
            fn size<T: 'static>() -> usize {
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
        impl Number {
            /// An integer as a value of a type, if that is an integer, or an option of one, and has that value.
            #[inline(always)]
            pub fn integer_as<T: 'static, N: Copy>(n: N) -> Option<T>
            where
                $($t: TryFrom<N>,)*
            {
                let mut value: Option<T> = None;
                // Known when this is compiled, for each type.
                let slot: &mut dyn Any = &mut value;
                $(
                    if let Some(slot) = slot.downcast_mut::<Option<$t>>() {
                        *slot = <$t>::try_from(n).ok();
                        return value;
                    }
                    if let Some(slot) = slot.downcast_mut::<Option<Option<$t>>>() {
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

impl Number {
    /// `value` as a value of a type, if it is one, or the type is an option of it.
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

    /// `()` as a value of a type, if that is its type.
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

/// How serde values become bytes.
pub trait Codec {
    /// Appends a value.
    ///
    /// # Errors
    /// [`Error::Unsendable`] with the reason of the value's `Serialize`.
    fn write<T: Serialize + ?Sized>(out: &mut Outgoing, value: &T) -> Result<()>;

    /// Appends a value that is a message, or all of a field of one: as [`write`](Self::write), and makes sure that it can be
    /// read again.
    ///
    /// # Errors
    /// As for `write`, and when the value's `Deserialize` could not read what was written.
    fn write_whole<T: Serialize + DeserializeOwned>(out: &mut Outgoing, value: &T) -> Result<()> {
        Self::write(out, value)
    }

    /// Appends a number: the bytes that [`write`](Self::write) appends for it, of whatever type it is.
    ///
    /// # Errors
    /// As for `write`.
    fn write_number(out: &mut Outgoing, number: Number) -> Result<()>;

    /// The bytes that [`write_number`](Self::write_number) appends, if they are few.
    #[doc(hidden)]
    #[inline(always)]
    fn number_in_few(_number: Number) -> Option<FewBytes> {
        None
    }

    /// Appends a number of a type with this many bytes: all numbers of the type take as many. They are read as others are.
    ///
    /// # Errors
    /// As for `write`.
    #[inline]
    fn write_wide_number(out: &mut Outgoing, number: Number, _size: usize) -> Result<()> {
        Self::write_number(out, number)
    }

    /// Appends a few bytes: as [`write`](Self::write) does with a value that is [bytes](serde::Serializer::serialize_bytes).
    ///
    /// # Errors
    /// As for `write`.
    fn write_bytes(out: &mut Outgoing, bytes: &[u8]) -> Result<()>;

    /// Reads the next value.
    ///
    /// # Errors
    /// [`Error::Undecodable`] with the reason of the value's `Deserialize`.
    fn read<T: DeserializeOwned>(inc: &mut Incoming) -> Result<T>;

    /// As [`read`](Self::read), into `slot`, which is empty: see [`Message::decode_into`].
    ///
    /// # Errors
    /// As for `read`.
    #[doc(hidden)]
    #[inline]
    fn read_into<T: DeserializeOwned>(inc: &mut Incoming, slot: &mut Option<T>) -> Result<()> {
        *slot = Some(Self::read(inc)?);
        Ok(())
    }

    /// Reads the next value, of which `read` makes what it is if it was written as [a few bytes](Self::write_bytes).
    ///
    /// # Errors
    /// As for [`read`](Self::read), and those of `read`.
    fn read_bytes<T: DeserializeOwned>(
        inc: &mut Incoming,
        read: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T>;

    /// Hands `read` the next value if it was written as [a few bytes](Self::write_bytes): whether it was. If not, it is still the next
    /// one. A codec needs it where [`read`](Self::read) can't read what [`write_bytes`](Self::write_bytes) wrote.
    ///
    /// # Errors
    /// Those of `read`, and when the message is too short.
    #[doc(hidden)]
    #[inline]
    fn read_few_bytes(_inc: &mut Incoming, _read: impl FnOnce(&[u8]) -> Result<()>) -> Result<bool> {
        Ok(false)
    }

    /// Reads the first value of bytes to which nothing is attached.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn read_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T>;

    /// As [`read_plain`](Self::read_plain), of a type whose values are [numbers](Number), in which nothing else can be.
    ///
    /// # Errors
    /// As for `read_plain`.
    #[inline]
    fn read_plain_number<T: DeserializeOwned + 'static>(bytes: &[u8]) -> Result<T> {
        Self::read_plain(bytes)
    }

    /// As [`read_plain_number`](Self::read_plain_number), where these are all bytes and such as [`write_number`](Self::write_number)
    /// writes for a type like this; else `None`.
    #[inline(always)]
    fn read_quickly<T: 'static>(_bytes: &[u8]) -> Option<T> {
        None
    }
}

/// [`Message::decode`] of a type that has [`Message::decode_into`].
///
/// # Errors
/// As for both.
#[doc(hidden)]
#[inline]
pub fn decode_by_slot<T: Message, C: Codec>(inc: &mut Incoming) -> Result<T> {
    let mut slot = None;
    T::decode_into::<C>(inc, &mut slot)?;
    taken(slot)
}

/// What was read into a slot without an error.
///
/// # Errors
/// When nothing was.
#[doc(hidden)]
#[inline]
pub fn taken<T>(slot: Option<T>) -> Result<T> {
    #[cold]
    fn empty() -> Error {
        Error::Malformed("a value was read without an error, and is not there".into())
    }
    slot.ok_or_else(empty)
}

/// The error of a derived [`Message::decode`] for a variant number that the enum doesn't have.
#[doc(hidden)]
pub fn no_such_variant(name: &str, variant: u32) -> Error {
    Error::Malformed(format!("enum {name} has no variant {variant}"))
}
