//! Reclaims of simulated members that die or are stopped while they hold blocks and envelopes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::envelopes::Meta;
use crate::layout::{SLAB_BLOCKS, control, envelope as field};
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::members::membership::{KNOWS_RINGS, PID};
use crate::recovery::Recovery;
use crate::recovery::reclaim::Dead;
use crate::steps::{INLINE_SEATS, link_of};
use crate::transport::{Messages, Outgoing};
use crate::words::{
    Access, Attachment, BlockId, BlockKind, BlockLife, BlockState, CurrentUpdate, EnvelopeId, Grant, Holder,
    Member, Owner, Presence, RecoveringSlots, Seat, SeatAt, Tenancy,
};

/// Serializes these tests: they count objects of the arena, which all tests share.
fn one() -> (MutexGuard<'static, ()>, Arena) {
    // fork: these tests make no copies.
    static ONE: Mutex<()> = Mutex::new(());
    (ONE.lock().unwrap_or_else(PoisonError::into_inner), Arena::current().unwrap())
}

/// Adds a live member, which holds the locks of its slot.
fn living(arena: Arena) -> Dead {
    let member = Members(arena).join().unwrap();
    Dead { member, pid: std::process::id(), epoch: Members(arena).tenancy(member.slot()).epoch }
}

fn kill(arena: Arena, d: Dead) {
    Members(arena).unlock_slot(d.member.slot());
}

fn presence(arena: Arena, d: Dead) -> Presence {
    let t = Members(arena).tenancy(d.member.slot());
    if t.epoch == d.epoch { t.presence } else { Presence::Free }
}

fn set_presence(arena: Arena, d: Dead, presence: Presence) {
    let now = Members(arena).tenancy(d.member.slot());
    assert!(Members(arena).change_tenancy(d.member.slot(), now, Tenancy { presence, ..now }));
}

fn state(arena: Arena, block: BlockId) -> BlockState {
    BlockState::unpack(arena.map().load(Blocks(arena).block_at(block).state))
}

fn set_state(arena: Arena, block: BlockId, life: BlockLife) {
    arena.map().store(Blocks(arena).block_at(block).state, state(arena, block).with(life).pack());
}

fn seat(arena: Arena, block: BlockId, i: u32) -> Seat {
    Seat::unpack(arena.map().load(Blocks(arena).block_at(block).seat(i)))
}

fn set_seat(arena: Arena, block: BlockId, i: u32, seat: Seat) {
    arena.map().store(Blocks(arena).block_at(block).seat(i), seat.pack());
}

/// Returns a block without a handle in this process, with `who` in its first seat.
fn block_of(arena: Arena, hold: Hold, who: Seat) -> BlockId {
    let block = hold.block();
    std::mem::forget(hold);
    arena.holds()[block as usize].store(0, crate::sync::Ordering::Release);
    set_seat(arena, block, 0, who);
    block
}

fn data_of(arena: Arena, len: u64, who: Seat) -> BlockId {
    block_of(arena, Allocator(arena).alloc(len).unwrap(), who)
}

fn touched(arena: Arena, d: Dead, blocks: &[BlockId]) {
    blocks.iter().for_each(|block| Members(arena).touch(d.member, block / SLAB_BLOCKS));
}

/// Returns an envelope of this member, with `block` as an attachment. The envelope has the block's second
/// seat.
fn envelope_with(arena: Arena, d: Dead, block: BlockId) -> (EnvelopeId, Owner) {
    let (e, owner) = Messages(arena).pack(&mut Outgoing::default(), 7).unwrap().into_raw();
    let attach = Attachment { block, seat: SeatAt::inline(1), grant: Grant::new(Access::Frozen, 0) };
    set_seat(arena, block, 1, Seat::Envelope(e));
    arena.map().store(Envelopes(arena).envelope_word(e, field::INLINE), attach.pack());
    let meta = Meta { attachments: 1, spilled: false, bytes: 0 };
    arena.map().store(Envelopes(arena).envelope_word(e, field::META), meta.pack());
    let owner = owner.then(Holder::Member(d.member));
    Members(arena).touch_group_of(d.member, e);
    arena.map().store(Envelopes(arena).owner_words().of(e), owner.pack());
    (e, owner)
}

fn has_touched_group(arena: Arena, member: Member, e: EnvelopeId) -> bool {
    Members(arena).touched_groups(member).has(arena.map(), e)
}

