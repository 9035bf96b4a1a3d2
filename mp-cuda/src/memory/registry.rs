//! Registry of the slabs and pieces of this process: a slab that arrives twice is mapped once, and a piece
//! that arrives twice is one piece.
//!
//! A slab is in the registry as long as this process has a piece of it. A mapped slab stays until it is
//! [released](release_unused). Mapping takes longer than sending a message, so a slab is not mapped again for
//! each message. A slab whose maker is dead is released when this process drops its last piece of the slab.
//! If the process has no piece, the slab is released when the process finds the death.
//!
//! Two kinds of slabs are not released at once, but added to a queue. A thread for each queue gives the
//! queued slabs back, one after the other. The quick queue has slabs of dead makers. The thread that finds a
//! death does not unmap them itself, because it may be the only thread that reclaims, and work on the device
//! may wait for the reclaim. The slow queue has memory that was opened by a legacy handle, which is
//! [closed](super::closing) when that delays no other thread. If a piece of a queued slab arrives, the slab
//! is removed from its queue and used again. [`ipc_collect`](crate::ipc_collect) waits for both queues.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_core::{Arena, Hold, Members, Recovery};

use super::closing::{self, StreamActivity};
use super::object::{PieceInfo, PieceMode, PieceObject, SlabObject};
use super::piece_state::PieceInner;
use super::slab::Slab;
use crate::driver::long_calls::{self, LongCall};
use crate::exit;

/// Number of slab openings by this process after which an unused slab is stale, and is unmapped.
const STALE: u64 = 64;

/// Number of registered pieces up to which entries of dropped pieces are not removed.
const FEW: usize = 64;

/// Map by the marks of objects. No process chooses marks, so the hash need not resist chosen keys.
type ByMark<V> = HashMap<u64, V, BuildHasherDefault<MarkHasher>>;

#[derive(Default)]
struct MarkHasher(u64);

impl Hasher for MarkHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, mark: u64) {
        // The high bits depend on all bits. The table takes its index from the low bits, and its tags from
        // the highest.
        let mixed = (self.0 ^ mark).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
struct Registry {
    /// Slabs, by the marks of their objects.
    slabs: ByMark<SlabEntry>,
    /// Queues of unused slabs: slabs that are unmapped soon, and slabs that are closed when the streams of
    /// this process are idle.
    leaving: [ReleaseQueue; 2],
    /// Frozen and shared pieces, by the marks of their objects. Entries of dropped pieces stay until they are
    /// removed together, so the drop of a piece takes no lock.
    pieces: ByMark<Weak<PieceInner>>,
    /// Number of entries in `pieces` at which entries of dropped pieces are removed.
    full: usize,
    /// Number of slab openings by this process.
    openings: u64,
}

impl Registry {
    const NEW: Self = Self {
        slabs: HashMap::with_hasher(BuildHasherDefault::new()),
        leaving: [ReleaseQueue::NEW, ReleaseQueue::NEW],
        pieces: HashMap::with_hasher(BuildHasherDefault::new()),
        full: 0,
        openings: 0,
    };
}

const QUICK: usize = 0;
const SLOW: usize = 1;

/// Queue of slabs that a thread gives back one after the other.
#[derive(Debug)]
struct ReleaseQueue {
    /// Slabs in the queue, each with the time at which it was added.
    entries: VecDeque<(Instant, SlabEntry)>,
    /// `true` if a thread is giving slabs of this queue back. `done` is the number of slabs that were given
    /// back.
    is_taken: bool,
    done: u64,
}

impl ReleaseQueue {
    const NEW: Self = Self { entries: VecDeque::new(), is_taken: false, done: 0 };

    fn add(&mut self, entries: Vec<SlabEntry>) {
        self.entries.extend(entries.into_iter().map(|entry| (Instant::now(), entry)));
    }

    fn all(&self) -> impl Iterator<Item = &SlabEntry> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    fn take_all(&mut self) -> Vec<SlabEntry> {
        self.entries.drain(..).map(|(_, entry)| entry).collect()
    }

