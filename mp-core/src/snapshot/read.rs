//! Reading of a snapshot from the tables of an arena. Changes no word.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{
    FailureSnapshot, HoldersSnapshot, MemorySnapshot, ObjectSnapshot, OwnerSnapshot, PoolSnapshot,
    PoolWorkerSnapshot, ProcessSnapshot, ProcessState, QueueSnapshot, Snapshot, StorageSnapshot,
    ThreadSnapshot, WaitSnapshot, pools,
};
use crate::alloc::Allocator;
use crate::arena::Arena;
use crate::blocking::reports::failures;
use crate::blocking::reports::table::{self, ShownWait};
use crate::blocks::Blocks;
use crate::layout::{SLAB_BLOCKS, size_class, wait_table};
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::members::membership::MemberInfo;
use crate::ring_layer::RINGS;
use crate::steps::generation_of;
use crate::steps::lock::{LockAt, LockWord, OsThread};
use crate::sys::memory;
use crate::words::{BlockId, BlockKind, BlockLife, BlockState, Member, Seat};

/// Kinds of structures of the layers of locks and pools, by their names.
const KINDS: &[(&str, &str)] = &[
    ("mp_sync::Barrier", "barrier"),
    ("mp_sync::Condition", "condition"),
    ("mp_sync::Event", "event"),
    ("mp_sync::Once", "once"),
    ("mp_sync::Semaphore", "semaphore"),
    ("mp_sync::BoundedSemaphore", "semaphore"),
    ("mp_sync::ShareableList", "list"),
    (pools::POOL, "pool"),
    (pools::WORKER, "pool worker"),
    ("mp_pool::SharedBytes", "pool state"),
];

pub(super) fn snapshot(arena: Arena) -> Snapshot {
    let members = Members(arena).members();
    let waits: Vec<_> = members.iter().map(|info| (info.member, waits_of(arena, info.member))).collect();
    let mut reader = ObjectReader::new(arena, &members);
    reader.read();
    let storages = reader.largest_storages();
    let pools = reader.pools_with_workers();
    let ObjectReader { queues, objects, changed, .. } = reader;
    let stats = Allocator(arena).memory_stats();
    let mut processes: Vec<_> =
        (members.iter().zip(&waits)).map(|(info, (_, waits))| process(arena, info, waits)).collect();
    for (process, info) in processes.iter_mut().zip(&members) {
        let held = stats.by_member.iter().find(|held| held.member == info.member);
        (process.blocks, process.bytes) = held.map_or((0, 0), |held| (held.blocks, held.bytes));
    }
    let waited_for: BTreeSet<u32> = processes
        .iter()
        .flat_map(|process| &process.waits)
        .flat_map(|wait| &wait.processes)
        .copied()
        .collect();
    let is_member = |pid: &u32| processes.iter().any(|process| process.pid == *pid);
    let strangers: Vec<_> =
        waited_for.into_iter().filter(|pid| !is_member(pid)).filter_map(stranger).collect();
    for wait in processes.iter_mut().flat_map(|process| &mut process.waits) {
        // Leave out children that have ended and that their parent has not reaped.
        wait.possible_processes.retain(|pid| {
            members.iter().any(|info| info.pid == *pid) || memory::start_time_of(*pid).is_some()
        });
    }
    processes.extend(strangers);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let queued = queues.iter().filter_map(|queue| queue.ring.as_ref()).map(|ring| ring.len).sum();
    Snapshot {
        arena: format!("{:016x}", arena.id()),
        version: env!("CARGO_PKG_VERSION").into(),
        taken_ms: now.as_millis() as u64,
        processes,
        queues,
        objects,
        memory: MemorySnapshot {
            size: arena.size(),
            reserved: stats.reserved,
            allocated: stats.allocated,
            cached: stats.cached,
            blocks: stats.live_blocks,
            queued,
            queued_bytes: stats.queued_bytes,
            deaths: stats.deaths,
        },
        changed,
        pools,
        storages,
        failures: failures::last(arena)
            .into_iter()
            .map(|(at_ms, error)| FailureSnapshot { at_ms, error })
            .collect(),
    }
}

