//! Pieces that are allocated, sent, opened, dropped and reused.

use mp_cuda::memory::PieceMode;
use mp_queue::Queue;

use crate::agent::{Agent, Do, Parcel, agents, alone, end, moves, nothing_found, setup, stat, until};

const MIB: u64 = 1 << 20;

/// The maker drops the piece and exits. The piece in the other process is unchanged.
#[test]
fn piece_dropped_by_its_maker_stays_valid() {
    let (_alone, session, [maker, other]) = agents();
    maker.frozen(1, 1000, 7);
    other.ok(Do::Keep(1, maker.give(1, true)));
    maker.ok(Do::Drop(1));
    assert_eq!(other.ok(Do::Read(1)), 7);
    assert_eq!(maker.ok(Do::Empty), 0, "the other process has a piece of the slab");
    assert_eq!(maker.stats(), [32 * MIB, 1024, 0, 1, 1, 0]);
    maker.leave();
    assert_eq!(other.ok(Do::Read(1)), 7);
    other.ok(Do::Drop(1));
    // The maker of the piece has ended, and this process has no handle of it.
    mp_core::Arena::current().unwrap().reclaim().unwrap();
    other.ok(Do::Collect);
    until(&session, "bytes", 0);
    assert_eq!(other.stats(), [0; 6]);
    other.leave();
    until(&session, "processes", 0);
    nothing_found(&session);
}

/// The memory of a piece is free again after the other process has dropped the piece.
#[test]
fn memory_of_a_dropped_piece_is_reused() {
    let (_alone, session, [maker, other]) = agents();
    maker.ok(Do::Allocate(1, 4 * MIB));
    let at = maker.ok(Do::Open(1, 0));
    maker.ok(Do::Share(1));
    other.ok(Do::Keep(1, maker.give(1, false)));
    maker.ok(Do::Drop(1));
    maker.ok(Do::Allocate(2, 4 * MIB));
    assert_ne!(maker.ok(Do::Open(2, 0)), at, "the other process still has it");
    for what in [Do::Begin(1), Do::Fill(1, 4), Do::End(1), Do::Drop(1)] {
        other.ok(what);
    }
    maker.ok(Do::Drop(2));
    maker.ok(Do::Allocate(3, 4 * MIB));
    assert_eq!(maker.ok(Do::Open(3, 0)), at);
    assert_eq!(maker.stats(), [32 * MIB, 4 * MIB, 0, 1, 1, 0]);
    maker.ok(Do::Drop(3));
    assert_eq!(maker.ok(Do::Empty), 32 * MIB);
    assert_eq!(other.ok(Do::Collect), 32 * MIB);
    until(&session, "bytes", 0);
    nothing_found(&session);
}

/// A piece that is received several times is opened once, and its descriptor is closed.
#[test]
fn piece_received_twice_is_opened_once() {
    let (_alone, session, [maker, other]) = agents();
    for piece in 1..=2 {
        maker.ok(Do::Allocate(piece, 1000));
        maker.ok(Do::Freeze(piece));
    }
    let parcels = [maker.give(1, true), maker.give(1, true), maker.give(2, true)];
    assert!(parcels[0].0.is(&parcels[1].0) && !parcels[0].0.is(&parcels[2].0), "in this process, too");
    for (i, parcel) in (1..).zip(parcels) {
        other.ok(Do::Keep(i, parcel));
    }
    assert_eq!((other.ok(Do::Same(1, 2)), other.ok(Do::Same(1, 3))), (1, 0));
    assert_eq!(other.ok(Do::Id(1)), maker.ok(Do::Id(1)));
    let first = other.ok(Do::Open(1, 0));
    let files = other.ok(Do::Files);
    assert_eq!([2, 3].map(|piece| other.ok(Do::Open(piece, 0))), [first, first + 1024]);
    // Each opening makes a device, and each measurement reads statistics. Opening a piece again makes no
    // other call.
    let more = |count| {
        let before = stat(&session, "calls");
        (0..count).for_each(|_| _ = other.ok(Do::Open(1, 0)));
        stat(&session, "calls") - before
    };
    assert_eq!(more(2) - more(1), more(3) - more(2));
    assert_eq!(other.ok(Do::Files), files);
    assert_eq!(other.stats()[5], 1);
    end(&session, [maker, other]);
}

