//! Destructors of thread-local variables: they drop queues at the end of their thread.

use std::cell::RefCell;

use mp_core::Arena;
use mp_queue::Queue;
use mp_tensor::Tensor;

type Kept = (Queue<Tensor<u8>>, Queue<Queue<String>>);

thread_local! {
    static FIRST: RefCell<Option<Kept>> = const { RefCell::new(None) };
    static LAST: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// Returns two queues: one with a tensor, and one with a queue that has a message.
fn kept() -> Kept {
    let (tensors, queues) = (Queue::bounded(2).unwrap(), Queue::bounded(2).unwrap());
    tensors.put(Tensor::zeros([100_000]).unwrap()).unwrap();
    let inner = Queue::bounded(1).unwrap();
    inner.put("a text that is too long for a slot of a queue".to_string()).unwrap();
    queues.put(inner).unwrap();
    (tensors, queues)
}

#[test]
fn queues_in_thread_locals_are_freed_at_thread_end() {
    // Initializes what the arena creates once per process.
    drop(kept());
    let before = Arena::current().unwrap().memory_stats().live_blocks;
    for _ in 0..20 {
        let thread = || {
            // Registered first, so its destructor runs last, after the other destructors and the destructors
            // of this library.
            FIRST.with(|first| *first.borrow_mut() = None);
            drop(kept());
            FIRST.with(|first| *first.borrow_mut() = Some(kept()));
            LAST.with(|last| *last.borrow_mut() = Some(kept()));
        };
        std::thread::spawn(thread).join().unwrap();
    }
    assert_eq!(Arena::current().unwrap().memory_stats().live_blocks, before);
}
