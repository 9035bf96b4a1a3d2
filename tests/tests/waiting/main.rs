//! Waits for many objects at once, the latency of waits, and their cost. (Descriptors within a tokio runtime:
//! `tokio_driver.rs`, a separate program.)

mod crash_reports;
mod death_times;
mod dumps;
mod hangs;
mod idle_cpu_time;
mod interrupts;
mod many;
mod snapshots;
mod streams;
mod wake_ups;

/// Entry of the programs that `Scratch::program` starts. Not a test.
#[test]
fn helper() {
    if let Some((scenario, ..)) = mp_tests::scratch::scenario() {
        crash_reports::run(&scenario);
    }
}
