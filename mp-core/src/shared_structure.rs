//! Words of the arena for the structures of layers above.
//!
//! # Safety
//! Nothing here dereferences anything. [`Structure::bytes`] is `unsafe` because a caller that breaks its
//! contract could create two owners of the same memory.
//!
//! # Header
//! The first 64 bytes of the block are a header:
//!
//! | word | contents | written by |
//! |---|---|---|
//! | 0 | mark of a structure | its creator, before any other code can access the block |
//! | 1 | fingerprint of its type name | its creator |
//! | 2 | number of words after the header | its creator |
//! | 3 – 6 | name for people, 32 bytes; zeros if there is none | its creator; any holder later |
//! | 7 | descriptor in the locker that the structure keeps (see `transport::attachments`); 0 if there is none | its creator; a holder later |
//! | 7, of a child | its seat in its parent: see `alloc::children` | its creator |
//!
//! The block has kind [`Object`](BlockKind::Object) from its creation, and only this module creates blocks of
//! that kind. So this module wrote every header in them, and their words are accessed only through a
//! [`Structure`].
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocking::block_on::LivenessTimer;
use crate::blocking::wait_limit::Wait;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::wait_table::{STRUCTURE, STRUCTURE_WORDS};
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::message::{Attached, scope};
use crate::quantity;
use crate::sync::shared::AtomicU32;
use crate::sys::futex;
use crate::transport::attachments::Descriptors;
use crate::words::{BlockId, BlockKind, Member, Seat};

/// Size of the header in bytes.
const HEADER: u64 = 8 * STRUCTURE_WORDS;
const NONE: &str = "it is no structure at all";

fn header(arena: Arena, block: BlockId) -> Word {
    Blocks(arena).memory_of(block).0
}

/// Returns the first word after the header.
fn data(arena: Arena, block: BlockId) -> Word {
    header(arena, block).plus(STRUCTURE_WORDS)
}

/// Returns the number of words of the structure in a block, if the structure has this fingerprint. `name` is
/// for errors. The caller guarantees that the block has a holder meanwhile.
fn check(arena: Arena, block: BlockId, name: &str, fingerprint: u64) -> Result<u64> {
    arena.me()?;
    let wrong = |why: &str| wrong(name, why);
    if !Blocks(arena).kind_of(block).is_object() {
        return Err(wrong(NONE));
    }
    let word = |i| arena.map().load(header(arena, block).plus(i));
    let (structure, found, words) = (word(0), word(1), word(2));
    if (structure, found) != (STRUCTURE, fingerprint) {
        return Err(wrong("it is another structure"));
    }
    let room = Blocks(arena).data_of(block).1.saturating_sub(HEADER) / 8;
    if words > room {
        return Err(wrong(&format!("it says that it has {words} words, in a block with room for {room}")));
    }
    Ok(words)
}

