//! Kills or stops a process at each change that it makes in the arena while it allocates, sends, receives and
//! drops pieces of device memory.

use mp_core::FdSlots;
use mp_cuda_sim::session::{Session, Setup};
use rustix::process::Signal;

use crate::agent::{Agent, Do, Moves, alone, locker_is, moves, nothing_found, setup, until};

/// Numbers of SIGKILL and SIGSTOP.
const KILL: i32 = 9;
const STOP: i32 = 19;

/// Calls `round` with a session and the number of a change in the arena: `first`, and then each next number.
/// Ends when `round` returns `false`, because the script makes no change with this number. Checks that no
/// resource is left after each round.
fn for_each_change(setup: &Setup, first: u64, round: impl Fn(&Session, u64) -> bool) {
    let _alone = alone();
    let session = setup.start().unwrap();
    let before = FdSlots(mp_core::Arena::current().unwrap()).compartments_in_use();
    let mut at = first;
    while round(&session, at) {
        until(&session, "processes", 0);
        until(&session, "bytes", 0);
        locker_is(before);
        at += 1;
        assert!(at < first + 1000, "the script has no end");
    }
    assert!(at > first + 10, "the script has {at} changes");
    nothing_found(&session);
}

/// Drops the pieces that are left in the queue.
fn drain(moves: &Moves) {
    while let Ok(Some(moved)) = moves.try_get() {
        drop(moved);
    }
}

/// Afterwards the piece's memory returns to its maker. If the killed process could write to the piece, the
/// memory is freed with its slab.
#[test]
fn receiver_killed_at_any_change_releases_its_piece() {
    for_each_change(&setup(), 1, |session, at| {
        let moves = moves();
        let (maker, other) = (Agent::new(session, &moves), Agent::new(session, &moves));
        maker.ok(Do::Allocate(1, 1000));
        maker.ok(Do::Fill(1, 1));
        maker.ok(Do::Move(1));
        let script = [Do::TakeMoved(1), Do::Begin(1), Do::Fill(1, 2), Do::End(1), Do::Move(1)];
        let killed = other.attempt(Do::Armed(at, KILL, script.to_vec())).is_none();
        if killed {
            drop(other);
            drain(&moves);
        } else {
            maker.ok(Do::TakeMoved(1));
            assert_eq!(maker.ok(Do::Read(1)), 2);
            maker.ok(Do::Drop(1));
            other.leave();
        }
        mp_harness::eventually("the piece has no holder", || maker.stats()[4] == 0);
        maker.ok(Do::Allocate(2, 1000));
        maker.ok(Do::Fill(2, 3));
        assert_eq!(maker.ok(Do::Read(2)), 3);
        maker.ok(Do::Drop(2));
        maker.ok(Do::Empty);
        assert_eq!(maker.stats(), [0; 6], "change {at}");
        maker.leave();
        killed
    });
}

#[test]
fn maker_killed_at_any_change_leaks_no_device_memory() {
    for_each_change(&setup(), 1, |session, at| {
        let moves = moves();
        let maker = Agent::new(session, &moves);
        maker.ok(Do::Allocate(1, 1000));
        let script =
            [Do::Allocate(2, 1000), Do::Drop(1), Do::Move(2), Do::TakeMoved(3), Do::Drop(3), Do::Empty];
        let killed = maker.attempt(Do::Armed(at, KILL, script.to_vec())).is_none();
        if killed {
            drop(maker);
            drain(&moves);
        } else {
            maker.leave();
        }
        killed
    });
}

/// Uses a device with little memory, so that slabs are small. The test skips the writes of the 8,192 words of
/// the slab's rows, which are most of the changes.
#[test]
fn slab_maker_killed_at_any_change_leaks_no_slab() {
    for_each_change(&setup().set("MEMORY", 2 << 20), 8190, |session, at| {
        let maker = Agent::new(session, &moves());
        let killed =
            maker.attempt(Do::Armed(at, KILL, vec![Do::Allocate(1, 1000), Do::Drop(1), Do::Empty])).is_none();
        if killed {
            drop(maker);
        } else {
            maker.leave();
        }
        killed
    });
}

/// The receiver is stopped at each change, while other processes work. Then the receiver continues.
#[test]
fn stopped_receiver_of_a_piece_delays_no_process() {
    for_each_change(&setup(), 1, |session, at| {
        let moves = moves();
        let [maker, other, third] = [(); 3].map(|()| Agent::new(session, &moves));
        maker.ok(Do::Allocate(1, 1000));
        maker.ok(Do::Fill(1, 1));
        maker.ok(Do::Move(1));
        let script = [Do::TakeMoved(1), Do::Begin(1), Do::Fill(1, 2), Do::End(1), Do::Drop(1)];
        let script = Do::Armed(at, STOP, script.to_vec());
        other.begin(script.clone());
        let stopped = other.stops();
        for agent in [&maker, &third] {
            agent.ok(Do::Allocate(2, 1000));
            agent.ok(Do::Fill(2, 3));
        }
        maker.ok(Do::Freeze(2));
        third.ok(Do::Keep(3, maker.give(2, true)));
        assert_eq!(third.ok(Do::Read(3)), 3);
        for piece in [2, 3] {
            third.ok(Do::Drop(piece));
        }
        third.ok(Do::Empty);
        maker.ok(Do::Drop(2));
        if stopped {
            mp_harness::signal(other.process.pid(), Signal::CONT);
        }
        other.end(&script).unwrap().number.unwrap();
        assert_eq!(maker.stats()[1..], [0, 0, 1, 0, 0], "change {at}");
        [maker, other, third].into_iter().for_each(Agent::leave);
        stopped
    });
}
