//! Forked copies of the process, made while another thread of the original uses a loader.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use mp_data::plan::Plan;
use mp_data::{AnyResult, Context, DataLoader, Dataset, Item};
use mp_tensor::Tensor;
use rustix::process::{Pid, WaitOptions, waitpid};
use serde::{Deserialize, Serialize};

use crate::common::{eventually, signal};

// fork: the copies read the value that their original has set.
static ENTERED: AtomicBool = AtomicBool::new(false);
// fork: the copies read the value that their original has set.
static MAY_LEAVE: AtomicBool = AtomicBool::new(false);

/// Dataset whose `fetch`, in the process with this id, blocks until the test releases it.
#[derive(Serialize, Deserialize)]
struct Stays(u32);

impl Dataset for Stays {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        4
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        if self.0 == std::process::id() {
            ENTERED.store(true, Ordering::SeqCst);
            eventually("it may leave", || MAY_LEAVE.load(Ordering::SeqCst));
        }
        cx.rows(items, &[], |item, _, row| {
            row[0] = item.index as u64;
            Ok(())
        })
    }
}

/// Runs a function in a forked copy of this process. Returns `true` if the function returns `true` in time.
fn in_a_copy(says: impl FnOnce() -> bool) -> bool {
    // SAFETY: the copy accesses only copied memory, and ends without destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = if mp_core::user_code::catch_panic(says) == Some(true) { 7 } else { 8 };
        // SAFETY: `_exit` ends this process and runs no other code of it.
        unsafe { libc::_exit(code) };
    }
    let copy = Pid::from_raw(pid).unwrap();
    let mut code = None;
    let in_time = mp_core::user_code::catch_panic(|| {
        eventually("the copy ends", || {
            code = waitpid(Some(copy), WaitOptions::NOHANG).unwrap();
            code.is_some()
        });
    });
    if in_time.is_none() {
        signal(pid as u32, rustix::process::Signal::KILL);
        _ = waitpid(Some(copy), WaitOptions::empty());
    }
    code.is_some_and(|(_, status)| status.exit_status() == Some(7))
}

#[test]
fn loader_in_a_forked_copy_returns_an_error() {
    let trainer = std::process::id();
    let without = DataLoader::builder(Stays(trainer)).build().unwrap();
    let with = DataLoader::builder(Stays(trainer)).num_workers(1).build().unwrap();
    let mut begun = with.epoch(0);
    std::thread::scope(|threads| {
        let batch = threads.spawn(|| without.epoch(0).next().unwrap().unwrap().to_vec());
        eventually("a thread makes a batch", || ENTERED.load(Ordering::SeqCst));
        let copies = in_a_copy(|| {
            // Iterators from before and after the fork, with and without workers, return one error each, and
            // end.
            [begun.by_ref().take(2).collect::<Vec<_>>(), without.epoch(3).collect(), with.epoch(3).collect()]
                .into_iter()
                .all(|all| {
                    all.len() == 1 && all[0].as_ref().is_err_and(|error| error.to_string().contains("forked"))
                })
                && without.verify(1).is_err()
                && with.verify(1).is_err()
                && without.metrics().batches == 0
                && with.metrics().batches == 0
        });
        MAY_LEAVE.store(true, Ordering::SeqCst);
        assert!(copies, "the copy waited, or got no error");
        assert_eq!(batch.join().unwrap(), [0]);
    });
    // The original continues.
    assert_eq!(without.epoch(0).count() + with.epoch(0).count() + begun.count(), 12);
    // Plans have no processes, so they work in a copy as in the original.
    let plan = Plan::builder(100).batch_size(10).shuffle(true).build().unwrap();
    let order = plan.epoch(0);
    let expected = order.batch(3).unwrap();
    assert!(in_a_copy(|| order.batch(3).unwrap() == expected && plan.epoch(0).batch(3).unwrap() == expected));
}

#[test]
fn plan_in_a_forked_copy_computes_the_same_order() {
    // Shuffling this number of samples takes longer than starting a thread.
    let plan = Plan::builder(1 << 22).batch_size(10).shuffle(true).build().unwrap();
    let (order, expected) = (plan.epoch(0), plan.epoch(0).batch(3).unwrap());
    assert!(in_a_copy(|| {
        std::thread::scope(|threads| {
            let batches: Vec<_> = (0..4).map(|_| threads.spawn(|| order.batch(3))).collect();
            batches.into_iter().all(|batch| batch.join().unwrap().is_ok_and(|batch| batch == expected))
        })
    }));
}
