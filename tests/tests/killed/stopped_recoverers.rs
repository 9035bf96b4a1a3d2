//! A process is stopped, or killed, at the n-th change that it makes while it recovers and reclaims a dead
//! process, for every n. Waits of other processes end while it is stopped. When it continues, nothing is
//! duplicated or leaked.

use mp::queue::JoinableQueueError;
use mp::{
    Arena, GetError, JoinableQueue, Lock, LockError, Queue, Receiver, Semaphore, Sender, SharedTensor,
    SpawnOptions, Tensor, Waitable, channel, start_processes,
};
use mp_core::inject;
use mp_tests::kill::{KILL, STOP, for_every_access, killed, stopped};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, eventually_in_use, in_use, one_process, signal, threads_are,
};
use rustix::process::Signal;

/// Number of accesses at which `has_much` stops. The put into a full queue has then begun to wait.
const WAITS: u64 = 400;

/// Numbers of changes after its first stop at which the recovering process is stopped again.
const AGAIN: [u64; 6] = [1, 2, 3, 5, 8, 21];

/// Objects that the dying process holds, and for which other processes wait.
type Things = (
    Queue<u64>,
    JoinableQueue<u64>,
    Queue<u64>,
    (Sender<u64>, Sender<u64>, Sender<u64>),
    Queue<Sender<u64>>,
    Lock<u64>,
    Semaphore,
    SharedTensor<u64>,
);

/// Takes a message by a lease, a task, a lock, a permit and memory. Holds a handle of a queue, and three
/// senders: one directly, one in its own queue, and one in a message that it is putting. The process is then
/// stopped, and killed.
fn has_much(_: usize, things: Things) -> Outcome {
    let (leases, tasks, deserted, (sender, in_hand, in_queue), full, lock, permits, noted) = things;
    let lease = leases.get_lease_timeout(DEADLINE)?.ok_or("closed")?;
    let task = tasks.get_timeout(DEADLINE)?.ok_or("closed")?;
    let own = Queue::unbounded()?;
    own.put(in_queue)?;
    let _held = (lock.lock_timeout(DEADLINE)?, permits.acquire_timeout(DEADLINE)?);
    let memory = Tensor::full([100], 1_u64)?;
    noted.store(0, *lease + *task);
    inject::arm(WAITS, STOP);
    // The queue is full, so this put waits.
    full.put(in_hand)?;
    drop((lease, task, own, memory, sender, deserted));
    Ok(())
}

/// Recovers and reclaims a child. This process has no handles to the child's queues and locks.
fn recovers(_: usize, (things, at, how): (Things, u64, i32)) -> Outcome {
    let context = start_processes(has_much, things, SpawnOptions::nprocs(1))?;
    if !stopped(&context) {
        return Err("it should have waited".into());
    }
    inject::arm_at_change(at, how);
    signal(context.pids()[0], Signal::KILL);
    assert!(killed(&context));
    Arena::current()?.reclaim()?;
    Ok(())
}

/// Handles of the test process to the objects that the killed process held.
struct Here {
    leases: Queue<u64>,
    tasks: JoinableQueue<u64>,
    deserted: Queue<u64>,
    receivers: [Receiver<u64>; 3],
    full: Queue<Sender<u64>>,
    lock: Lock<u64>,
    permits: Semaphore,
    noted: SharedTensor<u64>,
}

fn things() -> (Things, Here) {
    let here = |receivers| Here {
        leases: Queue::unbounded().unwrap(),
        tasks: JoinableQueue::unbounded().unwrap(),
        deserted: Queue::unbounded().unwrap(),
        receivers,
        full: Queue::bounded(1).unwrap(),
        lock: Lock::new(0).unwrap(),
        permits: Semaphore::new(1).unwrap(),
        noted: Tensor::zeros([1]).unwrap().share(),
    };
    let [(s1, r1), (s2, r2), (s3, r3)] = [(); 3].map(|()| channel().unwrap());
    let here = here([r1, r2, r3]);
    here.leases.put(30).unwrap();
    here.tasks.put(12).unwrap();
    here.full.put(channel().unwrap().0).unwrap();
    let (leases, tasks, deserted) = (here.leases.clone(), here.tasks.clone(), here.deserted.clone());
    let (full, lock, permits) = (here.full.clone(), here.lock.clone(), here.permits.clone());
    ((leases, tasks, deserted, (s1, s2, s3), full, lock, permits, here.noted.clone()), here)
}

