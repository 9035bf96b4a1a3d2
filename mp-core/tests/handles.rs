//! Handles in unusual states, used by safe code: a handle that was moved into a message, a handle of a
//! structure or of shared memory, a handle in a forked copy.
#![cfg(not(mp_loom))]
#![allow(unsafe_code)]

use mp_core::fork::Fork;
use mp_core::message::{Incoming, Outgoing};
use mp_core::words::{Access, BlockKind, Grant};
use mp_core::{Allocator, Arena, ArenaOptions, Error, Messages, Storage, Structure};

const EXCLUSIVE: Grant = Grant::new(Access::Exclusive, 1);

/// Returns a small arena, so that an invalid block is outside of the arena.
fn arena() -> Arena {
    if let Some(arena) = Arena::get() {
        return arena;
    }
    // Another test may have configured the arena before.
    _ = Arena::configure(ArenaOptions::new().size(64 << 20));
    Arena::current().unwrap()
}

/// Returns a storage whose handle is in a message, and that message.
fn lent() -> (Storage, Outgoing) {
    let (mut storage, mut out) = (Storage::new(arena(), 8, 8).unwrap(), Outgoing::default());
    // SAFETY: it is the only handle, and nothing reaches its memory.
    unsafe { storage.attach_to(out.attached(), EXCLUSIVE) }.unwrap();
    (storage, out)
}

/// A handle that was moved into a message has no memory. Functions that get such a handle access no address
/// beyond the table of blocks.
#[test]
fn handle_moved_into_a_message_has_no_memory() {
    let (left, _message) = lent();
    let hold = left.hold();
    assert!(hold.is_nowhere() && left.is_empty());
    assert_eq!(Storage::from_hold(hold.clone(), 64).len(), 0);
    assert_eq!(Storage::received(hold.clone()).len(), 0);
    assert_eq!(hold.words().1, 0);
    assert_eq!(hold.other_holders(), 0);
    assert!(Allocator(arena()).grow(hold, 0, 1).is_err());
    assert!(matches!(Structure::open(hold.clone(), "test"), Err(Error::Malformed(_))));
    assert_eq!(left.downgrade().upgrade(), None);
    left.share_as(BlockKind::Frozen);
}

/// A structure can't be made frozen or shared like a tensor. (For a queue's memory, see the unit tests of
/// `mp-queue`.)
#[test]
fn structure_shared_like_a_tensor_stays_a_structure() {
    for kind in [BlockKind::Frozen, BlockKind::Shared] {
        let structure = Structure::new("test", 2).unwrap();
        Storage::from_hold(structure.hold().clone(), 16).share_as(kind);
        Structure::open(structure.hold().clone(), "test").unwrap();
    }
}

#[test]
fn shared_memory_sent_as_exclusive_is_refused() {
    for kinds in [[BlockKind::Frozen, BlockKind::Shared], [BlockKind::Shared, BlockKind::Frozen]] {
        let (mut storage, mut out) = (Storage::new(arena(), 8, 8).unwrap(), Outgoing::default());
        kinds.iter().for_each(|kind| storage.share_as(*kind));
        // SAFETY: it is the only handle, and nothing reaches its memory.
        let refused = unsafe { storage.attach_to(out.attached(), EXCLUSIVE) };
        assert!(matches!(refused, Err(Error::Unsendable(_))), "{kinds:?}: {refused:?}");
        assert!(!storage.is_empty(), "the handle stays");
    }
}

/// A weak handle doesn't prevent the sending of exclusive memory. While the message is in flight, the handle
/// is upgraded, and makes the memory frozen. The receiver refuses the attachment.
#[test]
fn exclusive_memory_shared_in_transit_is_refused() {
    let (mut storage, mut out) = (Storage::new(arena(), 8, 8).unwrap(), Outgoing::default());
    let weak = storage.downgrade();
    // SAFETY: it is the only handle, and nothing reaches its memory.
    unsafe { storage.attach_to(out.attached(), EXCLUSIVE) }.unwrap();
    weak.upgrade().expect("the message keeps the storage").share_as(BlockKind::Frozen);
    let taken = out.into_incoming().arrived().take(0, EXCLUSIVE);
    assert!(matches!(taken, Err(Error::Malformed(_))), "{taken:?}");
}

