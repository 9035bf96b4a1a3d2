//! Tests of the contract that every kind of shared memory fulfils. The caller of a test has selected the
//! kind, and no other test runs at the same time.

use mp::memory::{
    get_all_sharing_strategies, get_sharing_directory, get_sharing_strategy, set_sharing_strategy,
};
use mp::{Arena, Error, FrozenTensor, Queue, SharedTensor, SpawnOptions, Tensor, start_processes};
use serde::{Deserialize, Serialize};

use mp_tests::{
    Outcome, eventually, failure, give, in_use, join, mappings, next, one_process, open_files, send, take,
};

const MIB: usize = 1 << 20;

pub(crate) fn shared_tensor_writes_are_visible_to_other_process() {
    fn worker(rank: usize, (shared, done): (SharedTensor<u64>, Queue<usize>)) -> Outcome {
        shared.store(rank, 100 + rank as u64);
        send(&done, rank)
    }
    let shared = Tensor::<u64>::zeros([1000]).unwrap().share();
    let done = Queue::bounded(3).unwrap();
    let context = start_processes(worker, (shared.clone(), done.clone()), SpawnOptions::nprocs(3)).unwrap();
    for _ in 0..3 {
        let rank = take(&done);
        assert_eq!(shared.load(rank), 100 + rank as u64);
    }
    join(&context).unwrap();
}

pub(crate) fn received_views_are_views_of_one_storage() {
    type Views = Vec<FrozenTensor<i32>>;
    fn worker(_: usize, (there, back): (Queue<Views>, Queue<Views>)) -> Outcome {
        while let Some(views) = next(&there)? {
            assert!(views.iter().all(|v| v.storage() == views[0].storage()));
            let more = views[0].transpose(0, 1)?;
            send(&back, vec![views[1].clone(), more])?;
        }
        Ok(())
    }
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker, (there.clone(), back.clone()));
    let whole = Tensor::from_fn(&[40, 50], |i| i as i32).unwrap().freeze();
    for row in 0..20 {
        give(&there, vec![whole.clone(), whole.select(0, row).unwrap()]);
        let got = take(&back);
        assert_eq!(got[0].to_vec(), (0..50).map(|i| row as i32 * 50 + i).collect::<Vec<_>>());
        assert_eq!((got[1].shape(), got[1].get(&[3, row]).unwrap()), (&[50, 40][..], row as i32 * 50 + 3));
        assert!(got.iter().all(|t| t.storage() == whole.storage()));
    }
    there.close();
    join(&context).unwrap();
}

pub(crate) fn exclusive_tensor_moves_to_the_other_process() {
    fn worker(_: usize, (there, back): (Queue<Tensor<u64>>, Queue<Tensor<u64>>)) -> Outcome {
        while let Some(mut t) = next(&there)? {
            t.as_mut_slice()?.iter_mut().for_each(|v| *v += 1);
            send(&back, t)?;
        }
        Ok(())
    }
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker, (there.clone(), back.clone()));
    let mut t = Tensor::<u64>::zeros([MIB]).unwrap();
    let at = t.storage().as_ptr();
    for _ in 0..5 {
        give(&there, t);
        t = take(&back);
        assert_eq!(t.storage().as_ptr(), at, "the tensor was copied");
    }
    assert!(t.iter().all(|v| v == 5));
    there.close();
    join(&context).unwrap();
}

pub(crate) fn message_outlives_its_sender() {
    fn sender(_: usize, queue: Queue<FrozenTensor<u8>>) -> Outcome {
        for size in [3, 5000, 3 * MIB] {
            send(&queue, Tensor::full([size], size as u8)?.freeze())?;
        }
        Ok(())
    }
    fn receiver(_: usize, queue: Queue<FrozenTensor<u8>>) -> Outcome {
        for size in [3, 5000, 3 * MIB] {
            let t = next(&queue)?.ok_or("closed")?;
            assert!(t.len() == size && t.iter().all(|v| v == size as u8));
        }
        Ok(())
    }
    let before = in_use();
    let queue = Queue::bounded(3).unwrap();
    // Neither sender nor receiver is the process that created the queue, which never uses the tensors.
    join(&one_process(sender, queue.clone())).unwrap();
    join(&one_process(receiver, queue.clone())).unwrap();
    // In the other direction, a child's memory is received here after the child has ended.
    join(&one_process(sender, queue.clone())).unwrap();
    receiver(0, queue).unwrap();
    eventually("everything is released", || in_use() == before);
}

