//! Arena in plain memory: queues and tensors work within this process, and nothing can be sent to another
//! process. This test program has no other arena.

use mp::{Arena, Error, FrozenTensor, Message, Queue, SharedTensor, SpawnOptions, Tensor, start_processes};
use mp_tests::{give, in_use, take};

#[derive(Message)]
struct Parcel {
    own: Tensor<u64>,
    all: FrozenTensor<u64>,
    shared: SharedTensor<u64>,
    bytes: Vec<u8>,
}

#[test]
fn local_arena_supports_queues_and_tensors() {
    let _alone = mp_tests::alone();
    let arena = Arena::local().unwrap();
    assert!(arena.is_local() && Arena::current().unwrap() == arena && Arena::local().unwrap() == arena);
    let (files, before) = (mp_tests::open_files(), in_use());
    {
        let queue = Queue::bounded(4).unwrap();
        let all = Tensor::full([5000], 7_u64).unwrap().freeze();
        let shared = Tensor::<u64>::zeros([10]).unwrap().share();
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..200 {
                    let own = Tensor::full([100 + i as usize], i).unwrap();
                    let bytes = vec![i as u8; 10 * i as usize];
                    give(&queue, Parcel { own, all: all.clone(), shared: shared.clone(), bytes });
                }
            });
            for i in 0..200 {
                let p = take(&queue);
                assert!(p.own.len() == 100 + i as usize && p.own.iter().all(|v| v == i));
                assert!(p.bytes == vec![i as u8; 10 * i as usize] && p.all.storage() == all.storage());
                p.shared.store(1, i);
            }
        });
        assert_eq!(shared.load(1), 199);
    }
    assert_eq!(in_use(), before, "blocks, messages and members as before");
    assert_eq!(mp_tests::open_files(), files, "an arena in plain memory has no file");
}

#[test]
fn local_arena_is_trimmed_and_limited() {
    let _alone = mp_tests::alone();
    let arena = Arena::local().unwrap();
    let t = Tensor::<u8>::full([32 << 20], 3).unwrap();
    let reserved = arena.memory_stats().reserved;
    assert!(reserved >= 32 << 20);
    drop(t);
    assert!(arena.empty_cache().unwrap() >= 32 << 20);
    assert!(arena.memory_stats().reserved <= reserved - (32 << 20));
    let again = Tensor::<u8>::empty([32 << 20]).unwrap();
    assert!(again.iter().all(|v| v == 0), "returned memory is zeroed");
    arena.set_budget(arena.memory_stats().reserved + (1 << 20));
    let error = Tensor::<u8>::zeros([40 << 20]).map(drop).unwrap_err();
    arena.set_budget(0);
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

#[test]
fn queue_grows_in_a_local_arena() {
    let _alone = mp_tests::alone();
    let arena = Arena::local().unwrap();
    arena.empty_cache().unwrap();
    let before = (in_use(), arena.memory_stats().reserved);
    for _ in 0..2 {
        let queue = Queue::unbounded().unwrap();
        (0..10_000).for_each(|i| give(&queue, i));
        (0..10_000).for_each(|i| assert_eq!(take(&queue), i));
        give(&queue, 10_000);
        let live = arena.memory_stats().classes.into_iter().filter(|c| c.live > 0);
        let size = live.map(|c| c.size).max().unwrap();
        drop(queue);
        // The second segment of the queue is made in memory that was used before.
        drop(Tensor::full([size as usize], 0xff_u8).unwrap());
    }
    arena.empty_cache().unwrap();
    // The memory of messages does not shrink again.
    let grown = 10_240 * 256;
    assert_eq!(in_use(), before.0);
    assert!((before.1..=before.1 + 2 * grown).contains(&arena.memory_stats().reserved));
}

#[test]
fn local_arena_refuses_to_start_processes() {
    let _alone = mp_tests::alone();
    Arena::local().unwrap();
    let error = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1)).map(drop).unwrap_err();
    assert!(error.to_string().contains("no other process can reach"), "{error}");
}
