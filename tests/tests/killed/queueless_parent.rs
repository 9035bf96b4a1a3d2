//! Messages in the queues of killed children are released by a process that never used a queue, and by a
//! forked child of it. A separate program, because any other test would use a queue.
#![allow(unsafe_code)]

use mp::queue::bounded_channel;
use mp::{Arena, Queue, SpawnOptions, StartMethod, Tensor, start_processes};
use mp_tests::kill::killed;
use mp_tests::{Outcome, alone, eventually, in_use, join, one_process};
use rustix::process::{Signal, getpid, kill_process};

/// Number of children: enough to make any leak visible.
const CHILDREN: usize = 20;

/// Dies with messages in its queues: small messages, envelopes, tensors, a queue in a queue, and a leased
/// message.
fn die_with_queues(_: usize, (): ()) -> Outcome {
    let small = Queue::bounded(100)?;
    let tensors = Queue::unbounded()?;
    let (sender, receiver) = bounded_channel(4)?;
    for i in 0..50_u64 {
        small.put(i)?;
        tensors.put((vec![7_u8; 300], Tensor::<u64>::full([1000], i)?.freeze()))?;
    }
    sender.send(small.clone())?;
    let leased = tensors.get_lease()?;
    assert!(leased.is_some() && receiver.try_recv().is_ok());
    kill_process(getpid(), Signal::KILL)?;
    Err("it outlived SIGKILL".into())
}

/// Starts children that die with messages in their queues, one after the other.
fn nothing_is_left_of_killed_children() {
    let die = |_: usize| assert!(killed(&one_process(die_with_queues, ())));
    let reclaim = || Arena::current().unwrap().reclaim().unwrap();
    let bytes = || Arena::current().unwrap().memory_stats().allocated;
    // The first process allocates memory that stays.
    join(&one_process(|_, (): ()| {}, ())).unwrap();
    let before = (in_use(), bytes());
    (0..CHILDREN).for_each(die);
    eventually("nothing is left of children that were killed", || {
        reclaim();
        (in_use(), bytes()) == before
    });
}

#[test]
fn queueless_parent_releases_queues_of_the_killed() {
    let _alone = alone();
    nothing_is_left_of_killed_children();
}

/// The forked child uses the library that its parent has loaded.
#[test]
fn copy_of_a_queueless_parent_releases_queues() {
    let _alone = alone();
    fn original(_: usize, (): ()) -> Outcome {
        // SAFETY: this process has one thread, and nothing that is there once.
        unsafe { mp::process::allow_fork() };
        let copied = SpawnOptions::nprocs(1).start_method(StartMethod::Fork);
        join(&start_processes(|_, (): ()| nothing_is_left_of_killed_children(), (), copied)?)?;
        Ok(())
    }
    join(&one_process(original, ())).unwrap();
}
