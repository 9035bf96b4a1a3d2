//! Workers that join the shared memory when they first use it. Most workers never use it, and so never join.
//! Workers that use it become members as usual.

use mp::{Arena, FrozenTensor, Process, SpawnOptions, Tensor, start_processes};
use mp_core::inject;
use mp_tests::kill::{for_every_access, killed};
use mp_tests::{DEADLINE, Outcome, alone, eventually, join, one_process};
use rustix::process::Signal;

/// Returns the number of members, and the number of live blocks.
fn there() -> (usize, u64) {
    let s = Arena::current().unwrap().memory_stats();
    (s.members as usize, s.live_blocks)
}

fn members_seen((): ()) -> mp::AnyResult<usize> {
    Ok(Arena::current()?.members().iter().filter(|m| m.live).count())
}

#[test]
fn worker_without_tensors_is_not_a_member() {
    let _alone = alone();
    let before = there();
    let worker = |_: usize, name: String| -> Outcome {
        // Asking for the arena would make this process a member, so it is not asked for.
        assert_eq!(name, "nothing shared");
        std::thread::park_timeout(DEADLINE);
        Ok(())
    };
    let context = start_processes(worker, "nothing shared".to_string(), SpawnOptions::nprocs(2)).unwrap();
    assert_eq!(there(), before);
    (0..2).for_each(|rank| context.kill(rank).unwrap());
    assert!(join(&context).is_err());
    assert_eq!(
        Process::spawn(members_seen, ()).unwrap().join().unwrap(),
        2,
        "the process that asks is a member"
    );
}

#[test]
fn tensors_of_a_process_that_joined_late_arrive() {
    let _alone = alone();
    let before = there();
    let worker = |(rows, value): (usize, f32)| -> mp::AnyResult<FrozenTensor<f32>> {
        Ok(Tensor::full([rows, 1000], value)?.freeze())
    };
    let got = Process::spawn(worker, (500, 0.5)).unwrap().join().unwrap();
    assert_eq!((got.shape(), got.iter().sum::<f32>()), (&[500, 1000][..], 250_000.0));
    drop(got);
    eventually("all memory is released", || {
        Arena::current().unwrap().reclaim().unwrap();
        there() == before
    });
}

fn join_and_die(_: usize, at: u64) -> Outcome {
    inject::arm(at, Signal::KILL.as_raw());
    let kept = Tensor::<u64>::zeros([100])?.freeze();
    drop(Tensor::<u64>::zeros([100_000])?);
    drop(kept);
    Ok(())
}

#[test]
fn late_joiner_killed_at_any_access_leaks_nothing() {
    // The child is killed before its parent knows its member, so that only its locks show its death.
    for_every_access(|at| killed(&one_process(join_and_die, at)));
}