/// Checks that every wait for an object of the killed process ends.
fn other_processes_continue(here: &Here, at: u64) {
    assert_eq!(here.noted.load(0), 42, "the process died too early");
    let lease = here.leases.get_lease_timeout(DEADLINE).unwrap_or_else(|e| panic!("{e}, at change {at}"));
    assert_eq!(lease.expect("it is open").ack(), 30, "at change {at}");
    for (i, receiver) in here.receivers.iter().enumerate() {
        let end = receiver.recv_timeout(DEADLINE).unwrap_err();
        assert!(matches!(end, GetError::Disconnected), "{end}, of receiver {i} at change {at}");
    }
    let end = here.tasks.join_timeout(DEADLINE).unwrap_err();
    assert!(matches!(end, JoinableQueueError::Lost(1)), "{end}, at change {at}");
    assert_eq!(here.tasks.dead_letter().unwrap(), Some(12));
    let end = here.deserted.get_timeout(DEADLINE).unwrap_err();
    assert!(matches!(end, GetError::Deserted { .. }), "{end}, at change {at}");
    let end = here.lock.lock_timeout(DEADLINE).map(drop).unwrap_err();
    assert!(matches!(end, LockError::OwnerDied { .. }), "{end}, at change {at}");
    drop(here.permits.acquire_timeout(DEADLINE).unwrap());
    // There is memory, and room for messages.
    let tensors: Vec<_> = (0..20).map(|i| Tensor::full([1 << (i % 10)], 7_u64).unwrap()).collect();
    (0..20).for_each(|n| here.leases.put(n).unwrap());
    (0..20).for_each(|n| assert_eq!(here.leases.try_get().unwrap(), Some(n)));
    assert!(tensors.iter().all(|t| t.iter().all(|v| v == 7)));
}

fn nothing_comes_twice(here: &Here, at: u64) {
    assert!(matches!(here.leases.try_get(), Ok(None) | Err(_)), "at change {at}");
    assert_eq!(here.tasks.dead_letter().unwrap(), None, "at change {at}");
    here.tasks.join_timeout(DEADLINE).unwrap();
    assert!(here.full.try_get().unwrap().is_some(), "at change {at}");
    assert_eq!(here.full.len(), 0, "the unfinished put has no effect");
}

/// Stops or kills a recovering process at its change `at`, and checks that waits of other processes end.
/// Returns `true` if the process has reached that change.
fn round(at: u64, how: i32, wait: bool) -> bool {
    let (things, here) = things();
    let context = one_process(recovers, (things, at, how));
    let pid = context.pids()[0];
    let reached = if how == STOP { stopped(&context) } else { killed(&context) };
    if !wait {
        // A waiting process would reclaim within 100 ms.
        Arena::current().unwrap().reclaim().unwrap();
    }
    other_processes_continue(&here, at);
    if how == STOP && reached {
        assert!(threads_are(pid, 'T'), "the process was continued");
        signal(pid, Signal::CONT);
        assert!(!killed(&context), "the process was killed at change {at}");
    }
    nothing_comes_twice(&here, at);
    reached
}

#[test]
fn stopped_recoverer_delays_no_other_process() {
    // Most rounds don't wait for the next check for dead processes.
    for_every_access(|at| round(at, STOP, at.is_multiple_of(16)));
}

#[test]
fn killed_recoverer_delays_no_other_process() {
    for_every_access(|at| round(at, KILL, at.is_multiple_of(16)));
}

/// A stopped reclaiming process delays only the memory of that dead process: processes that die later are
/// reclaimed.
#[test]
fn stopped_recoverer_prevents_no_later_recovery() {
    let _alone = alone();
    Arena::current().unwrap();
    let before = in_use();
    // The process must be stopped during the reclaim, so that the slot of the dead process stays in use.
    let (at, context, here) = (1..1000)
        .step_by(8)
        .find_map(|at| {
            let (things, here) = things();
            let context = one_process(recovers, (things, at, STOP));
            assert!(stopped(&context), "the process has ended before change {at}");
            other_processes_continue(&here, at);
            Arena::current().unwrap().reclaim().unwrap();
            if slots() == 3 {
                return Some((at, context, here));
            }
            signal(context.pids()[0], Signal::CONT);
            assert!(!killed(&context));
            None
        })
        .unwrap();
    println!("stopped at change {at}");
    let (blocks, queued, _) = in_use();
    for _ in 0..3 {
        let (things, here) = self::things();
        assert!(!round_of(things));
        other_processes_continue(&here, 0);
    }
    eventually("the later processes are reclaimed", || {
        Arena::current().unwrap().reclaim().unwrap();
        let now = in_use();
        slots() == 3 && now.0 <= blocks && now.1 <= queued
    });
    signal(context.pids()[0], Signal::CONT);
    assert!(!killed(&context));
    nothing_comes_twice(&here, at);
    drop(here);
    eventually_in_use(before, "nothing is left");
}

/// Leases a message of each queue. The process is then stopped, and killed.
fn has_leases(_: usize, (first, second): (Queue<u64>, Queue<u64>)) -> Outcome {
    let leases = (first.get_lease_timeout(DEADLINE)?, second.get_lease_timeout(DEADLINE)?);
    signal(std::process::id(), Signal::STOP);
    drop(leases);
    Ok(())
}

