//! Which slabs and pieces this process has: a slab that arrives twice is mapped once, a piece that arrives twice is one piece.
//!
//! A slab is here as long as a piece of it is, and, once it is mapped, until it is [given up](give_up): mapping and unmapping take longer
//! than a message, so they are on the way of none. The slab of a maker that is dead is given up with the last piece of it, or, if there is
//! none, when this process learns of the death.
//!
//! Two kinds of slabs *leave* then, each in a line of its own, which a thread gives back, one after the other. Those of dead makers, since
//! the thread that learns of the death may be all that sweeps, and what runs on the device may wait for that. And memory that was opened by a
//! legacy handle, which is [closed](super::closing) when that is in no other thread's way. One that leaves stays in
//! the table: if a piece of it comes, it stays. A thread that asks for all to be given back ([`ipc_collect`](crate::ipc_collect)) waits for them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use mp_core::{Arena, Hold, mutant};

use super::closing::{self, Paces};
use super::object::{Mode, PieceObject, Seen, SlabObject};
use super::piece::Inner;
use super::slab::Slab;
use crate::driver::long_calls::{self, LongCall};
use crate::exit;

/// After this many further openings a slab of which nothing is used is unmapped.
const STALE: u64 = 64;

/// Up to this number of pieces, those that are gone are not looked for.
const FEW: usize = 64;

/// By the marks of objects, of which no process chooses any: so they need no hash that is hard to meet.
type ByMark<V> = HashMap<u64, V, BuildHasherDefault<MarkHasher>>;

#[derive(Default)]
struct MarkHasher(u64);

impl Hasher for MarkHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, mark: u64) {
        // The high bits depend on all; a table takes its place from the low ones, and its tags from the highest.
        let mixed = (self.0 ^ mark).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug, Default)]
struct Table {
    /// By the marks of their objects.
    slabs: ByMark<SlabEntry>,
    /// Those that leave, of which nothing is used: unmapped in a moment, and closed when the process's streams have run what they have.
    leaving: [Line; 2],
    /// Those that other processes may have as well. What is gone is left here for a while: the piece may come again, and a piece that is
    /// dropped takes no lock.
    pieces: ByMark<Weak<Inner>>,
    /// How many pieces there are when those that are gone are looked for.
    full: usize,
    /// How many slabs were opened.
    openings: u64,
}

const QUICK: usize = 0;
const SLOW: usize = 1;

/// Slabs that are given back one after the other.
#[derive(Debug, Default)]
struct Line {
    /// And since when they are in line.
    entries: VecDeque<(Instant, SlabEntry)>,
    /// Whether a thread is at it; and how many that has given back.
    is_taken: bool,
    done: u64,
}

impl Line {
    fn add(&mut self, entries: Vec<SlabEntry>) {
        self.entries.extend(entries.into_iter().map(|entry| (Instant::now(), entry)));
    }

    fn all(&self) -> impl Iterator<Item = &SlabEntry> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    fn take_all(&mut self) -> Vec<SlabEntry> {
        self.entries.drain(..).map(|(_, entry)| entry).collect()
    }

    /// Whether a thread has to be started, which is the caller's to do.
    fn begins(&mut self) -> bool {
        !self.is_taken && !self.entries.is_empty() && {
            self.is_taken = true;
            true
        }
    }
}

#[derive(Debug)]
struct SlabEntry {
    slab: Arc<Slab>,
    /// How many slabs had been opened when something of this one last came or was opened.
    used: u64,
    /// Its maker is dead, and cuts no more pieces out of it.
    is_orphan: bool,
    /// Pieces of it that were looked at, each in the place of its mark.
    seen: Vec<Option<Seen>>,
}

impl SlabEntry {
    /// Whether nothing but the table has it. Under the table's lock that stays so: who gets it, gets it from the table.
    fn is_alone(&self) -> bool {
        Arc::strong_count(&self.slab) == 1
    }

    /// Whether it is kept for pieces to come.
    fn stays(&self) -> bool {
        self.slab.is_mapped() && !(self.is_orphan && self.slab.is_idle())
    }
}