/// In a raw copy of the process the arena's addresses are not mapped.
#[test]
fn handle_in_a_raw_fork_has_no_memory() {
    let (storage, structure) = (Storage::new(arena(), 8, 8).unwrap(), Structure::new("test", 2).unwrap());
    let (mut envelope, mut inc) =
        (Messages(arena()).pack(&mut Outgoing::default(), 7).unwrap(), Incoming::default());
    // SAFETY: the copy allocates no memory, and ends at once.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        let refused = matches!(Structure::open(structure.hold().clone(), "test"), Err(Error::Forked));
        let empty = Storage::from_hold(storage.hold().clone(), 64).is_empty()
            && Storage::received(storage.hold().clone()).is_empty()
            && storage.hold().words().1 == 0
            && storage.downgrade().upgrade().is_none();
        let unread = matches!(envelope.open(&mut inc), Err(Error::Forked));
        // SAFETY: ends the copy without running the exit functions of the original.
        unsafe { libc::_exit(i32::from(!(refused && empty && unread))) };
    }
    let mut status = 0;
    // SAFETY: a child of this test.
    assert_eq!(unsafe { libc::waitpid(copy, &raw mut status, 0) }, copy);
    assert_eq!(status, 0, "the copy's wait status");
}

/// A forked copy with its own arena does not hold the blocks of its parent, which may have been reused.
#[test]
fn parents_of_blocks_in_a_fork_cannot_be_set_or_read() {
    let new = || Structure::new("test", 1).unwrap();
    let (whole, mut part) = (new(), new());
    part.set_parent(&whole).unwrap();
    // SAFETY: the file goes to a copy that attaches it.
    let parcel = unsafe { arena().fd() }.unwrap().try_clone_to_owned().unwrap();
    let prepared = Fork::prepare().unwrap();
    // SAFETY: the copy begins as one, and ends without running the exit functions of the original.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        // SAFETY: before anything else in the copy.
        unsafe { prepared.begin(&[]) }.unwrap();
        // SAFETY: the original's arena, passed on by it.
        let mine = unsafe { Arena::attach(parcel) }.unwrap();
        let refused = matches!(new().set_parent(&whole), Err(Error::Forked))
            && matches!(Messages(mine).parent(part.hold()), Err(Error::Forked))
            && matches!(Allocator(mine).parent_mark(part.hold()), Err(Error::Forked))
            && matches!(Structure::parent_of(part.hold(), "test"), Err(Error::Forked));
        // SAFETY: ends the copy.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    drop(prepared);
    let mut status = 0;
    // SAFETY: a child of this test.
    assert_eq!(unsafe { libc::waitpid(copy, &raw mut status, 0) }, copy);
    assert_eq!(status, 0, "the copy's wait status");
}

/// A second holder could still access a moved object.
#[test]
fn move_of_an_object_with_another_holder_is_refused() {
    let mut object = Structure::new("test", 1).unwrap();
    let refused = |object: &mut Structure| {
        let refused = object.attach_to(Outgoing::default().attached());
        assert!(matches!(refused, Err(Error::Unsendable(_))), "{refused:?}");
        assert_eq!(object.len(), 1);
    };
    let clone = object.clone();
    refused(&mut object);
    drop(clone);
    let mut shared = Outgoing::default();
    let number = shared.attached().attach_object(object.hold()).unwrap();
    let mut envelope = Messages(arena()).pack(&mut shared, 0).unwrap();
    refused(&mut object);
    let mut message = Incoming::default();
    envelope.open(&mut message).unwrap();
    assert!(message.arrived().take_object_exclusive(number).is_err(), "the object was sent as shared");
    drop(message);
    let mut memory = Storage::new(arena(), 8, 8).unwrap().hold().clone();
    assert!(Outgoing::default().attached().attach_object_exclusive(&mut memory).is_err());
    let mut out = Outgoing::default();
    let number = object.attach_to(out.attached()).unwrap();
    assert!(
        matches!(object.attach_to(Outgoing::default().attached()), Err(Error::Unsendable(_))),
        "the object was moved"
    );
    let mut message = out.into_incoming();
    assert!(message.arrived().take_object(number).is_err(), "the object was sent as exclusive");
    assert!(message.arrived().take(number, EXCLUSIVE).is_err(), "the object is not a tensor");
    let hold = message.arrived().take_object_exclusive(number).unwrap();
    assert_eq!(Structure::open(hold, "test").unwrap().len(), 1);
}