    /// Returns `true` if the caller has to start a thread for the queue. Marks the queue as taken.
    fn should_start(&mut self) -> bool {
        !self.is_taken && !self.entries.is_empty() && {
            self.is_taken = true;
            true
        }
    }
}

#[derive(Debug)]
struct SlabEntry {
    slab: Arc<Slab>,
    /// Value of `openings` when the slab was opened, or when a piece of the slab was last received.
    used: u64,
    /// `true` if the slab's maker is dead.
    is_orphan: bool,
    /// Contents of the objects of received pieces, at the index that [`place_of`] returns for the mark.
    info: Vec<Option<PieceInfo>>,
}

impl SlabEntry {
    fn new(slab: Arc<Slab>, used: u64) -> Self {
        Self { slab, used, is_orphan: false, info: Vec::new() }
    }

    /// Returns `true` if only the registry has a reference to the slab. The result can't change under the
    /// registry's lock, because all other code gets the slab from the registry.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.slab) == 1
    }

    /// Returns `true` if the unused slab stays in the registry, because more pieces of it may arrive.
    fn must_stay(&self) -> bool {
        self.slab.is_mapped() && !(self.is_orphan && self.slab.is_idle())
    }
}

static REGISTRY: PerProcess<Mutex<Registry>> = mp_core::per_process!(Mutex::new(Registry::NEW));

/// Selection of unused slabs to release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnusedSlabs {
    /// All unused slabs. The caller waits until they are given back.
    All,
    /// All unused slabs, without a wait for work on the device. Slabs whose closing takes long are queued.
    ForAllocation,
    /// Unused slabs that are stale, whose maker is dead, or that are memory of another library. (That library
    /// frees the memory only after this process has unmapped it.) The caller does not wait for work on the
    /// device.
    Stale,
}

/// Adds a slab that this process has made.
pub(crate) fn add(slab: &Arc<Slab>) {
    let mut table = REGISTRY.lock();
    let used = table.openings;
    table.slabs.insert(slab.object().mark, SlabEntry::new(Arc::clone(slab), used));
}

/// Returns the slab whose object has this mark, if the registry has it, and the contents of a piece's object
/// if they were [recorded](record_info).
#[inline(always)]
pub(crate) fn find(slab: u64, piece: u64) -> Option<(Arc<Slab>, Option<PieceInfo>)> {
    REGISTRY.lock().find(slab, piece)
}

/// Combines [`find`] and [`piece`] under one lock, because locking takes as long as a search. Returns the
/// handle if the contents of the object were not recorded, or show another mode.
#[inline(always)]
pub(crate) fn find_piece(
    slab: u64,
    hold: Hold,
    mode: PieceMode,
    make: impl FnOnce(Arc<Slab>, PieceObject) -> Arc<PieceInner>,
) -> Result<Arc<PieceInner>, Hold> {
    let (arena, mark) = (hold.arena(), hold.mark());
    let mut table = REGISTRY.lock();
    table.make_room();
    let (slab, info) = match table.find(slab, mark) {
        Some((slab, Some(info))) if info.check_mode(arena, mode).is_ok() => (slab, info),
        _ => return Err(hold),
    };
    Ok(table.piece(mark, || make(slab, PieceObject { hold, info })))
}

/// Records the contents of a piece's object, which are valid for the mark of the object forever.
pub(crate) fn record_info(slab: &Slab, info: PieceInfo) {
    if let Some(entry) = REGISTRY.lock().slabs.get_mut(&slab.object().mark) {
        entry.info.resize(SEEN, None);
        entry.info[place_of(info.mark)] = Some(info);
    }
}

/// Largest number of pieces of a slab whose contents are recorded.
const SEEN: usize = 64;

fn place_of(piece: u64) -> usize {
    piece as usize % SEEN
}

/// Returns the registry's slab for a received object, and adds the slab if it is new.
pub(crate) fn slab(object: SlabObject) -> Arc<Slab> {
    let mut table = REGISTRY.lock();
    let used = table.openings;
    table.restore(object.mark);
    let entry = table.slabs.entry(object.mark);
    let entry = entry.or_insert_with(|| SlabEntry::new(Arc::new(Slab::received(object)), used));
    entry.used = used;
    Arc::clone(&entry.slab)
}

