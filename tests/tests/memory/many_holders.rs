//! Thousands of holders of one storage, released in any order by any process. Also weak references to
//! storages.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use mp::memory::{SharedCache, StorageId, WeakStorage, storage_from_cache};
use mp::{FrozenTensor, Queue, SpawnOptions, Tensor, start_processes};
use mp_core::inject;
use mp_tests::{
    Outcome, alone, eventually, eventually_in_use, give, in_use, join, next, one_process, send, take,
};

fn counted(value: u64) -> FrozenTensor<u64> {
    Tensor::full([8], value).unwrap().freeze()
}

/// Returns the number of shared accesses of `work`.
fn accesses(work: impl FnOnce()) -> u64 {
    let before = inject::seen();
    work();
    inject::seen() - before
}

#[test]
fn message_cost_is_the_same_with_thousands_in_flight() {
    const MOST: usize = 6000;
    let _alone = alone();
    let before = in_use().0;
    let queue = Queue::bounded(MOST + 1).unwrap();
    let tensor = counted(1);
    let mut costs = Vec::new();
    for in_flight in 0..MOST {
        if in_flight % 1000 == 500 {
            // The minimum of a few rounds is taken, because a page of seats or a batch of envelopes is
            // sometimes allocated.
            let round = || accesses(|| give(&queue, tensor.clone())) + accesses(|| drop(take(&queue)));
            costs.push((0..5).map(|_| round()).min().unwrap());
        }
        give(&queue, tensor.clone());
    }
    // The search within a page is bounded. A walk through all pages would take 6000 accesses.
    let most = costs.iter().max().unwrap();
    assert!(*most <= costs[0] + 20, "accesses of a message with 500, 1500, … in flight: {costs:?}");
    // The sender drops its own handle first, so that only messages hold the tensor.
    drop(tensor);
    let mut kept = Vec::new();
    let emptied = accesses(|| {
        for _ in 0..MOST {
            drop(take(&queue));
        }
    });
    assert!(emptied < MOST as u64 * 100, "{emptied} accesses for {MOST} messages, dropped one by one");
    kept.push(counted(2));
    drop((kept, queue));
    eventually("all memory is released", || in_use().0 == before);
}

/// Takes `many` messages, then drops them in another order for each rank.
fn release(rank: usize, (queue, many): (Queue<FrozenTensor<u64>>, usize)) -> Outcome {
    let mut held = Vec::new();
    for i in 0..many {
        let t = next(&queue)?.ok_or("closed")?;
        assert_eq!(t.get(&[7])?, 5);
        // Two thirds of the messages are kept until the end, and the others are dropped at once.
        if !(i + rank).is_multiple_of(3) {
            held.push(t);
        }
    }
    match rank % 3 {
        0 => held.into_iter().for_each(drop),
        1 => held.into_iter().rev().for_each(drop),
        _ => {
            let (even, odd): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
            drop(odd);
            drop(even);
        }
    }
    Ok(())
}

#[test]
fn block_holders_release_in_any_order_and_process() {
    const EACH: usize = 500;
    const PROCESSES: usize = 3;
    let _alone = alone();
    let before = in_use();
    // Thousands of messages hold one tensor. Several storages follow each other, so that pages of seats are
    // reused.
    for round in 0..3 {
        let queue = Queue::bounded(EACH * PROCESSES).unwrap();
        let tensor = counted(5);
        let weak = tensor.storage().downgrade();
        for _ in 0..EACH * PROCESSES {
            give(&queue, tensor.clone());
        }
        let context =
            start_processes(release, (queue.clone(), EACH), SpawnOptions::nprocs(PROCESSES)).unwrap();
        if round == 1 {
            drop(tensor);
        }
        join(&context).unwrap();
        drop((queue, context));
        assert_eq!(weak.expired(), round == 1);
    }
    eventually_in_use(before, "all memory is released");
}

fn keep_and_return(_: usize, (there, back): (Queue<FrozenTensor<u64>>, Queue<FrozenTensor<u64>>)) -> Outcome {
    let t = next(&there)?.ok_or("closed")?;
    // This process holds the tensor until it gets a message to return it.
    drop(next(&there)?.ok_or("closed")?);
    send(&back, t)
}

#[test]
fn weak_reference_expires_with_its_process_holders() {
    let _alone = alone();
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(keep_and_return, (there.clone(), back.clone()));
    let tensor = counted(9);
    let (id, weak) = (tensor.storage().id(), tensor.storage().downgrade());
    give(&there, tensor.clone());
    assert!(!weak.expired());
    drop(tensor);
    // Only the other process, or a message, holds the tensor.
    assert!(weak.expired() && weak.upgrade().is_none() && storage_from_cache(id).is_none());
    give(&there, counted(0));
    let tensor = take(&back);
    assert_eq!((tensor.storage().id(), tensor.get(&[0]).unwrap()), (id, 9));
    assert_eq!(weak.upgrade().as_ref(), Some(tensor.storage()), "the same memory has returned");
    join(&context).unwrap();
    drop(tensor);
    assert!(weak.expired());
}

