//! Waiting uses no processor time. These processes wait for half a second in every way, and report their
//! processor time.

use std::time::{Duration, Instant};

use mp::queue::{DesertedWhen, JoinableQueueError, Spin};
use mp::wait::wait_async;
use mp::{
    Barrier, Condition, Event, GetError, JoinableQueue, Lock, Queue, QueueOptions, RwLock, Semaphore,
    SpawnOptions, bounded_channel, pipe, select, start_processes, wait,
};
use mp_tests::block_on::poll_once;
use mp_tests::{Outcome, alone, give, join, one_process, take};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Duration of each wait.
const TIME: Duration = Duration::from_millis(500);
/// Maximum processor time of a wait: many times the usual time, and a fifth of the time of a busy loop.
const MOST: Duration = Duration::from_millis(100);

/// Objects that a process waits for: full, empty, taken, and never set.
#[derive(Clone, Serialize, Deserialize)]
struct Things {
    empty: Queue<u32>,
    full: Queue<u32>,
    heavy: Queue<Vec<u8>>,
    tasks: JoinableQueue<u32>,
    leased: Queue<u32>,
    event: Event,
    lock: Lock<u32>,
    shared: RwLock<u32>,
    free: Lock<u32>,
    condition: Condition,
    permits: Semaphore,
    barrier: Barrier,
}

const WAYS: usize = 14;

/// Waits by the call that its rank selects.
fn waits(way: usize, t: &Things) -> Outcome {
    let until = Instant::now() + TIME;
    let nothing = match way {
        0 => t.empty.get_deadline(until).is_err(),
        1 => t.full.put_deadline(1, until).is_err(),
        2 => t.heavy.put_deadline(vec![0; 600], until).is_err(),
        3 => select(&[&t.empty, &t.full.put_ready(), &t.event], Some(TIME))?.is_none(),
        4 => wait(&[&t.heavy.put_ready_for(610)], Some(TIME))?.is_empty(),
        5 => wait(&[&t.leased.lease_ready()], Some(TIME))?.is_empty(),
        6 => t.leased.get_lease_deadline(until).is_err(),
        7 => matches!(t.tasks.join_deadline(until), Err(JoinableQueueError::Unfinished { .. })),
        8 => t.lock.lock_deadline(until).is_err() && t.shared.try_read().is_err(),
        9 => t.permits.acquire_timeout(TIME).is_err(),
        10 => !t.event.wait_timeout(TIME)?,
        11 => t.barrier.wait_timeout(TIME).is_err(),
        12 => !t.condition.wait_timeout(t.free.lock()?, TIME)?.1,
        // The future is polled again only when it is woken.
        _ => {
            let mut future = std::pin::pin!(wait_async(t.heavy.put_ready_for(610)));
            let nothing = poll_once(&mut future).is_pending();
            nothing && select(&[&t.event], Some(TIME))?.is_none()
        }
    };
    if nothing { Ok(()) } else { Err(format!("what way {way} waits for has come").into()) }
}

/// Reports the processor time of this process's wait, in µs.
fn measured(way: usize, (things, results): (Things, Queue<(usize, u64)>)) -> Outcome {
    let now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
    };
    // The first wait, with its set-up, is not counted.
    wait(&[&things.event, &things.empty], Some(Duration::from_millis(1)))?;
    let begin = now();
    waits(way, &things)?;
    results.put((way, now() - begin)).map_err(|error| error.to_string())?;
    Ok(())
}

