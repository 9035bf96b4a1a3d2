//! Processes that are killed or stopped while they hold pieces.

use mp_core::{Arena, FdSlots};
use mp_cuda_sim::session::Session;
use mp_harness::signal;
use mp_spawn::ExitStatus;
use rustix::process::Signal;

use crate::agent::{Agent, Do, agents, alone, end, locker_is, moves, nothing_found, setup, until};

const MIB: u64 = 1 << 20;

/// Checks that no memory of the device is in use, and that messages use as many compartments of the locker as
/// `before`.
#[track_caller]
fn nothing_is_left(session: &Session, before: u64) {
    until(session, "processes", 0);
    until(session, "bytes", 0);
    locker_is(before);
    nothing_found(session);
}

/// After the maker's death, its memory is unchanged, can still be opened for the first time, and is freed
/// with the last piece.
#[test]
fn receivers_keep_pieces_of_a_killed_maker() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let moves = moves();
    let maker = Agent::new(&session, &moves);
    let others = [(); 2].map(|()| Agent::new(&session, &moves));
    maker.frozen(1, 1000, 5);
    let parcel = maker.give(1, true);
    others[0].ok(Do::Keep(1, parcel.clone()));
    assert_eq!(others[0].ok(Do::Read(1)), 5);
    maker.kill();
    // One process has opened the slab before it detects the death, and the other opens it afterwards.
    others.iter().for_each(|other| _ = other.ok(Do::Reclaim));
    others[1].ok(Do::Keep(1, parcel));
    assert_eq!(others[1].ok(Do::Read(1)), 5);
    assert_eq!(others.each_ref().map(|other| other.stats()[5]), [1, 1]);
    others[0].ok(Do::Drop(1));
    assert_eq!(others[1].ok(Do::Read(1)), 5);
    others[1].ok(Do::Drop(1));
    assert_eq!(others.each_ref().map(|other| other.stats()[5]), [0, 0], "it is released with the last piece");
    until(&session, "bytes", 0);
    others.into_iter().for_each(Agent::leave);
    nothing_found(&session);
}

/// The process that has opened the slab unmaps it in a separate thread, after it has found the maker's death.
#[test]
fn unused_slab_is_unmapped_after_its_makers_death() {
    let (_alone, session, [maker, other]) = agents();
    maker.frozen(1, 1000, 5);
    other.ok(Do::Keep(1, maker.give(1, true)));
    assert_eq!(other.ok(Do::Read(1)), 5);
    other.ok(Do::Drop(1));
    assert_eq!(other.stats()[5], 1);
    maker.kill();
    other.ok(Do::Reclaim);
    until(&session, "bytes", 0);
    assert_eq!(other.stats()[5], 0);
    other.leave();
    nothing_found(&session);
}

/// The memory of a killed process that could only read is reused.
#[test]
fn killed_reader_releases_its_device_pieces() {
    let (_alone, session, [maker, reader]) = agents();
    maker.ok(Do::Allocate(1, 4 * MIB));
    let at = maker.ok(Do::Open(1, 0));
    maker.ok(Do::Fill(1, 1));
    maker.ok(Do::Freeze(1));
    reader.ok(Do::Keep(1, maker.give(1, true)));
    assert_eq!(reader.ok(Do::Read(1)), 1);
    maker.ok(Do::Drop(1));
    reader.kill();
    assert_eq!(maker.stats()[1..5], [0, 0, 1, 0]);
    maker.ok(Do::Allocate(2, 4 * MIB));
    assert_eq!(maker.ok(Do::Open(2, 0)), at);
    end(&session, [maker]);
}

/// The device may still execute writes of a dead process. So the slab gets no new pieces, and is freed with
/// its last piece.
#[test]
fn slab_of_pieces_of_a_killed_writer_is_retired() {
    let _alone = alone();
    // The death is in the first use, or in a later use.
    for script in [&[Do::Begin(1)][..], &[Do::Begin(1), Do::End(1), Do::Begin(1)]] {
        let session = setup().start().unwrap();
        let moves = moves();
        let (maker, writer) = (Agent::new(&session, &moves), Agent::new(&session, &moves));
        for piece in 1..=2 {
            maker.ok(Do::Allocate(piece, 4 * MIB));
            maker.ok(Do::Fill(piece, 9));
        }
        maker.ok(Do::Share(1));
        writer.ok(Do::Keep(1, maker.give(1, false)));
        maker.ok(Do::Drop(1));
        for what in script {
            writer.ok(what.clone());
        }
        writer.kill();
        assert_eq!(maker.stats(), [32 * MIB, 8 * MIB, 32 * MIB, 1, 1, 0]);
        // Other pieces of the slab are unchanged. New pieces are cut from another slab.
        assert_eq!(maker.ok(Do::Read(2)), 9);
        maker.ok(Do::Allocate(3, 4 * MIB));
        assert_eq!(maker.stats(), [64 * MIB, 12 * MIB, 32 * MIB, 2, 2, 0]);
        maker.ok(Do::Drop(2));
        assert_eq!(maker.stats(), [32 * MIB, 4 * MIB, 0, 1, 1, 0]);
        maker.leave();
        until(&session, "bytes", 0);
        nothing_found(&session);
    }
}