/// Returns the piece whose object has this mark, or adds the piece that `make` returns.
pub(crate) fn piece(mark: u64, make: impl FnOnce() -> Arc<PieceInner>) -> Arc<PieceInner> {
    let mut table = REGISTRY.lock();
    table.make_room();
    table.piece(mark, make)
}

/// Adds a piece that was converted from exclusive to another mode. From then on, messages may bring the piece
/// again.
pub(crate) fn insert_piece(mark: u64, piece: &Arc<PieceInner>) {
    let mut table = REGISTRY.lock();
    table.make_room();
    table.pieces.insert(mark, Arc::downgrade(piece));
}

/// Drops a reference to a slab, after the drop of a piece or after an error. The registry removes the slab if
/// no other code uses it.
pub(crate) fn release(slab: Arc<Slab>) {
    // A slab that this process made stays until it is given back.
    if slab.is_made_here() {
        return;
    }
    let (gone, queues_to_start) = {
        let mut table = REGISTRY.lock();
        let gone = table.remove_if_unused(slab);
        let left = table.enqueue_legacy(gone);
        (left, table.queues_to_start())
    };
    drop(gone);
    queues_to_start.into_iter().for_each(start);
}

impl Registry {
    /// Implements [`find`] under the lock.
    #[inline(always)]
    fn find(&mut self, mark: u64, piece: u64) -> Option<(Arc<Slab>, Option<PieceInfo>)> {
        let used = self.openings;
        let look = |entry: &mut SlabEntry| {
            entry.used = used;
            let info = entry.info.get(place_of(piece)).copied().flatten();
            let info = info.filter(|info| info.mark == piece);
            (Arc::clone(&entry.slab), info)
        };
        if let Some(entry) = self.slabs.get_mut(&mark) {
            return Some(look(entry));
        }
        self.restore(mark);
        self.slabs.get_mut(&mark).map(look)
    }

    /// Implements [`piece`] under the lock. If this process has the piece, drops the captures of `make` under
    /// the lock. Those captures are not the last handles: other handles to the piece exist, and the registry
    /// holds the slab.
    #[inline]
    fn piece(&mut self, mark: u64, make: impl FnOnce() -> Arc<PieceInner>) -> Arc<PieceInner> {
        if let Some(known) = self.pieces.get(&mark).and_then(Weak::upgrade) {
            return known;
        }
        let new = make();
        self.pieces.insert(mark, Arc::downgrade(&new));
        new
    }

    /// Moves a slab from a queue back to the registry's slabs, because a piece of the slab has arrived.
    fn restore(&mut self, mark: u64) {
        let leaves = |(_, entry): &(Instant, SlabEntry)| entry.slab.object().mark == mark;
        if self.slabs.contains_key(&mark) {
            return;
        }
        for line in &mut self.leaving {
            let at = line.entries.iter().position(leaves);
            if let Some((_, entry)) = at.and_then(|at| line.entries.remove(at)) {
                self.slabs.insert(mark, entry);
            }
        }
    }

    /// Adds slabs that were opened by a legacy handle to the slow queue. Returns the other slabs, which the
    /// caller drops without holding the lock.
    fn enqueue_legacy(&mut self, gone: impl IntoIterator<Item = SlabEntry>) -> Vec<SlabEntry> {
        let is_slow = |entry: &SlabEntry| entry.slab.is_opened_legacy();
        let (slow, quick): (Vec<_>, Vec<_>) = gone.into_iter().partition(is_slow);
        self.leaving[SLOW].add(slow);
        quick
    }

    /// Returns the queues for which the caller has to [start](start) a thread.
    fn queues_to_start(&mut self) -> Vec<usize> {
        [QUICK, SLOW].into_iter().filter(|line| self.leaving[*line].should_start()).collect()
    }

