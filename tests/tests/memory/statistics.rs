//! Statistics of the arena, memory returned to the kernel, and the cost of a death with many live blocks.

use mp::memory::MemoryStats;
use mp::{Arena, FrozenTensor, Queue, SpawnOptions, Tensor, start_processes};
use mp_core::inject;
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, failure, give, join, mappings, next, one_process, open_files,
    refusal, send, take,
};

const MIB: usize = 1 << 20;

fn stats() -> MemoryStats {
    Arena::current().unwrap().memory_stats()
}

fn tensors(many: usize, bytes: usize) -> Vec<FrozenTensor<u8>> {
    (0..many).map(|_| Tensor::<u8>::empty([bytes]).unwrap().freeze()).collect()
}

#[test]
fn statistics_count_allocations() {
    let _alone = alone();
    let before = stats();
    let held = tensors(100, 1000);
    drop(tensors(100, 1000));
    let now = stats();
    assert_eq!(now.live_blocks - before.live_blocks, 100);
    // Free blocks of the next larger size, which other tests have left, may be used instead.
    assert!((100 * 1024..=100 * 1280).contains(&(now.allocated - before.allocated)), "{now}");
    assert_eq!((now.allocs - before.allocs, now.frees - before.frees), (200, 100));
    // The second hundred may also come from new slabs of 64, but pages are added for 64 blocks at a time.
    assert!(now.recycled - before.recycled >= 190, "{} recycled", now.recycled - before.recycled);
    let classes = || now.classes.iter().filter(|c| [1024, 1280].contains(&c.size));
    assert!(classes().map(|c| c.live).sum::<u64>() >= 100 && classes().any(|c| c.cached > 0), "{now:?}");
    drop(held);
    let after = stats();
    assert_eq!((after.allocs - before.allocs, after.frees - before.frees), (200, 200));
}

#[test]
fn statistics_keep_peaks_when_memory_is_freed() {
    let _alone = alone();
    let before = stats();
    let held = tensors(3, 32 * MIB);
    drop(held);
    let now = stats();
    let most = before.allocated + 96 * MIB as u64;
    assert!(now.peak_allocated >= most.max(before.peak_allocated), "{now}");
    assert!(now.peak_allocated <= most.max(before.peak_allocated) + 8 * MIB as u64, "{now}");
    assert!(now.peak_reserved >= now.peak_allocated && now.allocated == before.allocated, "{now}");
    Arena::current().unwrap().empty_cache().unwrap();
    let empty = stats();
    assert!(empty.reserved < now.peak_reserved && empty.peak_reserved == now.peak_reserved, "{empty}");
}

fn hold(_: usize, (there, back): (Queue<FrozenTensor<u8>>, Queue<u64>)) -> Outcome {
    let mine = tensors(3, 5000);
    let got = [next(&there)?.ok_or("closed")?, next(&there)?.ok_or("closed")?];
    send(&back, 0)?;
    assert!(next(&there)?.is_none());
    drop((mine, got));
    Ok(())
}

/// Queue of tensors to hold, and queue for a report: sum of the elements, number of open files, and number of
/// additional mappings.
type Kept = (Queue<FrozenTensor<u64>>, Queue<(u64, usize, usize)>);

/// Holds all tensors that it receives, and reports their sum and their cost.
fn keep(_: usize, (there, back): Kept) -> Outcome {
    let (mut held, before) = (Vec::new(), mappings());
    while let Some(tensor) = next(&there)? {
        held.push(tensor);
    }
    let sum = held.iter().map(|t| t.get(&[7])).sum::<Result<u64, mp::Error>>()?;
    send(&back, (sum, open_files(), mappings().saturating_sub(before)))
}

