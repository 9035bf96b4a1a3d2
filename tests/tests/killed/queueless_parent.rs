//! A process that never used a queue releases what its children had in theirs when they were killed, and so does a copy of it. A
//! program of its own: any other test would use one.
#![allow(unsafe_code)]

use mp::queue::bounded_channel;
use mp::{Arena, Queue, SpawnOptions, StartMethod, Tensor, start_processes};
use mp_tests::kill::killed;
use mp_tests::{Outcome, alone, eventually, in_use, join, one_process};
use rustix::process::{Signal, getpid, kill_process};

/// As many as would be noticed whatever each leaves.
const CHILDREN: usize = 20;

/// Dies with messages in its queues: small ones, envelopes, tensors, a queue in a queue, and one that it has taken on lease.
fn die_with_queues(_: usize, (): ()) -> Outcome {
    let small = Queue::bounded(100)?;
    let tensors = Queue::unbounded()?;
    let (sender, receiver) = bounded_channel(4)?;
    for i in 0..50_u64 {
        small.put(i)?;
        tensors.put((vec![7_u8; 300], Tensor::<u64>::full([1000], i)?.freeze()))?;
    }
    sender.send(small.clone())?;
    let leased = tensors.get_ack()?;
    assert!(leased.is_some() && receiver.try_recv().is_ok());
    kill_process(getpid(), Signal::KILL)?;
    Err("it outlived SIGKILL".into())
}

/// Starts one child after the other that dies so.
fn nothing_is_left_of_killed_children() {
    let die = |_: usize| assert!(killed(&one_process(die_with_queues, ())));
    let swept = || Arena::current().unwrap().sweep().unwrap();
    let bytes = || Arena::current().unwrap().memory_stats().allocated;
    // The first process brings along what stays.
    join(&one_process(|_, (): ()| {}, ())).unwrap();
    let before = (in_use(), bytes());
    (0..CHILDREN).for_each(die);
    eventually("nothing is left of children that were killed", || {
        swept();
        (in_use(), bytes()) == before
    });
}

#[test]
fn a_process_that_never_used_a_queue_releases_those_of_killed_children() {
    let _alone = alone();
    nothing_is_left_of_killed_children();
}

/// In a copy the library was loaded by its original.
#[test]
fn a_copy_of_such_a_process_does_so_too() {
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