/// Returns the tensor memory in a block, or `None` if the block contains no elements of a tensor.
pub(super) fn storage(arena: Arena, block: u32) -> Option<StorageSnapshot> {
    let members = Members(arena).members();
    let reader = ObjectReader::new(arena, &members);
    let slabs = Blocks(arena).slab_count().min(arena.layout().slabs);
    let (class, _) = Blocks(arena).slab(block / SLAB_BLOCKS).filter(|_| block / SLAB_BLOCKS < slabs)?;
    reader.storage(size_class::size_of(class), block)
}

fn waits_of(arena: Arena, member: Member) -> Vec<ShownWait> {
    let mut waits = Vec::new();
    table::each(arena, member, |wait| waits.push(wait));
    waits
}

/// Describes a process. `before` lists the waits that the process had before the objects were read.
fn process(arena: Arena, info: &MemberInfo, before: &[ShownWait]) -> ProcessSnapshot {
    let (member, pid) = (info.member, info.pid);
    let (is_stopped, parent) = memory::stopped_and_parent(pid);
    let state = match () {
        () if !info.live || Members(arena).is_dead(member) => ProcessState::Dead,
        () if is_stopped => ProcessState::Stopped,
        () => ProcessState::Running,
    };
    let is_alive = state != ProcessState::Dead;
    // Threads are listed before waits: a thread that begins to wait meanwhile is then in both lists.
    let threads = if is_alive { threads_of(pid) } else { Vec::new() };
    let shown = waits_of(arena, member);
    let services = table::services(arena, member);
    let is_other = |id: &u32| !services.contains(id) && shown.iter().all(|wait| wait.thread != *id);
    // A living process has a thread.
    let other_threads = (!threads.is_empty())
        .then(|| threads.into_iter().filter(is_other).map(|id| thread(pid, id)).collect());
    let is_steady = |wait: &ShownWait| is_alive && before.iter().any(|earlier| earlier.is_same_wait(wait));
    let waits = shown.iter().map(|wait| describe(arena, pid, wait, is_steady(wait))).collect();
    ProcessSnapshot {
        pid,
        member: member.to_string(),
        name: Members(arena).name_of(member),
        state,
        parent,
        blocks: 0,
        bytes: 0,
        waits,
        other_threads,
    }
}

/// Describes a living process that has not joined the arena.
fn stranger(pid: u32) -> Option<ProcessSnapshot> {
    memory::start_time_of(pid)?;
    let (is_stopped, parent) = memory::stopped_and_parent(pid);
    let state = if is_stopped { ProcessState::Stopped } else { ProcessState::Running };
    Some(ProcessSnapshot {
        pid,
        member: String::new(),
        name: memory::thread_name(pid, pid).unwrap_or_default(),
        state,
        parent,
        blocks: 0,
        bytes: 0,
        waits: Vec::new(),
        other_threads: Some(threads_of(pid).into_iter().map(|id| thread(pid, id)).collect()),
    })
}

fn threads_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the children of a process. Empty if the kernel doesn't list them.
fn children_of(pid: u32) -> Vec<u32> {
    let list = |thread| std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/children"));
    let Ok(lists) = threads_of(pid).into_iter().map(list).collect::<Result<Vec<_>, _>>() else {
        return Vec::new();
    };
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

fn thread(pid: u32, id: u32) -> ThreadSnapshot {
    ThreadSnapshot { id, name: memory::thread_name(pid, id).unwrap_or_default() }
}

fn describe(arena: Arena, pid: u32, wait: &ShownWait, steady: bool) -> WaitSnapshot {
    let text = wait.call.text();
    let (processes, more_processes) = wait.processes(arena);
    let children = if more_processes { children_of(pid) } else { Vec::new() };
    // All processes that one call waits for were started in the same way: either all or none are children.
    let has_all = more_processes && processes.iter().all(|pid| children.contains(pid));
    let possible_processes = if has_all { children } else { Vec::new() };
    WaitSnapshot {
        thread: thread(pid, wait.thread),
        call: text.name.into(),
        kind: text.object.into(),
        object: wait.block,
        processes,
        more_processes,
        possible_processes,
        place: wait.place(arena),
        waited_ms: wait.waited().as_millis() as u64,
        since_ms: wait.since,
        checks: wait.polls,
        forever: wait.forever,
        steady,
        ended_by_holders: text.is_ended_by_holders,
        ended_by: text.ended_by.into(),
        advice: text.advice.into(),
    }
}

/// Result of reading one object.
enum FoundObject {
    Other(ObjectSnapshot),
    Pool(PoolSnapshot),
    /// A worker of a pool, with the block of the pool.
    Worker(Option<(u32, PoolWorkerSnapshot)>),
}

/// Queues and other objects of an arena that were read so far.
struct ObjectReader<'a> {
    arena: Arena,
    members: &'a [MemberInfo],
    queues: Vec<QueueSnapshot>,
    objects: Vec<ObjectSnapshot>,
    pools: Vec<PoolSnapshot>,
    /// Workers of pools, with the blocks of their pools.
    workers: Vec<(u32, PoolWorkerSnapshot)>,
    /// Sizes and blocks of the largest storages. The smallest is popped first.
    storages: BinaryHeap<Reverse<(u64, BlockId)>>,
    changed: u64,
}

