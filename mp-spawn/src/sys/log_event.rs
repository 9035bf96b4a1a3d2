//! Events of processes, logged through the `log` crate if the feature `log` is enabled, and dropped
//! otherwise. Messages, tensors and locks are not logged.
//!
//! | level | events |
//! |---|---|
//! | warn | a process failed; a fork server ended and was replaced, or preloads for a long time; a worker of a pool ended early |
//! | info | a process was started; a process ended |
//! | debug | a fork server was started; a worker calls its function; the resources of crashed processes were released |
//!
//! Loggers are code of users: they are called without locks of this crate, and their panics are caught.

/// Logs an event: `event!(Info, "{name} was started")`.
#[cfg(feature = "log")]
macro_rules! event {
    ($level:ident, $($what:tt)+) => {
        _ = ::mp_core::user_code::catch_panic(|| {
            ::log::log!(target: "mp::process", ::log::Level::$level, $($what)+);
        })
    };
}

/// Does nothing, and evaluates nothing.
#[cfg(not(feature = "log"))]
macro_rules! event {
    ($level:ident, $($what:tt)+) => {{
        let _ = || _ = format_args!($($what)+);
    }};
}

/// Returns `true` if a logger accepts events.
pub(crate) fn wanted() -> bool {
    #[cfg(feature = "log")]
    return log::max_level() != log::LevelFilter::Off;
    #[cfg(not(feature = "log"))]
    false
}

pub(crate) use event;
