//! Clocks of streams under loom: every interleaving that the memory model allows.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-core --test loom_clocks`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::{HeapMem, Mem, Word, run};
use mp_core::steps::clock::{CheckTick, ClaimClock, ClockAt, EndClock, ReleaseClock, TickState};
use mp_core::words::{ClockPhase, ClockState, END_OF_TICKS, Member, Tick};

const CLOCK: ClockAt = ClockAt(Word::at(0));
const TOLD: Word = Word::at(64);

fn claim(m: &HeapMem, me: u32) -> Option<u16> {
    run(ClaimClock::new(CLOCK, Member::new(me, 1), (me + 1, 1), true), m)
}

fn tick(epoch: u16, count: u64) -> Tick {
    Tick::new(0, Tick::base(epoch) + count)
}

fn look(m: &HeapMem, tick: Tick) -> TickState {
    run(CheckTick::new(CLOCK, tick), m)
}

/// Creates a clock of member 0, with its first tick done, and its second one submitted.
fn half_done() -> HeapMem {
    let m = HeapMem::new(9);
    assert_eq!(claim(&m, 0), Some(1));
    m.store(CLOCK.submitted(), tick(1, 2).value());
    m.store(CLOCK.done(), tick(1, 1).value());
    m
}

/// A process that receives a tick finds the tick submitted. If the device completed the tick before the
/// process received it, the process finds the tick done.
#[test]
fn loom_published_tick_is_submitted() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(9));
        assert_eq!(claim(&m, 0), Some(1));
        let owner = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                m.store(CLOCK.submitted(), tick(1, 1).value());
                m.store(CLOCK.done(), tick(1, 1).value());
                m.store(TOLD, 1);
            })
        };
        if m.load(TOLD) == 1 {
            assert_eq!(look(&m, tick(1, 1)), TickState::Complete);
        }
        owner.join().unwrap();
    });
}

/// If two members claim a clock, exactly one of them gets it.
#[test]
fn loom_clock_has_one_owner() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(9));
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || claim(&m, 1))
        };
        let mine = claim(&m, 0);
        let theirs = other.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "{mine:?}, {theirs:?}");
        assert_eq!(m.load(CLOCK.done()), Tick::base(1));
    });
}

/// While a clock gets its next owner, the state of an old tick does not change.
#[test]
fn loom_earlier_tick_keeps_its_status() {
    for died in [false, true] {
        loom::model(move || {
            let m = half_done();
            if died {
                assert!(run(EndClock::new(CLOCK, Some(Member::new(0, 1)), 1), &m));
            } else {
                m.store(CLOCK.done(), tick(1, 2).value());
                assert!(run(ReleaseClock::new(CLOCK, tick(1, 2).value()), &m));
            }
            let m = Arc::new(m);
            let next = {
                let m = Arc::clone(&m);
                thread::spawn(move || {
                    assert_eq!(claim(&m, 1), Some(2));
                    m.store(CLOCK.submitted(), tick(2, 1).value());
                })
            };
            let found = look(&m, tick(1, 2));
            assert!(
                matches!((found, died), (TickState::Complete, false) | (TickState::Died { .. }, true)),
                "{found:?}"
            );
            next.join().unwrap();
        });
    }
}

fn end(m: &HeapMem) -> bool {
    run(EndClock::new(CLOCK, Some(Member::new(0, 1)), 1), m)
}

/// Two processes end a clock of a dead owner.
#[test]
fn loom_clock_is_ended_once() {
    loom::model(|| {
        let m = Arc::new(half_done());
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || assert!(end(&m)))
        };
        assert!(end(&m));
        other.join().unwrap();
        assert_eq!((m.load(CLOCK.done()), m.load(CLOCK.died_at())), (END_OF_TICKS, tick(1, 1).value()));
        assert_eq!(ClockState::unpack(m.load(CLOCK.state())).phase, ClockPhase::Dead);
    });
}

/// While a clock ends, a tick that is done stays done, and a tick that is not done is never reported as done.
#[test]
fn loom_tick_of_an_ending_clock_keeps_its_state() {
    for count in [1, 2] {
        loom::model(move || {
            let m = Arc::new(half_done());
            let other = {
                let m = Arc::clone(&m);
                thread::spawn(move || assert!(end(&m)))
            };
            match (count, look(&m, tick(1, count))) {
                (1, TickState::Complete) | (2, TickState::Pending | TickState::Died { pid: Some(1) }) => {}
                found => panic!("{found:?}"),
            }
            other.join().unwrap();
        });
    }
}