#[cold]
fn wrong(name: &str, why: &str) -> Error {
    Error::Malformed(format!("the attachment is not a {name}: {why}"))
}

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
        let arena = Arena::current()?;
        let too_many = || Allocator(arena).too_large(u64::MAX);
        let bytes = len.checked_mul(8).and_then(|n| n.checked_add(HEADER)).ok_or_else(too_many)?;
        let hold = Allocator(arena).alloc_kind(bytes, BlockKind::Object)?;
        let words = [STRUCTURE, crate::fnv1a(name.as_bytes()), len].into_iter().chain([0; 5]);
        let (header, base) = (header(arena, hold.block()), data(arena, hold.block()));
        words.zip(0..).for_each(|(v, i)| arena.map().store_relaxed(header.plus(i), v));
        (0..len).for_each(|i| arena.map().store_relaxed(base.plus(i), 0));
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
        if hold.is_nowhere() {
            return Err(wrong(name, NONE));
        }
        let len = check(hold.arena(), hold.block(), name, fingerprint)?;
        let base = data(hold.arena(), hold.block());
        Ok(Self { hold, base, len })
    }

    /// Makes this structure a child of another one, the parent, which lives as long as the child has a
    /// holder: a process, or a message in flight. So a receiver of the child can find the parent
    /// ([`Messages::parent`](crate::Messages::parent)), even if all other holders of the parent are dead.
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
    /// Call this method at most once, before any other process, thread or handle has the child. Only
    /// because of this rule, the method borrows `self` exclusively. If the caller is killed, the structure is
    /// either a complete child or not a child (table: `alloc::children`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if this structure has another holder, is
    /// already a child, or keeps a descriptor, and if `parent` is a child itself.
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) and [`Error::ArenaFull`](crate::Error::ArenaFull) if
    /// the additional holder needs memory. [`Error::Forked`](crate::Error::Forked).
    pub fn set_parent(&mut self, parent: &Self) -> Result<()> {
        Allocator(self.arena()).make_child(&self.hold, &parent.hold)
    }

    /// Returns the parent of a held structure, if the parent has this name. The result does not hold the
    /// parent. The child keeps the parent alive: after the last holder has released the child, the words of
    /// the result may belong to another block. [`Messages::parent`](crate::Messages::parent) returns a handle
    /// that holds the parent, and may need memory for the additional holder.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed) if the structure is not a child, or its parent has
    /// another name; [`Error::Forked`](crate::Error::Forked).
    pub fn parent_of(child: &Hold, name: &str) -> Result<Self> {
        let (arena, parent) = (child.arena(), Allocator(child.arena()).parent_of(child)?.block);
        let len = check(arena, parent, name, crate::fnv1a(name.as_bytes()))?;
        Ok(Self { hold: Hold::nowhere(arena), base: data(arena, parent), len })
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

    /// Sleeps until word `i` is [woken](Self::wake), a death is noticed, or a check for dead processes is
    /// due. Does not sleep if the low half of the word is not `low`. Returns `true` if the sleep may have
    /// ended because of a wake-up.
    pub fn sleep(&self, i: u64, low: u32, asking: &LivenessTimer, wait: Wait) -> bool {
        asking.sleep(self.arena(), self.futex(i), low, wait)
    }

    /// Wakes all sleepers on word `i`.
    pub fn wake(&self, i: u64) {
        futex::wake(self.futex(i), i32::MAX as u32);
    }

    fn futex(&self, i: u64) -> &'static AtomicU32 {
        self.arena().map().futex_at(self.word(i))
    }

    /// Writes a handle into the message that is being written. `what` names the structure in errors.
    ///
    /// # Errors
    /// [`Error::OutsideMessage`](crate::Error::OutsideMessage) outside of a message, as the serializer's
    /// error.
    pub fn send<S: Serializer>(&self, what: &'static str, s: S) -> Result<S::Ok, S::Error> {
        let attachment = scope::attach_object(what, &self.hold).map_err(S::Error::custom)?;
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
        let hold = scope::take_object(what, attachment).map_err(D::Error::custom)?;
        Self::open(hold, name).map_err(D::Error::custom)
    }

    /// Moves the structure into a message, and returns the number of the attachment. After that, `self` has
    /// no words. If the message can't be sent, the block is returned, and the caller [opens](Self::open) it
    /// again.
    ///
    /// ```
    /// use mp_core::Structure;
    /// use mp_core::message::Outgoing;
    ///
    /// let mut mine = Structure::new("example::RingPlace", 2)?;
    /// let mut message = Outgoing::default();
    /// let number = mine.attach_to(message.attached())?;
    /// assert_eq!(mine.len(), 0);
    /// let mut received = message.into_incoming();
    /// let hold = received.arrived().take_object_exclusive(number)?;
    /// assert_eq!(Structure::open(hold, "example::RingPlace")?.len(), 2);
    /// assert!(received.arrived().take_object_exclusive(number).is_err()); // it moved
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// If the process dies before the message is sent, the structure is freed. Once the message is sent, the
    /// structure belongs to the receiver.
    ///
    /// # Errors
    /// The same as for [`Attached::attach_object_exclusive`]; above all, if another handle, process or
    /// message holds the structure.
    pub fn attach_to(&mut self, out: &mut Attached) -> Result<u32> {
        let attachment = out.attach_object_exclusive(&mut self.hold)?;
        self.base = Word::at(0);
        self.len = 0;
        Ok(attachment)
    }

    /// Returns a word that identifies this structure among all structures that ever existed in this arena,
    /// and is never 0. With this word, any member can check if the structure [lives](crate::Blocks::lives),
    /// and get its [kept descriptor](crate::Descriptors::kept_descriptor), without holding the structure.
    ///
    /// ```
    /// use mp_core::{Arena, Blocks, Structure};
    ///
    /// let mine = Structure::new("example::RingPlace", 2)?;
    /// let mark = mine.mark();
    /// assert!(Blocks(Arena::current()?).lives(mark));
    /// drop(mine);
    /// assert!(!Blocks(Arena::current()?).lives(mark)); // and never again
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.hold.mark()
    }

    /// Keeps a copy of a descriptor while this structure lives. Every member can get the descriptor by
    /// [`Descriptors::kept_descriptor`](crate::Descriptors::kept_descriptor), any number of times, even after
    /// the end of this process.
    ///
    /// ```
    /// use mp_core::{Arena, Descriptors, Structure};
    ///
    /// let (file, _writer) = std::io::pipe().unwrap();
    /// let mine = Structure::new("example::Exported", 1)?;
    /// mine.keep_descriptor(file)?; // the caller's own is closed here
    /// let copy = Descriptors(Arena::current()?).kept_descriptor(mine.mark())?;
    /// assert!(copy.is_some());
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// A structure keeps at most one descriptor. The call blocks only while another process makes room in the
    /// locker. If this process dies during the call, the structure keeps no descriptor. After the call, the
    /// structure keeps the descriptor until the last holder releases the structure.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the structure already keeps a descriptor
    /// or is a [child](Self::set_parent), or the descriptor isn't open.
    /// [`Error::TooManyDescriptors`](crate::Error::TooManyDescriptors),
    /// [`Error::OutOfDescriptors`](crate::Error::OutOfDescriptors), [`Error::Held`](crate::Error::Held) and
    /// [`Error::Unsupported`](crate::Error::Unsupported), as for descriptors in messages. After one of these
    /// errors, the structure keeps no descriptor, and the call can be repeated.
    pub fn keep_descriptor(&self, fd: impl AsFd) -> Result<()> {
        Descriptors(self.arena()).keep_descriptor(&self.hold, fd.as_fd())
    }

    /// Returns the address of `len` bytes from word `i` on. The first word is at a multiple of 64.
    ///
    /// # Panics
    /// If there are fewer than `len` bytes.
    ///
    /// # Safety
    /// The bytes are used for nothing else, and only by holders of the lock or permit that protects them.
    pub unsafe fn bytes(&self, i: u64, len: usize) -> NonNull<u8> {
        let room = self.len().saturating_sub(i) * 8;
        assert!(len as u64 <= room, "{len} bytes at word {i} of {}", self.len());
        self.arena().map().bytes(self.base.plus(i).offset(), len as u64)
    }

    /// Returns the processes that hold the structure, and the numbers of messages and children that hold it,
    /// for diagnosis.
    ///
    /// ```
    /// let mine = mp_core::Structure::new("example::Counter", 2)?;
    /// let holders = mine.holders();
    /// assert_eq!((holders.processes[0].1, holders.messages), (std::process::id(), 0));
    /// println!("held by {holders}");
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    #[must_use]
    pub fn holders(&self) -> Holders {
        let (arena, mut holders) = (self.arena(), Holders::default());
        if self.hold().is_nowhere() || !arena.is_here() {
            return holders;
        }
        Blocks(arena).each_holder(self.hold().block(), |holder| match holder {
            Seat::Member(member) => holders.processes.push((member, Members(arena).pid_of(member))),
            Seat::Envelope(_) => holders.messages += 1,
            Seat::Block(_) => holders.children += 1,
            Seat::Free => {}
        });
        holders
    }
}