    /// Removes entries of dropped pieces, if the number of entries has doubled since the last removal.
    fn make_room(&mut self) {
        if self.pieces.len() >= self.full.max(FEW) {
            self.pieces.retain(|_, piece| piece.strong_count() > 0);
            self.full = 2 * self.pieces.len();
        }
    }

    /// Removes the entry of a slab that the caller no longer uses, if no other code uses the slab. The caller
    /// drops the entry without holding the lock.
    fn remove_if_unused(&mut self, slab: Arc<Slab>) -> Option<SlabEntry> {
        let key = slab.object().mark;
        drop(slab);
        match self.slabs.get(&key) {
            Some(entry) if entry.is_unused() && !entry.must_stay() => self.slabs.remove(&key),
            _ => None,
        }
    }
}

/// Counts the opening of a slab, and releases stale slabs.
pub(crate) fn record_opening(slab: &Slab) {
    Recovery::on_deaths(crate::on_deaths);
    // The hook is not called for a death that this process has found before.
    let is_orphan = Arena::get().is_some_and(|arena| Members(arena).is_dead(slab.object().maker.0));
    {
        let mut table = REGISTRY.lock();
        table.openings += 1;
        let used = table.openings;
        table.slabs.entry(slab.object().mark).and_modify(|entry| {
            entry.used = used;
            entry.is_orphan |= is_orphan;
        });
    }
    release_unused(UnusedSlabs::Stale);
}

/// Releases slabs of dead makers, after a reclaim. Does nothing if the registry's lock is held, because the
/// calling thread may hold it. Then the next thread that opens a slab, or finds a death, releases the slabs.
pub(crate) fn on_deaths() {
    let Some(arena) = Arena::get() else { return };
    let Some(mut table) = REGISTRY.try_lock() else { return };
    for entry in table.slabs.values_mut() {
        entry.is_orphan |= Members(arena).is_dead(entry.slab.object().maker.0);
    }
    let gone = table.take_unused(UnusedSlabs::Stale);
    let quick = table.enqueue_legacy(gone);
    table.leaving[QUICK].add(quick);
    let queues_to_start = table.queues_to_start();
    drop(table);
    queues_to_start.into_iter().for_each(start);
}

/// Starts the thread of a queue. After a failure, the next thread that drops a slab or finds a death tries
/// again.
fn start(line: usize) {
    let thread = std::thread::Builder::new().name("mp-cuda-unmap".into());
    if thread.spawn(move || if line == QUICK { unmap() } else { close() }).is_err() {
        REGISTRY.lock().leaving[line].is_taken = false;
    }
}

