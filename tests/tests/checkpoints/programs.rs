//! Files that move between programs, and file systems without space.

use std::fs;
use std::path::{Path, PathBuf};

use mp::memory::{SharingStrategy, set_sharing_directory, set_sharing_strategy};
use mp::process::start_processes;
use mp::queue::CheckpointError;
use mp::{Queue, SpawnOptions};
use mp_tests::scratch::Scratch;
use mp_tests::{Outcome, join, next, one_process, send, take};

use crate::{Numbered, numbered, numbers, numbers_in};

/// Writes a checkpoint of a queue of which one message is leased.
pub(crate) fn writes(directory: &Path) {
    let queue = Queue::bounded(8).unwrap();
    (0..5_u64).for_each(|n| queue.put(format!("{n}").repeat(1000)).unwrap());
    let _lease = queue.get_lease().unwrap();
    assert_eq!(queue.checkpoint(directory.join("jobs")).unwrap(), 5);
}

fn first_digits(_: usize, (jobs, digits): (Queue<String>, Queue<u8>)) -> Outcome {
    while let Some(job) = next(&jobs)? {
        send(&digits, job.as_bytes()[0])?;
    }
    Ok(())
}

/// Another program has another arena, as on another host.
#[test]
fn queue_of_another_program_is_continued_by_workers() {
    let scratch = Scratch::new("continued");
    scratch.run("writes");
    let jobs = Queue::<String>::restore(scratch.0.join("jobs")).unwrap();
    let digits = Queue::bounded(8).unwrap();
    let workers =
        start_processes(first_digits, (jobs.clone(), digits.clone()), SpawnOptions::nprocs(2)).unwrap();
    let mut all: Vec<u8> = (0..5).map(|_| take(&digits)).collect();
    all.sort_unstable();
    assert_eq!(all, b"01234");
    jobs.close();
    join(&workers).unwrap();
}

/// Writes checkpoints on a file system of 4 MiB. The second one does not fit.
pub(crate) fn full(directory: &Path) {
    let path = directory.join("queue");
    let queue = Queue::<Numbered>::bounded(4).unwrap();
    queue.put(numbered(0, 100_000)).unwrap();
    queue.checkpoint(&path).unwrap();
    queue.put(numbered(1, 8 << 20)).unwrap();
    let error = queue.checkpoint(&path).unwrap_err();
    assert!(matches!(error, CheckpointError::NoSpace { .. }), "{error}");
    assert!(error.to_string().starts_with("no space to write "), "{error}");
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1, "the partial file is removed");
    assert_eq!(numbers_in(&path), [0]);
    assert_eq!(numbers(&queue), [0, 1]);
}

#[test]
fn full_file_system_keeps_old_checkpoint_and_queue() {
    _ = Scratch::new("full").run_mounted("size=4m", "full");
}

fn puts_files(_: usize, (queue, directory): (Queue<Numbered>, PathBuf)) -> Outcome {
    set_sharing_strategy(SharingStrategy::FileSystem)?;
    set_sharing_directory(directory)?;
    for number in 0..3 {
        send(&queue, numbered(number, 100_000))?;
    }
    Ok(())
}

/// Writes messages whose memory is in a file that only their producer has mapped.
pub(crate) fn files(directory: &Path) {
    let queue = Queue::bounded(3).unwrap();
    join(&one_process(puts_files, (queue.clone(), directory.to_owned()))).unwrap();
    let path = directory.join("queue");
    assert_eq!(queue.checkpoint(&path).unwrap(), 3);
    assert_eq!(numbers_in(&path), [0, 1, 2]);
    assert_eq!(numbers(&queue), [0, 1, 2]);
}

#[test]
fn checkpoint_contains_memory_in_files_of_a_producer() {
    Scratch::new("files").run("files");
}