#[test]
fn many_tensors_share_few_files_and_mappings() {
    const MANY: u64 = 100_000;
    let _alone = alone();
    let (there, back) = (Queue::bounded(1024).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(keep, (there.clone(), back.clone()));
    let (files, ours, before) = (open_files(), mappings(), stats().reserved);
    let mut held = Vec::new();
    for n in 0..MANY {
        let tensor = Tensor::full([8], n).unwrap().freeze();
        give(&there, tensor.clone());
        held.push(tensor);
    }
    there.close();
    let (sum, their_files, theirs) = take(&back);
    assert_eq!(sum, (0..MANY).sum::<u64>());
    let ours = mappings().saturating_sub(ours);
    assert!(their_files <= 40 && open_files() <= files + 2, "{their_files} files there");
    assert!(theirs <= 8 && ours <= 4, "{theirs} more mappings there, {ours} here");
    let bytes = (stats().reserved - before) / MANY;
    assert!(bytes <= 64 + 128, "{bytes} bytes a tensor of 64");
    join(&context).unwrap();
}

#[test]
fn statistics_count_the_memory_of_each_member() {
    let _alone = alone();
    let before = stats();
    let mine = |s: &MemoryStats| s.by_member.iter().find(|m| m.pid == std::process::id()).copied().unwrap();
    let (there, back) = (Queue::bounded(8).unwrap(), Queue::bounded(8).unwrap());
    let waiting = Queue::bounded(8).unwrap();
    let ours = tensors(2, 100_000);
    let context = one_process(hold, (there.clone(), back.clone()));
    let size = ours[0].storage().hold().words().1;
    for t in &ours {
        give(&there, t.clone());
    }
    take(&back);
    // In addition, only two messages hold one tensor, and a message and this process hold another.
    let sent = tensors(1, 100_000).remove(0);
    give(&waiting, sent.clone());
    give(&waiting, sent);
    give(&waiting, ours[0].clone());
    let now = stats();
    let pid = context.pids()[0];
    let theirs = now.by_member.iter().find(|m| m.pid == pid).unwrap();
    assert!(theirs.live && theirs.blocks >= 5 && theirs.bytes >= 2 * size + 3 * 5000, "{now}");
    let (then, us) = (mine(&before), mine(&now));
    // Two tensors and three rings.
    assert_eq!(us.blocks - then.blocks, 5, "{now}");
    assert_eq!(now.queued_blocks - before.queued_blocks, 2, "{now}");
    assert_eq!(now.queued_bytes - before.queued_bytes, 2 * size, "{now}");
    assert_eq!(now.queued - before.queued, 3);
    let table = now.to_string();
    for word in ["reserved", "allocated", "cached", "peak", &pid.to_string()] {
        assert!(table.contains(word), "{word} is missing:\n{table}");
    }
    there.close();
    join(&context).unwrap();
}

/// Returns the bytes in free blocks of 2 MiB and more.
fn large_cached(s: &MemoryStats) -> u64 {
    s.classes.iter().filter(|c| c.size >= 2 << 20).map(|c| c.size * c.cached).sum()
}

fn free_here(_: usize, (tensors, limit): (Vec<FrozenTensor<u8>>, u64)) -> Outcome {
    let arena = Arena::current()?;
    let full = tensors.len() as u64 * 4 * MIB as u64;
    drop(tensors);
    let s = arena.memory_stats();
    let cached = large_cached(&s);
    assert!(cached <= limit + limit / 8 + 4 * MIB as u64, "{cached} kept of {full}:\n{s}");
    Ok(())
}

#[test]
fn memory_cache_beyond_the_limit_is_returned() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    arena.empty_cache().unwrap();
    let limit = arena.cache_limit();
    assert!(limit > 256 * MIB as u64, "the default limit is larger than the memory of the tests");
    // All memory is kept within the limit.
    drop(tensors(16, 4 * MIB));
    assert!(large_cached(&stats()) >= 64 * MIB as u64);
    // Beyond the limit, the process that frees memory returns it to the kernel: here the other process.
    arena.set_cache_limit(32 * MIB as u64);
    let all = tensors(16, 4 * MIB);
    let context = one_process(free_here, (all, 32 * MIB as u64));
    join(&context).unwrap();
    let now = stats();
    assert!(large_cached(&now) <= 40 * MIB as u64 && now.reserved < now.peak_reserved, "{now}");
    // Returned memory can be allocated again, zeroed, also in this process, which had mapped it.
    for t in tensors(16, 4 * MIB) {
        assert_eq!((t.get(&[0]).unwrap(), t.get(&[4 * MIB - 1]).unwrap()), (0, 0));
    }
    arena.set_cache_limit(limit);
    arena.empty_cache().unwrap();
}

fn die(_: usize, held: Vec<FrozenTensor<u8>>) -> Outcome {
    std::mem::forget(held);
    std::process::abort();
}

/// Returns the number of this process's shared accesses from the start of a process, which dies, until that
/// process is reclaimed.
fn price_of_a_death(held: &[FrozenTensor<u8>]) -> u64 {
    let deaths = stats().deaths;
    let before = inject::seen();
    let context = one_process(die, held.to_vec());
    failure(&context);
    while Arena::current().unwrap().reclaim().unwrap() == 0 && inject::seen() - before < 10_000_000 {
        // The supervisor may have reclaimed the process already.
        let there = Arena::current().unwrap().members().len();
        if there == 1 {
            break;
        }
        std::thread::yield_now();
    }
    let price = inject::seen() - before;
    assert_eq!(stats().deaths, deaths + 1);
    price
}

#[test]
fn recovery_cost_is_independent_of_live_tensors() {
    let _alone = alone();
    let few = price_of_a_death(&tensors(10, 64));
    let live = tensors(200_000, 64);
    let many = price_of_a_death(&live[..10]);
    assert!(many < few + 20_000, "{few} accesses with few tensors alive, {many} with 200 000");
    // Everything that the dead process held is released.
    let before = stats().live_blocks;
    price_of_a_death(&live[..5000]);
    drop(live);
    eventually("all memory is released", || stats().live_blocks + 200_000 <= before);
}

/// Returns the memory of this arena that is mapped with huge pages, in kB.
fn mapped_huge() -> u64 {
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_arena = all.split_inclusive("VmFlags").filter(|mapping| mapping.contains("/memfd:mp-arena"));
    let sizes = of_arena.filter_map(|mapping| {
        let line = mapping.lines().find(|line| line.starts_with("ShmemPmdMapped:"))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    });
    sizes.sum()
}

