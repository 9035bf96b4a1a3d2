//! Processes that are killed while they write a checkpoint.

use std::fs;
use std::path::PathBuf;

use mp::Queue;
use mp_core::inject;
use mp_tests::kill::{KILL, for_every_access, killed};
use mp_tests::scratch::Scratch;
use mp_tests::{Outcome, eventually, one_process, signal};
use rustix::process::Signal;

use crate::{Numbered, numbered, numbers, numbers_in};

/// Returns a queue that contains messages with attachments, and has room for a lease.
fn filled(messages: u32, len: usize) -> Queue<Numbered> {
    let queue = Queue::bounded(messages as usize).unwrap();
    (0..messages).for_each(|n| queue.put(numbered(n, len)).unwrap());
    queue
}

fn writes_at(_: usize, (queue, path, at): (Queue<Numbered>, PathBuf, u64)) -> Outcome {
    inject::arm(at, KILL);
    queue.checkpoint(path)?;
    Ok(())
}

#[test]
fn checkpoint_writer_killed_anywhere_changes_nothing() {
    let scratch = Scratch::new("accesses");
    let path = scratch.0.join("queue");
    for_every_access(|at| {
        let queue = filled(3, 40);
        let reached = killed(&one_process(writes_at, (queue.clone(), path.clone(), at)));
        if !reached {
            assert_eq!(numbers_in(&path), [0, 1, 2]);
        }
        assert_eq!(numbers(&queue), [0, 1, 2]);
        reached
    });
}

fn writes_forever(_: usize, (queue, path): (Queue<Numbered>, PathBuf)) -> Outcome {
    loop {
        queue.checkpoint(&path)?;
    }
}

#[test]
fn killed_checkpoint_writer_leaves_a_whole_file() {
    const MESSAGES: u32 = 8;
    let scratch = Scratch::new("whole");
    let (path, partial) = (scratch.0.join("queue"), scratch.0.join("queue.mp-partial"));
    let queue = filled(MESSAGES, 1 << 20);
    queue.checkpoint(&path).unwrap();
    let whole = fs::metadata(&path).unwrap().len();
    for round in 0..40 {
        let before = fs::metadata(&path).unwrap();
        let writer = one_process(writes_forever, (queue.clone(), path.clone()));
        let at = whole * round / 39;
        eventually("the file grows", || fs::metadata(&partial).is_ok_and(|file| file.len() >= at));
        signal(writer.pids()[0], Signal::KILL);
        assert!(killed(&writer));
        assert_eq!(before.len(), whole);
        assert!(numbers_in(&path).into_iter().eq(0..MESSAGES), "round {round}");
        assert_eq!(queue.len(), MESSAGES as usize);
    }
    // A later checkpoint ignores the partial file of a killed writer.
    queue.checkpoint(&path).unwrap();
    assert!(!partial.exists());
    assert!(numbers(&queue).into_iter().eq(0..MESSAGES));
}