fn owner(arena: Arena, e: EnvelopeId) -> Owner {
    Owner::unpack(arena.map().load(Envelopes(arena).owner_words().of(e)))
}

fn is_hinted(arena: Arena, block: BlockId) -> bool {
    arena.map().load(Blocks(arena).slab_word(block / SLAB_BLOCKS, 1)) >> (block % SLAB_BLOCKS) & 1 == 1
}

/// Returns a free envelope whose hint was cleared, and the word of the hint.
fn lose_hint(arena: Arena) -> (EnvelopeId, Word) {
    // A thread returns its retained envelopes when it ends.
    std::thread::spawn(move || drop(Messages(arena).pack(&mut Outgoing::default(), 7).unwrap()))
        .join()
        .unwrap();
    let used = arena.map().load(Word::at(control::ENVELOPES)) as u32;
    for group in 0..used / 64 {
        let at = Word::at(arena.layout().envelope_map_at + u64::from(group) * 8);
        let bits = arena.map().load(at);
        if bits != 0 && arena.map().and(at, !(1 << (63 - bits.leading_zeros()))) == bits {
            return (group * 64 + 63 - bits.leading_zeros(), at);
        }
    }
    panic!("no envelope is free");
}

/// Creates an object of each kind that a dead member may hold, in its least complete state.
#[test]
#[cfg_attr(miri, ignore = "needs a file with locks")]
fn recovery_frees_everything_of_a_dead_member() {
    let (_one, arena) = one();
    let (m, me) = (arena.map(), arena.me().unwrap());
    let dead = living(arena);
    let its = Seat::Member(dead.member);
    let held = data_of(arena, 21 << 10, its);
    // The member died while it claimed or freed this block.
    let claimed = data_of(arena, 43 << 10, its);
    set_seat(arena, claimed, 3, its);
    set_state(arena, claimed, BlockLife::Busy(dead.member));
    // The member released the last seat, and did not check whether it was the last one.
    let let_go = data_of(arena, 85 << 10, Seat::Free);
    // The member took the hint of this block.
    let free = Allocator(arena).alloc(21 << 10).unwrap().block();
    m.and(Blocks(arena).slab_word(free / SLAB_BLOCKS, 1), !(1 << (free % SLAB_BLOCKS)));
    // Attached to the member's message, in a slab that the member has not touched.
    let attached = data_of(arena, 170 << 10, Seat::Free);
    let (e, _) = envelope_with(arena, dead, attached);
    let (unhinted, map) = lose_hint(arena);
    Members(arena).touch_group_of(dead.member, unhinted);
    let things = [held, claimed, let_go, free];
    touched(arena, dead, &things);
    Members(arena).forget_touched(me.slot());
    let scratch = Allocator(arena).alloc(64).unwrap();
    let word = Word::at(Blocks(arena).data_of(scratch.block()).0);
    begin_update(arena, dead, word, (5, 6));
    kill(arena, dead);

    Recovery(arena).reclaim().unwrap();
    assert_eq!(presence(arena, dead), Presence::Free);
    for block in [held, claimed, let_go, attached] {
        assert_eq!(
            state(arena, block).life,
            BlockLife::Free,
            "{block} of {:?}",
            [held, claimed, let_go, attached]
        );
        assert!((0..INLINE_SEATS).all(|i| seat(arena, block, i) == Seat::Free), "{block}");
        assert!(is_hinted(arena, block));
        assert!(
            Members(arena).has_touched(me, block / SLAB_BLOCKS),
            "the reclaim of this process would miss {block}"
        );
    }
    assert!(is_hinted(arena, free));
    assert_eq!(owner(arena, e).holder, Holder::Free);
    assert!(has_touched_group(arena, me, e), "the reclaim of this process would miss {e}");
    assert!([e, unhinted].iter().all(|&e| !has_touched_group(arena, dead.member, e)));
    let is_hinted = m.load(map) >> (unhinted % 64) & 1 == 1;
    assert!(is_hinted || owner(arena, unhinted).holder != Holder::Free);
    assert!(things.iter().all(|block| !Members(arena).has_touched(dead.member, block / SLAB_BLOCKS)));
    assert_eq!(m.load(word), 6, "the member's update was not completed");
    assert_eq!(m.load(Members(arena).recovering_word(me.slot())), 0);
}