static HERE: PerProcess<Mutex<Option<Table>>> = PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// Which slabs are to be given up, of those of which nothing is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// All, and the caller waits until they are given back.
    All,
    /// All, without a wait for what the device runs: some may leave.
    Short,
    /// Those of which nothing was used for long, whose maker is dead, or for whose end the owner of another library's memory waits. Without a
    /// wait for what the device runs.
    Stale,
}

/// A slab that this process has made.
pub(crate) fn add(slab: &Arc<Slab>) {
    let mut here = HERE.lock();
    let table = here.get_or_insert_default();
    let used = table.openings;
    table.slabs.insert(
        slab.object().mark(),
        SlabEntry { slab: Arc::clone(slab), used, is_orphan: false, seen: Vec::new() },
    );
}

/// The slab of the object with this mark, if it is here; and what was [seen](saw) of a piece's object with that.
#[inline(always)]
pub(crate) fn known(slab: u64, piece: u64) -> Option<(Arc<Slab>, Option<Seen>)> {
    let mut here = HERE.lock();
    here.as_mut()?.known(slab, piece)
}

/// As [`known`] and [`piece`] in one, where what was seen of a piece's object fits to this mode; else its handle comes back. All that
/// is known is looked up under one lock: to take it once more costs as much as the look.
#[inline(always)]
pub(crate) fn again(slab: u64, hold: Hold, mode: Mode) -> Result<Arc<Inner>, Hold> {
    let (arena, mark) = (hold.arena(), hold.arena().mark(&hold));
    let mut here = HERE.lock();
    let Some(table) = here.as_mut() else { return Err(hold) };
    table.make_room();
    let (slab, seen) = match table.known(slab, mark) {
        Some((slab, Some(seen))) if seen.came_as(arena, mode).is_ok() => (slab, seen),
        _ => return Err(hold),
    };
    Ok(table.piece(mark, || Inner::shared(slab, PieceObject::of_seen(hold, seen))))
}

/// Notes what was found in the object of a piece. Its words were written before any other code knew its block, so that holds for its
/// mark for ever.
pub(crate) fn saw(slab: &Slab, seen: Seen) {
    let mut here = HERE.lock();
    let entry = here.as_mut().and_then(|table| table.slabs.get_mut(&slab.object().mark()));
    if let Some(entry) = entry {
        entry.seen.resize(SEEN, None);
        entry.seen[place_of(seen.mark())] = Some(seen);
    }
}

/// How many of the pieces that a process had of a slab are known again.
const SEEN: usize = 64;

fn place_of(piece: u64) -> usize {
    piece as usize % SEEN
}

/// A slab that arrived: the one that is here, if it is.
pub(crate) fn slab(object: SlabObject) -> Arc<Slab> {
    let mut here = HERE.lock();
    let table = here.get_or_insert_default();
    let used = table.openings;
    table.stay(object.mark());
    let entry = table.slabs.entry(object.mark());
    let entry = entry.or_insert_with(|| SlabEntry {
        slab: Arc::new(Slab::arrived(object)),
        used,
        is_orphan: false,
        seen: Vec::new(),
    });
    entry.used = used;
    Arc::clone(&entry.slab)
}

/// The piece whose object has this mark, if this process has it; else it has the one that `make` makes.
pub(crate) fn piece(mark: u64, make: impl FnOnce() -> Arc<Inner>) -> Arc<Inner> {
    let mut here = HERE.lock();
    let table = here.get_or_insert_default();
    table.make_room();
    table.piece(mark, make)
}

/// A piece that was exclusive is opened to others: from now on it may arrive.
pub(crate) fn list(mark: u64, piece: &Arc<Inner>) {
    let mut here = HERE.lock();
    let table = here.get_or_insert_default();
    table.make_room();
    table.pieces.insert(mark, Arc::downgrade(piece));
}

