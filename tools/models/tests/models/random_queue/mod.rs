//! Model of the ring of envelopes under long random schedules. Rings have up to four slots, for up to thirty
//! messages in reused envelopes. Processes are killed, stopped and resumed. The ring is compared with a plain
//! queue.
//!
//! The exhaustive models cover every schedule of a few messages. This model covers longer schedules. Real
//! processes run the same steps.

#![allow(unreachable_pub, missing_docs, missing_debug_implementations)]

mod actor;
mod schedule;

use std::panic::{AssertUnwindSafe, catch_unwind};

use mp_core::mem::Word;
use mp_models::ring::{ENVELOPES, MAX_ACTORS, PLACE, intent};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use self::schedule::{case, play, world};

fn runner() -> TestRunner {
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn ring_equals_a_plain_queue_in_random_schedules() {
    let (received, lost) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let run = runner().run(&case(), |case| {
        let ghost = play(&case, world(&case));
        received.set(received.get() + ghost.received.len());
        lost.set(lost.get() + ghost.taken.len() - ghost.received.len());
        Ok(())
    });
    run.unwrap();
    println!("{} messages received, {} lost with their consumers", received.get(), lost.get());
    // The schedules reach the intended cases.
    assert!(received.get() > 2000 && lost.get() > 10);
}

/// Returns `true` if a random schedule finds a planted bug: all writes to these words are lost.
fn finds(words: impl Fn() -> Vec<Word>) -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    let run = runner().run(&case(), |case| {
        let mut world = world(&case);
        world.memory.lose(words());
        let played = catch_unwind(AssertUnwindSafe(|| play(&case, world)));
        played.map(drop).map_err(|_| TestCaseError::fail("found"))
    });
    let _ = std::panic::take_hook();
    run.is_err()
}

#[test]
fn random_schedules_find_missing_intents_or_places() {
    // Without intents, an envelope whose consumer was killed has no owner.
    assert!(finds(|| (0..MAX_ACTORS).map(intent).collect()));
    // Without places, a recovery reads the wrong slot.
    assert!(finds(|| (0..ENVELOPES).map(|e| PLACE.of(e)).collect()));
}