/// Recovers and reclaims a child that has leases. Meanwhile, this process is stopped.
fn recovers_leases(_: usize, (things, at): ((Queue<u64>, Queue<u64>), u64)) -> Outcome {
    let context = start_processes(has_leases, things, SpawnOptions::nprocs(1))?;
    if !stopped(&context) {
        return Err("it should have stopped".into());
    }
    inject::arm_at_change(at, STOP);
    signal(context.pids()[0], Signal::KILL);
    assert!(killed(&context));
    Arena::current()?.reclaim()?;
    Ok(())
}

/// A stopped recovering process has read words that it will change when it continues. Until then, the words
/// must not be reused.
#[test]
fn stopped_recoverer_delays_reuse_of_words_it_read() {
    let _alone = alone();
    Arena::current().unwrap();
    let before = in_use();
    let mut between = Vec::new();
    for at in 1..200 {
        let queues = [(); 2].map(|()| Queue::unbounded().unwrap());
        queues.iter().for_each(|queue| queue.put(5).unwrap());
        let [first, second] = queues.clone();
        let context = one_process(recovers_leases, ((first, second), at));
        let reached = stopped(&context);
        // If only one queue has its message back, the process was stopped in the middle of its recovery.
        if reached && queues.iter().filter(|queue| queue.is_ready()).count() == 1 {
            between.push(at);
            Arena::current().unwrap().reclaim().unwrap();
            assert!(queues.iter().all(Waitable::is_ready), "others are delayed, at change {at}");
            assert_eq!(slots(), 3, "the dead process was reclaimed at change {at} of its recoverer");
        }
        if reached {
            signal(context.pids()[0], Signal::CONT);
        }
        assert!(!killed(&context), "the process was killed at change {at}");
        if !reached {
            break;
        }
    }
    assert!(!between.is_empty(), "no stop was in the middle of the recovery");
    println!("during its recovery: at changes {between:?}");
    eventually_in_use(before, "nothing is left");
}

/// Holds a handle of the queue while it is stopped, and then killed.
fn has_queue(_: usize, queue: Queue<Sender<u64>>) -> Outcome {
    signal(std::process::id(), Signal::STOP);
    drop(queue);
    Ok(())
}

/// Recovers and reclaims a child that has a queue. Meanwhile, this process is stopped twice.
fn recovers_queue(_: usize, (queue, at, again): (Queue<Sender<u64>>, u64, u64)) -> Outcome {
    let context = start_processes(has_queue, queue, SpawnOptions::nprocs(1))?;
    if !stopped(&context) {
        return Err("it should have stopped".into());
    }
    inject::arm_at_change(at, STOP);
    inject::arm_again(again);
    signal(context.pids()[0], Signal::KILL);
    assert!(killed(&context));
    Arena::current()?.reclaim()?;
    Ok(())
}

/// Drops the last live handle of the queue while the recovering process is stopped at its change `at`. That
/// process then makes `again` further changes, if it has that many to make, before it is stopped for good.
fn leaves(at: u64, again: u64) -> bool {
    let (sender, receiver) = channel::<u64>().unwrap();
    let queue = Queue::unbounded().unwrap();
    queue.put(sender).unwrap();
    let context = one_process(recovers_queue, (queue.clone(), at, again));
    let pid = context.pids()[0];
    let reached = stopped(&context);
    drop(queue);
    let mut is_stopped = reached;
    if reached && again != u64::MAX {
        signal(pid, Signal::CONT);
        is_stopped = stopped(&context);
    }
    // A waiting process would reclaim within 100 ms.
    Arena::current().unwrap().reclaim().unwrap();
    let end = receiver.recv_timeout(DEADLINE).unwrap_err();
    assert!(matches!(end, GetError::Disconnected), "{end}, stopped at change {at}, and {again} later");
    if is_stopped {
        assert!(threads_are(pid, 'T'), "the process was continued");
        signal(pid, Signal::CONT);
        assert!(!killed(&context), "the process was killed at change {at}");
    }
    reached
}

/// The messages of a dropped queue are freed, although a recovering process is stopped. The test stops the
/// process at each of its changes, before and after the drop.
#[test]
fn stopped_process_keeps_no_message_of_a_left_queue() {
    for_every_access(|at| leaves(at, u64::MAX));
}

#[test]
fn resumed_process_keeps_no_message_of_a_left_queue() {
    AGAIN.iter().for_each(|&again| for_every_access(|at| leaves(at, again)));
}

/// Returns the number of members, including dead members that are not reclaimed.
fn slots() -> usize {
    Arena::current().unwrap().members().len()
}

/// Runs a round in which the recovering process is not stopped.
fn round_of(things: Things) -> bool {
    killed(&one_process(recovers, (things, u64::MAX - 1, STOP)))
}
