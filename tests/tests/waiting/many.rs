//! Waits for many objects, and fair choice among ready objects. Other processes make the objects ready, or
//! are killed and stopped while they wait.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mp::wait::Descriptor;
use mp::{
    BoundedSemaphore, Connection, Event, JoinableQueue, Process, Queue, Receiver, Sender, SpawnOptions,
    Waitable, bounded_channel, channel, pipe, select, start_processes, wait,
};
use mp_core::inject;
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, failure, give, join, next, one_process, send, signal, take,
    threads_are,
};
use rustix::process::Signal;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};

const MOMENT: Duration = Duration::from_millis(20);

/// An object of each kind.
#[derive(Clone, Serialize, Deserialize)]
struct Kinds {
    orders: Queue<u8>,
    queue: Queue<u64>,
    full: Queue<u8>,
    sender: Sender<u8>,
    event: Event,
    semaphore: BoundedSemaphore,
    connection: Connection,
    tasks: JoinableQueue<u8>,
}

/// Makes objects ready on request, in a separate process.
fn follows_orders(_: usize, kinds: Kinds) -> Outcome {
    let mut permit = Some(kinds.semaphore.acquire()?);
    while let Some(order) = next(&kinds.orders)? {
        match order {
            0 => kinds.queue.put(7)?,
            1 => _ = kinds.full.get()?,
            2 => kinds.sender.send(1)?,
            3 => _ = kinds.event.set()?,
            4 => drop(permit.take()),
            5 => kinds.connection.send("hello".to_string())?,
            6 => kinds.tasks.put(6)?,
            _ => break,
        }
    }
    Ok(())
}

/// Checks that a wait finds each object that was made ready. After the object was taken, the wait no longer
/// finds it. The objects `more` are never ready.
fn each_kind_is_found(more: &[&dyn Waitable]) {
    let (sender, receiver) = channel::<u8>().unwrap();
    let (here, connection) = pipe().unwrap();
    let kinds = Kinds {
        orders: Queue::bounded(1).unwrap(),
        queue: Queue::bounded(1).unwrap(),
        full: Queue::bounded(1).unwrap(),
        sender,
        event: Event::new().unwrap(),
        semaphore: BoundedSemaphore::new(1).unwrap(),
        connection,
        tasks: JoinableQueue::unbounded().unwrap(),
    };
    give(&kinds.full, 0);
    let room = kinds.full.put_ready();
    let child =
        Process::spawn(|kinds| follows_orders(0, kinds).map_err(|e| e.to_string()), kinds.clone()).unwrap();
    eventually("the permit is taken", || kinds.semaphore.available() == 0);
    let (queue, event, semaphore, tasks) = (&kinds.queue, &kinds.event, &kinds.semaphore, &kinds.tasks);
    let mut all: Vec<&dyn Waitable> = vec![queue, &room, &receiver, event, semaphore, &here, tasks];
    all.extend(more);
    assert!(wait(&all, Some(MOMENT)).unwrap().is_empty());
    for order in 0..=6 {
        give(&kinds.orders, order);
        assert_eq!(wait(&all, Some(DEADLINE)).unwrap(), [usize::from(order)]);
        assert_eq!(select(&all, None).unwrap(), Some(usize::from(order)));
        match order {
            0 => assert_eq!(take(queue), 7),
            1 => give(&kinds.full, 0),
            2 => assert_eq!(receiver.try_recv().unwrap(), 1),
            3 => assert!(event.clear().unwrap()),
            4 => semaphore.try_acquire().unwrap().keep(),
            5 => assert_eq!(here.try_recv::<String>().unwrap(), "hello"),
            _ => assert_eq!(tasks.try_get().unwrap().unwrap().ack(), 6),
        }
        assert!(wait(&all, Some(Duration::ZERO)).unwrap().is_empty(), "after {order}");
    }
    // An object that is listed twice is found at both places.
    let twice: Vec<&dyn Waitable> = all.iter().chain(&all).copied().collect();
    give(&kinds.orders, 0);
    // If the message arrived during the poll, only places that were not polled yet would be found.
    eventually("the message has arrived", || !queue.is_empty());
    assert_eq!(wait(&twice, Some(DEADLINE)).unwrap(), [0, all.len()]);
    assert_eq!(take(queue), 7);
    // Waits for the end of a process together with the objects.
    let at = all.len();
    all.push(&child);
    assert!(wait(&all, Some(MOMENT)).unwrap().is_empty());
    give(&kinds.orders, 7);
    eventually("the process is found", || wait(&all, Some(DEADLINE)).unwrap().contains(&at));
    child.join().unwrap();
}

