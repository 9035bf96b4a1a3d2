//! The first 64 bytes of an object's block: what it is.
//!
//! | word | what | written by |
//! |---|---|---|
//! | 0 | form: value, array, … | its maker, before any other code knows the block |
//! | 1 | fingerprint of the element type's name | its maker |
//! | 2 | how many elements | its maker |
//! | 3 | bytes of an element 32, its alignment 32 | its maker |
//! | 4 – 6 | a lock, see [`steps::lock`](crate::steps::lock) | each holder |
//!
//! The block is of kind [`Object`](Kind::Object) from its first moment, which only this crate makes. So a header that is
//! found in one was written here, and what follows it is reached in no other way.

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use crate::arena::{Arena, Hold};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word};
use crate::message::scope;
use crate::words::Kind;

/// Which structure it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Form {
    /// One value under a lock.
    Value = 1,
    /// Elements under a lock.
    Array = 2,
    /// One value of atomics.
    RawValue = 3,
    /// Elements of atomics.
    RawArray = 4,
    /// A list of slots.
    List = 5,
    /// Words of a layer above.
    Structure = 6,
}

/// What a header says, and whether that fits what is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) form: Form,
    pub(crate) fingerprint: u64,
    pub(crate) len: u64,
    pub(crate) size: u32,
    pub(crate) align: u32,
}

impl Header {
    /// Bytes before the elements.
    pub(crate) const BYTES: u64 = 64;
    /// The largest alignment that elements can have: that of blocks.
    const ALIGN: usize = 64;

    /// For `len` elements of type `T`.
    pub(crate) fn of<T>(form: Form, len: usize) -> Self {
        let fingerprint = crate::fnv1a(std::any::type_name::<T>().as_bytes());
        Self {
            form,
            fingerprint,
            len: len as u64,
            size: size_of::<T>() as u32,
            align: align_of::<T>() as u32,
        }
    }

    fn words(&self) -> [u64; 4] {
        let shape = u64::from(self.size) | u64::from(self.align) << 32;
        [self.form as u64, self.fingerprint, self.len, shape]
    }

    /// For `words` words of the structure that a layer above calls `name`.
    pub(crate) fn structure(name: &str, words: u64) -> Self {
        let fingerprint = crate::fnv1a(name.as_bytes());
        Self { form: Form::Structure, fingerprint, len: words, size: 8, align: 8 }
    }

    fn base(hold: &Hold) -> Word {
        Word::at(hold.arena().data_of(hold.block()).0)
    }

    /// The words of the lock.
    pub(crate) fn lock(hold: &Hold) -> Word {
        Self::base(hold).plus(4)
    }

    /// Offset in the arena of the first byte after the header.
    pub(crate) fn data(hold: &Hold) -> u64 {
        Self::base(hold).offset() + Self::BYTES
    }

    /// Memory for it, with the header written. The elements are whatever the memory held.
    pub(crate) fn allocate(&self) -> Result<Hold> {
        let arena = Arena::current()?;
        let too_many = || Error::OutOfMemory {
            asked: u64::MAX,
            left: arena.size(),
            limit: "the size of the arena".into(),
        };
        if self.align as usize > Self::ALIGN {
            let why =
                format!("elements aligned to {} bytes; at most {} are possible", self.align, Self::ALIGN);
            return Err(Error::Shape(why));
        }
        let bytes = self.len.checked_mul(u64::from(self.size)).and_then(|n| n.checked_add(Self::BYTES));
        let hold = arena.alloc_kind(bytes.ok_or_else(too_many)?, Kind::Object)?;
        let base = Self::base(&hold);
        let words = self.words().into_iter().chain([0; 4]);
        words.zip(0..).for_each(|(v, i)| arena.map().store_relaxed(base.plus(i), v));
        Ok(hold)
    }

    /// Checks that a received block is what is expected; how many elements it has. `len`: exactly this many.
    pub(crate) fn check<T>(hold: &Hold, form: Form, len: Option<usize>) -> Result<usize> {
        Self::of::<T>(form, 0).matches(hold, len, std::any::type_name::<T>())
    }

    /// Checks that a block has this header but for the number of elements, which is returned. `name` is for the error.
    pub(crate) fn matches(self, hold: &Hold, len: Option<usize>, name: &str) -> Result<usize> {
        let arena = hold.arena();
        let form = self.form;
        let wrong = |why: &str| Error::Malformed(format!("the attachment is no {form:?}: {why}"));
        if arena.kind_of(hold.block()) != Kind::Object {
            return Err(wrong("it is no object at all"));
        }
        let base = Self::base(hold);
        let found = [0, 1, 2, 3].map(|i| arena.map().load(base.plus(i)));
        let expected = Self { len: found[2], ..self };
        if found != expected.words() {
            let size = found[3] as u32;
            return Err(wrong(&format!(
                "it has form {} and elements of {size} bytes of another type than {name}",
                found[0]
            )));
        }
        let room = arena.data_of(hold.block()).1.saturating_sub(Self::BYTES);
        let fits = found[2].checked_mul(u64::from(expected.size)).is_some_and(|n| n <= room);
        match usize::try_from(found[2]) {
            Ok(n) if fits && len.is_none_or(|len| len == n) => Ok(n),
            _ => Err(wrong(&format!("it says that it has {} elements", found[2]))),
        }
    }
}

/// Writes a handle into the message that is being written. `what` names it in the error.
pub(crate) fn send<S: Serializer>(hold: &Hold, what: &'static str, s: S) -> Result<S::Ok, S::Error> {
    let attachment = scope::outgoing(what, |out| out.attach_object(hold)).map_err(S::Error::custom)?;
    s.serialize_u32(attachment)
}

/// Reads a handle from the message that is being read, as `make` makes it of its block.
pub(crate) fn receive<'de, D: Deserializer<'de>, R>(
    what: &'static str,
    d: D,
    make: impl FnOnce(Hold) -> Result<R>,
) -> Result<R, D::Error> {
    let attachment = u32::deserialize(d)?;
    scope::incoming(what, |inc| inc.take_object(attachment)).and_then(make).map_err(D::Error::custom)
}
