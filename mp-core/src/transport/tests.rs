//! Tests of single operations of the arena on prepared words: the words that they write before they act, and
//! the state afterwards.

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::envelopes::idle::Share;
use crate::envelopes::{INLINE, Meta};
use crate::layout::size_class::{blocks_of, class_of};
use crate::layout::{SLAB_BLOCKS, control, envelope as field};
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::transport::envelope::Envelope;
use crate::transport::{Incoming, Messages, Outgoing};
use crate::words::{Access, Attachment, EnvelopeId, Grant, Holder, Member, Owner, Seat, SeatAt};

fn arena() -> (Arena, Member) {
    let arena = Arena::current().unwrap();
    (arena, arena.me().unwrap())
}

fn set_owner(arena: Arena, e: EnvelopeId, owner: Owner) {
    arena.map().store(Envelopes(arena).owner_words().of(e), owner.pack());
}

fn meta(arena: Arena, e: EnvelopeId) -> Meta {
    Meta::of_any_version(arena.map().load(Envelopes(arena).envelope_word(e, field::META)))
}

/// Returns an envelope of this process that contains a block without other holders.
fn with_attachment(arena: Arena, len: u64, access: Access) -> crate::transport::envelope::Envelope {
    let hold = Allocator(arena).alloc(len).unwrap();
    let block = hold.block();
    std::mem::forget(hold);
    arena.holds()[block as usize].store(0, crate::sync::Ordering::Release);
    let envelope = Messages(arena).pack(&mut Outgoing::default(), 7).unwrap();
    let attach = Attachment { block, seat: SeatAt::inline(0), grant: Grant::new(access, 0) };
    arena.map().store(Blocks(arena).block_at(block).seat(0), Seat::Envelope(envelope.id()).pack());
    arena.map().store(Envelopes(arena).envelope_word(envelope.id(), field::INLINE), attach.pack());
    let meta = Meta { attachments: 1, spilled: false, bytes: 0 };
    arena.map().store(Envelopes(arena).envelope_word(envelope.id(), field::META), meta.pack());
    envelope
}

fn attached(arena: Arena, e: EnvelopeId) -> Attachment {
    Attachment::unpack(arena.map().load(Envelopes(arena).envelope_word(e, field::INLINE))).unwrap()
}

/// A member records a slab before it owns a block of the slab, because the reclaim of a dead member only
/// reads recorded slabs.
#[test]
#[cfg_attr(miri, ignore = "needs a larger arena than Miri's")]
fn adopted_slab_is_recorded_before_its_blocks() {
    let (arena, me) = arena();
    let envelope = with_attachment(arena, 340 << 10, Access::Frozen);
    let attach = attached(arena, envelope.id());
    Members(arena).forget_touched(me.slot());
    let hold = Allocator(arena).adopt(envelope.id(), attach).unwrap();
    assert!(Members(arena).has_touched(me, hold.block() / SLAB_BLOCKS));
    let (envelope, owner) = envelope.into_raw();
    arena.map().store(Envelopes(arena).envelope_word(envelope, field::META), Meta::default().pack());
    Envelopes(arena).free_envelope(envelope, owner);
    // A new slab is also recorded, and hinted for its class.
    let class = class_of(27 << 20).unwrap();
    Members(arena).forget_touched(me.slot());
    Allocator(arena).carve(class, me).unwrap();
    let of_class = |&slab: &u32| Blocks(arena).slab(slab).is_some_and(|(c, _)| c == class);
    let slab = (0..Blocks(arena).slab_count()).find(of_class).unwrap();
    assert!(Members(arena).has_touched(me, slab));
    let (map, bit) = Allocator(arena).class_map(class, slab);
    assert_ne!(arena.map().load(map) & bit, 0);
}

/// The slab was used for another class with more blocks before, so it has hints for blocks that it does not
/// have any more.
#[test]
#[cfg_attr(miri, ignore = "needs a larger arena than Miri's")]
fn hint_beyond_the_slabs_blocks_is_ignored() {
    const LEN: u64 = 3 << 20;
    let (arena, _) = arena();
    let first = Allocator(arena).alloc(LEN).unwrap();
    let slab = first.block() / SLAB_BLOCKS;
    let blocks = blocks_of(Blocks(arena).slab(slab).unwrap().0);
    assert!(blocks < SLAB_BLOCKS);
    arena.map().or(Blocks(arena).slab_word(slab, 1), 1 << (SLAB_BLOCKS - 1));
    let all: Vec<Hold> = (0..blocks).map(|_| Allocator(arena).alloc(LEN).unwrap()).collect();
    assert!(all.iter().all(|hold| Blocks(arena).block_exists(hold.block())), "{all:?}");
}

#[test]
fn plain_block_has_no_ring_memory() {
    let (arena, _) = arena();
    let hold = Allocator(arena).alloc(64).unwrap();
    assert_eq!(Blocks(arena).ring_memory(hold.block()), None);
}