#[test]
fn storage_in_reused_memory_has_a_new_id() {
    let _alone = alone();
    let mut cache = SharedCache::new();
    let mut seen: Vec<WeakStorage> = Vec::new();
    let mut blocks = std::collections::HashSet::new();
    for i in 0..200 {
        let tensor = counted(i);
        assert!(seen.iter().all(|weak| weak.expired() && weak.id() != tensor.storage().id()));
        blocks.insert(tensor.storage().hold().block());
        assert_eq!(cache.insert(tensor.storage(), i), None);
        assert_eq!(cache.get(tensor.storage().id()), Some(&i));
        seen.push(tensor.storage().downgrade());
    }
    assert!(blocks.len() < 200, "no memory was reused, so the test shows nothing");
    assert!(cache.len() <= 128, "dead references pile up");
    let left = cache.len();
    assert_eq!((cache.free_dead_references(), cache.len()), (left, 0));
}

#[test]
fn storage_received_twice_is_found_in_the_cache() {
    let _alone = alone();
    let queue = Queue::bounded(2).unwrap();
    let id = {
        let tensor = counted(3);
        give(&queue, tensor.clone());
        give(&queue, tensor.clone());
        tensor.storage().id()
    };
    assert_eq!(storage_from_cache(id), None);
    let first = take(&queue);
    let found = storage_from_cache(id).expect("this process holds the storage");
    let second = take(&queue);
    assert!(first.storage() == second.storage() && found == *first.storage());
    assert_eq!(found.hold().count(), 3);
}

#[test]
fn storage_id_is_equal_in_each_process() {
    let _alone = alone();
    type Named = (StorageId, FrozenTensor<u64>);
    fn worker(_: usize, (there, back): (Queue<Named>, Queue<Vec<StorageId>>)) -> Outcome {
        let all: Vec<Named> = there.iter().collect::<Result<_, _>>()?;
        let found = all.iter().map(|(id, _)| storage_from_cache(*id).ok_or("it is here"));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        assert!(found.iter().zip(&all).all(|(found, (_, tensor))| found == tensor.storage()));
        send(&back, found.iter().map(|s| s.id()).collect())
    }
    let (there, back) = (Queue::bounded(3).unwrap(), Queue::bounded(1).unwrap());
    let tensors = [counted(3), counted(3)];
    let ids: Vec<_> = [0, 1, 0].map(|i: usize| tensors[i].storage().id()).to_vec();
    [0, 1, 0].iter().zip(&ids).for_each(|(&i, &id)| give(&there, (id, tensors[i].clone())));
    there.close();
    let context = one_process(worker, (there, back.clone()));
    assert_eq!(take(&back), ids);
    assert!(ids[0] == ids[2] && ids[0] != ids[1]);
    join(&context).unwrap();
}

#[test]
fn weak_reference_upgrade_races_with_last_drop_safely() {
    const ROUNDS: u64 = 20_000;
    let _alone = alone();
    let before = in_use().0;
    let latest: Mutex<Option<(WeakStorage, u64)>> = Mutex::new(None);
    let done = AtomicBool::new(false);
    let upgraded: u64 = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut upgraded = 0;
                    while !done.load(Ordering::Acquire) {
                        let Some((weak, value)) = latest.lock().unwrap().clone() else { continue };
                        if let Some(storage) = weak.upgrade() {
                            // The storage is held, so no other tensor can have its memory.
                            assert_eq!(storage.id(), weak.id(), "value {value}");
                            upgraded += 1;
                        }
                    }
                    upgraded
                })
            })
            .collect();
        for value in 0..ROUNDS {
            let tensor = counted(value);
            *latest.lock().unwrap() = Some((tensor.storage().downgrade(), value));
            if value % 16 == 0 {
                std::thread::yield_now();
            }
            drop(tensor);
        }
        done.store(true, Ordering::Release);
        readers.into_iter().map(|r| r.join().unwrap()).sum()
    });
    assert!(upgraded > 0, "no thread was in time: the test shows nothing");
    assert!(latest.lock().unwrap().as_ref().is_some_and(|(weak, _)| weak.expired()));
    assert_eq!(in_use().0, before);
}

#[test]
fn more_messages_hold_a_tensor_than_a_block_has_seats() {
    let _alone = alone();
    fn worker(_: usize, (queue, sums): (Queue<FrozenTensor<i32>>, Queue<i64>)) -> Outcome {
        let all: Vec<FrozenTensor<i32>> = queue.iter().collect::<Result<_, _>>()?;
        assert!(all.iter().all(|t| t.storage() == all[0].storage()));
        send(&sums, all.len() as i64)?;
        send(&sums, all.iter().map(|t| i64::from(t.get(&[1]).unwrap_or(-1))).sum())
    }
    // Six seats are in the block itself, 510 in each additional page.
    const N: usize = 1300;
    let before = in_use();
    {
        let (queue, sums) = (Queue::bounded(N).unwrap(), Queue::bounded(2).unwrap());
        let x = Tensor::from_slice(&[5, 7], [2]).unwrap().freeze();
        (0..N).for_each(|_| give(&queue, x.clone()));
        assert_eq!(queue.len(), N);
        // The sender drops its own handle before the first message is taken.
        drop(x);
        queue.close();
        let context = one_process(worker, (queue.clone(), sums.clone()));
        assert_eq!((take(&sums), take(&sums)), (N as i64, 7 * N as i64));
        join(&context).unwrap();
    }
    mp_tests::eventually("everything is released", || in_use() == (before.0, before.1, 1));
}
