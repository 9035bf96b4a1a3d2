//! Real processes that are killed or stopped at every access to shared memory, or at every change: a file for what they do.
//! Programs that must begin without shared memory are this one, started anew.

mod ends;
mod kept;
mod late_joining;
mod messages;
mod queues;
mod small_messages;
mod stopped_producers;
mod stopped_sweepers;
mod stopped_updates;
mod sync;
mod values;

/// Not a test: what `Scratch::program` starts.
#[test]
fn helper() {
    if let Some((_, at, _)) = mp_tests::scratch::scenario() {
        stopped_updates::beside_one_that_is_stopped(at);
    }
}
