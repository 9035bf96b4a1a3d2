//! Reports of failures that repeat: the first at once, later ones at growing intervals.

use std::time::{Duration, Instant};

/// Time between the first two reports. It doubles with each report.
const FIRST: Duration = Duration::from_secs(10);
/// Longest time between two reports.
const LONGEST: Duration = Duration::from_secs(600);

/// Decides which failures of a process, or of the workers of a pool, are reported.
#[derive(Debug, Default)]
pub struct FailureReports {
    /// Earliest time of the next report, and its distance from the last report.
    next: Option<(Instant, Duration)>,
    unreported: u32,
}

impl FailureReports {
    /// Counts a failure. Returns the number of failures since the last report, with this one, if a report is
    /// due.
    pub fn failed(&mut self, now: Instant) -> Option<u32> {
        self.unreported = self.unreported.saturating_add(1);
        let interval = match self.next {
            Some((at, _)) if now < at => return None,
            // After a long time without a failure, the intervals begin anew.
            Some((at, interval)) if now < at + interval => (2 * interval).min(LONGEST),
            _ => FIRST,
        };
        self.next = Some((now + interval, interval));
        Some(std::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_between_reports_grow() {
        let (mut reports, begin) = (FailureReports::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let told: Vec<_> = (0..100).filter_map(|s| reports.failed(at(s)).map(|count| (s, count))).collect();
        assert_eq!(told, [(0, 1), (10, 10), (30, 20), (70, 40)]);
        assert_eq!(reports.failed(at(10_000)), Some(30));
        assert_eq!(reports.failed(at(10_010)), Some(1), "a row of its own");
    }
}