/// A piece is dropped, or what was to be one is none: its slab is known no more, if nothing else of it is here.
pub(crate) fn forget(slab: Arc<Slab>) {
    // That of this process stays until it is given back, whatever is used of it.
    if slab.is_made_here() {
        return;
    }
    let (gone, begin) = {
        let mut here = HERE.lock();
        let Some(table) = here.as_mut() else { return };
        let gone = table.without(slab);
        let left = table.leave(gone);
        (left, table.begin())
    };
    drop(gone);
    begin.into_iter().for_each(start);
}

impl Table {
    /// See [`known`].
    #[inline(always)]
    fn known(&mut self, mark: u64, piece: u64) -> Option<(Arc<Slab>, Option<Seen>)> {
        let used = self.openings;
        let look = |entry: &mut SlabEntry| {
            entry.used = used;
            let seen = entry.seen.get(place_of(piece)).copied().flatten();
            let seen = seen.filter(|seen| seen.is_of(piece) || mutant!("cuda.here.seen-not-compared"));
            (Arc::clone(&entry.slab), seen)
        };
        if let Some(entry) = self.slabs.get_mut(&mark) {
            return Some(look(entry));
        }
        self.stay(mark);
        self.slabs.get_mut(&mark).map(look)
    }

    /// See [`piece`]. If this process has the piece, the captures of `make` are dropped under the lock. They hold
    /// no last handle then: the piece has others, and the table holds the slab.
    #[inline]
    fn piece(&mut self, mark: u64, make: impl FnOnce() -> Arc<Inner>) -> Arc<Inner> {
        match self.pieces.entry(mark) {
            Entry::Occupied(mut one) => match one.get().upgrade() {
                Some(known) if !mutant!("cuda.here.twice-is-two") => known,
                _ => {
                    let new = make();
                    one.insert(Arc::downgrade(&new));
                    new
                }
            },
            Entry::Vacant(place) => {
                let new = make();
                place.insert(Arc::downgrade(&new));
                new
            }
        }
    }

    /// One that leaves, and of which a piece has come, stays.
    fn stay(&mut self, mark: u64) {
        let leaves = |(_, entry): &(Instant, SlabEntry)| entry.slab.object().mark() == mark;
        if self.slabs.contains_key(&mark) || mutant!("cuda.here.leaving-not-kept") {
            return;
        }
        for line in &mut self.leaving {
            let at = line.entries.iter().position(leaves);
            if let Some((_, entry)) = at.and_then(|at| line.entries.remove(at)) {
                self.slabs.insert(mark, entry);
            }
        }
    }

    /// What takes as long as the streams run something leaves; the rest is the caller's to drop, without the lock.
    fn leave(&mut self, gone: impl IntoIterator<Item = SlabEntry>) -> Vec<SlabEntry> {
        let is_slow = |entry: &SlabEntry| entry.slab.is_opened() && !mutant!("cuda.here.closed-at-once");
        let (slow, quick): (Vec<_>, Vec<_>) = gone.into_iter().partition(is_slow);
        self.leaving[SLOW].add(slow);
        quick
    }

    /// The lines for which a thread has to be [started](start).
    fn begin(&mut self) -> Vec<usize> {
        [QUICK, SLOW].into_iter().filter(|line| self.leaving[*line].begins()).collect()
    }

    /// Forgets pieces that are gone, when half of them may be.
    fn make_room(&mut self) {
        if self.pieces.len() >= self.full.max(FEW) {
            self.pieces.retain(|_, piece| piece.strong_count() > 0);
            self.full = 2 * self.pieces.len();
        }
    }

    /// A slab is used no more by the caller: its entry, to be dropped without the lock, if nothing else of it is here.
    fn without(&mut self, slab: Arc<Slab>) -> Option<SlabEntry> {
        let key = slab.object().mark();
        drop(slab);
        match self.slabs.get(&key) {
            Some(entry) if entry.is_alone() && !entry.stays() && !mutant!("cuda.here.unmapped-kept") => {
                self.slabs.remove(&key)
            }
            _ => None,
        }
    }
}

