//! Locks and leases of this process, and the lines that other layers add to a dump.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::arena::Arena;
use crate::blocking::reports::table;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::layout::wait_table;
use crate::mem::{Mem, Word};
use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess};
use crate::steps::lock::{LockAt, LockWord, OsThread};
use crate::sync::Ordering;
use crate::sys::identity;
use crate::words::{BlockId, Holder, Member, Owner, RingPlace};

/// Returns lines for a dump, each with its line end.
type Section = fn() -> String;

static SECTIONS: PerProcess<Mutex<Vec<Section>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// Adds lines of another layer to each dump of this process. A section is added once.
#[doc(hidden)]
pub fn add_to_dumps(section: Section) {
    let mut sections = SECTIONS.lock();
    if !sections.iter().any(|known| std::ptr::fn_addr_eq(*known, section)) {
        sections.push(section);
    }
}

/// Returns the lines about the locks and leases of this process, and the lines of other layers.
pub(super) fn text() -> String {
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

/// Appends a line for each held lock. Locks are the first words of their structures, and a holder signs them.
/// No other words have this form.
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
