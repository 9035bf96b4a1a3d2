//! Exhaustive model of rings with retained messages. Senders publish, retire and collect messages, and
//! readers pin and read them. Each actor is killed and stopped at every shared access, while recovering
//! actors settle the intents of dead actors. Messages are in envelopes, or small. A reader of all messages
//! counts the messages that it has read and missed. The sum is the number of published messages. Real
//! processes run the same steps.

mod actor;

use mp_models::random::at_random;
use mp_models::ring::intent;

use self::actor::Setup;

#[test]
fn reader_gets_newest_value_during_its_replacement() {
    let s = Setup { senders: 1, items: 2, readers: 1, rounds: 2, slots: 3, keep: 1, ..Setup::default() };
    s.explore(1, 0);
    s.explore(0, 1);
    Setup { items: 3, recoverers: 1, ..s }.explore(1, 0);
}

#[test]
fn two_senders_replace_each_others_values() {
    let s = Setup { senders: 2, items: 1, readers: 1, rounds: 1, slots: 3, keep: 1, ..Setup::default() };
    s.explore(1, 0);
    s.explore(0, 1);
    at_random(|| {
        Setup { items: 2, recoverers: 1, ..s }.explore(1, 1);
    });
}

#[test]
fn ring_retains_one_message_after_two_readers() {
    let s = Setup { senders: 1, items: 2, readers: 2, rounds: 1, slots: 4, keep: 1, ..Setup::default() };
    s.explore(0, 0);
    s.explore(1, 0);
    at_random(|| {
        Setup { recoverers: 1, ..s }.explore(1, 1);
    });
}

/// The ring wraps around, and senders skip the slot that a stopped reader has pinned.
#[test]
fn senders_skip_the_slot_of_a_stopped_reader() {
    let s = Setup { senders: 1, items: 5, readers: 1, rounds: 1, slots: 3, keep: 1, ..Setup::default() };
    s.explore(0, 1);
    at_random(|| {
        Setup { all: true, ..s }.explore(0, 1);
        Setup { senders: 2, items: 2, ..s }.explore(0, 1);
    });
}

#[test]
fn every_message_is_read_or_counted_as_missed() {
    let s = Setup { senders: 1, items: 4, readers: 1, all: true, slots: 4, keep: 2, ..Setup::default() };
    s.explore(1, 0);
    s.explore(0, 1);
    Setup { senders: 2, items: 2, ..s }.explore(0, 0);
    Setup { items: 3, recoverers: 1, ..s }.explore(1, 0);
}

/// Senders skip slots that a stopped reader has pinned. The skipped positions have no messages, and are not
/// counted as missed.
#[test]
fn skipped_ring_positions_are_not_counted_as_missed() {
    let s = Setup { senders: 1, items: 4, readers: 2, all: true, slots: 3, keep: 1, ..Setup::default() };
    at_random(|| {
        s.explore(1, 1);
        Setup { senders: 2, items: 2, recoverers: 1, ..s }.explore(1, 1);
    });
}

#[test]
fn small_messages_are_read_whole_while_overwritten() {
    let s = Setup {
        senders: 1,
        items: 3,
        readers: 1,
        rounds: 2,
        slots: 3,
        keep: 1,
        small: !0,
        ..Setup::default()
    };
    s.explore(1, 0);
    s.explore(0, 1);
    Setup { senders: 2, items: 2, rounds: 1, ..s }.explore(1, 0);
    Setup { items: 5, all: true, keep: 2, ..s }.explore(1, 0);
    Setup { senders: 2, items: 2, all: true, ..s }.explore(0, 0);
}

#[test]
fn small_messages_and_envelopes_share_ring_slots() {
    let s = Setup { senders: 1, items: 5, readers: 1, all: true, slots: 3, keep: 1, ..Setup::default() };
    for small in [0b01010, 0b00110] {
        let s = Setup { small, ..s };
        s.explore(1, 0);
        s.explore(0, 1);
        Setup { all: false, rounds: 1, ..s }.explore(0, 1);
        Setup { items: 4, recoverers: 1, ..s }.explore(1, 0);
        Setup { senders: 2, items: 2, ..s }.explore(0, 0);
    }
    // The first value is small, and stays in its slot. Readers don't treat it as the newest value.
    Setup { items: 3, all: false, rounds: 2, small: 0b001, ..s }.explore(0, 1);
    at_random(|| {
        Setup { senders: 2, items: 3, readers: 2, recoverers: 1, slots: 4, small: 0b101010, ..s }
            .explore(1, 1);
    });
}

#[test]
#[should_panic(expected = "the number of")]
fn model_finds_lost_skip_counts_of_a_ring() {
    let s = Setup { senders: 1, items: 5, readers: 1, all: true, slots: 3, keep: 1, ..Setup::default() };
    let mut world = s.world();
    let at = world.actors[0].at;
    world.memory.lose((0..at.ring.slots).map(|i| at.skips(i)));
    s.check(world, 0, 0);
}

/// If readers do not pin messages, a sender frees a message while it is read.
#[test]
#[should_panic(expected = "dropped under its reader")]
fn model_finds_message_dropped_without_reader_pins() {
    let s = Setup { senders: 1, items: 2, readers: 1, rounds: 1, slots: 3, keep: 1, ..Setup::default() };
    let mut world = s.world();
    let pins = world.actors[0].at.pins;
    world.memory.lose((0..pins.count).map(|i| pins.pin(i)));
    s.check(world, 0, 0);
}

#[test]
#[should_panic(expected = "dropped under its reader")]
fn model_finds_pin_outside_of_the_used_range() {
    let s = Setup { senders: 1, items: 2, readers: 1, rounds: 1, slots: 3, keep: 1, ..Setup::default() };
    let mut world = s.world();
    let used = world.actors[0].at.pins.used;
    world.memory.lose([used]);
    s.check(world, 0, 0);
}

#[test]
#[should_panic(expected = "leaks")]
fn model_finds_collected_message_without_intent() {
    let s = Setup { senders: 1, items: 2, recoverers: 1, slots: 2, keep: 1, ..Setup::default() };
    let mut world = s.world();
    world.memory.lose((0..world.actors.len()).map(intent));
    s.check(world, 1, 0);
}
