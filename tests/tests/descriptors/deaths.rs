//! Deaths of processes, and the descriptors that must be closed because of them.

use std::fs::File;
use std::io::Write;

use mp::{Arena, Fd, Lease, Queue};
use mp_core::{FdSlots, inject};
use mp_tests::kill::{KILL, STOP, for_every_access, killed, stopped, until_the_end};
use mp_tests::{DEADLINE, Outcome, alone, one_process, take};
use rustix::process::{Pid, Signal, kill_process};

use crate::{pipe, said};

const MESSAGES: usize = 3;

#[test]
fn dropped_queue_closes_descriptors_in_messages() {
    let _alone = alone();
    let queue = Queue::bounded(10).unwrap();
    let (readers, writers): (Vec<_>, Vec<_>) = (0..10).map(|_| pipe()).unzip();
    writers.into_iter().for_each(|writer| queue.put(Fd(writer)).unwrap());
    drop(queue);
    readers.into_iter().for_each(|reader| assert_eq!(said(reader), ""));
}

#[test]
fn killed_consumer_closes_received_descriptors() {
    let _alone = alone();
    let (got, queue) = (Queue::<()>::bounded(1).unwrap(), Queue::<Vec<Fd>>::bounded(1).unwrap());
    let worker = |_: usize, (got, queue): (Queue<()>, Queue<Vec<Fd>>)| -> Outcome {
        let _fds = queue.get_timeout(DEADLINE)?.ok_or("closed")?;
        got.put(())?;
        rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
        Ok(())
    };
    let context = one_process(worker, (got.clone(), queue.clone()));
    let (reader, writer) = pipe();
    queue.put(vec![Fd(writer)]).unwrap();
    take(&got);
    assert!(stopped(&context));
    kill_process(Pid::from_raw(context.pids()[0] as i32).unwrap(), Signal::KILL).unwrap();
    assert!(killed(&context));
    assert_eq!(said(reader), "");
}

/// The next consumer gets the same descriptor.
#[test]
fn killed_leaseholder_returns_the_descriptors() {
    let _alone = alone();
    let queue = Queue::<Fd>::bounded(1).unwrap();
    let worker = |_: usize, queue: Queue<Fd>| -> Outcome {
        let lease: Lease<Fd> = queue.get_lease_timeout(DEADLINE)?.ok_or("closed")?;
        File::from(lease.0.try_clone()?).write_all(b"first ")?;
        rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)?;
        Ok(())
    };
    let (reader, writer) = pipe();
    queue.put(Fd(writer)).unwrap();
    assert!(killed(&one_process(worker, queue.clone())));
    let lease = queue.get_lease_timeout(DEADLINE).unwrap().unwrap();
    File::from(lease.ack().0).write_all(b"second").unwrap();
    assert_eq!(said(reader), "first second");
}

/// Script with all kinds of accesses to the locker: takes and returns compartments, adds a pair of sockets,
/// and fills, reads and empties it.
fn all_the_way(_: usize, (queue, at, signal): (Queue<Fd>, u64, i32)) -> Outcome {
    inject::arm(at, signal);
    let mut readers = Vec::new();
    for _ in 0..MESSAGES {
        let (reader, writer) = std::io::pipe()?;
        queue.put(Fd(writer.into()))?;
        readers.push(reader);
    }
    for reader in &mut readers {
        let fd = queue.get_timeout(DEADLINE)?.ok_or("closed")?;
        File::from(fd.0).write_all(b"whole")?;
        let mut text = String::new();
        std::io::Read::read_to_string(reader, &mut text)?;
        assert_eq!(text, "whole");
    }
    Ok(())
}

#[test]
fn process_killed_during_fd_transfer_leaks_nothing() {
    for_every_access(|at| {
        let queue = Queue::bounded(4).unwrap();
        let killed = killed(&one_process(all_the_way, (queue.clone(), at, KILL)));
        // The messages of the killed process can still be read, which closes their descriptors.
        while let Ok(Some(fd)) = queue.try_get() {
            drop(fd);
        }
        killed
    });
}

/// A stopped process keeps its messages until it is killed. Other processes do not wait for it.
#[test]
fn others_continue_while_a_descriptor_user_is_stopped() {
    // The locker has enough compartments for all. A process that is stopped while it adds one would prevent
    // other processes from adding.
    let first = Queue::bounded(8).unwrap();
    (0..8).for_each(|_| first.put(Fd(pipe().1)).unwrap());
    drop(first);
    for_every_access(|at| {
        let (its, mine) = (Queue::bounded(4).unwrap(), Queue::bounded(4).unwrap());
        let context = one_process(all_the_way, (its.clone(), at, STOP));
        let stopped = stopped(&context);
        let (readers, writers): (Vec<_>, Vec<_>) = (0..MESSAGES).map(|_| pipe()).unzip();
        writers.into_iter().enumerate().for_each(|message| mine.put((message.0, Fd(message.1))).unwrap());
        for (i, reader) in readers.into_iter().enumerate() {
            let (number, fd) = take(&mine);
            assert_eq!(number, i);
            File::from(fd.0).write_all(i.to_string().as_bytes()).unwrap();
            assert_eq!(said(reader), i.to_string(), "stopped at access {at}");
        }
        if stopped {
            kill_process(Pid::from_raw(context.pids()[0] as i32).unwrap(), Signal::KILL).unwrap();
            assert!(killed(&context));
        }
        while let Ok(Some(fd)) = its.try_get() {
            drop(fd);
        }
        Arena::current().unwrap().reclaim().unwrap();
        assert_eq!(
            FdSlots(Arena::current().unwrap()).descriptors_in_locker().unwrap(),
            0,
            "stopped at access {at}"
        );
        stopped
    });
}

