//! Real processes that are killed or stopped at every access to shared memory, or at every change, with one
//! file for each area. Programs that must begin without shared memory are this program, started again.

mod ends;
mod late_joining;
mod messages;
mod queues;
mod retained;
mod small_messages;
mod stopped_producers;
mod stopped_recoverers;
mod stopped_updates;
mod sync;
mod values;

/// Entry of the programs that `Scratch::program` starts. Not a test.
#[test]
fn helper() {
    if let Some((_, at, _)) = mp_tests::scratch::scenario() {
        stopped_updates::update_next_to_a_stopped_process(at);
    }
}