/// Unmaps the slabs in the quick queue, one after the other, until the queue is empty.
fn unmap() {
    let next = |done: u64| {
        let mut table = REGISTRY.lock();
        let line = &mut table.leaving[QUICK];
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

/// Closes the slabs in the slow queue, until the queue is empty. While the process exits, returns as soon as
/// no slab may be closed.
fn close() {
    const FIRST: Duration = Duration::from_micros(50);
    let (mut activity, mut pause, begun) = (StreamActivity::default(), FIRST, Instant::now());
    loop {
        activity.look();
        let next = {
            let mut table = REGISTRY.lock();
            let line = &mut table.leaving[SLOW];
            let mut now = Vec::new();
            for (since, entry) in std::mem::take(&mut line.entries) {
                if activity.allow(&entry.slab.legacy_devices(), since) {
                    now.push(entry);
                } else {
                    line.entries.push_back((since, entry));
                }
            }
            let is_over = line.entries.is_empty() || exit::has_begun() && activity.are_known();
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
        closing::reclaim_if_due();
        // sleep: a device's write wakes no thread.
        std::thread::sleep(pause);
        pause = (pause * 2).min((begun.elapsed() / 16).clamp(Duration::from_millis(1), SELDOM));
    }
}

/// Longest sleep of the thread of the slow queue between two checks.
const SELDOM: Duration = Duration::from_millis(50);

/// Waits until the queues satisfy a condition, or until a deadline. Meanwhile recovers and reclaims dead
/// processes, because work on the device may wait for a recovery.
fn wait(until: Option<Instant>, is_so: impl Fn(&[ReleaseQueue; 2]) -> bool) {
    let mut pause = Duration::from_micros(20);
    while !is_so(&REGISTRY.lock().leaving) && until.is_none_or(|until| Instant::now() < until) {
        closing::reclaim_if_due();
        // sleep: the driver wakes no thread when it has given memory back.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Time for which an exiting process waits for slabs that are being unmapped.
const LIMIT: Duration = Duration::from_secs(5);

/// Waits for a limited time until the queued slabs are given back, before the process exits. The driver frees
/// the remaining slabs, like those of a killed process.
pub(crate) fn finish() {
    wait(Some(Instant::now() + LIMIT), |lines| {
        !lines.iter().any(|line| line.is_taken) && !long_calls::is_under_way()
    });
}

impl Registry {
    /// Removes and returns the selected unused slabs of other processes.
    fn take_unused(&mut self, which: UnusedSlabs) -> Vec<SlabEntry> {
        let openings = self.openings;
        let is_gone = |_: &u64, entry: &mut SlabEntry| {
            !entry.slab.object().is_mine()
                && entry.is_unused()
                && (which != UnusedSlabs::Stale
                    || entry.is_orphan
                    || entry.slab.object().is_foreign()
                    || entry.used + STALE < openings)
                && entry.slab.is_idle()
        };
        self.slabs.extract_if(is_gone).map(|(_, entry)| entry).collect()
    }
}

/// Releases unused slabs of other processes, and returns the number of bytes that were mapped. Only
/// [`UnusedSlabs::All`] waits for work on the device, or for a lock that a thread holds during driver calls.
pub(crate) fn release_unused(which: UnusedSlabs) -> u64 {
    let bytes = |gone: &[SlabEntry]| gone.iter().map(|entry| entry.slab.object().bytes).sum::<u64>();
    let (given_up, quick, slow, queues_to_start, done) = {
        let mut table = REGISTRY.lock();
        let mut slow = if which == UnusedSlabs::All { table.leaving[SLOW].take_all() } else { Vec::new() };
        let gone = table.take_unused(which);
        let mut given_up = bytes(&gone) + bytes(&slow);
        let mut quick = table.enqueue_legacy(gone);
        if which != UnusedSlabs::Stale {
            let unmapped = table.leaving[QUICK].take_all();
            given_up += bytes(&unmapped);
            quick.extend(unmapped);
        }
        if which == UnusedSlabs::All {
            slow.extend(table.leaving[SLOW].take_all());
        }
        let done = (table.leaving[QUICK].done, long_calls::begun());
        let slow = (!slow.is_empty()).then(|| (slow, LongCall::begin()));
        (given_up, quick, slow, table.queues_to_start(), done)
    };
    drop(quick);
    queues_to_start.into_iter().for_each(start);
    if which == UnusedSlabs::All {
        if let Some((slow, call)) = slow {
            closing::close(slow, call);
        }
        // Slabs that other threads were giving back.
        wait(None, |[quick, _]| (!quick.is_taken || quick.done > done.0) && long_calls::are_over(done.1));
    }
    given_up
}

/// Removes a slab that this process made, if the process has no piece of it. Returns `true` if it was
/// removed.
pub(crate) fn remove(slab: &Arc<Slab>) -> bool {
    let mut table = REGISTRY.lock();
    // The registry has one reference, and the caller has one.
    if Arc::strong_count(slab) > 2 {
        return false;
    }
    table.slabs.remove(&slab.object().mark);
    true
}

/// Returns the number of mapped slabs of other processes, and their total number of bytes. Slabs that are
/// being unmapped are not included.
pub(crate) fn mapped_slabs() -> (usize, u64) {
    let table = REGISTRY.lock();
    let all = table.slabs.values().chain(table.leaving.iter().flat_map(ReleaseQueue::all));
    let slabs = all.map(|entry| &entry.slab);
    let mapped = slabs.filter(|slab| !slab.object().is_mine() && slab.is_mapped());
    mapped.fold((0, 0), |(count, bytes), slab| (count + 1, bytes + slab.object().bytes))
}
