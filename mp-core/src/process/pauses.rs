//! Times in which this process did not run, detected by a thread that enforces deadlines.
//!
//! A stop of the whole program (SIGSTOP of its group, a frozen cgroup, a paused virtual machine) stops the
//! work and the watching thread, but not the clock. So the watching thread sleeps in short pieces. If a piece
//! lasts longer than planned, the difference is a pause, which does not count toward the deadlines.

use std::time::{Duration, Instant};

/// Maximum duration of one piece of a sleep.
const LONGEST_PIECE: Duration = Duration::from_secs(1);
/// Minimum duration of one piece of a sleep.
const SHORTEST_PIECE: Duration = Duration::from_millis(20);
/// Maximum delay of a sleep that does not count as a pause.
const LATE: Duration = Duration::from_millis(20);

/// Detects pauses of this process, by the delays of one thread's sleeps.
#[derive(Debug, Default)]
pub struct PauseDetector {
    /// Planned end of the current piece of a sleep.
    until: Option<Instant>,
}

impl PauseDetector {
    /// Returns the end of the next piece of a sleep until `until`. `shortest` is the shortest time limit that
    /// the thread enforces, and determines the length of a piece.
    pub fn piece(&mut self, now: Instant, until: Instant, shortest: Duration) -> Instant {
        let piece = (shortest / 8).clamp(SHORTEST_PIECE, LONGEST_PIECE);
        let until = until.min(now + piece);
        // A sleep whose end is in the past has no duration.
        self.until = Some(until.max(now));
        until
    }

    /// Returns the length of the pause during the last piece of a sleep, which has ended.
    pub fn pause(&mut self, now: Instant) -> Duration {
        let late = self.until.take().map_or(Duration::ZERO, |until| now.saturating_duration_since(until));
        if late > LATE { late } else { Duration::ZERO }
    }
}

/// Waits with `wait` until it returns `true` or `time` has expired. Pauses do not count. `wait` sleeps at
/// most until the instant passed to it.
pub fn wait_without_pauses(time: Duration, mut wait: impl FnMut(Instant) -> bool) -> bool {
    let (mut pauses, mut now) = (PauseDetector::default(), Instant::now());
    // A time beyond the range of the clock becomes 136 years.
    let mut until = now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(1 << 32));
    loop {
        if wait(pauses.piece(now, until, time)) {
            return true;
        }
        now = Instant::now();
        until += pauses.pause(now);
        if now >= until {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_end_of_a_sleep_counts_as_a_process_pause() {
        let (mut pauses, now) = (PauseDetector::default(), Instant::now());
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(pauses.pause(now), Duration::ZERO, "no sleep");
        assert_eq!(pauses.piece(now, now + minute, minute), now + second);
        assert_eq!(pauses.pause(now + second), Duration::ZERO);
        pauses.piece(now, now + minute, minute);
        assert_eq!(pauses.pause(now + 5 * second), 4 * second);
        assert_eq!(pauses.piece(now, now + second / 100, minute), now + second / 100);
        assert_eq!(pauses.piece(now, now + minute, second / 10), now + SHORTEST_PIECE);
        // The time had expired before.
        pauses.piece(now + minute, now, minute);
        assert_eq!(pauses.pause(now + minute), Duration::ZERO);
    }

    #[test]
    fn time_limit_excludes_pauses_of_the_process() {
        let (mut pieces, begin) = (0, Instant::now());
        let waited = wait_without_pauses(Duration::from_millis(80), |until| {
            pieces += 1;
            let pause = Duration::from_millis(if pieces == 1 { 300 } else { 0 });
            // sleep: the pause of a process that is stopped
            std::thread::sleep(until.saturating_duration_since(Instant::now()) + pause);
            false
        });
        assert!(!waited && begin.elapsed() >= Duration::from_millis(360), "{:?}", begin.elapsed());
        assert!(wait_without_pauses(Duration::MAX, |_| true));
    }
}
