//! How soon waiters in other processes learn that a process was killed, for each kind of thing that they may
//! wait for; and that a stopped process is waited for until the waiter's deadline. Prints the figures
//! (`--nocapture --test-threads=1`); `mp-sync`'s first page has a table of them.

use std::thread;
use std::time::Duration;

use mp::sync::{AcquireError, BarrierError};
use mp::{
    Barrier, BoundedSemaphore, Condition, GetError, Lock, LockError, Process, Queue, Receiver, RwLock,
    Sender, channel, wait,
};
use mp_tests::{DEADLINE, Outcome, alone, eventually, signal, take, threads_are};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

const ROUNDS: usize = 9;

/// What one process holds, and another waits for.
#[derive(Clone, Serialize, Deserialize)]
enum Thing {
    Queue(Queue<u32>),
    Sender(Sender<u32>),
    Receiver(Receiver<u32>),
    Lock(Lock<u64>),
    Write(RwLock<u64>),
    Permit(BoundedSemaphore),
    PermitAmongOthers(BoundedSemaphore),
    Barrier(Barrier),
    Notification(Condition, Lock<u32>),
}

/// Nanoseconds of a clock that all processes share.
fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

fn holds((thing, ready): (Thing, Queue<()>)) -> Outcome {
    let stay = || -> ! {
        _ = ready.put(());
        loop {
            thread::park();
        }
    };
    match thing {
        Thing::Queue(_) | Thing::Sender(_) | Thing::Receiver(_) => stay(),
        Thing::Lock(lock) => {
            let _held = lock.lock()?;
            stay()
        }
        Thing::Write(lock) => {
            let _held = lock.write()?;
            stay()
        }
        Thing::Permit(permits) | Thing::PermitAmongOthers(permits) => {
            let _permit = permits.acquire()?;
            stay()
        }
        Thing::Barrier(barrier) => {
            let _party = barrier.enroll()?;
            stay()
        }
        // It is notified, and killed before it reads the notification.
        Thing::Notification(condition, lock) => {
            ready.put(()).map_err(|e| e.to_string())?;
            drop(condition.wait(lock.lock()?)?);
            stay()
        }
    }
}

fn waits((thing, ready, heard): (Thing, Queue<()>, Queue<u64>)) -> Outcome {
    ready.put(()).map_err(|e| e.to_string())?;
    let as_expected = match thing {
        Thing::Queue(queue) => matches!(queue.get(), Err(GetError::Deserted { .. })),
        Thing::Receiver(receiver) => matches!(receiver.recv(), Err(GetError::Disconnected)),
        Thing::Sender(_) => false,
        Thing::Lock(lock) => matches!(lock.lock(), Err(LockError::OwnerDied { .. })),
        Thing::Write(lock) => matches!(lock.read(), Err(LockError::OwnerDied { .. })),
        Thing::Permit(permits) => permits.acquire().is_ok(),
        Thing::PermitAmongOthers(permits) => wait(&[&permits], Some(DEADLINE))? == [0],
        Thing::Barrier(barrier) => matches!(barrier.wait(), Err(BarrierError::MemberDied { .. })),
        Thing::Notification(condition, lock) => condition.wait(lock.lock()?).is_ok(),
    };
    let at = now();
    if !as_expected {
        return Err("it ended otherwise".into());
    }
    heard.put(at).map_err(|e| e.to_string().into())
}

/// How long the waiter waits for a stopped process.
const LONG: Duration = Duration::from_millis(150);

/// Waits until the deadline; how many microseconds longer it took, or `None` if the wait ended otherwise.
fn gives_up((thing, ready, heard): (Thing, Queue<()>, Queue<Option<u64>>)) -> Outcome {
    ready.put(()).map_err(|e| e.to_string())?;
    let begun = now();
    let as_expected = match thing {
        Thing::Queue(queue) => queue.get_timeout(LONG).is_err_and(|e| e.is_empty()),
        Thing::Receiver(receiver) => receiver.recv_timeout(LONG).is_err_and(|e| e.is_empty()),
        Thing::Sender(_) => false,
        Thing::Lock(lock) => matches!(lock.lock_timeout(LONG), Err(LockError::Held { .. })),
        Thing::Write(lock) => matches!(lock.read_timeout(LONG), Err(LockError::Held { .. })),
        Thing::Permit(permits) => {
            matches!(permits.acquire_timeout(LONG), Err(AcquireError::Held { .. }))
        }
        Thing::PermitAmongOthers(permits) => wait(&[&permits], Some(LONG))?.is_empty(),
        Thing::Barrier(barrier) => {
            matches!(barrier.wait_timeout(LONG), Err(BarrierError::TimedOut { .. }))
        }
        Thing::Notification(condition, lock) => !condition.wait_timeout(lock.lock()?, LONG)?.1,
    };
    let late = (now() - begun).saturating_sub(LONG.as_nanos() as u64) / 1000;
    heard.put(as_expected.then_some(late)).map_err(|e| e.to_string().into())
}

