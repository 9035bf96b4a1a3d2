//! Limits of descriptors: of a process, and of all descriptors of a user that are in messages.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use mp::{Fd, GetError, PutError, Queue};
use mp_tests::limits::{Resource, limit};
use mp_tests::scratch::Scratch;
use mp_tests::{DEADLINE, Outcome, alone, join, one_process, open_files, take};
use rustix::process::{Rlimit, setrlimit};

use crate::{pipe, said};

/// Number of messages through a queue.
const MANY: u32 = 10_000;
/// Limit of open descriptors (`ulimit -n`) of the sender and of the receiver.
const FEW: u64 = 64;
/// Variable with the scenario of this program when it runs as another user.
const HELPER: &str = "MP_TESTS_DESCRIPTORS";
const STRANGER: u32 = 65_534;

fn receive_many(_: usize, queue: Queue<(u32, Fd<PipeReader>)>) -> Outcome {
    limit(Resource::Nofile, FEW);
    for i in 0..MANY {
        let (number, mut reader) = queue.get_timeout(DEADLINE)?.ok_or("closed")?;
        let mut text = String::new();
        reader.0.read_to_string(&mut text)?;
        assert_eq!((number, text), (i, i.to_string()));
    }
    assert!(open_files() < FEW as usize);
    Ok(())
}

fn send_many(_: usize, queue: Queue<(u32, Fd<PipeReader>)>) -> Outcome {
    limit(Resource::Nofile, FEW);
    for i in 0..MANY {
        let (reader, mut writer) = std::io::pipe()?;
        write!(writer, "{i}")?;
        drop(writer);
        mp_tests::send(&queue, (i, Fd(reader)))?;
    }
    Ok(())
}

fn ten_thousand(bound: usize) {
    let queue = Queue::bounded(bound).unwrap();
    let receiver = one_process(receive_many, queue.clone());
    let sender = one_process(send_many, queue);
    join(&sender).unwrap();
    join(&receiver).unwrap();
}

#[test]
fn ten_thousand_fds_arrive_despite_a_low_limit() {
    let _alone = alone();
    ten_thousand(1000);
}

/// The program runs as another user, whose number of descriptors in messages the kernel limits, too.
#[test]
fn ten_thousand_fds_arrive_at_an_unprivileged_user() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return mp_harness::skip("only root can start processes of other users");
    }
    let scratch = Scratch::new("unprivileged");
    let program = scratch.0.join("program");
    let own = std::env::current_exe().unwrap();
    let made = Command::new("install").args(["-m", "755"]).arg(own).arg(&program).status();
    assert!(made.unwrap().success());
    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&program);
    command.args(["helper", "--nocapture", "--test-threads=1"]).env(HELPER, "1").env_remove("MP_LEAKS");
    command.current_dir("/").gid(STRANGER).uid(STRANGER).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Entry of the program that runs as another user. Not a test.
#[test]
fn helper() {
    if std::env::var_os(HELPER).is_none() {
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(FEW), maximum: Some(FEW) }).unwrap();
    // The queue has room, but only some of the messages fit into the limit: the others wait.
    ten_thousand(1000);
    let queue = Queue::unbounded().unwrap();
    let mut readers = Vec::new();
    let refused = loop {
        let (reader, writer) = pipe();
        readers.push(reader);
        match queue.put(Fd(writer)) {
            Ok(()) if readers.len() < 50 => {}
            other => break other,
        }
    };
    let Err(PutError::Failed { value, error }) = refused else {
        panic!("{refused:?} after {}", readers.len())
    };
    let text = error.to_string();
    assert!(text.contains("in messages in flight") && text.contains("ulimit -n"), "{text}");
    // Other resources are not exhausted, and the unsent message is returned.
    File::from(value.0).write_all(b"mine").unwrap();
    assert_eq!(said(readers.pop().unwrap()), "mine");
    for reader in readers {
        drop(take(&queue));
        assert_eq!(said(reader), "");
    }
    let (reader, writer) = pipe();
    queue.put(Fd(writer)).unwrap();
    drop(queue);
    assert_eq!(said(reader), "");
}