pub(crate) fn killed_holder_releases_its_memory() {
    fn worker(_: usize, queue: Queue<FrozenTensor<u8>>) -> Outcome {
        let _own = Tensor::<u8>::full([2 * MIB], 1)?;
        let _got = next(&queue)?;
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        Ok(())
    }
    let before = in_use();
    let queue = Queue::bounded(2).unwrap();
    let context = one_process(worker, queue.clone());
    give(&queue, Tensor::full([MIB], 2).unwrap().freeze());
    failure(&context);
    drop(queue);
    eventually("resources of the dead process are released", || in_use() == before);
}

pub(crate) fn thousand_tensors_need_few_files() {
    type Tensors = Vec<FrozenTensor<u32>>;
    fn worker(_: usize, (there, back): (Queue<Tensors>, Queue<(usize, usize)>)) -> Outcome {
        let warm = next(&there)?;
        let before = (open_files(), mappings());
        let mut all = Vec::new();
        for _ in 0..10 {
            all.push(next(&there)?.ok_or("closed")?);
        }
        let more = (open_files() - before.0, mappings().saturating_sub(before.1));
        assert_eq!(all.iter().flatten().map(|t| t.get(&[1]).unwrap() as usize).sum::<usize>(), 499_500);
        drop(warm);
        send(&back, more)
    }
    let (there, back) = (Queue::bounded(16).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker, (there.clone(), back.clone()));
    let tensor = |i: u32| Tensor::full([500], i).unwrap().freeze();
    give(&there, vec![tensor(0)]);
    let before = (open_files(), mappings());
    let all: Vec<_> = (0..1000).map(tensor).collect();
    assert!(open_files() <= before.0 + 2, "files");
    assert!(mappings() <= before.1 + 4, "mappings");
    all.chunks(100).for_each(|hundred| give(&there, hundred.to_vec()));
    let (files, mappings) = take(&back);
    assert!(files == 0 && mappings <= 4, "{files} more files, {mappings} more mappings");
    join(&context).unwrap();
}

pub(crate) fn freed_tensor_memory_is_used_again() {
    let arena = Arena::current().unwrap();
    let t = Tensor::<u8>::full([8 * MIB], 7).unwrap();
    let at = t.storage().as_ptr();
    drop(t);
    let t = Tensor::<u8>::full([8 * MIB], 8).unwrap();
    assert_eq!(t.storage().as_ptr(), at, "other memory was used, though the freed memory was available");
    let reserved = arena.memory_stats().reserved;
    drop(t);
    assert_eq!(arena.memory_stats().reserved, reserved, "freed memory stays warm");
    assert!(arena.empty_cache().unwrap() >= 8 << 20);
    assert!(arena.memory_stats().reserved <= reserved - (8 << 20));
    let again = Tensor::<u8>::zeros([8 * MIB]).unwrap();
    assert!(again.iter().all(|v| v == 0));
}

/// Memory limit, which is removed even if the test fails.
struct Budget(Arena);
impl Drop for Budget {
    fn drop(&mut self) {
        self.0.set_budget(0);
    }
}