#[test]
fn large_tensors_use_huge_pages_where_available() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    if let Err(why) = arena.set_huge_pages(true) {
        let why = why.to_string();
        assert!(why.contains("shmem_enabled") && why.contains("advise"), "{why}");
        mp_harness::skip(format_args!("{why}"));
        return;
    }
    arena.empty_cache().unwrap();
    let before = (stats().reserved, mapped_huge());
    let held = [Tensor::<u8>::full([64 * MIB], 3).unwrap(), Tensor::<u8>::full([64 * MIB], 4).unwrap()];
    assert!(stats().reserved - before.0 >= 128 * MIB as u64, "counted as other pages are");
    assert!(held.iter().zip([3, 4]).all(|(t, v)| t.iter().all(|x| x == v)), "all of it is there");
    // Some huge pages may be unavailable because memory is fragmented.
    assert!(mapped_huge() > before.1, "no huge page at all");
    drop(held);
    arena.set_huge_pages(false).unwrap();
    arena.empty_cache().unwrap();
    // The difference is negative if memory of a process of an earlier test was reclaimed meanwhile.
    let left = stats().reserved.saturating_sub(before.0);
    assert!(left < MIB as u64, "{left} bytes were not given back");
}

/// Number of messages in a burst. Each needs an envelope.
const BURST: u64 = 30_000;
/// Minimum growth of the arena during a burst, in bytes. Some envelopes are in groups that were free before.
const BURST_BYTES: u64 = BURST * 240;

/// Puts a burst into a queue, takes and checks it, and returns the arena's size during the burst.
fn burst() -> u64 {
    burst_through(&Queue::unbounded().unwrap())
}

fn burst_through(queue: &Queue<(u64, [u64; 20])>) -> u64 {
    for number in 0..BURST {
        queue.put((number, [number; 20])).unwrap();
    }
    let reserved = stats().reserved;
    for number in 0..BURST {
        assert_eq!(queue.get_timeout(DEADLINE).unwrap(), Some((number, [number; 20])));
    }
    reserved
}

#[test]
fn memory_of_a_message_burst_is_returned() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    arena.empty_cache().unwrap();
    let before = stats().reserved;
    // Runs twice, because returned memory is allocated again, and the sequences of its envelopes continue.
    for _ in 0..2 {
        let most = burst();
        assert!(most - before >= BURST_BYTES, "{most} after {before}");
        let given = arena.empty_cache().unwrap();
        let after = stats();
        assert!(given >= BURST_BYTES, "{given}");
        // A group in which another thread keeps an envelope stays.
        assert!(after.reserved <= before + 2 * MIB as u64, "{after}, {before} before");
    }
}

fn wait_for_the_end(_: usize, end: Queue<()>) -> Outcome {
    next(&end)?.ok_or("closed")?;
    Ok(())
}

#[test]
fn message_burst_memory_is_returned_while_waiting() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    arena.empty_cache().unwrap();
    let before = stats().reserved;
    let end = Queue::bounded(1).unwrap();
    let waiting = one_process(wait_for_the_end, end.clone());
    assert!(burst() - before >= BURST_BYTES);
    let small = || stats().reserved <= before + 3 * MIB as u64;
    eventually("the memory of the burst is given back", small);
    // Messages still work.
    give(&end, ());
    join(&waiting).unwrap();
    burst();
}

/// Runs a burst in a process that can't return memory to the kernel.
fn burst_that_frees_nothing(_: usize, (): ()) -> Outcome {
    let queue = Queue::bounded(BURST as usize)?;
    refusal::refuse_to_free();
    burst_through(&queue);
    Arena::current()?.empty_cache()?;
    burst_through(&queue);
    let owned = stats().owned;
    if owned < 1000 { Ok(()) } else { Err(format!("{owned} envelopes are kept for nothing").into()) }
}

#[test]
fn message_memory_that_is_not_returned_is_reused() {
    let _alone = alone();
    join(&one_process(burst_that_frees_nothing, ())).unwrap();
}

/// Checks that sharing a vector needs memory only for the copy. The process is separate, because other tests
/// would raise its peak of memory.
fn peak_of_sharing(_: usize, size: usize) -> Outcome {
    let kilobytes = |what: &str| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let private = vec![3_u8; size];
    // Allocates the arena and its first pages.
    drop(Tensor::from_slice(&[1_u8], [1])?);
    let before = kilobytes("VmRSS:");
    let shared = Tensor::from_slice(&private, [size])?;
    let grown = kilobytes("VmHWM:") - before;
    assert_eq!(shared.iter().map(usize::from).sum::<usize>(), 3 * size);
    assert!(grown * 1024 < size + size / 4, "{grown} kB for {size} bytes");
    Ok(())
}

#[test]
fn sharing_a_slice_makes_one_copy() {
    let _alone = alone();
    start_processes(peak_of_sharing, 64 << 20, SpawnOptions::nprocs(1)).unwrap().join().unwrap();
}
