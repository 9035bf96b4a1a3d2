//! Arguments, tasks and results whose receiver lacks descriptors. The error contains the complete value.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use mp::message::Unread;
use mp::queue::broadcast;
use mp::{Fd, Pool, PutError, Queue, SpawnError, SpawnOptions, TaskError, closure, start_processes};
use mp_tests::limits::{Resource, limit};
use mp_tests::{DEADLINE, Outcome, alone, join, one_process};
use rustix::process::getrlimit;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{pipe, said};

/// `ulimit -n` of the process that gets the error, and of its children.
const FEW: u64 = 64;
/// Number of descriptors in a message. With its own descriptors, the receiver would exceed [`FEW`]. The
/// number is small enough for the messages of a user without privileges.
const MANY: usize = 56;

/// Message with many duplicates of one descriptor. The sender has only that descriptor.
#[derive(Debug)]
struct Copies(Vec<OwnedFd>, usize);

impl Serialize for Copies {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(Some(self.1))?;
        for fd in self.0.iter().cycle().take(self.1) {
            seq.serialize_element(&Fd(fd.as_fd()))?;
        }
        seq.end()
    }
}

impl<'de> Deserialize<'de> for Copies {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let fds = Vec::<Fd>::deserialize(d)?;
        let len = fds.len();
        Ok(Self(fds.into_iter().map(|fd| fd.0).collect(), len))
    }
}

impl Copies {
    fn of(fd: OwnedFd, times: usize) -> Self {
        Self(vec![fd], times)
    }

    /// Writes a letter to each descriptor, and returns their number.
    fn write(self) -> std::io::Result<usize> {
        let all = self.0.len();
        self.0.into_iter().try_for_each(|fd| File::from(fd).write_all(b"."))?;
        Ok(all)
    }
}

/// Raises the limit, and reads the message in a second attempt, as a program would do.
#[track_caller]
fn read_later(unread: &Unread, error: &dyn std::error::Error) -> Copies {
    let text = error.to_string();
    assert!(text.contains("RLIMIT_NOFILE") && text.contains("limit of 64 descriptors"), "{text}");
    let again = unread.read::<Copies>().unwrap_err().to_string();
    assert!(again.contains("RLIMIT_NOFILE") && unread.is_unread(), "{again}");
    assert!(unread.read::<String>().unwrap_err().to_string().contains("another type"));
    raise();
    let copies = unread.read::<Copies>().unwrap();
    assert!(!unread.is_unread() && copies.0.len() == MANY);
    copies
}

fn raise() {
    limit(Resource::Nofile, getrlimit(Resource::Nofile).maximum.unwrap_or(1024).min(1024));
}

#[derive(Serialize, Deserialize)]
enum Case {
    Arguments,
    Results,
    ResultsOfSeveral,
    Tasks,
    ResultsOfTasks,
    Closures,
    Queued,
}

/// Runs a case in a process that can open only a few descriptors, like its children. The case writes into a
/// pipe. Returns the written text.
fn with_few(case: Case) -> String {
    let _alone = alone();
    let (reader, writer) = pipe();
    let run = |_: usize, (case, writer): (Case, Fd)| -> Outcome {
        limit(Resource::Nofile, FEW);
        match case {
            Case::Arguments => arguments(writer),
            Case::Results => results(writer),
            Case::ResultsOfSeveral => results_of_several(writer),
            Case::Tasks => tasks(writer),
            Case::ResultsOfTasks => results_of_tasks(writer),
            Case::Closures => closures(writer),
            Case::Queued => queued(writer),
        }
    };
    join(&one_process(run, (case, Fd(writer)))).unwrap();
    said(reader)
}

/// A child can't read the arguments because it lacks descriptors. The error returns the arguments.
fn arguments(writer: Fd) -> Outcome {
    let worker = |_: usize, copies: Copies| -> Outcome { Ok(copies.write().map(drop)?) };
    let context = one_process(worker, Copies::of(writer.0, MANY));
    let error = context.wait().unwrap_err();
    assert!(matches!(&error, SpawnError::Arguments { who: Some(_), .. }), "{error:?}");
    let copies = read_later(error.unread().expect("they are there"), &error);
    assert_eq!(copies.write()?, MANY);
    // The arguments can be read only once, by any clone of the error.
    let again = context.wait().unwrap_err().unread().unwrap().read::<Copies>().unwrap_err();
    assert!(again.to_string().contains("read already"), "{again}");
    Ok(())
}

#[test]
fn unread_arguments_are_read_on_retry() {
    assert_eq!(with_few(Case::Arguments), ".".repeat(MANY));
}

fn make(_: usize, writer: Fd) -> Result<Copies, String> {
    Ok(Copies::of(writer.0, MANY))
}

fn results(writer: Fd) -> Outcome {
    let context = one_process(make, writer);
    let error = context.join().unwrap_err();
    assert!(matches!(&error, SpawnError::Value { .. }), "{error:?}");
    let copies = read_later(error.unread().expect("it is there"), &error);
    assert_eq!(copies.write()?, MANY);
    let again = context.join().unwrap_err().to_string();
    assert!(again.contains("read already"), "{again}");
    Ok(())
}

