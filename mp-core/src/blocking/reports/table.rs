//! Shared table of the waits of each process's threads, and of the process's name.
//!
//! # Words of a member's slot
//! | word | content | written by |
//! |---|---|---|
//! | `NAME`, four words | the name of the process, in UTF-8, cut at 32 bytes; zero: no name | the process, when it joins, and when it is named |
//! | `SERVICES`, two words | the threads of this library that run no user code: see [`serves`] | the process, before each row |
//! | a row, ten words for each of `ROWS` lanes | the wait of the lane's thread: see the next table | the thread that has the lane |
//!
//! | word of a row | states | changed by |
//! |---|---|---|
//! | 0 | zero: the thread has no shown wait; else `thread 32, block + 1 24, call 7, forever 1` | the thread: last when a wait is shown, first when the wait has ended |
//! | 1 | start of the wait, in ms of the monotonic clock | the thread, while word 0 is zero |
//! | 2 | number of the thread's checks that found nothing; continues from wait to wait | the thread, after each such check |
//! | 3 – 5 | the processes whose end the thread waits for, two in a word; zeros: none; `u32::MAX`: more | the thread, while word 0 is zero |
//! | 6 – 9 | line and end of the path of the source file that contains the call; zeros: unknown | the thread, while word 0 is zero |
//!
//! Each word has one writer, so each change is one store. A reader loads word 0, the other words, and word 0
//! again. Word 1 distinguishes two waits of a thread: a wait is shown after it has lasted for 100 ms.
//!
//! # State after a death
//! | killed | state left behind | consequence |
//! |---|---|---|
//! | at any point | rows and names of a dead member, complete or half written | a reader checks whether the member is dead; the slot's next process writes zeros before it is a member |
//!
//! Only reports depend on these words.

use std::time::Duration;

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocking::reports::{BlockingCall, Place, Subject, WaitObject};
use crate::blocks::Blocks;
use crate::error::printable;
use crate::layout::wait_table::{
    FIRST, NAME, NAME_BYTES, PLACE_BYTES, PROCESSES, RING_NAME, ROW_PLACE, ROW_PROCESSES, ROW_WORDS, ROWS,
    SERVICES, STRUCTURE, STRUCTURE_NAME,
};
use crate::mem::{Mem, Word};
use crate::members::{Members, intents};
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::sync::Ordering;
use crate::sync::shared::AtomicU32;
use crate::sys::{identity, memory};
use crate::words::{BlockId, BlockKind, Member};

static OWN_NAME: PerProcess<Mutex<String>> = per_process!(Mutex::new(String::new()));
static OWN_SERVICES: PerProcess<[AtomicU32; 2]> = per_process!([AtomicU32::new(0), AtomicU32::new(0)]);

/// Row of this process for a shown wait.
#[derive(Debug)]
pub(crate) struct Row {
    arena: Arena,
    word: Word,
}

/// Wait shown in a row of this or another process.
#[derive(Clone, Debug)]
pub(crate) struct ShownWait {
    pub(crate) thread: u32,
    pub(crate) call: BlockingCall,
    pub(crate) block: Option<BlockId>,
    pub(crate) forever: bool,
    pub(crate) since: u64,
    pub(crate) polls: u64,
    row: Word,
}

impl ShownWait {
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_millis(memory::monotonic_ms().saturating_sub(self.since))
    }

    /// Returns `true` if `self` and `other` show the same wait of the same thread.
    pub(crate) fn is_same_wait(&self, other: &Self) -> bool {
        let of = |seen: &Self| (seen.thread, seen.call, seen.block, seen.forever, seen.since);
        of(self) == of(other)
    }

    /// Returns the processes whose end the thread waits for, and `true` if there are more. If the thread has
    /// begun another wait, the result may belong to that wait.
    pub(crate) fn processes(&self, arena: Arena) -> (Vec<u32>, bool) {
        let words = (0..PROCESSES as u64 / 2).map(|i| arena.map().load(self.row.plus(ROW_PROCESSES + i)));
        let mut pids: Vec<u32> = words.flat_map(|word| [word as u32, (word >> 32) as u32]).collect();
        pids.retain(|pid| *pid != 0);
        let more = pids.pop_if(|pid| *pid == u32::MAX).is_some();
        (pids, more)
    }

    /// Returns the place of the call in the source, such as `src/train.rs:88`, if it is known. If the thread
    /// has begun another wait, the result may belong to that wait.
    pub(crate) fn place(&self, arena: Arena) -> Option<String> {
        let bytes = Members(arena).read_bytes::<{ PLACE_BYTES + 4 }>(self.row.plus(ROW_PLACE));
        let (line, path) = bytes.split_at(4);
        let line = u32::from_le_bytes(line.try_into().ok()?);
        let path: Vec<u8> = path.iter().copied().take_while(|byte| *byte != 0).collect();
        (line > 0).then(|| format!("{}:{line}", printable(&String::from_utf8_lossy(&path))))
    }
}