/// Notes that a slab was opened, and gives up what is stale.
pub(crate) fn opened(slab: &Slab) {
    Arena::on_deaths(crate::deaths);
    // The hook is not called for a death that this process has found before.
    let is_orphan = Arena::get().is_some_and(|arena| arena.is_dead(slab.maker().0));
    {
        let mut here = HERE.lock();
        let table = here.get_or_insert_default();
        table.openings += 1;
        let used = table.openings;
        table.slabs.entry(slab.object().mark()).and_modify(|entry| {
            entry.used = used;
            entry.is_orphan |= is_orphan;
        });
    }
    give_up(Which::Stale);
}

/// Members were swept. The thread that calls this may have come here out of any wait, also one that it makes with the table's lock held:
/// then the next one that opens a slab, or learns of a death, does it.
pub(crate) fn deaths() {
    let Some(arena) = Arena::get() else { return };
    let Some(mut here) = HERE.try_lock() else { return };
    let Some(table) = here.as_mut() else { return };
    for entry in table.slabs.values_mut() {
        entry.is_orphan |= arena.is_dead(entry.slab.maker().0) && !mutant!("cuda.here.orphan-kept");
    }
    let gone = table.take_unused(Which::Stale);
    if mutant!("cuda.here.unmapped-by-the-sweeper") {
        drop(here);
        return drop(gone);
    }
    let quick = table.leave(gone);
    table.leaving[QUICK].add(quick);
    let begin = table.begin();
    drop(here);
    begin.into_iter().for_each(start);
}

/// Starts the thread of a line. If none can be started, the next thread that drops a slab, or learns of a death, tries again.
fn start(line: usize) {
    let thread = std::thread::Builder::new().name("mp-cuda-unmap".into());
    if thread.spawn(move || if line == QUICK { unmap() } else { close() }).is_err() {
        HERE.lock().get_or_insert_default().leaving[line].is_taken = false;
    }
}

/// Unmaps what is in the quick line, one after the other, until there is nothing.
fn unmap() {
    let next = |done: u64| {
        let mut here = HERE.lock();
        let line = &mut here.as_mut()?.leaving[QUICK];
        line.done += done;
        let next = line.entries.pop_front();
        line.is_taken = next.is_some();
        next
    };
    let mut entry = next(0);
    while let Some(one) = entry {
        drop(one);
        entry = next(1);
    }
}

/// Closes what is in the slow line, whenever that may be, until there is nothing; or, if the process ends, nothing that may be.
fn close() {
    const FIRST: Duration = Duration::from_micros(50);
    let (mut paces, mut pause, begin) = (Paces::default(), FIRST, Instant::now());
    loop {
        paces.look();
        let next = {
            let mut here = HERE.lock();
            let Some(table) = here.as_mut() else { return };
            let line = &mut table.leaving[SLOW];
            let mut now = Vec::new();
            for (since, entry) in std::mem::take(&mut line.entries) {
                if paces.allow(&entry.slab.opened_for(), since) {
                    now.push(entry);
                } else {
                    line.entries.push_back((since, entry));
                }
            }
            let is_over = line.entries.is_empty() || exit::has_begun() && paces.are_known();
            line.is_taken = !now.is_empty() || !is_over;
            if !line.is_taken {
                return;
            }
            (!now.is_empty()).then(|| (now, LongCall::begin()))
        };
        if let Some((now, call)) = next {
            closing::close(now, call);
            pause = FIRST;
            continue;
        }
        closing::look_after_deaths();
        // sleep: a device's write wakes no thread.
        std::thread::sleep(pause);
        pause = (pause * 2).min((begin.elapsed() / 16).clamp(Duration::from_millis(1), SELDOM));
    }
}

/// How often the line is looked at, at least.
const SELDOM: Duration = Duration::from_millis(50);

