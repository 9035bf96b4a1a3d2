//! A process allocates tensors of three sizes for the first time, and is stopped at its n-th change, for
//! every n. Each size needs a new slab, whose creation changes several words at once. No other process waits
//! for the stopped process: other processes create slabs of further sizes, and new members join and create
//! slabs, too. Programs that must begin without shared memory are this program, started again.

use mp::{Arena, FrozenTensor, Queue, Tensor};
use mp_core::inject;
use mp_tests::kill::until_the_end;
use mp_tests::scratch::Scratch;
use mp_tests::{DEADLINE, Outcome, join, one_process, signal, threads_are};
use rustix::process::Signal;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Returns tensors of three sizes. Each contains its size.
fn make(sizes: [usize; 3]) -> Vec<FrozenTensor<u64>> {
    sizes.map(|bytes| Tensor::full([bytes / 8], bytes as u64).unwrap().freeze()).into()
}

fn check(all: &[FrozenTensor<u64>]) {
    for t in all {
        assert!(t.iter().all(|bytes| bytes == 8 * t.len() as u64), "two tensors overlap");
    }
}

fn stops(_: usize, at: u64) -> Outcome {
    Arena::current()?;
    inject::arm_at_change(at, Signal::STOP.as_raw());
    check(&make([5 * KIB, 100 * KIB, 3 * MIB]));
    Ok(())
}

/// Joins the arena while the other process is stopped.
fn joins(_: usize, results: Queue<FrozenTensor<u64>>) -> Outcome {
    for t in make([9 * KIB, 40 * KIB, 7 * MIB]) {
        results.put(t)?;
    }
    Ok(())
}

pub(crate) fn update_next_to_a_stopped_process(at: u64) {
    let arena = Arena::current().unwrap();
    let context = one_process(stops, at);
    let mut ended = false;
    mp_tests::eventually("the process stops or ends", || {
        ended = context.join_timeout(std::time::Duration::ZERO).unwrap();
        ended || threads_are(context.pids()[0], 'T')
    });
    let mut all = make([7 * KIB, 200 * KIB, 5 * MIB]);
    let results = Queue::unbounded().unwrap();
    join(&one_process(joins, results.clone())).unwrap();
    for _ in 0..3 {
        all.push(results.get_timeout(DEADLINE).unwrap().unwrap());
    }
    check(&all);
    if !ended {
        signal(context.pids()[0], Signal::CONT);
        join(&context).unwrap();
    }
    check(&all);
    drop((all, results));
    arena.reclaim().unwrap();
    let stats = arena.memory_stats();
    assert_eq!((stats.live_blocks, stats.queued, stats.members), (0, 0, 1), "{stats:#?}");
    println!("{}", if ended { "to the end" } else { "on the way" });
}

#[test]
fn process_stopped_in_slab_creation_delays_no_other() {
    let scratch = Scratch::new("slabs");
    until_the_end(60, |at| !scratch.run(&format!("stopped {at}")).contains("to the end"));
}
