//! Times at which a long wait is reported.

use std::time::{Duration, Instant};

use mp_core::waits;

/// Schedule of the reports of a wait.
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

    /// Reports the wait if a report is due. The next report is due when the wait is twice as long.
    pub(crate) fn if_due(&mut self, tell: impl FnOnce(Duration)) {
        let now = Instant::now();
        if self.until.is_some_and(|until| until <= now) {
            let waited = now.saturating_duration_since(self.since);
            tell(waited);
            self.until = now.checked_add(waited);
        }
    }
}