/// Simulates a member that has recorded an update of one word, has announced itself, and has done nothing
/// else.
fn begin_update(arena: Arena, d: Dead, word: Word, (old, new): (u64, u64)) {
    let (at, m) = (arena.layout().updates(), arena.map());
    m.store(word, old);
    let record = at.own.of(d.member.slot()).plus(1);
    for (i, part) in [word.offset(), old, new].into_iter().enumerate() {
        m.store(record.plus(i as u64), part);
    }
    loop {
        let found = m.load(at.current);
        let now = CurrentUpdate { making: Some((d.member, 1)), ..CurrentUpdate::unpack(found) };
        if CurrentUpdate::unpack(found).making.is_none() && m.cas(at.current, found, now.pack()).is_ok() {
            return;
        }
    }
}

/// A page of seats is handed over to its block, if it is already linked there. Otherwise it is freed.
#[test]
#[cfg_attr(miri, ignore = "needs a file with locks")]
fn seat_page_linked_by_a_dead_member_is_kept() {
    let (_one, arena) = one();
    let dead = living(arena);
    let block = Allocator(arena).alloc(11 << 10).unwrap();
    Allocator(arena).add_seat_page(block.block()).unwrap();
    let linked = link_of(arena.map().load(Blocks(arena).block_at(block.block()).link())).unwrap();
    set_seat(arena, linked, 0, Seat::Member(dead.member));
    let page = Allocator(arena).alloc_kind(crate::layout::size_class::SEAT_PAGE, BlockKind::Seats).unwrap();
    let alone = block_of(arena, page, Seat::Member(dead.member));
    arena.map().store(crate::steps::page_owner(Word::at(Blocks(arena).data_of(alone).0)), 0);
    touched(arena, dead, &[linked, alone]);
    kill(arena, dead);
    Recovery(arena).reclaim().unwrap();
    assert_eq!(
        (seat(arena, linked, 0), state(arena, linked).life),
        (Seat::Block(block.block()), BlockLife::Live)
    );
    assert_eq!((seat(arena, alone, 0), state(arena, alone).life), (Seat::Free, BlockLife::Free));
    // Both are freed with the block.
    drop(block);
    assert_eq!(state(arena, linked).life, BlockLife::Free);
}