/// A stopped process is not dead: its memory stays allocated. Other processes do not wait for it.
#[test]
fn stopped_maker_of_a_piece_delays_no_process() {
    let (_alone, session, [maker, other]) = agents();
    maker.frozen(1, 1000, 5);
    let parcel = maker.give(1, true);
    signal(maker.process.pid(), Signal::STOP);
    other.ok(Do::Keep(1, parcel));
    assert_eq!(other.ok(Do::Read(1)), 5);
    other.ok(Do::Allocate(2, 1000));
    other.ok(Do::Fill(2, 6));
    other.ok(Do::Drop(1));
    other.ok(Do::Collect);
    signal(maker.process.pid(), Signal::CONT);
    assert_eq!(maker.ok(Do::Read(1)), 5);
    end(&session, [maker, other]);
}

/// Driver calls that make, export and release a slab.
const MAKERS: [&str; 8] = [
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemAddressFree",
];
const OPENERS: [&str; 7] = [
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemAddressFree",
];

/// Runs a script until it ends the agent. Returns `false` if the agent survives.
fn until_killed(agent: &Agent, script: &[Do]) -> bool {
    script.iter().any(|what| match agent.attempt(what.clone()) {
        None => true,
        Some(answer) => {
            answer.number.unwrap();
            false
        }
    })
}

fn killed(agent: Agent) {
    assert!(agent.process.wait_timeout(mp_harness::DEADLINE));
    let ended = agent.process.exit();
    assert!(matches!(ended, Some(ExitStatus::Signal { .. })), "{ended:?}");
}

#[test]
fn maker_killed_at_any_driver_call_leaks_nothing() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let before = FdSlots(Arena::current().unwrap()).compartments_in_use();
    for call in MAKERS {
        for when in ["before", "after"] {
            let moves = moves();
            let rule = format!("kill={call}:1:{when}");
            let maker = Agent::with(&session, &moves, &[("MP_CUDA_SIM_INJECT", &rule)]);
            let other = Agent::new(&session, &moves);
            let mut ended = until_killed(&maker, &[Do::Allocate(1, 1000)]);
            if !ended {
                maker.ok(Do::Fill(1, 5));
                maker.ok(Do::Freeze(1));
                other.ok(Do::Keep(1, maker.give(1, true)));
                assert_eq!(other.ok(Do::Read(1)), 5);
                other.ok(Do::Drop(1));
                ended = until_killed(&maker, &[Do::Drop(1), Do::Empty]);
            }
            assert!(ended, "{rule}");
            killed(maker);
            // Other processes continue.
            other.ok(Do::Allocate(2, 1000));
            other.ok(Do::Fill(2, 6));
            other.leave();
            nothing_is_left(&session, before);
        }
    }
}

#[test]
fn opener_killed_at_any_driver_call_leaks_nothing() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let before = FdSlots(Arena::current().unwrap()).compartments_in_use();
    for call in OPENERS {
        for when in ["before", "after"] {
            let moves = moves();
            let rule = format!("kill={call}:1:{when}");
            let maker = Agent::new(&session, &moves);
            let other = Agent::with(&session, &moves, &[("MP_CUDA_SIM_INJECT", &rule)]);
            maker.ok(Do::Allocate(1, 1000));
            maker.ok(Do::Fill(1, 5));
            let at = maker.ok(Do::Open(1, 0));
            maker.ok(Do::Freeze(1));
            other.ok(Do::Keep(1, maker.give(1, true)));
            maker.ok(Do::Drop(1));
            assert!(until_killed(&other, &[Do::Open(1, 0), Do::Drop(1), Do::Collect]), "{rule}");
            killed(other);
            // The process had only read access, so the units are free again.
            assert_eq!(maker.stats()[1..5], [0, 0, 1, 0], "{rule}");
            maker.ok(Do::Allocate(2, 1000));
            assert_eq!(maker.ok(Do::Open(2, 0)), at, "{rule}");
            maker.leave();
            nothing_is_left(&session, before);
        }
    }
}
