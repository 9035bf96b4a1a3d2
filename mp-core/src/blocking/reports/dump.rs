//! Dumps of the waits of all threads of this process, on request of the program or on a signal. A dump also
//! lists the locks and leases of this process, and the lines that other layers add to it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::blocking::reports::table::{self, Service};
use crate::blocking::reports::{DUMPS, ENTRIES, report};
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::layout::wait_table;
use crate::mem::{Mem, Word};
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::steps::lock::{LockAt, LockWord, OsThread};
use crate::sync::Ordering;
use crate::sys::{identity, signal_counter};
use crate::words::{BlockId, Holder, Member, Owner, RingPlace};

const VARIABLE: &str = "MP_DUMP_SIGNAL";
/// Maximum time for which a dump waits for the answers of threads. A waiting thread checks for a request
/// every 100 ms, or every second.
const ANSWERED_AFTER: Duration = Duration::from_millis(1500);

static LISTENS: PerProcess<OnceLock<()>> = per_process!(OnceLock::new());

/// Prints the blocking call of this library in which each thread of this process waits, and the duration of
/// the wait, on stderr. This takes up to 1.5 s, since each thread reports its own wait. More lines list the
/// locks that this process holds, the messages that it has leased and not acknowledged, and the processes
/// that wait to be restarted.
///
/// ```
/// mp_core::waits::dump();
/// ```
///
/// With `MP_DUMP_SIGNAL=USR1` (or another signal) in the environment, the signal prints the same text. A
/// thread prints it, not the signal handler.
pub fn dump() {
    report::print(&all());
}

/// Returns the text of a dump: one or more lines for each thread of this process, then the lines of [`held`].
fn all() -> String {
    let asked = DUMPS.fetch_add(1, Ordering::AcqRel) + 1;
    let until = Instant::now() + ANSWERED_AFTER;
    let mut entries = ENTRIES.lock().clone();
    let late = |entries: &[std::sync::Arc<super::ActiveWait>]| {
        entries.iter().any(|entry| (entry.said.lock().0.wrapping_sub(asked) as i32) < 0)
    };
    while late(&entries) && Instant::now() < until {
        // sleep: between two checks of the answers of waiting threads, which no event announces.
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
    text.push_str(&held());
    text
}

/// Starts listening for the signal in `MP_DUMP_SIGNAL`, if set. Does so once in each process.
pub fn listen() {
    if LISTENS.get().is_some() || LISTENS.set(()).is_err() {
        return;
    }
    let Ok(wanted) = std::env::var(VARIABLE) else { return };
    if crate::gained_privileges() {
        return;
    }
    let Some(signal) = signal_counter::number(&wanted) else {
        eprintln!(
            "mp: {VARIABLE}={wanted} is ignored: it takes the name or number of a signal that a program \
            can handle, as {VARIABLE}=USR1"
        );
        return;
    };
    // Read before the handler is installed, so no signal is missed.
    let before = signal_counter::count();
    if !signal_counter::install(signal) {
        eprintln!("mp: {VARIABLE}={wanted} is ignored: {}", std::io::Error::last_os_error());
        return;
    }
    let thread = std::thread::Builder::new().name("mp-dump".into()).spawn(move || {
        table::serves(Service::Dump);
        let mut seen = before;
        loop {
            let now = signal_counter::count();
            if now == seen {
                signal_counter::wait_for_change(seen);
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

/// Returns lines for a dump, each with its line end.
type Section = fn() -> String;

static SECTIONS: PerProcess<Mutex<Vec<Section>>> = per_process!(Mutex::new(Vec::new()));

/// Adds lines of another layer to each dump of this process. A section is added once.
#[doc(hidden)]
pub fn add_to_dumps(section: Section) {
    let mut sections = SECTIONS.lock();
    if !sections.iter().any(|known| std::ptr::fn_addr_eq(*known, section)) {
        sections.push(section);
    }
}

/// Returns the lines about the locks and leases of this process, and the lines of other layers.
fn held() -> String {
    let mut text = String::new();
    if let Some(arena) = table::arena()
        && let Ok(me) = arena.me()
    {
        locks(&mut text, arena, me);
        leases(&mut text, arena, me);
    }
    let sections = SECTIONS.lock().clone();
    sections.into_iter().for_each(|section| text.push_str(&section()));
    text
}

/// Formats the name of an object: `lock "weights" (#14)`.
fn named(arena: Arena, what: &str, block: BlockId) -> String {
    match table::name_in(arena, block) {
        name if name.is_empty() => format!("{what} (#{block})"),
        name => format!("{what} {name:?} (#{block})"),
    }
}

/// Appends a line for each lock that this process holds. The words of a lock are the first words of its
/// structure, and name its holder. No other words have this form.
fn locks(text: &mut String, arena: Arena, me: Member) {
    for (block, count) in (0..).zip(arena.holds()) {
        if count.load(Ordering::Acquire) == 0 || !Blocks(arena).block_exists(block) {
            continue;
        }
        let (at, len) = Blocks(arena).data_of(block);
        let lock = LockAt(Word::at(at).plus(wait_table::STRUCTURE_WORDS));
        let is_structure = Blocks(arena).kind_of(block).is_object()
            && arena.map().load(Word::at(at)) == wait_table::STRUCTURE;
        if !is_structure || len < 8 * (wait_table::STRUCTURE_WORDS + LockAt::WORDS) {
            continue;
        }
        let word = LockWord(arena.map().load(lock.word()));
        let holder = OsThread::of(arena.map().load(lock.by()), word);
        if let Some(OsThread { pid, tid }) = holder.filter(|_| word.holder() == Some(me))
            && pid == identity::process()
        {
            _ = writeln!(text, "mp: thread {tid} holds the {}", named(arena, "lock", block));
        }
    }
}

fn leases(text: &mut String, arena: Arena, me: Member) {
    let mut queues: BTreeMap<BlockId, u32> = BTreeMap::new();
    for envelope in Envelopes(arena).envelopes_in_use(0) {
        let owner = Owner::unpack(arena.map().load(Envelopes(arena).owner_words().of(envelope)));
        if owner.holder == Holder::Leased(me) {
            let place = RingPlace::unpack(arena.map().load(Envelopes(arena).place_words().of(envelope)));
            *queues.entry(place.ring).or_default() += 1;
        }
    }
    for (queue, count) in queues {
        _ = writeln!(
            text,
            "mp: {count} leased message(s) of the {} are not acknowledged",
            named(arena, "queue", queue)
        );
    }
}