#[test]
fn waiting_processes_use_no_processor_time() {
    let _alone = alone();
    let things = Things {
        empty: Queue::bounded(4).unwrap(),
        full: Queue::bounded(1).unwrap(),
        heavy: QueueOptions::new().capacity(100).bytes(1000).create().unwrap(),
        tasks: JoinableQueue::unbounded().unwrap(),
        leased: Queue::bounded(4).unwrap(),
        event: Event::new().unwrap(),
        lock: Lock::new(0).unwrap(),
        shared: RwLock::new(0).unwrap(),
        free: Lock::new(0).unwrap(),
        condition: Condition::new().unwrap(),
        permits: Semaphore::new(1).unwrap(),
        barrier: Barrier::new(2).unwrap(),
    };
    give(&things.full, 0);
    give(&things.heavy, vec![0; 600]);
    things.tasks.put(1).unwrap();
    // This process holds the last message of a closed queue.
    give(&things.leased, 7);
    let lease = things.leased.get_lease().unwrap().expect("the queue is open");
    things.leased.close();
    let _held =
        (things.lock.lock().unwrap(), things.shared.write().unwrap(), things.permits.acquire().unwrap());
    let results = Queue::bounded(WAYS).unwrap();
    let context =
        start_processes(measured, (things.clone(), results.clone()), SpawnOptions::nprocs(WAYS)).unwrap();
    join(&context).unwrap();
    let mut all: Vec<_> = (0..WAYS).map(|_| take(&results)).collect();
    all.sort_unstable();
    println!("µs of a processor, by the way of waiting: {all:?}");
    let too_much: Vec<_> = all.iter().filter(|(_, used)| Duration::from_micros(*used) > MOST).collect();
    assert!(too_much.is_empty(), "in {TIME:?}, by the way of waiting: {too_much:?}");
    lease.ack();
}

#[test]
fn idle_connection_and_channel_use_no_processor_time() {
    let _alone = alone();
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (sender, receiver) = bounded_channel(1).unwrap();
    let (here, _there) = pipe().unwrap();
    sender.send(1).unwrap();
    let begin = now();
    assert!(sender.send_timeout(2, TIME).unwrap_err().is_full() && sender.is_full());
    assert_eq!((receiver.recv().unwrap(), sender.capacity(), sender.is_full()), (1, 1, false));
    assert!(receiver.recv_timeout(TIME).unwrap_err().is_empty());
    assert!(here.recv_bytes_timeout(TIME).unwrap_err().is_empty() && !here.poll(TIME).unwrap());
    let used = now() - begin;
    assert!(used < MOST, "{used:?}");
}

/// Returns the number of this thread's sleeps during a wait of [`TIME`] at an empty queue. A thread that
/// spins and yields does not sleep, however busy the machine is.
fn sleeps(queue: &Queue<u32>) -> u64 {
    let so_far = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let before = so_far();
    assert!(queue.get_timeout(TIME).unwrap_err().is_empty());
    so_far() - before
}

fn sleeps_elsewhere(_: usize, (queue, number): (Queue<u32>, Queue<u64>)) -> Outcome {
    number.put(sleeps(&queue)).map_err(|error| error.to_string())?;
    Ok(())
}

/// The spin setting belongs to the queue: other processes use it as well, except handles with their own
/// setting.
#[test]
fn spin_setting_is_sent_with_the_queue() {
    let _alone = alone();
    let numbers = Queue::unbounded().unwrap();
    let elsewhere = |spin| {
        let queue =
            QueueOptions::new().spin(spin).deserted_when(DesertedWhen::Never).create::<u32>().unwrap();
        join(&one_process(sleeps_elsewhere, (queue.clone(), numbers.clone()))).unwrap();
        (queue, take(&numbers))
    };
    let (busy, of_busy) = elsewhere(Spin::Busy);
    assert_eq!(of_busy, 0);
    assert_ne!(sleeps(&busy.spinning(Spin::Never)), 0);
    let (asleep, of_asleep) = elsewhere(Spin::Never);
    assert_ne!(of_asleep, 0);
    let mut handle = asleep;
    for spin in [Spin::Busy, Spin::Never, Spin::For(2 * TIME)] {
        handle = handle.spinning(spin);
        let number = sleeps(&handle);
        assert_eq!(number == 0, spin != Spin::Never, "{spin:?}: {number} sleeps");
    }
}

fn leaves(_: usize, queue: Queue<u32>) -> Outcome {
    drop(queue.get_timeout(Duration::from_millis(1)));
    Ok(())
}

/// A wait that spins and never sleeps must also detect that the other processes have dropped the queue.
#[test]
fn spinning_queue_detects_desertion() {
    let _alone = alone();
    let queue = QueueOptions::new().spin(Spin::Busy).create::<u32>().unwrap();
    let context = one_process(leaves, queue.clone());
    let got = queue.get_timeout(10 * TIME);
    assert!(matches!(got, Err(GetError::Deserted { .. })), "{got:?}");
    join(&context).unwrap();
}