impl<'a> ObjectReader<'a> {
    fn new(arena: Arena, members: &'a [MemberInfo]) -> Self {
        let (queues, objects, pools, workers) = (vec![], vec![], vec![], vec![]);
        Self { arena, members, queues, objects, pools, workers, storages: BinaryHeap::new(), changed: 0 }
    }

    /// Returns the largest storages, the largest first.
    fn largest_storages(&mut self) -> Vec<StorageSnapshot> {
        let largest = std::mem::take(&mut self.storages).into_sorted_vec();
        largest.into_iter().filter_map(|Reverse((bytes, block))| self.storage(bytes, block)).collect()
    }

    /// Returns the pools, with their workers by number.
    fn pools_with_workers(&mut self) -> Vec<PoolSnapshot> {
        let mut pools = std::mem::take(&mut self.pools);
        for (block, worker) in std::mem::take(&mut self.workers) {
            if let Some(pool) = pools.iter_mut().find(|pool| pool.block == block) {
                pool.workers.push(worker);
            }
        }
        pools.iter_mut().for_each(|pool| pool.workers.sort_by_key(|worker| worker.number));
        pools
    }

    /// Returns the tensor memory in a block of this size.
    fn storage(&self, bytes: u64, block: BlockId) -> Option<StorageSnapshot> {
        let (kind, generation) = self.state_of(block)?;
        let text = match kind {
            BlockKind::Data => "exclusive",
            BlockKind::Frozen => "frozen",
            BlockKind::Shared => "shared",
            _ => return None,
        };
        let holders = self.holders(block);
        let is_same = self.state_of(block) == Some((kind, generation));
        is_same.then(|| StorageSnapshot { block, kind: text.into(), bytes, holders })
    }

    fn read(&mut self) {
        for slab in 0..Blocks(self.arena).slab_count().min(self.arena.layout().slabs) {
            let Some((class, _)) = Blocks(self.arena).slab(slab) else { continue };
            for index in 0..size_class::blocks_of(class) {
                self.read_block(slab * SLAB_BLOCKS + index, size_class::size_of(class));
            }
        }
    }

    /// Returns the kind and the generation of a live block. The generation changes when the block is
    /// allocated again.
    fn state_of(&self, block: BlockId) -> Option<(BlockKind, u64)> {
        let (map, at) = (self.arena.map(), Blocks(self.arena).block_at(block));
        let state = BlockState::unpack(map.load(at.state));
        let generation = generation_of(map.load(at.link()));
        (state.life == BlockLife::Live).then_some((state.kind, generation))
    }

    fn read_block(&mut self, block: BlockId, bytes: u64) {
        let Some(before) = self.state_of(block) else { return };
        let is_same = |reader: &Self| reader.state_of(block) == Some(before);
        match before.0 {
            BlockKind::Ring => match self.queue(block) {
                found if is_same(self) => self.queues.extend(found),
                _ => self.changed += 1,
            },
            BlockKind::Data | BlockKind::Frozen | BlockKind::Shared => {
                self.storages.push(Reverse((bytes, block)));
                if self.storages.len() > Snapshot::STORAGES {
                    self.storages.pop();
                }
            }
            kind if kind.is_object() => match self.object(block) {
                Some(found) if is_same(self) => self.add(found),
                None if is_same(self) => {}
                _ => self.changed += 1,
            },
            _ => {}
        }
    }

