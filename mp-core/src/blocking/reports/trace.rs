//! Events of waits for the `tracing` crate. The waiting thread calls the subscribers, which are code of
//! users, after its wait or for a report. During the call, it holds no lock of this process, and panics are
//! caught.

use std::time::Instant;

use tracing::Level;

use crate::blocking::reports::{Subject, WaitObject, table};
use crate::process::user_code::emit;

/// Emits the event of a wait that slept.
#[cold]
pub(super) fn wait_ended(since: Instant, timed_out: bool, subject: impl FnOnce() -> Subject) {
    _ = emit(|| {
        if !tracing::event_enabled!(target: "mp::wait", Level::TRACE) {
            return;
        }
        let duration_us = since.elapsed().as_micros() as u64;
        let subject = subject();
        let (name, block) = match subject.on {
            WaitObject::Block(arena, block) => (table::name_in(arena, block), Some(u64::from(block))),
            WaitObject::Processes(_) | WaitObject::Other => (String::new(), None),
        };
        let (text, name) = (subject.call.text(), Some(name.as_str()).filter(|name| !name.is_empty()));
        tracing::trace!(
            target: "mp::wait",
            call = text.name,
            object = text.object,
            name,
            block,
            duration_us,
            timed_out,
            "a call has waited"
        );
    });
}

/// Emits a report of a wait. Returns `true` if a subscriber accepts it.
pub(super) fn report(text: &str, hang: bool) -> bool {
    let emit_report = || {
        let is_accepted = tracing::event_enabled!(target: "mp::waits", Level::WARN);
        if is_accepted {
            tracing::warn!(target: "mp::waits", hang, "{}", text.trim_end());
        }
        is_accepted
    };
    emit(emit_report).unwrap_or(false)
}