#[test]
fn wait_finds_source_made_ready_by_another_process() {
    let _alone = alone();
    each_kind_is_found(&[]);
}

#[test]
fn descriptors_and_queues_are_awaited_together() {
    let _alone = alone();
    let (a, b) = UnixStream::pair().unwrap();
    each_kind_is_found(&[&Descriptor(&a)]);
    // The descriptors are found as well as the queue.
    let queue = Queue::<u8>::bounded(1).unwrap();
    let thread = std::thread::spawn(move || drop(b));
    assert_eq!(wait(&[&queue, &Descriptor(&a)], Some(DEADLINE)).unwrap(), [1]);
    thread.join().unwrap();
}

/// Answers each message, while it also sleeps on a queue that stays empty.
fn answers(_: usize, (there, back, empty): (Queue<u64>, Queue<u64>, Queue<u64>)) -> Outcome {
    loop {
        wait(&[&there, &empty], Some(DEADLINE))?;
        match there.try_get() {
            Ok(Some(value)) => send(&back, value)?,
            Ok(None) => return Ok(()),
            Err(e) if e.is_empty() => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[test]
fn waiter_is_woken_before_its_poll_interval() {
    let _alone = alone();
    let queue = || Queue::bounded(1).unwrap();
    let (there, back, empty) = (queue(), queue(), queue());
    let args = (there.clone(), back.clone(), empty.clone());
    let context = one_process(answers, args);
    let (a, mut b) = UnixStream::pair().unwrap();
    let socket = Descriptor(&a);
    let lists: [&[&dyn Waitable]; 2] = [&[&empty, &back], &[&back, &socket]];
    // 4000 poll intervals would be longer than the deadline.
    let until = Instant::now() + DEADLINE;
    for i in 0..4000 {
        give(&there, i);
        let list = lists[i as usize % 2];
        assert_eq!(wait(list, Some(DEADLINE)).unwrap(), [1 - i as usize % 2]);
        assert_eq!(take(&back), i);
        assert!(Instant::now() < until, "after {i}");
    }
    // A descriptor wakes a sleeper, too.
    let (signals, orders) = std::sync::mpsc::sync_channel(0);
    let thread = std::thread::spawn(move || {
        for byte in orders {
            b.write_all(&[byte]).unwrap();
        }
    });
    let until = Instant::now() + DEADLINE;
    for i in 0..4000 {
        signals.send(i as u8).unwrap();
        assert_eq!(wait(lists[1], Some(DEADLINE)).unwrap(), [1]);
        (&a).read_exact(&mut [0]).unwrap();
        assert!(Instant::now() < until, "after {i}");
    }
    drop(signals);
    thread.join().unwrap();
    there.close();
    join(&context).unwrap();
}

#[test]
fn wait_works_beyond_the_kernels_limit_of_sources() {
    let _alone = alone();
    fn puts(_: usize, (orders, queues): (Queue<usize>, Vec<Queue<usize>>)) -> Outcome {
        while let Some(i) = next(&orders)? {
            queues[i].put(i)?;
        }
        Ok(())
    }
    let queues: Vec<Queue<usize>> = (0..300).map(|_| Queue::bounded(1).unwrap()).collect();
    let orders = Queue::bounded(1).unwrap();
    let context = one_process(puts, (orders.clone(), queues.clone()));
    let all: Vec<&dyn Waitable> = queues.iter().map(|q| q as &dyn Waitable).collect();
    for i in [0, 126, 127, 128, 254, 299] {
        give(&orders, i);
        assert_eq!(wait(&all, Some(DEADLINE)).unwrap(), [i]);
        assert_eq!(take(&queues[i]), i);
    }
    orders.close();
    join(&context).unwrap();
}

/// A wait for an empty list lasts for its whole time-out, as in Python. So a loop over a list that has become
/// empty does not spin.
#[test]
fn wait_for_no_sources_lasts_its_whole_time() {
    let time = Duration::from_millis(20);
    let begun = Instant::now();
    assert!(wait(&[], Some(time)).unwrap().is_empty());
    assert_eq!(select(&[], Some(time)).unwrap(), None);
    assert!(begun.elapsed() >= 2 * time);
    // Without objects, a `wait` without a time and a `select` with a time of zero return at once.
    assert!(wait(&[], None).unwrap().is_empty());
    assert_eq!(select(&[], Some(Duration::ZERO)).unwrap(), None);
}

/// A timer for `select` is a `tick`, which is ready repeatedly, or an `after`, which is ready once.
#[test]
fn timer_and_queue_are_awaited_together() {
    let _alone = alone();
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
    let every = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let times = Itimerspec { it_interval: every, it_value: every };
    let begun = Instant::now();
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times).unwrap();
    let (ticks, queue) = (Descriptor(&timer), Queue::<u8>::bounded(1).unwrap());
    let mut seen = 0;
    while seen < 3 {
        assert_eq!(select(&[&queue, &ticks], Some(DEADLINE)).unwrap(), Some(1));
        let mut missed = [0; 8];
        rustix::io::read(&timer, &mut missed).unwrap();
        seen += u64::from_ne_bytes(missed);
    }
    assert!(begun.elapsed() >= Duration::from_millis(30));
    // The wait finds the queue as well.
    give(&queue, 7);
    while select(&[&queue, &ticks], Some(DEADLINE)).unwrap() != Some(0) {}
    assert_eq!(take(&queue), 7);
}

#[test]
fn wait_serves_always_ready_sources_fairly() {
    let _alone = alone();
    let queues: Vec<Queue<u8>> = (0..5).map(|_| Queue::bounded(1).unwrap()).collect();
    // The last queue is never ready.
    queues.iter().take(4).for_each(|q| give(q, 0));
    let all: Vec<&dyn Waitable> = queues.iter().map(|q| q as &dyn Waitable).collect();
    let mut chosen = [0_u32; 5];
    for _ in 0..4000 {
        let i = select(&all, None).unwrap().expect("some are ready");
        assert_eq!(take(&queues[i]), 0);
        give(&queues[i], 0);
        chosen[i] += 1;
    }
    // Each ready queue is chosen about 1000 times, within seven standard deviations.
    assert!(chosen[..4].iter().all(|n| (800..1200).contains(n)), "{chosen:?}");
    assert_eq!(chosen[4], 0);
}

#[test]
fn wait_for_several_ends_when_a_side_is_killed() {
    let _alone = alone();
    fn holds(_: usize, (sender, permits, ready): (Sender<u8>, BoundedSemaphore, Queue<()>)) -> Outcome {
        permits.acquire()?.keep();
        ready.put(())?;
        std::thread::park();
        drop(sender);
        Ok(())
    }
    let (sender, receiver) = bounded_channel::<u8>(1).unwrap();
    let (permits, ready) = (BoundedSemaphore::new(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(holds, (sender, permits.clone(), ready.clone()));
    take(&ready);
    let idle = Queue::<u8>::bounded(1).unwrap();
    assert!(wait(&[&receiver, &permits, &idle], Some(MOMENT)).unwrap().is_empty());
    signal(context.pids()[0], Signal::KILL);
    failure(&context);
    assert_eq!(wait(&[&idle, &receiver], Some(DEADLINE)).unwrap(), [1]);
    assert_eq!(wait(&[&permits, &idle], Some(DEADLINE)).unwrap(), [0]);
    let (a, _b) = UnixStream::pair().unwrap();
    permits.try_acquire().unwrap().keep();
    assert!(wait(&[&permits, &idle, &Descriptor(a)], Some(MOMENT)).unwrap().is_empty());
}

type Two = (Queue<u64>, Queue<u64>, Queue<u64>);

/// Waits for both queues repeatedly, and takes nothing.
fn waits_repeatedly(_: usize, (a, b, ready): Two) -> Outcome {
    ready.put(1)?;
    loop {
        wait(&[&a, &b], None)?;
    }
}

#[test]
fn killed_or_stopped_waiters_block_no_messages() {
    let _alone = alone();
    fn takes(_: usize, (a, _, got): Two) -> Outcome {
        while let Some(value) = next(&a)? {
            got.put(value)?;
        }
        Ok(())
    }
    let two: Two = (Queue::bounded(4).unwrap(), Queue::bounded(4).unwrap(), Queue::bounded(4).unwrap());
    let looking = start_processes(waits_repeatedly, two.clone(), SpawnOptions::nprocs(2)).unwrap();
    (0..2).for_each(|_| assert_eq!(take(&two.2), 1));
    let taking = one_process(takes, two.clone());
    for value in 0..20 {
        give(&two.0, value);
        assert_eq!(take(&two.2), value);
    }
    signal(looking.pids()[0], Signal::STOP);
    eventually("the process is stopped", || threads_are(looking.pids()[0], 'T'));
    for value in 0..20 {
        give(&two.0, value);
        assert_eq!(take(&two.2), value);
    }
    looking.pids().into_iter().for_each(|pid| signal(pid, Signal::KILL));
    failure(&looking);
    for value in 0..20 {
        give(&two.0, value);
        assert_eq!(take(&two.2), value);
    }
    two.0.close();
    join(&taking).unwrap();
}

/// Waits for two queues, one of which gets a message, and takes the message. Does so three times.
fn waits_and_takes(_: usize, (a, b, at): (Queue<u64>, Receiver<u64>, u64)) -> Outcome {
    inject::arm(at, Signal::KILL.as_raw());
    for _ in 0..3 {
        if wait(&[&a, &b], Some(DEADLINE))?.contains(&0) {
            _ = a.try_get();
        } else {
            _ = b.try_recv();
        }
    }
    Ok(())
}

#[test]
fn process_killed_in_wait_for_two_leaks_nothing() {
    mp_tests::kill::for_every_access(|at| {
        let a = Queue::bounded(4).unwrap();
        let (sender, receiver) = channel().unwrap();
        let args = (a.clone(), receiver.clone(), at);
        let context = one_process(waits_and_takes, args);
        for value in 0..2 {
            give(&a, value);
            sender.send(value).unwrap();
        }
        let killed = mp_tests::kill::killed(&context);
        // Other processes continue.
        give(&a, 9);
        assert!(wait(&[&a, &receiver], Some(DEADLINE)).unwrap().contains(&0));
        while take(&a) != 9 {}
        killed
    });
}

/// Runs without the system call that can sleep on many words.
fn on_an_old_kernel(_: usize, queues: (Queue<u8>, Queue<u8>)) -> Outcome {
    forbid_futex_waitv()?;
    queues.0.put(0)?;
    assert_eq!(wait(&[&queues.1], Some(DEADLINE))?, [0]);
    let (a, _b) = UnixStream::pair()?;
    assert_eq!(wait(&[&Descriptor(a), &queues.1], Some(DEADLINE))?, [1]);
    let empty = Queue::<u8>::bounded(1)?;
    assert!(wait(&[&empty, &empty.clone()], Some(MOMENT))?.is_empty());
    Ok(())
}

/// Makes `futex_waitv` fail with ENOSYS, for this thread and its new threads.
#[allow(unsafe_code)]
fn forbid_futex_waitv() -> std::io::Result<()> {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // Compares the number of the call.
        statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, 449),
        statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the call takes numbers.
    let first = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program and the memory to which it points live until the call returns.
    let second = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if first == 0 && second == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn wait_works_without_futex_waitv() {
    let _alone = alone();
    let queues: (Queue<u8>, Queue<u8>) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(on_an_old_kernel, queues.clone());
    take(&queues.0);
    give(&queues.1, 1);
    join(&context).unwrap();
}
