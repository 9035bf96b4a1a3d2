//! Deadline for a fork server, with its extensions.
//!
//! | the server | at the deadline | extensions |
//! |---|---|---|
//! | must make a process, or become ready | ended, unless it waits for a disk or had no processor | five |
//! | calls the preloaded function | a warning in the log, once | unlimited; ended if it has been stopped since the last deadline |
//!
//! The end of a server ends every wait for it at once.

use std::time::{Duration, Instant};

use crate::parent::supervisor;
use crate::sys::deadline;
use crate::sys::log_event::{self, event};
use crate::sys::proc_stat::ProcessActivity;

/// Deadline for a server.
pub(crate) struct ServerDeadline {
    time: Duration,
    /// Time of the deadline.
    pub(crate) until: Option<Instant>,
    more: Extensions,
}

/// Rule for extensions of a deadline.
enum Extensions {
    /// Remaining number of extensions. Each requires that the server waits for a disk, or has had no
    /// processor.
    Times(u32),
    /// The server calls its preloaded function. The deadline is extended while the server lives and is not
    /// stopped.
    Preloading {
        /// Name of the preloaded function. `None` after the name was logged.
        what: Option<String>,
        /// Activity of the server at the last deadline.
        before: Option<ProcessActivity>,
    },
}

impl ServerDeadline {
    pub(crate) fn new(time: Duration) -> ServerDeadline {
        ServerDeadline { time, until: deadline(time), more: Extensions::Times(5) }
    }

    /// Creates the deadline for a preloaded function.
    pub(crate) fn preloading(what: String, time: Duration) -> ServerDeadline {
        ServerDeadline {
            time,
            until: deadline(time),
            more: Extensions::Preloading { what: Some(what), before: None },
        }
    }

    /// Extends an expired deadline and returns `true`, if the rule allows that. `pid` is the process id of
    /// the server, and `activity` its activity, if known.
    pub(crate) fn extend(&mut self, pid: u32, activity: Option<&ProcessActivity>) -> bool {
        let left = match &mut self.more {
            Extensions::Times(more) => {
                let excused =
                    activity.is_some_and(|activity| activity.is_excused(self.time) && !activity.is_stopped());
                let left = *more > 0 && excused;
                *more = more.saturating_sub(1);
                left
            }
            Extensions::Preloading { what, before } => {
                if let Some(what) = what.take().filter(|_| log_event::wanted()) {
                    let (time, activity) =
                        (self.time, activity.map_or_else(String::new, |activity| format!(": {activity}")));
                    // Logged later, because the servers are locked here.
                    supervisor::run_later(move || {
                        event!(
                            Warn,
                            "a fork server (pid {pid}) has called {what} for {time:?}, and a thread that \
                             starts a process by it waits for that{activity}"
                        );
                    });
                }
                let stopped =
                    activity.is_some_and(ProcessActivity::is_stopped) && before.as_ref() == activity;
                *before = activity.cloned();
                !stopped
            }
        };
        if left {
            self.until = deadline(self.time);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an idle child that is stopped, and its activity.
    #[allow(clippy::zombie_processes, reason = "the test ends it")]
    fn stopped() -> (std::process::Child, ProcessActivity) {
        let child = std::process::Command::new("sh").args(["-c", "kill -STOP $$"]).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let activity = ProcessActivity::read(child.id()).unwrap();
            if activity.is_stopped() {
                return (child, activity);
            }
            assert!(Instant::now() < until, "{activity}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn only_a_stopped_fork_server_exceeds_preload_time() {
        let (mut child, stopped) = stopped();
        let running = ProcessActivity::read(std::process::id()).unwrap();
        let mut limit = ServerDeadline::preloading("f".to_string(), Duration::from_millis(1));
        for activity in
            [Some(&running), Some(&running), None, Some(&running), Some(&stopped), None, Some(&stopped)]
        {
            assert!(limit.extend(child.id(), activity), "{activity:?}");
        }
        // Stopped since the last deadline.
        assert!(!limit.extend(child.id(), Some(&stopped)));
        // A stopped server that must answer gets no extension.
        assert!(!ServerDeadline::new(Duration::from_millis(1)).extend(child.id(), Some(&stopped)));
        assert!(!ServerDeadline::new(Duration::from_millis(1)).extend(child.id(), None));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