/// The piece moves from process to process, and back to its maker, which uses its own mapping.
#[test]
fn exclusive_piece_moves_between_processes() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let moves = moves();
    let agents = [(); 3].map(|()| Agent::new(&session, &moves));
    agents[0].ok(Do::Allocate(1, 100_000));
    let at = agents[0].ok(Do::Open(1, 0));
    for round in 0..3 {
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            let byte = 16 * round + from as u8;
            agents[from].ok(Do::Fill(1, byte));
            agents[from].ok(Do::Move(1));
            assert!(agents[from].fails(Do::Drop(1)).contains("no such piece"));
            agents[to].ok(Do::TakeMoved(1));
            assert_eq!(agents[to].ok(Do::Read(1)), u64::from(byte));
        }
    }
    assert_eq!(agents[0].ok(Do::Open(1, 0)), at);
    // A dropped piece holds nothing.
    assert_eq!(agents[0].stats()[4], 1);
    agents[0].ok(Do::Drop(1));
    assert_eq!(agents[0].stats()[4], 0);
    agents.into_iter().for_each(Agent::leave);
    until(&session, "bytes", 0);
    nothing_found(&session);
}

/// The put fails, because this process has no driver.
#[test]
fn refused_put_returns_the_moved_tensor() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let moves = moves();
    let agent = Agent::new(&session, &moves);
    agent.ok(Do::Allocate(1, 100));
    agent.ok(Do::Fill(1, 3));
    agent.ok(Do::Move(1));
    let moved = moves.get_timeout(mp_harness::DEADLINE).unwrap().unwrap();
    let full = Queue::bounded(1).unwrap();
    full.put(moved).unwrap();
    let moved = full.get().unwrap().unwrap();
    let id = moved.0.id();
    let closed = Queue::bounded(1).unwrap();
    closed.close();
    let moved = closed.put(moved).unwrap_err().into_value();
    assert_eq!(moved.0.id(), id);
    let clone = moved.0.clone();
    let refused = full.put(moved).unwrap_err();
    assert!(refused.to_string().contains("otherwise"), "{refused}");
    drop(clone);
    moves.put(refused.into_value()).unwrap();
    agent.ok(Do::TakeMoved(2));
    assert_eq!(agent.ok(Do::Read(2)), 3);
    agent.leave();
    nothing_found(&session);
}

/// A message whose mode differs from the mode of its piece is refused.
#[test]
fn piece_and_message_of_different_modes_are_refused() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let moves = moves();
    let agent = Agent::new(&session, &moves);
    agent.ok(Do::Allocate(1, 100));
    agent.ok(Do::Share(1));
    let Parcel(piece, mode) = agent.give(1, false);
    assert_eq!(mode, PieceMode::Shared);
    let queue = Queue::bounded(1).unwrap();
    queue.put(Parcel(piece.clone(), PieceMode::Frozen)).unwrap();
    let refused = queue.get().unwrap_err().to_string();
    assert!(refused.contains("has mode 2, and arrived as Frozen"), "{refused}");
    assert!(!piece.share_as(PieceMode::Frozen), "the mode can't change again");
    // Without a driver, the piece can be forwarded, but not opened.
    queue.put(Parcel(piece.clone(), PieceMode::Shared)).unwrap();
    let Parcel(same, _) = queue.get().unwrap().unwrap();
    assert!(same.is(&piece) && piece.bytes() == 100 && !piece.is_mine());
    assert!(matches!(mp_cuda::Device::new(0), Err(mp_cuda::Error::NoDriver { .. })));
    agent.leave();
    nothing_found(&session);
}

/// A piece that needs more than half of a slab gets a slab of its own. Small pieces share a slab, even if
/// several devices use them.
#[test]
fn small_device_pieces_share_slabs() {
    let _alone = alone();
    let session = setup().set("PROFILE", "two-gpus").start().unwrap();
    let moves = moves();
    let agent = Agent::new(&session, &moves);
    for piece in 0..100 {
        agent.ok(Do::Allocate(piece, 100));
    }
    assert_eq!(agent.stats(), [32 * MIB, 51_200, 0, 1, 100, 0]);
    agent.ok(Do::Allocate(200, 17 * MIB));
    agent.ok(Do::Allocate(201, 3 * MIB));
    assert_eq!(agent.stats(), [50 * MIB, 51_200 + 21 * MIB, 0, 2, 102, 0]);
    // A small tensor takes units of a common slab, and a large tensor takes all units of its slab.
    (0..100).for_each(|piece| _ = agent.ok(Do::Drop(piece)));
    agent.ok(Do::Drop(200));
    agent.ok(Do::Allocate(202, 18 * MIB));
    assert_eq!(agent.stats(), [50 * MIB, 21 * MIB, 0, 2, 2, 0], "its slab was free again");
    // Another device can access the piece, if a path between the devices exists.
    assert_eq!(agent.ok(Do::Open(201, 1)), agent.ok(Do::Open(201, 0)));
    agent.ok(Do::Drop(201));
    agent.ok(Do::Drop(202));
    assert_eq!(agent.ok(Do::Empty), 50 * MIB);
    assert_eq!(stat(&session, "bytes"), 0);
    agent.leave();
    nothing_found(&session);
}

