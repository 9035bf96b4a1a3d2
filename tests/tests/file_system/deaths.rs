//! Deaths of processes that use named files: a creator dies at every access, or all processes die at once.
//! Also files that other programs remove. Programs that must begin without shared memory are this program,
//! started again.

use std::fs;
use std::path::Path;

use mp::{Arena, FrozenTensor, Queue, SpawnOptions, Tensor, start_processes};
use mp_core::inject;
use mp_tests::kill::until_the_end;
use mp_tests::scratch::{Scratch, files_in};
use mp_tests::{Outcome, alone, give, join, next, one_process, send, take, threads_are};
use rustix::process::{Signal, kill_process};

use crate::KIB;

const MIB: usize = 1 << 20;
/// Prefix of lines in which a program names its workers.
const WORKER: &str = "worker: ";

pub(crate) fn first_use(directory: &Path) {
    files_in(directory);
    let kept = Tensor::<u64>::full([100], 1).unwrap();
    let large = Tensor::<u64>::full([100 * KIB], 2).unwrap().freeze();
    drop(kept);
    Arena::current().unwrap().empty_cache().unwrap();
    assert_eq!(large.get(&[77]).unwrap(), 2);
}

#[test]
fn message_outlives_its_sender_despite_cleanup() {
    let _alone = alone();
    fn worker(_: usize, (directory, queue): (String, Queue<FrozenTensor<u8>>)) -> Outcome {
        files_in(Path::new(&directory));
        send(&queue, Tensor::full([MIB], 5)?.freeze())?;
        Ok(kill_process(rustix::process::getpid(), Signal::KILL)?)
    }
    let scratch = Scratch::new("in-flight");
    let queue = Queue::bounded(1).unwrap();
    let args = (scratch.0.to_str().unwrap().to_owned(), queue.clone());
    mp_tests::failure(&one_process(worker, args));
    // No process has the file open: this process hasn't opened the message.
    let left = scratch.files();
    assert_eq!(left.len(), 1);
    scratch.run("use");
    assert_eq!(scratch.files(), left, "another program has removed a file that is in use");
    let t = take(&queue);
    assert!(t.len() == MIB && t.iter().all(|v| v == 5));
}

/// Runs a tree of busy processes, until the test kills all of them at once.
pub(crate) fn all_killed(directory: &Path) {
    type Args = (Queue<FrozenTensor<u8>>, Queue<u8>, Queue<()>);
    fn worker(rank: usize, (there, back, end): Args) -> Outcome {
        let _own = Tensor::<u8>::full([MIB], rank as u8)?;
        let _got = next(&there)?;
        send(&back, 1)?;
        // Waits until it is killed with the others.
        drop(next(&end));
        Ok(())
    }
    files_in(directory);
    let (there, back, end) =
        (Queue::bounded(4).unwrap(), Queue::bounded(2).unwrap(), Queue::bounded(1).unwrap());
    let args = (there.clone(), back.clone(), end.clone());
    let context = start_processes(worker, args, SpawnOptions::nprocs(2)).unwrap();
    (0..2).for_each(|_| give(&there, Tensor::full([MIB], 1).unwrap().freeze()));
    assert_eq!((take(&back), take(&back)), (1, 1));
    for pid in context.pids() {
        println!("\n{WORKER}{pid}");
    }
    for pid in context.pids() {
        mp_tests::signal(pid, Signal::KILL);
    }
    kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
}

#[test]
fn next_start_removes_files_of_dead_processes() {
    let scratch = Scratch::new("all-killed");
    for round in 0..5 {
        let output = scratch.program("all-killed").output().unwrap();
        assert!(!output.status.success());
        // A killed process closes its output before it releases its files.
        let said = String::from_utf8_lossy(&output.stdout);
        let workers: Vec<u32> = said
            .lines()
            .filter_map(|line| line.strip_prefix(WORKER))
            .map(|pid| pid.parse().unwrap())
            .collect();
        assert_eq!(workers.len(), 2, "{said}");
        mp_tests::eventually("all processes have ended", || {
            workers.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists() || threads_are(*pid, 'Z'))
        });
        assert!(!scratch.files().is_empty(), "round {round}: no files were left to remove");
        scratch.run("use");
        assert!(!scratch.ours().exists(), "round {round}: {:?}", scratch.files());
    }
}

#[test]
fn files_of_program_killed_in_first_use_are_removed() {
    let scratch = Scratch::new("killed");
    let mut left = 0;
    until_the_end(100, |at| {
        let output = scratch.program(&format!("killed {at}")).output().unwrap();
        if output.status.success() {
            assert!(left > 20, "only after {left} accesses was there a file left");
            assert!(!scratch.ours().exists(), "{:?}", scratch.files());
            return false;
        }
        left += usize::from(!scratch.files().is_empty());
        // A check after each round would be slow. Meanwhile, the names of all leftover files add up.
        if at % 7 == 0 {
            scratch.run("use");
            assert!(!scratch.ours().exists(), "killed at access {at}: {:?}", scratch.files());
        }
        true
    });
}

/// Starts a child that dies, or stops, at the n-th access of its first use of files. This process then uses
/// the same directory.
pub(crate) fn child_at(directory: &Path, at: u64, signal: Signal) {
    fn worker(_: usize, (directory, at, signal): (String, u64, i32)) -> Outcome {
        inject::arm(at, signal);
        first_use(Path::new(&directory));
        Ok(())
    }
    let arena = Arena::current().unwrap();
    let args = (directory.to_str().unwrap().to_owned(), at, signal.as_raw());
    let context = one_process(worker, args);
    let pid = context.pids()[0];
    let mut ended = false;
    if signal == Signal::STOP {
        mp_tests::eventually("the process stops or ends", || {
            ended = context.join_timeout(std::time::Duration::ZERO).unwrap();
            ended || mp_tests::threads_are(pid, 'T')
        });
    } else {
        ended = join(&context).is_ok();
    }
    files_in(directory);
    // No process waits for the child, at whatever access it is stopped.
    assert!(Tensor::<u64>::full([5000], 3).unwrap().iter().all(|v| v == 3));
    if signal == Signal::STOP && !ended {
        mp_tests::signal(pid, Signal::CONT);
        join(&context).unwrap();
    }
    arena.reclaim().unwrap();
    let stats = arena.memory_stats();
    assert_eq!((stats.live_blocks, stats.queued, stats.members), (0, 0, 1), "{stats:#?}");
    let ours = directory.join(format!("mp-{}", rustix::process::getuid().as_raw()));
    let files = fs::read_dir(ours).unwrap().count();
    let most = if signal == Signal::STOP { 2 } else { 1 };
    assert!(files <= most, "{files} files: unfinished files still exist");
    println!("{}", if ended { "to the end" } else { "on the way" });
}

fn children_at_every_access(scenario: &str, least: u64) {
    let scratch = Scratch::new(scenario);
    until_the_end(least, |at| {
        let said = scratch.run(&format!("{scenario} {at}"));
        assert!(!scratch.ours().exists(), "at access {at}: {:?}", scratch.files());
        !said.contains("to the end")
    });
}

#[test]
fn files_of_child_killed_in_first_use_are_removed() {
    children_at_every_access("child-killed", 100);
}

#[test]
fn files_of_child_stopped_in_creation_are_removed() {
    children_at_every_access("child-stopped", 40);
}