    fn add(&mut self, found: FoundObject) {
        match found {
            FoundObject::Other(object) => self.objects.push(object),
            FoundObject::Pool(pool) => self.pools.push(pool),
            FoundObject::Worker(worker) => self.workers.extend(worker),
        }
    }

    /// Returns the position and the length of a block's memory. Checks the bounds, because the block's slab
    /// may have got another class.
    fn memory(&self, block: BlockId) -> Option<(Word, u64)> {
        let (at, len) = Blocks(self.arena).existing(block)?;
        let end = at.checked_add(len)?;
        (end <= self.arena.size()).then_some((Word::at(at), len))
    }

    fn queue(&self, block: BlockId) -> Option<QueueSnapshot> {
        let memory = self.memory(block)?;
        let ring = RINGS.get().and_then(|rings| rings.describe(self.arena, memory, block));
        let name = table::name_at(self.arena, memory, BlockKind::Ring).unwrap_or_default();
        let holders = self.holders(block);
        Some(QueueSnapshot { block, name, holders, ring })
    }

    fn object(&self, block: BlockId) -> Option<FoundObject> {
        let (base, len) = self.memory(block)?;
        let map = self.arena.map();
        if len < 8 * wait_table::STRUCTURE_WORDS || map.load(base) != wait_table::STRUCTURE {
            return None;
        }
        let fingerprint = map.load(base.plus(1));
        let known = KINDS.iter().find(|(name, _)| crate::fnv1a(name.as_bytes()) == fingerprint);
        let words = base.plus(wait_table::STRUCTURE_WORDS);
        let has = |count: u64| len >= 8 * (wait_table::STRUCTURE_WORDS + count);
        let name = table::name_at(self.arena, (base, len), BlockKind::Object).unwrap_or_default();
        let holders = self.holders(block);
        match known {
            Some((_, "pool")) if has(pools::POOL_WORDS) => {
                let pool = PoolSnapshot { block, name, holders, ..pools::pool(map, words) };
                return Some(FoundObject::Pool(pool));
            }
            Some((_, "pool worker")) if has(pools::WORKER_STATE + 4) => {
                return Some(FoundObject::Worker(pools::worker(map, words)));
            }
            _ => {}
        }
        let owner = if known.is_none() { self.owner(base, len) } else { None };
        let kind = known.map_or(if owner.is_some() { "lock" } else { "object" }, |(_, kind)| kind);
        Some(FoundObject::Other(ObjectSnapshot { block, kind: kind.into(), name, holders, owner }))
    }

    /// Returns the thread that holds the lock at the beginning of a structure. A held lock contains a
    /// signature of its holder, so words that are not a lock are not mistaken for one.
    fn owner(&self, base: Word, len: u64) -> Option<OwnerSnapshot> {
        let (map, at) = (self.arena.map(), LockAt(base.plus(wait_table::STRUCTURE_WORDS)));
        if len < 8 * (wait_table::STRUCTURE_WORDS + LockAt::WORDS) {
            return None;
        }
        let word = LockWord(map.load(at.word()));
        let holder = word.holder()?;
        let owner = OsThread::of(map.load(at.by()), word)?;
        let is_member = self.members.iter().any(|info| info.member == holder && info.pid == owner.pid);
        is_member.then_some(OwnerSnapshot { pid: owner.pid, thread: owner.tid })
    }

    fn holders(&self, block: BlockId) -> HoldersSnapshot {
        let mut holders = HoldersSnapshot::default();
        Blocks(self.arena).each_holder(block, |holder| match holder {
            Seat::Member(member) => {
                match self.members.iter().find(|info| info.member == member).map(|info| info.pid) {
                    Some(pid) if holders.processes.contains(&pid) => {}
                    Some(pid) => holders.processes.push(pid),
                    // The process has joined since the members were listed.
                    None => holders.messages += 1,
                }
            }
            Seat::Free | Seat::Envelope(_) | Seat::Block(_) => holders.messages += 1,
        });
        holders
    }
}
