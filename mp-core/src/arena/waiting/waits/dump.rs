//! What all threads of this process wait for, at once: when the program asks, or at a signal.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::arena::waiting::waits::table::{self, Service};
use crate::arena::waiting::waits::{DUMPS, ENTRIES, held, report};
use crate::process::{GENERATIONS, PerProcess};
use crate::sync::Ordering;
use crate::sys::{identity, on_signal};

const VARIABLE: &str = "MP_DUMP_SIGNAL";
/// How long threads may take to say what they wait for: they look every 100 ms, or every second.
const ANSWERED_AFTER: Duration = Duration::from_millis(1500);

static LISTENS: PerProcess<OnceLock<()>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

/// Prints, on the standard error, what each thread of this process waits for, if that is a call of this library, and for how long. It
/// takes up to 1.5 s, since each thread says it itself. Lines follow for the locks that this process holds, the messages that it has leased
/// and not acknowledged, and the processes that wait to be started again.
///
/// ```
/// mp_core::waits::dump();
/// ```
///
/// The same is printed at a signal where the environment has `MP_DUMP_SIGNAL=USR1`, or another one: by a thread, not by the signal's
/// handler.
pub fn dump() {
    report::print(&all());
}

/// A line or more for each thread.
fn all() -> String {
    let asked = DUMPS.fetch_add(1, Ordering::AcqRel) + 1;
    let until = Instant::now() + ANSWERED_AFTER;
    let mut entries = ENTRIES.lock().clone();
    let late = |entries: &[std::sync::Arc<super::Entry>]| {
        entries.iter().any(|entry| (entry.said.lock().0.wrapping_sub(asked) as i32) < 0)
    };
    while late(&entries) && Instant::now() < until {
        // sleep: between two looks at what waiting threads, which nothing wakes for this, have said.
        std::thread::sleep(Duration::from_millis(10));
        let now = ENTRIES.lock().clone();
        entries.retain(|entry| now.iter().any(|other| std::sync::Arc::ptr_eq(entry, other)));
    }
    let mut text = format!("mp: what the threads of pid {} wait for", identity::process());
    let own = table::own_name();
    if !own.is_empty() {
        _ = write!(text, " ({own})");
    }
    text.push_str(":\n");
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Some(thread) = task.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let its: Vec<_> = entries.iter().filter(|entry| entry.thread == thread).collect();
        for entry in &its {
            text.push_str(&entry.said.lock().1);
        }
        if its.is_empty() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            _ = writeln!(text, "mp: thread `{}` ({thread}) is in no call of mp that waits", name.trim_end());
        }
    }
    text.push_str(&held::text());
    text
}

/// Listens for the signal that `MP_DUMP_SIGNAL` names, if it does, from now on: once in each process.
pub fn listen() {
    if LISTENS.get().is_some() || LISTENS.set(()).is_err() {
        return;
    }
    let Ok(wanted) = std::env::var(VARIABLE) else { return };
    if crate::gained_privileges() {
        return;
    }
    let Some(signal) = on_signal::number(&wanted) else {
        eprintln!(
            "mp: {VARIABLE}={wanted} is ignored: it takes the name or number of a signal that a program can handle, as {VARIABLE}=USR1"
        );
        return;
    };
    // Counted before the handler is there: no signal is missed.
    let before = on_signal::seen();
    if !on_signal::listen(signal) {
        eprintln!("mp: {VARIABLE}={wanted} is ignored: {}", std::io::Error::last_os_error());
        return;
    }
    let thread = std::thread::Builder::new().name("mp-dump".into()).spawn(move || {
        table::serves(Service::Dump);
        let mut seen = before;
        loop {
            let now = on_signal::seen();
            if now == seen {
                on_signal::sleep(seen);
            } else {
                seen = now;
                dump();
            }
        }
    });
    if let Err(e) = thread {
        eprintln!("mp: {VARIABLE}={wanted} is ignored: no thread can be started for it: {e}");
    }
}