fn pack(thread: u32, call: BlockingCall, block: Option<BlockId>, forever: bool) -> u64 {
    let block = block.map_or(0, |block| (u64::from(block) + 1) & 0xff_ffff);
    u64::from(forever) | (u64::from(call.number()) & 0x7f) << 1 | block << 8 | u64::from(thread) << 32
}

fn row_word(arena: Arena, member: Member, row: u32) -> Word {
    arena.layout().member(member.slot(), FIRST + ROW_WORDS * u64::from(row))
}

impl Row {
    /// Takes the row of the calling thread, which waits for `subject`. Returns `None` if the thread has no
    /// row, or if an enclosing wait uses the row.
    pub(super) fn take(subject: &Subject, forever: bool) -> Option<Self> {
        let (arena, block) = match subject.on {
            WaitObject::Block(arena, block) => (arena, Some(block)),
            WaitObject::Processes(_) | WaitObject::Other => (arena()?, None),
        };
        let me = arena.me().ok()?;
        publish(arena, me);
        let lane = intents::with(|lane| Members(arena).note_lane(me, lane), |lane| lane);
        let row = lane.checked_sub(1).filter(|row| *row < ROWS)?;
        let word = row_word(arena, me, row);
        let map = arena.map();
        if map.load(word) != 0 {
            return None;
        }
        map.store(word.plus(1), memory::monotonic_ms());
        write_processes(arena, word.plus(ROW_PROCESSES), &subject.on);
        write_place(arena, word.plus(ROW_PLACE), subject.place.as_ref());
        map.store(word, pack(identity::thread(), subject.call, block, forever));
        Some(Self { arena, word })
    }

    /// Returns `true` if the row shows a wait of the calling thread for `subject`.
    pub(super) fn is_of(&self, subject: &Subject, forever: bool) -> bool {
        let block = if let WaitObject::Block(_, block) = subject.on { Some(block) } else { None };
        self.arena.map().load(self.word) == pack(identity::thread(), subject.call, block, forever)
    }

    /// Counts a check that found nothing.
    pub(super) fn record_poll(&self) {
        if self.arena.me().is_ok() {
            self.arena.map().add(self.word.plus(2), 1);
        }
    }

    /// Frees the row at the end of the wait.
    pub(super) fn give_back(&self) {
        if self.arena.me().is_ok() {
            self.arena.map().store(self.word, 0);
        }
    }
}

/// Calls `f` with each wait that a member shows.
pub(crate) fn each(arena: Arena, member: Member, mut f: impl FnMut(ShownWait)) {
    let map = arena.map();
    for row in 0..ROWS {
        let word = row_word(arena, member, row);
        let state = map.load(word);
        let (since, polls) = (map.load(word.plus(1)), map.load(word.plus(2)));
        if state == 0 || map.load(word) != state {
            continue;
        }
        let Some(call) = BlockingCall::of((state >> 1 & 0x7f) as u8) else { continue };
        let block = (state >> 8 & 0xff_ffff).checked_sub(1).map(|block| block as BlockId);
        f(ShownWait {
            thread: (state >> 32) as u32,
            call,
            block,
            forever: state & 1 != 0,
            since,
            polls,
            row: word,
        });
    }
}

/// Returns the arena of this process, if it is a member of one.
pub(super) fn arena() -> Option<Arena> {
    Arena::get().filter(|arena| arena.me().is_ok())
}

/// Publishes the name and the service threads of this process.
pub(crate) fn publish(arena: Arena, me: Member) {
    let words = |first: u64| arena.layout().member(me.slot(), first);
    for (i, thread) in OWN_SERVICES.iter().enumerate() {
        arena.map().store(words(SERVICES + i as u64), thread.load(Ordering::Acquire).into());
    }
    let name = own_name();
    write_name(arena, words(NAME), &name);
}

/// Returns the longest prefix of `text` that has at most this number of bytes.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let most = text.len().min(most);
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

/// Writes a name into four words.
fn write_name(arena: Arena, at: Word, name: &str) {
    let mut bytes = [0; NAME_BYTES];
    let name = cut(name, NAME_BYTES);
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    write_bytes(arena, at, bytes);
}

pub(super) fn write_bytes<const N: usize>(arena: Arena, at: Word, bytes: [u8; N]) {
    for (i, part) in bytes.as_chunks::<8>().0.iter().enumerate() {
        arena.map().store_relaxed(at.plus(i as u64), u64::from_le_bytes(*part));
    }
}