/// A process that sees only another device must not mistake it for the piece's device.
#[test]
fn invisible_device_is_named_in_the_error() {
    let _alone = alone();
    let session = setup().set("PROFILE", "two-gpus").start().unwrap();
    let moves = moves();
    let maker = Agent::new(&session, &moves);
    let other = Agent::with(&session, &moves, &[("CUDA_VISIBLE_DEVICES", "1")]);
    maker.ok(Do::Allocate(1, 100));
    maker.ok(Do::Freeze(1));
    other.ok(Do::Keep(1, maker.give(1, true)));
    let refused = other.fails(Do::Open(1, 0));
    assert!(
        refused.contains("doesn't see the device") && refused.contains("CUDA_VISIBLE_DEVICES"),
        "{refused}"
    );
    nothing_found(&session);
}

/// Opens a piece with a slab of its own in the second process, and drops the piece in both processes.
#[track_caller]
fn opens_a_slab(maker: &Agent, other: &Agent) {
    maker.ok(Do::Allocate(1, 17 * MIB));
    maker.ok(Do::Freeze(1));
    other.ok(Do::Keep(1, maker.give(1, true)));
    other.ok(Do::Open(1, 0));
    other.ok(Do::Drop(1));
    maker.ok(Do::Drop(1));
    maker.ok(Do::Empty);
}

/// After a process has opened many slabs and dropped all pieces, only a few slabs are mapped, and no
/// descriptor is open.
#[test]
fn unused_device_slabs_are_unmapped() {
    let (_alone, session, [maker, other]) = agents();
    let (mut most, mut files) = (0, Vec::new());
    for _ in 0..100 {
        opens_a_slab(&maker, &other);
        most = most.max(other.stats()[5]);
        files.push(other.ok(Do::Files));
    }
    assert_eq!(most, 65);
    assert!(
        files.iter().all(|open| *open == files[0]),
        "descriptors are closed after they were imported: {files:?}"
    );
    assert_eq!(other.ok(Do::Collect), 65 * 18 * MIB);
    until(&session, "bytes", 0);
    maker.leave();
    other.leave();
    nothing_found(&session);
}

/// A slab whose pieces arrive repeatedly stays mapped, even if many other slabs are opened in between.
#[test]
fn repeatedly_used_slab_stays_mapped() {
    let (_alone, session, [maker, other]) = agents();
    maker.ok(Do::Allocate(2, 1000));
    maker.ok(Do::Freeze(2));
    for round in 0..70 {
        other.ok(Do::Keep(2, maker.give(2, true)));
        if round == 0 {
            other.ok(Do::Open(2, 0));
        }
        other.ok(Do::Drop(2));
        opens_a_slab(&maker, &other);
    }
    assert_eq!(other.stats()[5], 66, "the last 65, and the slab whose piece arrived again");
    maker.leave();
    other.leave();
    nothing_found(&session);
}

/// A piece of the slab that arrives later uses the same mapping.
#[test]
fn slab_with_a_used_piece_is_not_collected() {
    let (_alone, session, [maker, other]) = agents();
    for piece in 1..=2 {
        maker.ok(Do::Allocate(piece, 1000));
        maker.ok(Do::Freeze(piece));
    }
    other.ok(Do::Keep(1, maker.give(1, true)));
    let first = other.ok(Do::Open(1, 0));
    let collected = other.ok(Do::Collect);
    other.ok(Do::Keep(2, maker.give(2, true)));
    assert_eq!((other.ok(Do::Open(2, 0)), other.stats()[5]), (first + 1024, 1));
    assert_eq!(collected, 0);
    end(&session, [maker, other]);
}

/// A device that can't access the memory gets an error, in the maker and in another process.
#[test]
fn unreachable_device_is_an_error() {
    let _alone = alone();
    let session = setup().set("PROFILE", "apart").start().unwrap();
    let moves = moves();
    let maker = Agent::new(&session, &moves);
    // In the other process, both devices are visible, and the second device comes first.
    let other = Agent::with(&session, &moves, &[("CUDA_VISIBLE_DEVICES", "1,0")]);
    maker.frozen(1, 100, 8);
    other.ok(Do::Keep(1, maker.give(1, true)));
    for (agent, device) in [(&maker, 1), (&other, 0)] {
        let refused = agent.fails(Do::Open(1, device));
        assert!(
            refused.contains("can't reach memory of the device") && refused.contains("to_device"),
            "{refused}"
        );
    }
    // Each process can access the piece by the piece's own device.
    other.ok(Do::Open(1, 1));
    assert_eq!(maker.ok(Do::Read(1)), 8);
    end(&session, [maker, other]);
}