#[test]
fn unread_result_is_kept_in_the_error() {
    assert_eq!(with_few(Case::Results), ".".repeat(MANY));
}

/// The result of one rank has too many descriptors. The results of the other ranks are kept, and the next
/// call returns all results.
fn results_of_several(writer: Fd) -> Outcome {
    let some =
        |rank: usize, writer: Fd| Ok::<_, String>(Copies::of(writer.0, if rank == 1 { MANY } else { 3 }));
    let context = start_processes(some, writer, SpawnOptions::nprocs(3))?;
    for _ in 0..2 {
        let error = context.join().unwrap_err();
        assert_eq!((error.rank(), error.unread().is_some()), (Some(1), true), "{error:?}");
    }
    raise();
    let all: Vec<_> = context.join()?.into_iter().map(Copies::write).collect::<Result<_, _>>()?;
    assert_eq!(all, [3, MANY, 3]);
    Ok(())
}

#[test]
fn results_of_other_ranks_outlast_an_unread_result() {
    assert_eq!(with_few(Case::ResultsOfSeveral), ".".repeat(MANY + 6));
}

fn tasks(writer: Fd) -> Outcome {
    let pool = Pool::new(1)?;
    let write = |copies: Copies| copies.write();
    let spare = writer.0.try_clone()?;
    let error = pool.apply(write, Copies::of(writer.0, MANY)).unwrap_err();
    let TaskError::Arguments { cause: Some(cause), .. } = &error else { panic!("{error:?}") };
    assert!(cause.to_string().contains("RLIMIT_NOFILE"), "{cause}");
    let copies = read_later(error.unread().expect("they are there"), &error);
    assert_eq!(copies.write()?, MANY);
    // The worker continues after the error.
    let pids = pool.pids();
    assert_eq!(pool.apply(write, Copies::of(spare, 2))?, 2);
    assert_eq!(pool.pids(), pids);
    Ok(())
}

#[test]
fn unread_task_is_returned_by_its_worker() {
    assert_eq!(with_few(Case::Tasks), ".".repeat(MANY + 2));
}

fn results_of_tasks(writer: Fd) -> Outcome {
    let pool = Pool::new(1)?;
    let error = pool.apply(|writer: Fd| make(0, writer), writer).unwrap_err();
    assert!(matches!(&error, TaskError::Value { .. }), "{error:?}");
    let copies = read_later(error.unread().expect("it is there"), &error);
    assert_eq!(copies.write()?, MANY);
    assert_eq!(pool.apply(|x: u32| x + 1, 6)?, 7);
    Ok(())
}

#[test]
fn unread_task_result_is_kept_in_the_error() {
    assert_eq!(with_few(Case::ResultsOfTasks), ".".repeat(MANY));
}

/// Descriptors that a worker of the test below has open.
// fork: these tests do not fork this process.
static OPEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A worker can't read a closure because it lacks descriptors. After descriptors were freed, it reads the
/// closure.
fn closures(writer: Fd) -> Outcome {
    let pool = Pool::new(1)?;
    let write = pool.task_closure(closure!([writer] |text: String| -> std::io::Result<()> {
        File::from(writer.0.try_clone()?).write_all(text.as_bytes())
    }));
    pool.apply(
        |(): ()| OPEN.lock().unwrap().extend(std::iter::from_fn(|| File::open("/dev/null").ok())),
        (),
    )?;
    let error = write.apply("never".into()).unwrap_err();
    assert!(error.to_string().contains("RLIMIT_NOFILE"), "{error}");
    pool.apply(|(): ()| OPEN.lock().unwrap().clear(), ())?;
    write.apply("written".into())?;
    Ok(())
}

#[test]
fn closure_is_read_after_descriptors_are_freed() {
    assert_eq!(with_few(Case::Closures), "written");
}

/// A lease and a broadcast message that could not be read stay available, like a message of a queue.
fn queued(writer: Fd) -> Outcome {
    let (queue, (sender, receiver)) = (Queue::bounded(1)?, broadcast::channel::<Copies>(2)?);
    queue.put(Copies::of(writer.0.try_clone()?, MANY)).map_err(PutError::forget)?;
    sender.send(Copies::of(writer.0, MANY)).map_err(PutError::forget)?;
    for _ in 0..2 {
        let lease = queue.get_lease_timeout(DEADLINE).map(drop).unwrap_err().to_string();
        let received = receiver.recv_timeout(DEADLINE).map(drop).unwrap_err().to_string();
        assert!(lease.contains("RLIMIT_NOFILE") && received.contains("RLIMIT_NOFILE"), "{lease}; {received}");
    }
    raise();
    let lease = queue.get_lease_timeout(DEADLINE)?.ok_or("closed")?;
    assert_eq!(lease.ack().write()? + receiver.recv_timeout(DEADLINE)?.write()?, 2 * MANY);
    Ok(())
}

#[test]
fn unread_leases_and_broadcasts_are_kept() {
    assert_eq!(with_few(Case::Queued), ".".repeat(2 * MANY));
}
