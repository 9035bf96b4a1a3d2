//! Words of the arena for the structures of layers above.

mod bytes;
mod header;
mod holders;
mod moving;

pub use holders::Holders;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use crate::arena::waiting::block_on::{LivenessTimer, Wait};
use crate::arena::{Arena, Hold};
use crate::error::Result;
use crate::mem::{Mem, Word};
use crate::message::scope;
use crate::sync::shared::AtomicU32;
use crate::sys::futex;
use header::Header;

/// A structure of words that a layer above keeps in shared memory: a semaphore, say.
///
/// ```
/// use mp_core::Structure;
///
/// let mine = Structure::new("example::Counter", 2)?; // two words, both zero
/// assert_eq!(mine.len(), 2);
/// assert!(Structure::open(mine.hold().clone(), "example::Other").is_err());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Its block is of a kind that no tensor reaches, behind a header with the name. What the words mean is the business of
/// the layer that chose the name; to change them is `unsafe` ([`Arena::words`]).
#[derive(Clone, Debug)]
pub struct Structure {
    hold: Hold,
    base: Word,
    len: u64,
}

impl Structure {
    /// `len` words, all zero, behind a header that says `name`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::ArenaFull`](crate::Error::ArenaFull) or
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn new(name: &str, len: u64) -> Result<Self> {
        let hold = Header::new(name, len).allocate()?;
        let base = Header::data(hold.arena(), hold.block());
        (0..len).for_each(|i| hold.arena().map().store_relaxed(base.plus(i), 0));
        Ok(Self { hold, base, len })
    }

    /// The structure in a block that was received.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed) when it is something else, or has another name;
    /// [`Error::Forked`](crate::Error::Forked).
    #[inline]
    pub fn open(hold: Hold, name: &str) -> Result<Self> {
        // Where this is compiled the name is known, as a rule, and so is its fingerprint.
        Self::open_fingerprint(hold, name, crate::fnv1a(name.as_bytes()))
    }

    fn open_fingerprint(hold: Hold, name: &str, fingerprint: u64) -> Result<Self> {
        let len = Header::check(&hold, name, fingerprint)?;
        let base = Header::data(hold.arena(), hold.block());
        Ok(Self { hold, base, len })
    }

    /// Makes this a part of another structure, which lives from now on as long as this has a holder: a process, or a message on its way. So
    /// a receiver of the part finds the whole ([`Arena::whole`](crate::Arena::whole)), also if all others that had it are dead.
    ///
    /// ```
    /// use mp_core::Structure;
    ///
    /// let whole = Structure::new("example::Book", 1)?;
    /// let (arena, mark) = (whole.arena(), whole.arena().mark(whole.hold()));
    /// let mut part = Structure::new("example::Page", 1)?;
    /// part.part_of(&whole)?;
    /// drop(whole);
    /// let found = Structure::open(arena.whole(part.hold())?, "example::Book")?;
    /// assert_eq!(arena.mark(found.hold()), mark);
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// Once, before any other process, thread or handle has this one: so it is borrowed for that alone. A killed maker leaves a part, or none (table: `alloc::parts`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if others have this one, it is a part already or keeps a descriptor, or the
    /// other one is a part itself; [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::ArenaFull`](crate::Error::ArenaFull) where
    /// one more holder takes memory; [`Error::Forked`](crate::Error::Forked).
    pub fn part_of(&mut self, whole: &Self) -> Result<()> {
        self.arena().make_part(&self.hold, &whole.hold)
    }

    /// The structure of this name that a held one is a part of, without holding it: what keeps it is the part. When that has no holder any
    /// more, the words of what this returns are another's. To hold it takes memory for one more holder ([`Arena::whole`](crate::Arena::whole)),
    /// this doesn't.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed) when it is a part of none, or of something of another name;
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn whole_of(part: &Hold, name: &str) -> Result<Self> {
        let (arena, whole) = (part.arena(), part.arena().whole_of(part)?.block);
        let len = Header::check_block(arena, whole, name, crate::fnv1a(name.as_bytes()))?;
        Ok(Self { hold: Hold::nowhere(arena), base: Header::data(arena, whole), len })
    }

    /// What keeps it.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// What keeps it, by itself.
    #[must_use]
    pub fn into_hold(self) -> Hold {
        self.hold
    }

    /// The arena it is in.
    #[inline]
    pub fn arena(&self) -> Arena {
        self.hold.arena()
    }

    /// How many words it has.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where word `i` is. The first one is at a multiple of 64 bytes.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline]
    pub fn word(&self, i: u64) -> Word {
        assert!(i < self.len, "word {i} of {}", self.len);
        self.base.plus(i)
    }

    /// Sleeps while the low half of word `i` is `low`, until a death is noticed, or it is time to ask for
    /// dead processes. Whether it may have been woken.
    pub fn sleep(&self, i: u64, low: u32, asking: &LivenessTimer, wait: Wait) -> bool {
        asking.sleep(self.arena(), self.futex(i), low, wait)
    }

    /// Wakes all sleepers on word `i`.
    pub fn wake(&self, i: u64) {
        futex::wake(self.futex(i), i32::MAX as u32);
    }

    fn futex(&self, i: u64) -> &'static AtomicU32 {
        let low = if cfg!(target_endian = "big") { 4 } else { 0 };
        self.arena().map().u32_at(self.word(i).offset() + low)
    }

    /// The first word, if there is one.
    pub(crate) fn first(&self) -> Word {
        self.base
    }

    /// Writes a handle to it into the message that is being written. `what` names it in errors.
    ///
    /// # Errors
    /// [`Error::OutsideMessage`](crate::Error::OutsideMessage) outside of one, as the serializer's error.
    pub fn send<S: Serializer>(&self, what: &'static str, s: S) -> Result<S::Ok, S::Error> {
        let attachment =
            scope::outgoing(what, |out| out.attach_object(&self.hold)).map_err(S::Error::custom)?;
        s.serialize_u32(attachment)
    }

    /// Reads a handle from the message that is being read.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`send`](Self::send), as the deserializer's error.
    pub fn receive<'de, D: Deserializer<'de>>(
        what: &'static str,
        name: &str,
        d: D,
    ) -> Result<Self, D::Error> {
        let attachment = u32::deserialize(d)?;
        let hold = scope::incoming(what, |inc| inc.take_object(attachment)).map_err(D::Error::custom)?;
        Self::open(hold, name).map_err(D::Error::custom)
    }
}