/// Opens descriptors until this process has reached its limit.
fn fill() -> Vec<OwnedFd> {
    std::iter::from_fn(|| Some(File::open("/dev/null").ok()?.into())).collect()
}

fn too_few(_: usize, (queue, put): (Queue<Vec<Fd>>, Queue<Fd>)) -> Outcome {
    limit(Resource::Nofile, FEW);
    let (reader, writer) = pipe();
    let full = fill();
    let error = queue.get_timeout(DEADLINE).unwrap_err();
    let GetError::Failed(_) = &error else { panic!("{error}") };
    let text = error.to_string();
    assert!(text.contains("RLIMIT_NOFILE") && text.contains("limit of 64 descriptors"), "{text}");
    let Err(PutError::Failed { value, error }) = put.put(Fd(writer)) else { panic!("there is no room") };
    let text = error.to_string();
    assert!(text.contains("RLIMIT_NOFILE") && text.contains("limit of 64 descriptors"), "{text}");
    drop(full);
    // The message has returned to the front of the queue.
    let fds = queue.get_timeout(DEADLINE)?.ok_or("closed")?;
    for (i, fd) in fds.into_iter().enumerate() {
        File::from(fd.0).write_all(i.to_string().as_bytes())?;
    }
    assert_eq!(queue.get_timeout(DEADLINE)?.ok_or("closed")?.len(), 0);
    put.put(value)?;
    drop(put);
    assert_eq!(said(reader), "");
    Ok(())
}

#[test]
fn descriptors_arrive_despite_a_shortage() {
    let _alone = alone();
    let (queue, put) = (Queue::bounded(2).unwrap(), Queue::bounded(1).unwrap());
    let (readers, writers): (Vec<_>, Vec<_>) = (0..7).map(|_| pipe()).unzip();
    queue.put(writers.into_iter().map(Fd).collect()).unwrap();
    queue.put(Vec::new()).unwrap();
    let worker = one_process(too_few, (queue, put.clone()));
    drop(put);
    join(&worker).unwrap();
    for (i, reader) in readers.into_iter().enumerate() {
        assert_eq!(said(reader), i.to_string());
    }
}

/// A process that lacks descriptors can't close the descriptors of a dropped message. They are closed with
/// the next message that contains descriptors.
fn drops_later(_: usize, queue: Queue<Fd>) -> Outcome {
    limit(Resource::Nofile, FEW);
    let mine = Queue::bounded(1)?;
    let (reader, writer) = pipe();
    mine.put(Fd(writer))?;
    let full = fill();
    drop(mine);
    drop(full);
    drop(queue.get_timeout(DEADLINE)?);
    let (_reader, writer) = pipe();
    queue.put(Fd(writer))?;
    assert_eq!(said(reader), "");
    Ok(())
}

#[test]
fn message_dropped_without_spare_fds_is_closed_later() {
    let _alone = alone();
    let queue = Queue::bounded(2).unwrap();
    let (_reader, writer) = pipe();
    queue.put(Fd(writer)).unwrap();
    join(&one_process(drops_later, queue)).unwrap();
}

/// The message contains more descriptors than one compartment holds.
#[test]
fn many_descriptors_fit_a_message() {
    let _alone = alone();
    const IN_ONE: usize = 600;
    let queue = Queue::bounded(1).unwrap();
    let (reader, writer) = pipe();
    queue.put((0..IN_ONE).map(|_| Fd(writer.try_clone().unwrap())).collect::<Vec<_>>()).unwrap();
    drop(writer);
    for fd in take(&queue) {
        File::from(fd.0).write_all(b".").unwrap();
    }
    assert_eq!(said(reader), ".".repeat(IN_ONE));
}
