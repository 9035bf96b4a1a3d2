//! Times at which a long wait is reported.

use std::time::{Duration, Instant};

use mp_core::waits;

/// When a wait is reported next.
pub(crate) struct ReportSchedule {
    since: Instant,
    until: Option<Instant>,
}

impl ReportSchedule {
    pub(crate) fn from(since: Instant) -> ReportSchedule {
        ReportSchedule { since, until: waits::reported_after().and_then(|after| since.checked_add(after)) }
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// If it is time: reports the wait; the next time is when it has lasted twice as long.
    pub(crate) fn if_due(&mut self, tell: impl FnOnce(Duration)) {
        let now = Instant::now();
        if self.until.is_some_and(|until| until <= now) {
            let waited = now.saturating_duration_since(self.since);
            tell(waited);
            self.until = now.checked_add(waited);
        }
    }
}