/// Writes the IDs of the processes whose end the thread waits for.
fn write_processes(arena: Arena, at: Word, on: &WaitObject) {
    let mut pids = [0; PROCESSES];
    if let WaitObject::Processes(all) = on {
        let known = all.len().min(PROCESSES);
        pids[..known].copy_from_slice(&all[..known]);
        if all.len() > PROCESSES {
            pids[PROCESSES - 1] = u32::MAX;
        }
    }
    for (i, [low, high]) in pids.as_chunks::<2>().0.iter().enumerate() {
        arena.map().store_relaxed(at.plus(i as u64), u64::from(*low) | u64::from(*high) << 32);
    }
}

/// Writes the place of a call, with the end of a long path.
fn write_place(arena: Arena, at: Word, place: Option<&Place>) {
    let mut bytes = [0; PLACE_BYTES + 4];
    if let Some(place) = place {
        let path = place.file.as_bytes();
        let path = &path[path.len().saturating_sub(PLACE_BYTES)..];
        bytes[..4].copy_from_slice(&place.line.to_le_bytes());
        bytes[4..4 + path.len()].copy_from_slice(path);
    }
    write_bytes(arena, at, bytes);
}

pub(super) fn own_name() -> String {
    OWN_NAME.lock().clone()
}

/// Returns the service threads of a member.
pub(crate) fn services(arena: Arena, member: Member) -> [u32; 2] {
    [0, 1].map(|i| arena.map().load(arena.layout().member(member.slot(), SERVICES + i)) as u32)
}

/// Names this process, for reports of other processes, such as `worker 3`.
pub fn name_process(name: &str) {
    cut(name, NAME_BYTES).clone_into(&mut OWN_NAME.lock());
    republish();
}

fn republish() {
    if let Some(arena) = arena()
        && let Ok(me) = arena.me()
    {
        publish(arena, me);
    }
}

/// Returns this process's description for errors: `rank-3 (pid 4711)`, or `process 4711` if it has no name.
#[must_use]
pub fn this_process() -> String {
    let (name, pid) = (OWN_NAME.lock(), std::process::id());
    if name.is_empty() { format!("process {pid}") } else { format!("{} (pid {pid})", *name) }
}

/// A service thread of this library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub enum Service {
    /// Thread that watches child processes.
    Supervisor,
    /// Thread that prints dumps.
    Dump,
}

/// Declares that the calling thread runs no user code, and frees nothing that a waiter waits for. Such a
/// thread does nothing by itself while all other threads wait.
#[doc(hidden)]
pub fn serves(service: Service) {
    OWN_SERVICES[service as usize].store(identity::thread(), Ordering::Release);
}

/// Declares that this thread may run user code from now on.
#[doc(hidden)]
pub fn serves_no_more(service: Service) {
    OWN_SERVICES[service as usize].store(0, Ordering::Release);
    republish();
}

fn name_word(arena: Arena, block: BlockId) -> Option<Word> {
    named_word(arena, Blocks(arena).memory_of(block), Blocks(arena).kind_of(block))
}

fn named_word(arena: Arena, (base, len): (Word, u64), kind: BlockKind) -> Option<Word> {
    let offset = match kind {
        _ if len < 64 => return None,
        kind if kind.is_object() && arena.map().load(base) == STRUCTURE => STRUCTURE_NAME,
        BlockKind::Ring if len >= 1024 => RING_NAME,
        _ => return None,
    };
    Some(base.plus(offset))
}

/// Returns the name of the queue or structure of this kind in the memory of a block.
pub(crate) fn name_at(arena: Arena, memory: (Word, u64), kind: BlockKind) -> Option<String> {
    named_word(arena, memory, kind).map(|at| Members(arena).read_name(at))
}

/// Returns the name of the queue or structure in a block, or an empty string.
pub(crate) fn name_in(arena: Arena, block: BlockId) -> String {
    name_word(arena, block).map_or_else(String::new, |at| Members(arena).read_name(at))
}

/// Names the object of a handle: a queue, or a structure of another layer.
#[doc(hidden)]
pub fn name_object(hold: &Hold, name: &str) {
    if hold.arena().me().is_ok()
        && !hold.is_nowhere()
        && let Some(at) = name_word(hold.arena(), hold.block())
    {
        write_name(hold.arena(), at, name);
    }
}

/// Returns the name of the object of a handle, if it has one.
#[doc(hidden)]
pub fn object_name(hold: &Hold) -> Option<String> {
    // A forked child has no memory to read.
    if hold.arena().me().is_err() || hold.is_nowhere() {
        return None;
    }
    Some(name_in(hold.arena(), hold.block())).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_process_name_is_cut_at_a_character_boundary() {
        let name = "e".repeat(NAME_BYTES - 1) + "é";
        assert_eq!(cut(&name, NAME_BYTES).len(), NAME_BYTES - 1);
        assert_eq!(cut("short", NAME_BYTES), "short");
    }
}
