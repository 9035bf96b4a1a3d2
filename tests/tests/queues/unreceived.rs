//! Handles that were sent to a process which never took them, or that were in a message which was never
//! taken. They count as dropped at once.

use std::fs::File;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mp::connection::Connection;
use mp::process::{Backoff, ProcessBuilder, Restart};
use mp::queue::{broadcast, watch};
use mp::{GetError, Process, Queue, SpawnOptions, channel, pipe, start_processes};
use mp_tests::scratch::Scratch;
use mp_tests::{DEADLINE, Outcome, alone, eventually, give, one_process};

/// Returns a program that is not a worker and fails.
fn fails() -> ProcessBuilder {
    Process::builder().name("sorter").command(["/bin/false"])
}

fn uses(_: (Queue<u32>, Queue<u32>)) -> Outcome {
    Ok(())
}

/// Returns the error of a get without a time-out, which must end within the deadline.
fn end_of_get(queue: Queue<u32>) -> GetError {
    let (report, reported) = mpsc::channel();
    thread::spawn(move || _ = report.send(queue.get()));
    reported.recv_timeout(DEADLINE).expect("the get ends").expect_err("an error")
}

#[track_caller]
fn names_the_failure(error: &GetError) {
    let text = error.to_string();
    let all = ["never received it", "sorter", "/bin/false", "exited with code 1"];
    assert!(all.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn get_ends_when_the_only_peer_fails_to_start() {
    let _alone = alone();
    let (a, b) = (Queue::<u32>::bounded(1).unwrap(), Queue::<u32>::bounded(1).unwrap());
    let process = fails().spawn(uses, (a, b.clone())).unwrap();
    let error = b.get_timeout(DEADLINE).expect_err("no process has it");
    names_the_failure(&error);
    assert!(matches!(error, GetError::Deserted { last: None, pid } if pid == process.pid()), "{error}");
    assert!(process.join().is_err());
}

#[test]
fn failed_process_start_wakes_a_sleeping_get() {
    let _alone = alone();
    let (a, b) = (Queue::<u32>::bounded(1).unwrap(), Queue::<u32>::bounded(1).unwrap());
    let scratch = Scratch::new("unreceived");
    let end = scratch.0.join("end");
    assert!(Command::new("mkfifo").arg(&end).status().unwrap().success());
    let script = format!("read line < {}; exit 1", end.display());
    let sorter = Process::builder().command(["/bin/sh", "-c", &script]);
    let process = sorter.spawn(uses, (a.clone(), b.clone())).unwrap();
    let getter = thread::spawn(move || b.get());
    // This open blocks until the process reads, and the process reads until this file is closed.
    drop(File::options().write(true).open(end).unwrap());
    eventually("the get ends", || getter.is_finished());
    assert!(matches!(getter.join().unwrap(), Err(GetError::Deserted { .. })));
    assert!(process.join().is_err());
}

#[test]
fn failed_process_start_disconnects_channels() {
    let _alone = alone();
    let (sender, receiver) = channel::<u32>().unwrap();
    let function = |_: usize, _: mp::Sender<u32>| {};
    let options = SpawnOptions::nprocs(2).executable("/bin/false");
    let context = start_processes(function, sender, options).unwrap();
    assert!(matches!(receiver.recv_timeout(DEADLINE), Err(GetError::Disconnected)));
    assert!(context.wait().is_err());
}

type Senders = (broadcast::Sender<u32>, watch::Sender<u32>, Connection);

#[test]
fn failed_process_start_ends_other_receivers() {
    let _alone = alone();
    let (sends, hears) = broadcast::channel::<u32>(4).unwrap();
    let (shows, sees) = watch::channel(1_u32).unwrap();
    let (here, there) = pipe().unwrap();
    let process = fails().spawn(|_: Senders| {}, (sends, shows, there)).unwrap();
    assert!(matches!(hears.recv_timeout(DEADLINE), Err(broadcast::RecvError::Closed)));
    let seen = sees.wait_changed_timeout(DEADLINE);
    // The first value may not have been seen yet.
    let seen = if seen.is_ok() { sees.wait_changed_timeout(DEADLINE) } else { seen };
    assert!(seen.as_ref().is_err_and(GetError::is_disconnected), "{seen:?}");
    assert!(here.recv_timeout::<u32>(DEADLINE).is_err_and(|error| error.is_disconnected()));
    assert!(process.join().is_err());
}

#[test]
fn supervised_failed_starts_keep_gets_until_the_last() {
    let _alone = alone();
    let (a, b) = (Queue::<u32>::bounded(1).unwrap(), Queue::<u32>::bounded(1).unwrap());
    let restart = Restart::OnFailure { max: 3, backoff: Backoff::new(Duration::from_millis(1)) };
    let process = fails().restart(restart).spawn(uses, (a, b.clone())).unwrap();
    names_the_failure(&end_of_get(b));
    let error = process.join().unwrap_err().to_string();
    assert!(error.contains("attempt") || error.contains("given up") || error.contains("restart"), "{error}");
}

#[test]
fn discarded_message_ends_gets_of_its_queue() {
    let _alone = alone();
    let (outer, inner) = (Queue::bounded(1).unwrap(), Queue::<u32>::bounded(1).unwrap());
    give(&outer, inner.clone());
    assert!(inner.get_timeout(Duration::from_millis(1)).unwrap_err().is_empty());
    drop(outer);
    let error = end_of_get(inner);
    assert!(matches!(error, GetError::Deserted { last: None, pid: 0 }), "{error}");
}

#[test]
fn failed_put_keeps_gets_of_its_queue() {
    let _alone = alone();
    let (outer, inner) = (Queue::bounded(1).unwrap(), Queue::<u32>::bounded(1).unwrap());
    give(&outer, inner.clone());
    drop(outer.try_put(inner.clone()).unwrap_err());
    drop(outer.try_get().unwrap());
    assert!(inner.get_timeout(Duration::from_millis(300)).unwrap_err().is_empty());
}

fn fails_at_once(_: usize, _: Queue<u32>) -> Outcome {
    Err("the disk is full".into())
}

#[test]
fn deserted_error_names_the_failure_of_a_child() {
    let _alone = alone();
    let queue = Queue::<u32>::bounded(1).unwrap();
    let context = one_process(fails_at_once, queue.clone());
    let error = queue.get_timeout(DEADLINE).expect_err("no process has it").to_string();
    assert!(error.contains("the disk is full") && error.contains("rank 0"), "{error}");
    assert!(context.wait().is_err());
}
