//! Selection of the program's own part of a backtrace.
//!
//! The standard library leaves out the frames above `__rust_end_short_backtrace` and below
//! `__rust_begin_short_backtrace`, two functions that only serve as marks. It does so only in the backtraces
//! that it prints itself. A [`Backtrace`](std::backtrace::Backtrace) has all frames, which are too many for a
//! terminal: two dozen frames lie between `_start` and a worker's function.

use std::fmt;
use std::hint::black_box;

const BEGIN: &str = "__rust_begin_short_backtrace";
const END: &str = "__rust_end_short_backtrace";

/// Calls a function of the program. Shortened backtraces end at this frame.
#[inline(never)]
pub(crate) fn __rust_begin_short_backtrace<R>(function: impl FnOnce() -> R) -> R {
    let result = function();
    // Prevents a tail call, which would leave no frame.
    black_box(());
    result
}

/// Frame of a backtrace, with optional lines for its places in the source.
struct BacktraceStep<'a> {
    symbol: &'a str,
    places: Vec<&'a str>,
}

/// Writes the frames of the backtrace `whole` between the two marks, or all frames if the marks are missing.
/// If frames are left out, a last line names `whole_by`, the format that shows all of them.
pub(crate) fn write_short(out: &mut impl fmt::Write, whole: &str, whole_by: &str) -> fmt::Result {
    let mut frames: Vec<BacktraceStep<'_>> = Vec::new();
    for line in whole.lines() {
        match (line.trim_start().split_once(": "), frames.last_mut()) {
            (Some((number, symbol)), _)
                if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
            {
                frames.push(BacktraceStep { symbol, places: Vec::new() });
            }
            (_, Some(frame)) => frame.places.push(line),
            (_, None) => {}
        }
    }
    let all = frames.len();
    let first = frames.iter().position(|frame| frame.symbol.contains(END)).map_or(0, |at| at + 1);
    let own = frames.get(first..).unwrap_or_default();
    let own = own.iter().take_while(|frame| !frame.symbol.contains(BEGIN));
    let mut shown = 0;
    for (number, BacktraceStep { symbol, places }) in own.enumerate() {
        write!(out, "\n{number:>4}: {symbol}")?;
        places.iter().try_for_each(|place| write!(out, "\n{place}"))?;
        shown += 1;
    }
    match all - shown {
        0 => Ok(()),
        hidden => write!(out, "\n   … and {hidden} of the runtime (`{whole_by}` shows all)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Short<'a>(&'a str);

    impl fmt::Display for Short<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_short(f, self.0, "{:#}")
        }
    }

    const WHOLE: &str = "   0: mp_spawn::panics::describe\n             at ./src/panics.rs:56:21\n   \
                         1: std::sys::backtrace::__rust_end_short_backtrace::<F, !>\n   \
                         2: core::panicking::panic_fmt\n             at /rustc/panicking.rs:80:14\n   \
                         3: app::load: a\n             at ./src/main.rs:4:34\n             (inlined)\n  \
                         10: mp_spawn::backtrace::__rust_begin_short_backtrace\n  11: _start\n";

    #[test]
    fn backtrace_shows_frames_between_the_marks() {
        assert_eq!(
            Short(WHOLE).to_string(),
            "\n   0: core::panicking::panic_fmt\n             at /rustc/panicking.rs:80:14\n   \
             1: app::load: a\n             at ./src/main.rs:4:34\n             (inlined)\n   \
             … and 4 of the runtime (`{:#}` shows all)"
        );
    }

    #[test]
    fn backtrace_without_marks_is_shown_whole() {
        assert_eq!(Short("   0: a\n   1: b\n      at c\n").to_string(), "\n   0: a\n   1: b\n      at c");
        assert_eq!(Short("").to_string(), "");
        assert_eq!(Short("unsupported backtrace").to_string(), "");
    }

    #[test]
    fn real_backtrace_contains_the_short_backtrace_mark() {
        #[inline(never)]
        fn inner() -> String {
            std::backtrace::Backtrace::force_capture().to_string()
        }
        let whole = __rust_begin_short_backtrace(inner);
        let short = Short(&whole).to_string();
        let caller = |text: &str| {
            text.lines().any(|line| line.ends_with("real_backtrace_contains_the_short_backtrace_mark"))
        };
        assert!(short.contains("::inner") && !caller(&short) && caller(&whole), "{whole}");
    }
}
