//! Statistics of a session, for tests.
#![allow(dead_code, reason = "each test program uses some of it")]

use mp_cuda_sim::session::{Finding, Session};

/// Returns the number `name` of the session's statistics. If the statistics have a number for each device,
/// returns that of the first device.
pub(crate) fn stat(session: &Session, name: &str) -> u64 {
    let stats = session.stats().unwrap();
    let value = &stats[name];
    value.as_u64().or_else(|| value[0].as_u64()).unwrap()
}

/// Waits until the number `name` of the session's statistics is `wanted`.
#[track_caller]
pub(crate) fn until(session: &Session, name: &str, wanted: u64) {
    mp_harness::eventually(&format!("{name} is {wanted}"), || stat(session, name) == wanted);
}

/// Checks that the session has no findings.
#[track_caller]
pub(crate) fn nothing_found(session: &Session) {
    assert_eq!(session.findings().unwrap(), [] as [Finding; 0]);
}