/// A dead member is not reclaimed while another process also recovers it. Everything that others wait for is
/// recovered in any case.
#[test]
#[cfg_attr(miri, ignore = "needs a file with locks")]
fn reclaim_waits_for_all_recovering_processes() {
    let (_one, arena) = one();
    let m = arena.map();
    let (dead, recoverer) = (living(arena), living(arena));
    let slot = dead.member.slot();
    m.store(
        Members(arena).recovering_word(recoverer.member.slot()),
        RecoveringSlots { first: slot, last: slot }.pack(),
    );
    let held = data_of(arena, 21 << 10, Seat::Member(dead.member));
    let attached = data_of(arena, 170 << 10, Seat::Free);
    // The envelope may be promised to a child, by this owner word.
    let (e, promised) = envelope_with(arena, dead, attached);
    touched(arena, dead, &[held]);
    assert!(!Members(arena).has_left(dead.member, 0), "the member is alive");
    kill(arena, dead);
    for _ in 0..2 {
        Recovery(arena).reclaim().unwrap();
        assert!(matches!(presence(arena, dead), Presence::Dead(_)), "{:?}", presence(arena, dead));
        for block in [held, attached] {
            assert_eq!(state(arena, block).life, BlockLife::Busy(dead.member));
        }
    }
    assert_eq!(owner(arena, e).holder, Holder::Member(dead.member));
    assert_ne!(owner(arena, e), promised, "the child could still claim the envelope");
    assert!(Members(arena).has_left(dead.member, 0), "the recovery is incomplete");
    // The other process finishes, or dies, and its word no longer counts.
    kill(arena, recoverer);
    while presence(arena, dead) != Presence::Free || presence(arena, recoverer) != Presence::Free {
        assert!(Recovery(arena).reclaim().unwrap() > 0, "{:?}", presence(arena, dead));
    }
    for block in [held, attached] {
        assert_eq!(state(arena, block).life, BlockLife::Free);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs a file with locks")]
fn reclaim_by_process_id_spares_live_members() {
    const ID: u32 = u32::MAX;
    let (_one, arena) = one();
    let (ended, other) = (living(arena), living(arena));
    for dead in [ended, other] {
        arena.map().store(arena.layout().member(dead.member.slot(), PID), u64::from(ID));
    }
    let last_check = |time| arena.map().store(Word::at(control::LOOKED), time);
    kill(arena, ended);
    last_check(u64::MAX);
    Recovery(arena).reclaim_ended(ID).unwrap();
    assert_eq!((presence(arena, ended), presence(arena, other)), (Presence::Free, Presence::Live));
    kill(arena, other);
    Recovery(arena).reclaim_ended(1).unwrap();
    assert_eq!(presence(arena, other), Presence::Live, "all others were checked just now");
    last_check(0);
    Recovery(arena).reclaim_ended(1).unwrap();
    assert_eq!(presence(arena, other), Presence::Free);
}

#[test]
#[cfg_attr(miri, ignore = "needs a file with locks")]
fn reclaimer_is_replaced_only_after_its_death() {
    let (_one, arena) = one();
    let (dead, recoverer) = (living(arena), living(arena));
    kill(arena, dead);
    set_presence(arena, dead, Presence::Reclaiming(recoverer.member));
    Recovery(arena).reclaim().unwrap();
    assert_eq!(presence(arena, dead), Presence::Reclaiming(recoverer.member));
    kill(arena, recoverer);
    Recovery(arena).reclaim().unwrap();
    Recovery(arena).reclaim().unwrap();
    assert_eq!((presence(arena, dead), presence(arena, recoverer)), (Presence::Free, Presence::Free));
}

/// This process has no ring layer, and leaves a dead member that used queues to other processes.
#[test]
#[cfg_attr(miri, ignore = "needs a file with locks")]
fn reclaim_without_ring_layer_skips_queue_members() {
    let (_one, arena) = one();
    let dead = living(arena);
    Members(arena).note_rings(dead.member);
    kill(arena, dead);
    Recovery(arena).reclaim().unwrap();
    assert!(matches!(presence(arena, dead), Presence::Dead(0)));
    arena.map().store(arena.layout().member(dead.member.slot(), KNOWS_RINGS), 0);
    Recovery(arena).reclaim().unwrap();
    assert_eq!(presence(arena, dead), Presence::Free);
}

#[test]
#[cfg_attr(miri, ignore = "needs a file with locks")]
fn next_member_in_a_slot_has_a_new_identity() {
    let (_one, arena) = one();
    let first = living(arena);
    kill(arena, first);
    Recovery(arena).reclaim().unwrap();
    // The first member died while it made an update.
    let making = arena.layout().updates().making(first.member.slot());
    arena.map().store(making, 1);
    let second = living(arena);
    assert_eq!(second.member.slot(), first.member.slot(), "no other slot was free before it");
    assert_ne!(second.member, first.member);
    assert_eq!(arena.map().load(making), 0, "exclusive updates would wait for the first member");
    // Records about the first member don't count for the second.
    Members(arena).set_dead(first.member);
    assert_eq!(presence(arena, second), Presence::Live);
    kill(arena, second);
    Recovery(arena).reclaim().unwrap();
}

/// A recovered member no longer counts for holders of this ring, even if a late recovering process writes an
/// older record.
#[test]
#[cfg_attr(miri, ignore = "needs a file with locks")]
fn recovered_member_no_longer_holds_its_rings() {
    const RING: BlockId = 3;
    let (_one, arena) = one();
    let dead = living(arena);
    let (slot, epoch) = (dead.member.slot(), dead.epoch);
    Members(arena).set_dead(dead.member);
    let left = |ring| Members(arena).has_left(dead.member, ring);
    assert!(!left(RING), "nothing was recovered yet");
    Members(arena).note_recovered(slot, epoch, Some(RING));
    assert!(!left(RING) && left(RING + 1));
    Members(arena).note_recovered(slot, epoch, None);
    assert!(left(RING));
    Members(arena).note_recovered(slot, epoch, Some(RING));
    assert!(left(RING), "an older record replaced a newer one");
    kill(arena, dead);
    Recovery(arena).reclaim().unwrap();
    assert!(left(RING), "the member was reclaimed");
}

#[test]
fn intents_of_a_process_include_its_threads() {
    let arena = Arena::current().unwrap();
    let intent = Members(arena).with_intent(|_, intent| intent).unwrap();
    assert!(Members(arena).intents(arena.me().unwrap()).any(|word| word == intent));
}
