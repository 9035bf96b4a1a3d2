//! Events of processes, logged through the `log` crate where the feature `log` is on, and dropped otherwise. Messages,
//! tensors and locks log nothing.
//!
//! | level | events |
//! |---|---|
//! | warn | a process failed; a fork server ended and was replaced, or preloads for long; a worker of a pool ended before its time |
//! | info | a process was started; a process ended |
//! | debug | a fork server was started; a worker calls its function; what crashed processes held was released |
//!
//! Loggers are code of users: they are called while no lock of this crate is held, and a panic of one ends there.

/// Logs an event: `event!(Info, "{name} was started")`.
#[cfg(feature = "log")]
macro_rules! event {
    ($level:ident, $($what:tt)+) => {
        _ = ::mp_core::user_code::caught(|| {
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

/// Whether a logger takes events.
pub(crate) fn wanted() -> bool {
    #[cfg(feature = "log")]
    return log::max_level() != log::LevelFilter::Off;
    #[cfg(not(feature = "log"))]
    false
}

pub(crate) use event;