/// Snapshot of the holders of a structure. Holders may change while it is taken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Holders {
    /// Processes, by their tags and process ids (0: unknown). A dead process is included until it is
    /// reclaimed.
    pub processes: Vec<(Member, u32)>,
    /// Number of messages in flight that hold the structure.
    pub messages: usize,
    /// Number of structures that are [children](Structure::set_parent) of this one.
    pub children: usize,
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (member, pid)) in self.processes.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, member.process(*pid))?;
        }
        let then = if self.processes.is_empty() { "" } else { ", " };
        write!(f, "{then}{}", quantity(self.messages, "message"))?;
        if self.children > 0 { write!(f, ", {} children", self.children) } else { Ok(()) }
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes long")]
    fn structure_block_with_another_header_is_refused() {
        let one = Structure::new("test::One", 3).unwrap();
        let open = |name: &str| Structure::open(one.hold.clone(), name);
        assert_eq!(open("test::One").unwrap().len(), 3);
        let refused = |name| open(name).unwrap_err().to_string();
        assert!(refused("test::Other").contains("another structure"), "{}", refused("test::Other"));
        // More words than the block has.
        let header = header(one.arena(), one.hold.block());
        one.arena().map().store(header.plus(2), 1 << 20);
        assert!(refused("test::One").contains("room for"), "{}", refused("test::One"));
        one.arena().map().store(header, 0);
        assert!(refused("test::One").contains("another structure"), "{}", refused("test::One"));
    }
}