fn produce(_: usize, (queue, writers, at): (Queue<(usize, Fd)>, Vec<Fd>, u64)) -> Outcome {
    inject::arm(at, KILL);
    for message in writers.into_iter().enumerate() {
        queue.put(message)?;
    }
    Ok(())
}

#[test]
fn descriptor_producer_killed_anywhere_leaks_nothing() {
    for_every_access(|at| {
        let queue = Queue::bounded(4).unwrap();
        let (readers, writers): (Vec<_>, Vec<_>) =
            (0..MESSAGES).map(|_| pipe()).map(|(r, w)| (r, Fd(w))).unzip();
        let killed = killed(&one_process(produce, (queue.clone(), writers, at)));
        let mut arrived = 0;
        while let Ok(Some((number, fd))) = queue.try_get() {
            assert_eq!(number, arrived);
            File::from(fd.0).write_all(number.to_string().as_bytes()).unwrap();
            arrived += 1;
        }
        assert!(killed || arrived == MESSAGES);
        Arena::current().unwrap().reclaim().unwrap();
        for (number, reader) in readers.into_iter().enumerate() {
            let text = if number < arrived { number.to_string() } else { String::new() };
            assert_eq!(said(reader), text, "killed at access {at}");
        }
        killed
    });
}

fn consume(_: usize, (queue, at): (Queue<Fd>, u64)) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..MESSAGES {
        let fd = queue.get_timeout(DEADLINE)?.ok_or("closed")?;
        File::from(fd.0).write_all(b"got")?;
    }
    Ok(())
}

#[test]
fn descriptor_consumer_killed_anywhere_leaks_nothing() {
    for_every_access(|at| {
        let queue = Queue::bounded(4).unwrap();
        let (readers, writers): (Vec<_>, Vec<_>) = (0..MESSAGES).map(|_| pipe()).unzip();
        writers.into_iter().for_each(|writer| queue.put(Fd(writer)).unwrap());
        let killed = killed(&one_process(consume, (queue.clone(), at)));
        while let Ok(Some(fd)) = queue.try_get() {
            File::from(fd.0).write_all(b"got").unwrap();
        }
        Arena::current().unwrap().reclaim().unwrap();
        let lost = readers.into_iter().map(said).filter(|text| text.is_empty()).count();
        assert!(lost <= usize::from(killed), "{lost} lost, killed at access {at}");
        killed
    });
}

fn fill(_: usize, (queue, at): (Queue<(bool, Fd)>, u64)) -> Outcome {
    let fds: Vec<_> =
        (0..MESSAGES).map(|_| Ok(Fd(File::open("/dev/null")?.into()))).collect::<std::io::Result<_>>()?;
    inject::arm(at, KILL);
    for fd in fds {
        queue.put((false, fd))?;
    }
    Ok(())
}

/// Variable for the program that [`process_killed_adding_locker_room_leaks_nothing`] starts: the access at
/// which the process is killed.
const HELPER: &str = "MP_TESTS_ROOM_AT";
/// Exit status if the process was not killed.
const NOT_REACHED: i32 = 10;

/// Entry of a program whose locker is empty, so that a child of the program adds pairs of sockets. Not a
/// test.
#[test]
fn helper() {
    let Ok(at) = std::env::var(HELPER) else { return };
    let at = at.parse().unwrap();
    let queue = Queue::bounded(8).unwrap();
    let killed = killed(&one_process(fill, (queue.clone(), at)));
    Arena::current().unwrap().reclaim().unwrap();
    // This process finds the compartments of the dead process, and adds more.
    let (readers, writers): (Vec<_>, Vec<_>) = (0..MESSAGES + 2).map(|_| pipe()).unzip();
    writers.into_iter().for_each(|writer| queue.put((true, Fd(writer))).unwrap());
    let mine = std::iter::from_fn(|| queue.try_get().ok().flatten()).filter(|(mine, _)| *mine);
    for (i, ((_, fd), reader)) in mine.zip(readers).enumerate() {
        File::from(fd.0).write_all(i.to_string().as_bytes()).unwrap();
        assert_eq!(said(reader), i.to_string());
    }
    drop(queue);
    assert_eq!(FdSlots(Arena::current().unwrap()).compartments_in_use(), 0);
    std::process::exit(if killed { 0 } else { NOT_REACHED });
}

#[test]
fn process_killed_adding_locker_room_leaks_nothing() {
    let _alone = alone();
    until_the_end(20, |at| {
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(["deaths::helper", "--exact", "--nocapture"]).env(HELPER, at.to_string());
        let output = program.output().unwrap();
        let text = || String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => true,
            Some(NOT_REACHED) => false,
            other => panic!("{other:?}, killed at access {at}: {}", text()),
        }
    });
}