/// Waits until something is so, or for a while. Meanwhile it looks after deaths, for which what runs on the device may wait.
fn wait(until: Option<Instant>, is_so: impl Fn(&[Line; 2]) -> bool) {
    let mut pause = Duration::from_micros(20);
    while !HERE.lock().as_ref().is_none_or(|table| is_so(&table.leaving))
        && until.is_none_or(|until| Instant::now() < until)
    {
        closing::look_after_deaths();
        // sleep: the driver wakes no thread when it has given memory back.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// How long a process that ends waits for what is being unmapped.
const LIMIT: Duration = Duration::from_secs(5);

/// Waits for a while until what leaves is given back: the process ends. What still waits for the device then is the driver's, as it is when
/// a process is killed.
pub(crate) fn finish() {
    wait(Some(Instant::now() + LIMIT), |lines| {
        !lines.iter().any(|line| line.is_taken) && !long_calls::is_under_way()
    });
}

impl Table {
    /// Takes slabs of other processes out of which nothing is used here.
    fn take_unused(&mut self, which: Which) -> Vec<SlabEntry> {
        let openings = self.openings;
        let is_gone = |_: &u64, entry: &mut SlabEntry| {
            !entry.slab.object().is_mine()
                && entry.is_alone()
                && (which != Which::Stale
                    || entry.is_orphan
                    || entry.slab.object().is_foreign() && !mutant!("cuda.here.foreign-kept")
                    || entry.used + STALE < openings)
                && entry.slab.is_idle()
        };
        self.slabs.extract_if(is_gone).map(|(_, entry)| entry).collect()
    }
}

/// Gives up slabs of other processes, of which nothing is used here; how many bytes were mapped. But for [`Which::All`] it waits for no lock
/// that a thread holds while it calls the driver, and not for what the device runs.
pub(crate) fn give_up(which: Which) -> u64 {
    let bytes = |gone: &[SlabEntry]| gone.iter().map(|entry| entry.slab.object().bytes()).sum::<u64>();
    let (given_up, quick, slow, begin, done) = {
        let mut here = HERE.lock();
        let Some(table) = here.as_mut() else { return 0 };
        let mut slow = if which == Which::All { table.leaving[SLOW].take_all() } else { Vec::new() };
        let gone = table.take_unused(which);
        let mut given_up = bytes(&gone) + bytes(&slow);
        let mut quick = table.leave(gone);
        if which != Which::Stale {
            let unmapped = table.leaving[QUICK].take_all();
            given_up += bytes(&unmapped);
            quick.extend(unmapped);
        }
        if which == Which::All {
            slow.extend(table.leaving[SLOW].take_all());
        }
        let done = (table.leaving[QUICK].done, long_calls::begun());
        let slow = (!slow.is_empty()).then(|| (slow, LongCall::begin()));
        (given_up, quick, slow, table.begin(), done)
    };
    drop(quick);
    begin.into_iter().for_each(start);
    if which == Which::All {
        if let Some((slow, call)) = slow {
            closing::close(slow, call);
        }
        // What other threads were at.
        wait(None, |[quick, _]| (!quick.is_taken || quick.done > done.0) && long_calls::are_over(done.1));
    }
    given_up
}

/// Forgets a slab that this process has made, if it has no piece of it: then whether it did.
pub(crate) fn remove(slab: &Arc<Slab>) -> bool {
    let mut here = HERE.lock();
    let Some(table) = here.as_mut() else { return true };
    // The table's, and the caller's.
    if Arc::strong_count(slab) > 2 {
        return false;
    }
    table.slabs.remove(&slab.object().mark());
    true
}

/// How many slabs of other processes are mapped here, and their bytes, but for one that is being unmapped.
pub(crate) fn mapped() -> (usize, u64) {
    let here = HERE.lock();
    let all =
        here.iter().flat_map(|table| table.slabs.values().chain(table.leaving.iter().flat_map(Line::all)));
    let slabs = all.map(|entry| &entry.slab);
    let mapped = slabs.filter(|slab| !slab.object().is_mine() && slab.is_mapped());
    mapped.fold((0, 0), |(count, bytes), slab| (count + 1, bytes + slab.object().bytes()))
}
