//! Arguments for several processes: encoded once, stored once, and freed with their last holder.

use std::sync::atomic::{AtomicUsize, Ordering};

use mp::message::unpack;
use mp::{Arena, FrozenTensor, Queue, SpawnOptions, Tensor, start_processes};
use mp_reduce::Encoded;
use mp_tests::{alone, eventually, in_use};
use serde::{Deserialize, Serialize, Serializer};

static ENCODED: AtomicUsize = AtomicUsize::new(0);

/// Value that counts how often it is encoded.
#[derive(Deserialize)]
struct Counted(u64);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        ENCODED.fetch_add(1, Ordering::Relaxed);
        s.serialize_newtype_struct("Counted", &self.0)
    }
}

#[test]
fn arguments_are_encoded_once_for_all_ranks() {
    let _alone = alone();
    type Args = (Counted, Vec<u8>, FrozenTensor<u32>, Queue<u64>);
    fn worker(
        rank: usize,
        (n, bytes, tensor, queue): Args,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let sum: u64 = bytes.iter().map(|b| u64::from(*b)).sum();
        Ok(queue.put(n.0 + sum + u64::from(tensor.get(&[rank])?))?)
    }
    let before = in_use();
    for size in [10, 100_000] {
        ENCODED.store(0, Ordering::Relaxed);
        let tensor = Tensor::<u32>::from_fn(&[4], |i| i as u32).unwrap().freeze();
        let queue = Queue::bounded(4).unwrap();
        let args = (Counted(7), vec![1; size], tensor, queue.clone());
        start_processes(worker, args, SpawnOptions::nprocs(4)).unwrap().join().unwrap();
        assert_eq!(ENCODED.load(Ordering::Relaxed), 1);
        let mut sums: Vec<_> = (0..4).map(|_| queue.try_get().unwrap().unwrap()).collect();
        sums.sort_unstable();
        assert_eq!(sums, [0, 1, 2, 3].map(|rank| 7 + size as u64 + rank));
    }
    eventually("all memory is released", || in_use() == before);
}

#[test]
fn argument_bytes_for_several_ranks_are_stored_once() {
    const SIZE: usize = 8 << 20;
    let _alone = alone();
    let arena = Arena::current().unwrap();
    let before = in_use();
    // No attachments, a few, and more than an envelope can list.
    for tensors in [0, 3, 100] {
        let each: Vec<_> = (0..tensors).map(|i| Tensor::full([2], i).unwrap().freeze()).collect();
        let args = (vec![5_u8; SIZE], each);
        let live = arena.memory_stats().allocated;
        let encoded = Encoded::new(arena, &args).unwrap();
        let envelopes: Vec<_> = (0..4).map(|_| encoded.pack().unwrap()).collect();
        drop(encoded);
        let more = arena.memory_stats().allocated - live;
        if tensors < 100 {
            assert!(more < 2 * SIZE as u64, "{more} bytes for four receivers of {SIZE}");
        }
        drop(args);
        for (at, envelope) in envelopes.into_iter().enumerate() {
            // One of the messages is never opened.
            if at == 1 {
                continue;
            }
            let (bytes, each) = unpack::<(Vec<u8>, Vec<FrozenTensor<i32>>)>(envelope).unwrap();
            assert!(bytes.len() == SIZE && bytes.iter().all(|b| *b == 5));
            assert!(
                (0..tensors).zip(&each).all(|(i, t)| t.get(&[1]).unwrap() == i)
                    && each.len() == tensors as usize
            );
        }
        assert_eq!(in_use(), before, "{tensors} tensors");
    }
}