pub(crate) fn memory_within_the_budget_is_usable_after_drops() {
    let arena = Arena::current().unwrap();
    // Ensures that a file exists and its pages are counted.
    let held = Tensor::<u8>::full([4 * MIB], 1).unwrap();
    let _budget = Budget(arena);
    arena.empty_cache().unwrap();
    arena.set_budget(arena.memory_stats().reserved + 6 * MIB as u64);
    let before = in_use();
    let first = Tensor::<u8>::full([4 * MIB], 2).unwrap();
    for _ in 0..3 {
        match Tensor::<u8>::zeros([4 * MIB]) {
            Err(Error::OutOfMemory { asked, left, limit }) => {
                assert!(
                    asked >= 4 << 20 && left < asked && limit.contains("budget"),
                    "{asked} {left} {limit}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(first.get(&[4 * MIB - 1]).unwrap(), 2);
    drop(first);
    assert_eq!(in_use(), before);
    let again = Tensor::<u8>::full([4 * MIB], 3).unwrap();
    assert_eq!((again.get(&[0]).unwrap(), held.get(&[0]).unwrap()), (3, 1));
}

#[derive(Serialize, Deserialize)]
struct Both {
    all: Vec<(Kind, FrozenTensor<u16>)>,
    queue: Queue<u8>,
}

/// Index of a strategy in the list of all strategies.
type Kind = usize;

pub(crate) fn tensors_of_all_strategies_travel_in_one_message() {
    fn worker(_: usize, (there, back): (Queue<Both>, Queue<Both>)) -> Outcome {
        while let Some(mut both) = next(&there)? {
            for (kind, t) in &both.all {
                assert!(t.len() == 3000 && t.iter().all(|v| usize::from(v) == *kind));
            }
            // This process changes its strategy, too.
            for (kind, &strategy) in get_all_sharing_strategies().iter().enumerate() {
                set_sharing_strategy(strategy)?;
                both.all.push((kind, Tensor::full([20 * MIB / 16], kind as u16)?.freeze()));
            }
            send(&both.queue, 9)?;
            send(&back, both)?;
        }
        Ok(())
    }
    let mine = get_sharing_strategy();
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    // The process starts before a strategy is set or a file is created.
    let context = one_process(worker, (there.clone(), back.clone()));
    for _ in 0..3 {
        let queue = Queue::bounded(1).unwrap();
        let mut all = Vec::new();
        for (kind, &strategy) in get_all_sharing_strategies().iter().enumerate() {
            set_sharing_strategy(strategy).unwrap();
            all.push((kind, Tensor::full([3000], kind as u16).unwrap().freeze()));
        }
        set_sharing_strategy(mine).unwrap();
        let storages: Vec<_> = all.iter().map(|(_, t)| t.storage().clone()).collect();
        give(&there, Both { all, queue: queue.clone() });
        let both = take(&back);
        assert_eq!((take(&queue), both.all.len()), (9, 2 * storages.len()));
        assert!(both.all.iter().zip(&storages).all(|((_, t), s)| t.storage() == s));
        for (kind, t) in &both.all[storages.len()..] {
            assert!(t.iter().all(|v| usize::from(v) == *kind), "contents of a tensor of the other process");
        }
        assert_eq!(get_sharing_strategy(), mine, "another process has changed the strategy");
    }
    there.close();
    join(&context).unwrap();
}

pub(crate) fn children_inherit_sharing_strategy_and_directory() {
    fn setting() -> (String, String) {
        (get_sharing_strategy().name().into(), get_sharing_directory().to_string_lossy().into())
    }
    fn worker(_: usize, (queue, more): (Queue<(String, String)>, bool)) -> Outcome {
        send(&queue, setting())?;
        if more {
            join(&start_processes(worker, (queue, false), SpawnOptions::nprocs(1))?)?;
        }
        Ok(())
    }
    let queue = Queue::bounded(2).unwrap();
    let context = one_process(worker, (queue.clone(), true));
    assert_eq!((take(&queue), take(&queue)), (setting(), setting()));
    join(&context).unwrap();
}

pub(crate) fn tensor_memory_of_any_size_is_aligned_and_whole() {
    let sizes = (0..24).map(|i| (1_usize << i) + i / 2).chain([0, 4095, 4097, 65_537, 5 * MIB]);
    let mut all: Vec<Tensor<u8>> =
        sizes.enumerate().map(|(i, size)| Tensor::full([size], i as u8).unwrap()).collect();
    for t in &mut all {
        let at = t.storage().as_ptr().addr();
        assert!(at.is_multiple_of(if t.len() > 4096 { 256 } else { 64 }), "{} bytes at {at:x}", t.len());
    }
    for (i, t) in all.iter().enumerate() {
        assert!(t.iter().all(|v| v == i as u8), "tensor {i} of {} bytes was overwritten", t.len());
    }
}