/// The holder is stopped, and the waiter gives up: how late.
fn stopped(what: &str, (here, there): (Thing, Thing)) {
    let _alone = alone();
    let (ready, heard) = (Queue::bounded(2).unwrap(), Queue::bounded(1).unwrap());
    let holder = Process::spawn(holds, (here, ready.clone())).unwrap();
    take(&ready);
    eventually("the holder is at rest", || threads_are(holder.pid(), 'S'));
    signal(holder.pid(), Signal::STOP);
    eventually("it is stopped", || threads_are(holder.pid(), 'T'));
    let waiter = Process::spawn(gives_up, (there, ready.clone(), heard.clone())).unwrap();
    take(&ready);
    let late = take(&heard);
    println!("{what:32} {late:?} us late");
    assert!(late.is_some(), "{what}: it ended otherwise");
    holder.kill().unwrap();
    assert!(waiter.wait_timeout(DEADLINE) && holder.wait_timeout(DEADLINE));
}

/// From the kill to the return of the wait, in microseconds.
fn once(here: Thing, there: Thing) -> u64 {
    let (ready, heard) = (Queue::bounded(2).unwrap(), Queue::bounded(1).unwrap());
    let condition = match &there {
        Thing::Notification(condition, _) => Some(condition.clone()),
        _ => None,
    };
    let holder = Process::spawn(holds, (here, ready.clone())).unwrap();
    take(&ready);
    if let Some(condition) = &condition {
        eventually("the first one waits", || condition.waiting() == 1);
    }
    let waiter = Process::spawn(waits, (there, ready.clone(), heard.clone())).unwrap();
    take(&ready);
    if let Some(condition) = &condition {
        eventually("both wait", || condition.waiting() == 2);
        signal(holder.pid(), Signal::STOP);
        eventually("the first one is stopped", || threads_are(holder.pid(), 'T'));
        assert!(condition.notify_one().unwrap());
    }
    eventually("it sleeps", || threads_are(waiter.pid(), 'S'));
    // sleep: the parent listens to a process that lives longer than a moment; and the waiter is in a long sleep.
    thread::sleep(Duration::from_millis(130));
    let killed = now();
    signal(holder.pid(), Signal::KILL);
    let after = (take(&heard).saturating_sub(killed)) / 1000;
    assert!(waiter.wait_timeout(DEADLINE) && holder.wait_timeout(DEADLINE));
    after
}

fn measure(what: &str, things: impl Fn() -> (Thing, Thing)) {
    let _alone = alone();
    let mut all = [(); ROUNDS].map(|()| {
        let (here, there) = things();
        once(here, there)
    });
    all.sort_unstable();
    let (least, median, most) = (all[0], all[ROUNDS / 2], all[ROUNDS - 1]);
    println!("{what:32} {least:>6} {median:>6} {most:>6} us (least, median, most of {ROUNDS})");
    assert!(least <= 2_000, "{what}: at best after {least} us");
    // Without the wake-up it is the rest of a poll interval: 80 ms.
    assert!(median <= 25_000, "{what}: half of them after {median} us or more");
}

/// What both processes have.
fn both(thing: Thing) -> (Thing, Thing) {
    (thing.clone(), thing)
}

#[test]
fn a_get_hears_that_the_last_other_process_was_killed() {
    measure("Queue::get", || both(Thing::Queue(Queue::bounded(1).unwrap())));
}

#[test]
fn a_receiver_hears_that_the_last_sender_was_killed() {
    measure("Receiver::recv", || {
        let (sender, receiver) = channel().unwrap();
        (Thing::Sender(sender), Thing::Receiver(receiver))
    });
}

#[test]
fn a_waiter_of_a_lock_hears_that_its_holder_was_killed() {
    measure("Lock::lock", || both(Thing::Lock(Lock::new(0).unwrap())));
}

#[test]
fn a_reader_hears_that_the_writer_was_killed() {
    measure("RwLock::read", || both(Thing::Write(RwLock::new(0).unwrap())));
}

#[test]
fn a_waiter_of_a_permit_gets_that_of_a_killed_process() {
    measure("BoundedSemaphore::acquire", || both(Thing::Permit(BoundedSemaphore::new(1).unwrap())));
}

#[test]
fn a_waiter_of_several_things_gets_the_permit_of_a_killed_process() {
    measure("wait(&[&semaphore])", || both(Thing::PermitAmongOthers(BoundedSemaphore::new(1).unwrap())));
}

#[test]
fn a_waiter_at_a_barrier_hears_that_a_party_was_killed() {
    measure("Barrier::wait", || both(Thing::Barrier(Barrier::new(2).unwrap())));
}

#[test]
fn a_waiter_gets_the_notification_of_a_killed_process() {
    let things = || Thing::Notification(Condition::new().unwrap(), Lock::new(0).unwrap());
    measure("Condition::wait", || both(things()));
}

#[test]
fn a_process_that_is_stopped_is_waited_for_until_the_time_is_over() {
    stopped("Queue::get", both(Thing::Queue(Queue::bounded(1).unwrap())));
    let (sender, receiver) = channel().unwrap();
    stopped("Receiver::recv", (Thing::Sender(sender), Thing::Receiver(receiver)));
    stopped("Lock::lock", both(Thing::Lock(Lock::new(0).unwrap())));
    stopped("RwLock::read", both(Thing::Write(RwLock::new(0).unwrap())));
    stopped("BoundedSemaphore::acquire", both(Thing::Permit(BoundedSemaphore::new(1).unwrap())));
    let permits = BoundedSemaphore::new(1).unwrap();
    stopped("wait(&[&semaphore])", both(Thing::PermitAmongOthers(permits)));
    stopped("Barrier::wait", both(Thing::Barrier(Barrier::new(2).unwrap())));
    let notification = Thing::Notification(Condition::new().unwrap(), Lock::new(0).unwrap());
    stopped("Condition::wait", both(notification));
}
