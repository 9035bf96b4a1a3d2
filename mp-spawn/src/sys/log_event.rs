//! What happens to processes, told to the `log` crate where the feature `log` is on, and to nobody otherwise. Nothing is
//! told of messages, tensors or locks.
//!
//! | level | of what |
//! |---|---|
//! | warn | a process failed; a fork server ended and was replaced, or takes its time over what it preloads; a worker of a pool ended before its time |
//! | info | a process was started; a process ended |
//! | debug | a fork server was started; a worker calls its function; what the dead held was released |
//!
//! Loggers are code of users: they are called while no lock of this crate is held, and a panic of one ends there.

/// Tells of something: `event!(Info, "{name} was started")`.
#[cfg(feature = "log")]
macro_rules! event {
    ($level:ident, $($what:tt)+) => {
        _ = ::mp_core::users::caught(|| {
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

/// Whether anybody wants to be told.
pub(crate) fn wanted() -> bool {
    #[cfg(feature = "log")]
    return log::max_level() != log::LevelFilter::Off;
    #[cfg(not(feature = "log"))]
    false
}

pub(crate) use event;
