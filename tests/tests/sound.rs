//! What safe code must not be able to do, tried.

mod common;

use mp::message::{Message, Outgoing};
use mp::{Arena, FrozenTensor, Options, Queue, SharedTensor, Tensor, start_processes};
use mp_reduce::MessagePack;

/// Writes a tensor into a message that is then read back on this side, while the tensor itself goes elsewhere.
fn read_back(t: Tensor<u64>, elsewhere: impl FnOnce(Tensor<u64>)) -> mp::Result<Tensor<u64>, mp::Error> {
    let mut out = Outgoing::default();
    t.encode::<MessagePack>(&mut out)?;
    elsewhere(t);
    Tensor::decode::<MessagePack>(&mut out.into_incoming())
}

#[test]
fn a_tensor_that_was_frozen_and_sent_is_never_exclusive_again() {
    let queue = Queue::<FrozenTensor<u64>>::bounded(1).unwrap();
    let back = read_back(Tensor::zeros(&[8]).unwrap(), |t| queue.put(t.freeze()).unwrap());
    assert!(back.unwrap_err().to_string().contains("exclusive"));
    assert_eq!(queue.get().unwrap().unwrap().to_vec(), [0; 8]);
}

#[test]
fn a_tensor_that_was_shared_and_sent_is_never_exclusive_again() {
    let queue = Queue::<SharedTensor<u64>>::bounded(1).unwrap();
    let back = read_back(Tensor::zeros(&[8]).unwrap(), |t| queue.put(t.share()).unwrap());
    assert!(back.unwrap_err().to_string().contains("exclusive"));
}

#[test]
fn a_tensor_has_one_handle_at_a_time() {
    let mut kept = None;
    let back = read_back(Tensor::zeros(&[8]).unwrap(), |t| kept = Some(t));
    assert!(back.unwrap_err().to_string().contains("exclusive"));
    // When it is gone, the message is the only handle.
    assert!(read_back(Tensor::zeros(&[8]).unwrap(), drop).is_ok());
}

#[test]
fn a_tensor_whose_storage_is_held_elsewhere_stays() {
    let queue = Queue::<Tensor<u64>>::bounded(1).unwrap();
    let t = Tensor::full(&[8], 5).unwrap();
    let storage = t.storage().clone();
    let error = queue.put(t).unwrap_err();
    assert!(error.to_string().contains("exclusive"), "{error}");
    let t = error.into_value().expect("it comes back");
    assert_eq!(t.to_vec(), [5; 8]);
    drop(storage);
    queue.put(t).unwrap();
}

#[test]
fn queues_inside_of_queues_are_freed_however_deep() {
    let blocks = || Arena::current().unwrap().memory_stats().live_blocks;
    // What other tests of this program have takes a few blocks, not thousands.
    const DEPTH: u64 = 30_000;
    type Nested = Queue<Inner>;
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Inner(Option<Box<Nested>>);
    let mut queue = Nested::bounded(1).unwrap();
    for _ in 0..DEPTH {
        let outer = Nested::bounded(1).unwrap();
        outer.put(Inner(Some(Box::new(queue)))).unwrap();
        queue = outer;
    }
    assert!(blocks() >= DEPTH);
    drop(queue);
    assert!(blocks() < DEPTH / 2);
}

/// Both locks by which a member is known to be alive are held, in parent and child, also after a child was started.
#[test]
fn both_signs_of_life_are_there() {
    fn locks() -> (bool, bool) {
        let pid = std::process::id().to_string();
        let all = std::fs::read_to_string("/proc/locks").unwrap();
        let posix = all.lines().any(|l| l.contains("POSIX") && l.split_whitespace().any(|w| w == pid));
        // Those of an open file description show no pid.
        (posix, all.lines().any(|l| l.contains("OFDLCK")))
    }
    // The kernel writes that file piece by piece, and misses some if others are let go of meanwhile. Of ours, none that was lost
    // would ever come back.
    fn held() {
        common::eventually("both locks are held", || locks() == (true, true));
    }
    fn child(_: usize, (): ()) -> mp::Result<()> {
        Arena::current()?;
        held();
        Ok(())
    }
    Arena::current().unwrap();
    start_processes(child, (), Options::nprocs(2)).unwrap().join().unwrap();
    held();
}