/// The words of an envelope may have any value.
#[test]
fn message_length_is_checked_against_the_envelope() {
    let (arena, _) = arena();
    let of = |bytes, attachments| Meta { attachments, spilled: false, bytes };
    assert!(of(INLINE, 0).bytes_at(None).is_ok());
    assert!(of(INLINE + 1, 0).bytes_at(None).is_err());
    assert!(of(INLINE - 8, 1).bytes_at(None).is_ok());
    assert!(of(INLINE - 7, 1).bytes_at(None).is_err());
    assert!(of(64, 0).bytes_at(Some(64)).is_ok() && of(65, 0).bytes_at(Some(64)).is_err());
    let (_, listed) = Allocator(arena).attachments_at(0, of(0, 60_000));
    assert_eq!(listed, INLINE as u64 / 8);
    let of_version = |version: u64| Meta::unpack(of(0, 0).pack() & !(0xff << 24) | version << 24);
    let ours = of(0, 0).pack() >> 24 & 0xff;
    assert!(of_version(ours).is_ok() && of_version(ours + 1).is_err());
}

/// A process that dies after it has taken the attachments leaves an empty list.
#[test]
fn opened_message_has_an_empty_attachment_list() {
    let (arena, _) = arena();
    let mut envelope = with_attachment(arena, 340 << 10, Access::Frozen);
    let e = envelope.id();
    // The envelope stays with this thread, for its next message.
    envelope.open(&mut Incoming::default()).unwrap();
    assert_eq!(meta(arena, e).attachments, 0);
}

/// After an envelope was opened, it is free and may contain another message. The old handle must not access
/// that message.
#[test]
fn opened_envelope_is_free_for_the_next_message() {
    let (arena, _) = arena();
    let mut envelope = with_attachment(arena, 344 << 10, Access::Frozen);
    let mut inc = Incoming::default();
    envelope.open(&mut inc).unwrap();
    assert_eq!(inc.blocks().count(), 1);
    // The same envelope, because the thread takes the last one that it retained.
    let next = Messages(arena).pack(&mut Outgoing::default(), 8).unwrap();
    assert_eq!(next.id(), envelope.id());
    let again = envelope.open(&mut Incoming::default());
    assert!(matches!(again, Err(crate::error::Error::Stale(_))), "{again:?}");
    // The handle does not return data of the other message.
    assert!(matches!(envelope.claim(), Err(crate::error::Error::Stale(_))));
    assert!(matches!(envelope.free_tail(), Err(crate::error::Error::Stale(_))));
    assert_eq!((envelope.fingerprint(), envelope.weight(), envelope.has_attachments()), (0, 0, false));
    // Dropping the handle does not release anything of the other message.
    drop(envelope);
    assert_eq!(arena.map().load(Envelopes(arena).owner_words().of(next.id())), next.owner().pack());
    assert_eq!(next.fingerprint(), 8);
}

/// A hint may name an envelope that another process owns by now.
#[test]
fn envelope_in_use_is_not_allocated() {
    let (arena, me) = arena();
    let (e, owner) = Messages(arena).pack(&mut Outgoing::default(), 7).unwrap().into_raw();
    let its = owner.then(Holder::Member(Member::new(me.slot() + 1, 77)));
    set_owner(arena, e, its);
    Envelopes(arena).hint_envelope(e);
    let used = arena.map().load(Word::at(control::ENVELOPES));
    // Until the hint is cleared, for at most as many envelopes as exist.
    let hint = Word::at(arena.layout().envelope_map_at + u64::from(e / 64) * 8);
    let mut taken = Vec::new();
    while arena.map().load(hint) >> (e % 64) & 1 == 1 && taken.len() < used as usize {
        taken.push(Envelope::from(Envelopes(arena).new_envelopes(false, Share::Nothing, || Ok(0)).unwrap()));
    }
    assert_eq!(arena.map().load(Envelopes(arena).owner_words().of(e)), its.pack());
    assert!(taken.iter().all(|envelope| envelope.id() != e));
    set_owner(arena, e, its.then(Holder::Member(me)));
    Envelopes(arena).free_envelope(e, its.then(Holder::Member(me)));
}

/// A lease of a message with exclusive memory is refused, because no other process could receive the message
/// after the death of the leasing process.
#[test]
fn lease_of_message_with_exclusive_memory_is_refused() {
    let (arena, _) = arena();
    for (access, is_read) in [(Access::Frozen, true), (Access::Exclusive, false)] {
        let envelope = with_attachment(arena, 100, access);
        let leased = crate::transport::lease::Leased { arena, id: envelope.id(), owner: envelope.owner() };
        assert_eq!(leased.read(&mut Incoming::default()).is_ok(), is_read, "{access:?}");
    }
}
