//! Words of the arena for the structures of layers above.

mod attach;
mod bytes;
mod header;
mod holders;

use crate::alloc::Allocator;
pub use holders::Holders;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::error::Result;
use crate::mem::{Mem, Word};
use crate::message::scope;
use crate::sync::shared::AtomicU32;
use crate::sys::futex;
use crate::waiting::block_on::LivenessTimer;
use crate::waiting::limit::Wait;
use header::Header;

/// Words that a layer above keeps in shared memory, for example a semaphore.
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
/// The block has a kind that no tensor uses, and a header with the name. The layer that chose the name
/// defines the meaning of the words. Changing them is `unsafe` ([`Arena::words`]).
#[derive(Clone, Debug)]
pub struct Structure {
    hold: Hold,
    base: Word,
    len: u64,
}

impl Structure {
    /// Allocates `len` words, all zero, and a header with `name`.
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

    /// Opens the structure in a received block.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed) if the block has another type or another name;
    /// [`Error::Forked`](crate::Error::Forked).
    #[inline]
    pub fn open(hold: Hold, name: &str) -> Result<Self> {
        // The name is usually a constant, and its fingerprint is then computed at compile time.
        Self::open_fingerprint(hold, name, crate::fnv1a(name.as_bytes()))
    }

    fn open_fingerprint(hold: Hold, name: &str, fingerprint: u64) -> Result<Self> {
        let len = Header::check(&hold, name, fingerprint)?;
        let base = Header::data(hold.arena(), hold.block());
        Ok(Self { hold, base, len })
    }

    /// Makes this structure a child of another one, the parent, which lives as long as the child has a
    /// holder: a process, or a message in flight. So a receiver of the child can find the parent
    /// ([`Arena::parent`](crate::Messages::parent)), even if all its other holders are dead.
    ///
    /// ```
    /// use mp_core::{Messages, Structure};
    ///
    /// let parent = Structure::new("example::Book", 1)?;
    /// let (arena, mark) = (parent.arena(), parent.mark());
    /// let mut child = Structure::new("example::Page", 1)?;
    /// child.set_parent(&parent)?;
    /// drop(parent);
    /// let found = Structure::open(Messages(arena).parent(child.hold())?, "example::Book")?;
    /// assert_eq!(found.mark(), mark);
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// Call it at most once, before any other process, thread or handle has the child; the exclusive borrow
    /// serves only that rule. If the caller is killed, the structure either is a child or is not (table:
    /// `alloc::children`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if others hold this structure, it is already
    /// a child or keeps a descriptor, or `parent` is a child itself.
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) and [`Error::ArenaFull`](crate::Error::ArenaFull) if
    /// the additional holder needs memory. [`Error::Forked`](crate::Error::Forked).
    pub fn set_parent(&mut self, parent: &Self) -> Result<()> {
        Allocator(self.arena()).make_child(&self.hold, &parent.hold)
    }

    /// Returns the parent of this name that a held structure is a child of, without holding it: the child
    /// keeps it alive. After the last holder of the child has gone, the words of the result belong to another
    /// block. In contrast to this function, holding the parent may need memory for one more holder
    /// ([`Arena::parent`](crate::Messages::parent)).
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed) if the structure is not a child, or its parent has
    /// another name; [`Error::Forked`](crate::Error::Forked).
    pub fn parent_of(child: &Hold, name: &str) -> Result<Self> {
        let (arena, parent) = (child.arena(), Allocator(child.arena()).parent_of(child)?.block);
        let len = Header::check_block(arena, parent, name, crate::fnv1a(name.as_bytes()))?;
        Ok(Self { hold: Hold::nowhere(arena), base: Header::data(arena, parent), len })
    }

    /// Returns the handle of the block.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Returns the handle of the block by value.
    #[must_use]
    pub fn into_hold(self) -> Hold {
        self.hold
    }

    /// Returns the arena of the structure.
    #[inline]
    pub fn arena(&self) -> Arena {
        self.hold.arena()
    }

    /// Returns the number of words.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if there are no words.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the position of word `i`. The first word is at a multiple of 64 bytes.
    ///
    /// # Panics
    /// If `i` is out of bounds.
    #[inline]
    pub fn word(&self, i: u64) -> Word {
        assert!(i < self.len, "word {i} of {}", self.len);
        self.base.plus(i)
    }

    /// Sleeps while the low half of word `i` is `low`, until a death is noticed, or a check for dead
    /// processes is due. Returns `true` if the sleep may have ended because of a wake-up.
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

    /// Returns the position of the first word, if there is one.
    pub(crate) fn first(&self) -> Word {
        self.base
    }

    /// Writes a handle into the message that is being written. `what` names the structure in errors.
    ///
    /// # Errors
    /// [`Error::OutsideMessage`](crate::Error::OutsideMessage) outside of a message, as the serializer's
    /// error.
    pub fn send<S: Serializer>(&self, what: &'static str, s: S) -> Result<S::Ok, S::Error> {
        let attachment =
            scope::outgoing(what, |out| out.attach_object(&self.hold)).map_err(S::Error::custom)?;
        s.serialize_u32(attachment)
    }

    /// Reads a handle from the message that is being read.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open) and [`send`](Self::send), as the deserializer's error.
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
