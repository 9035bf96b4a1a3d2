//! Processes that die, or stop, at their n-th access to shared memory, for every n of a script.
//!
//! After each death, the other side has received whole messages, in order, and no message twice. At most the
//! message in flight is missing. After the reclaim, no resources of the dead process are left. While a
//! process is stopped, other processes continue.

use std::collections::BTreeSet;

use mp::{
    Arena, FrozenTensor, GetError, ProcessContext, Queue, SharedTensor, SpawnOptions, Tensor, start_processes,
};
use mp_core::inject;
use mp_reduce::Encoded;
use mp_tests::kill::{for_every_access, killed, stopped};
use mp_tests::parcel::Parcel;
use mp_tests::{DEADLINE, one_process};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// Number of messages that a script puts or gets.
const MESSAGES: u64 = 3;

#[derive(Clone, Serialize, Deserialize)]
struct Victim {
    queue: Queue<Parcel>,
    all: FrozenTensor<u64>,
    /// Numbers of the messages that the victim has received. The victim writes them itself.
    got: SharedTensor<u64>,
    at: u64,
    signal: i32,
}

impl Victim {
    fn new(at: u64, signal: Signal) -> mp::AnyResult<Self> {
        Ok(Self {
            queue: Queue::bounded(4)?,
            all: Tensor::full([2000], 77)?.freeze(),
            got: Tensor::zeros([64])?.share(),
            at,
            signal: signal.as_raw(),
        })
    }
}

fn produce(_: usize, v: Victim) -> mp::AnyResult<()> {
    inject::arm(v.at, v.signal);
    for number in 0..MESSAGES {
        v.queue.put(Parcel::new(number, &v.all)?)?;
    }
    Ok(())
}

fn consume(_: usize, v: Victim) -> mp::AnyResult<()> {
    inject::arm(v.at, v.signal);
    for _ in 0..MESSAGES {
        let Some(parcel) = v.queue.get_timeout(DEADLINE)? else { break };
        parcel.check();
        v.got.store(parcel.number as usize, 1);
    }
    Ok(())
}

/// Allocates several sizes, keeps and drops some tensors, makes views and clones, and frees memory into the
/// cache and to the kernel.
fn allocate(_: usize, v: Victim) -> mp::AnyResult<()> {
    let arena = Arena::current()?;
    inject::arm(v.at, v.signal);
    let mut kept = Vec::new();
    for size in [1, 8, 500, 70_000] {
        let t = Tensor::<u64>::zeros([size])?;
        kept.push(Tensor::<u64>::zeros([size])?.freeze());
        drop(t);
        kept.push(v.all.narrow(0, 0, 1)?);
    }
    kept.remove(0);
    arena.empty_cache()?;
    kept.push(Tensor::<u64>::zeros([70_000])?.freeze());
    // From here on, each large tensor that is dropped is returned to the kernel at once.
    arena.set_cache_limit(0);
    for _ in 0..2 {
        drop(Tensor::<u8>::empty([2 << 20])?);
    }
    Ok(())
}

/// Sends a tensor in more messages than its header has seats for. Then takes the messages, and drops their
/// handles, the newest holder first.
fn many_holders(_: usize, v: Victim) -> mp::AnyResult<()> {
    inject::arm(v.at, v.signal);
    let queue = Queue::bounded(16)?;
    let tensor = Tensor::<u64>::full([4], 3)?.freeze();
    for _ in 0..9 {
        queue.put(tensor.clone())?;
    }
    for _ in 0..3 {
        queue.get()?;
    }
    drop(tensor);
    while let Ok(Some(t)) = queue.try_get() {
        assert_eq!(t.get(&[3])?, 3);
    }
    Ok(())
}

/// Returns the memory of envelopes after a burst of messages, and allocates some of it again.
fn give_envelopes_back(_: usize, v: Victim) -> mp::AnyResult<()> {
    const BURST: u64 = 192;
    let queue = Queue::bounded(BURST as usize)?;
    for number in 0..BURST {
        queue.put([number; 20])?;
    }
    for number in 0..BURST {
        assert_eq!(queue.get()?, Some([number; 20]));
    }
    inject::arm(v.at, v.signal);
    Arena::current()?.empty_cache()?;
    queue.put([1; 20])?;
    Ok(())
}

/// Packs one message for several receivers, inline and in a separate block, and opens some of the copies.
fn repeat(_: usize, v: Victim) -> mp::AnyResult<()> {
    let arena = Arena::current()?;
    inject::arm(v.at, v.signal);
    for size in [10, 1000, 20_000] {
        let message = Encoded::new(arena, &(vec![7_u8; size], v.all.clone()))?;
        let [first, second, _third] = [message.pack()?, message.pack()?, message.pack()?];
        drop(message);
        assert_eq!(mp::message::unpack::<(Vec<u8>, FrozenTensor<u64>)>(first)?.0, vec![7; size]);
        drop(second);
    }
    Ok(())
}

/// Starts a process, which is killed. This process is killed itself at the access `at`, while it detects that
/// death, recovers and reclaims.
fn recover(_: usize, (v, at): (Victim, u64)) -> mp::AnyResult<()> {
    inject::arm(at, Signal::KILL.as_raw());
    let context = if v.at.is_multiple_of(2) { start(allocate, &v) } else { start(many_holders, &v) };
    _ = context.join_timeout(DEADLINE);
    Arena::current()?.reclaim()?;
    Ok(())
}

fn start<F>(f: F, v: &Victim) -> ProcessContext
where
    F: Fn(usize, Victim) -> mp::AnyResult<()> + Copy + Send + 'static,
{
    start_processes(f, v.clone(), SpawnOptions::nprocs(1)).expect("it starts")
}

/// Takes all messages of the queue.
fn drain(queue: &Queue<Parcel>) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        match queue.try_get() {
            Ok(Some(parcel)) => {
                parcel.check();
                numbers.push(parcel.number);
            }
            Ok(None) | Err(GetError::Empty) => return numbers,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn tensor_producer_killed_at_any_access_leaks_nothing() {
    for_every_access(|at| {
        let v = Victim::new(at, Signal::KILL).unwrap();
        let killed = killed(&start(produce, &v));
        let got = drain(&v.queue);
        let whole: Vec<_> = (0..got.len() as u64).collect();
        assert_eq!(got, whole, "killed at access {at}");
        assert!(killed || got.len() as u64 == MESSAGES);
        killed
    });
}

#[test]
fn tensor_consumer_killed_at_any_access_leaks_nothing() {
    for_every_access(|at| {
        let v = Victim::new(at, Signal::KILL).unwrap();
        for number in 0..MESSAGES {
            v.queue.put(Parcel::new(number, &v.all).unwrap()).unwrap();
        }
        let killed = killed(&start(consume, &v));
        let mut all: BTreeSet<u64> = (0..MESSAGES).filter(|&i| v.got.load(i as usize) == 1).collect();
        let there = all.len();
        for number in drain(&v.queue) {
            assert!(all.insert(number), "message {number} twice, killed at access {at}");
        }
        let lost = MESSAGES as usize - all.len();
        assert!(lost <= usize::from(killed), "{lost} lost, killed at access {at}");
        assert!(killed || there as u64 == MESSAGES);
        killed
    });
}

#[test]
fn process_killed_while_allocating_leaks_nothing() {
    for_every_access(|at| {
        let v = Victim::new(at, Signal::KILL).unwrap();
        let killed = killed(&start(allocate, &v));
        assert_eq!(v.all.get(&[1999]).unwrap(), 77);
        killed
    });
}

#[test]
fn process_killed_returning_envelopes_leaks_nothing() {
    for_every_access(|at| {
        let v = Victim::new(at, Signal::KILL).unwrap();
        killed(&start(give_envelopes_back, &v))
    });
}

#[test]
fn one_of_many_holders_killed_anywhere_leaks_nothing() {
    for_every_access(|at| {
        let v = Victim::new(at, Signal::KILL).unwrap();
        killed(&start(many_holders, &v))
    });
}

#[test]
fn process_killed_packing_for_several_leaks_nothing() {
    for_every_access(|at| {
        let v = Victim::new(at, Signal::KILL).unwrap();
        let killed = killed(&start(repeat, &v));
        assert_eq!(v.all.get(&[1999]).unwrap(), 77);
        killed
    });
}

/// Drops a queue that holds tensors of which this process has no other handle.
fn drop_full(_: usize, (outer, at): (Queue<Queue<FrozenTensor<u64>>>, u64)) -> mp::AnyResult<()> {
    inject::arm(at, Signal::KILL.as_raw());
    drop(outer.get_timeout(DEADLINE)?.ok_or("closed")?);
    Ok(())
}

#[test]
fn process_killed_dropping_full_queue_leaks_nothing() {
    for_every_access(|at| {
        let (outer, inner) = (Queue::bounded(1).unwrap(), Queue::bounded(4).unwrap());
        for size in [10, 1000, 70_000] {
            inner.put(Tensor::<u64>::zeros([size]).unwrap().freeze()).unwrap();
        }
        outer.put(inner).unwrap();
        killed(&start_processes(drop_full, (outer, at), SpawnOptions::nprocs(1)).expect("it starts"))
    });
}

#[test]
fn recoverer_killed_at_any_access_leaks_nothing() {
    // These victims die in the middle of their scripts.
    for victim in [40, 151] {
        for_every_access(|at| {
            let v = Victim::new(victim, Signal::KILL).unwrap();
            killed(&start_processes(recover, (v, at), SpawnOptions::nprocs(1)).expect("it starts"))
        });
    }
}

/// Number of tensors that is larger than an envelope can list.
const MANY: usize = 30;

fn consume_many(_: usize, (queue, at): (Queue<Vec<FrozenTensor<u64>>>, u64)) -> mp::AnyResult<()> {
    inject::arm(at, Signal::KILL.as_raw());
    let tensors = queue.get_timeout(DEADLINE)?.ok_or("closed")?;
    for (i, t) in tensors.iter().enumerate() {
        assert_eq!(t.get(&[0])?, i as u64);
    }
    Ok(())
}

#[test]
fn killed_consumer_of_many_tensors_leaks_nothing() {
    for_every_access(|at| {
        let queue = Queue::bounded(1).unwrap();
        let tensor = |i| Ok(Tensor::full([1], i as u64)?.freeze());
        let tensors: mp::AnyResult<Vec<_>> = (0..MANY).map(tensor).collect();
        queue.put(tensors.unwrap()).unwrap();
        let context = one_process(consume_many, (queue.clone(), at));
        let killed = killed(&context);
        match queue.try_get() {
            // The process was killed before it took the message.
            Ok(Some(tensors)) => {
                assert!(killed);
                assert!(tensors.iter().enumerate().all(|(i, t)| t.get(&[0]).unwrap() == i as u64));
            }
            Err(GetError::Empty) => {}
            other => panic!("{other:?}"),
        }
        killed
    });
}

/// Stops a process at every access. While it is stopped, this process puts and gets on the same queue. Then
/// the stopped process continues.
fn stop_at_every_access<F>(f: F, fill: bool)
where
    F: Fn(usize, Victim) -> mp::AnyResult<()> + Copy + Send + 'static,
{
    for_every_access(|at| {
        let v = Victim::new(at, Signal::STOP).unwrap();
        if fill {
            for number in 0..MESSAGES {
                v.queue.put(Parcel::new(number, &v.all).unwrap()).unwrap();
            }
        }
        let context = start(f, &v);
        let pid = context.pids()[0];
        let reached = stopped(&context);
        let mut got = drain(&v.queue);
        if reached {
            for number in 40..50 {
                let parcel = Parcel::new(number, &v.all).unwrap();
                v.queue
                    .put_timeout(parcel, DEADLINE)
                    .unwrap_or_else(|e| panic!("{e}, stopped at access {at}"));
                got.extend(drain(&v.queue));
            }
            assert_eq!(got.iter().filter(|&&n| n >= 40).count(), 10, "stopped at access {at}");
            if fill {
                // The consumer gets the messages for which it still waits.
                for number in 50..50 + MESSAGES {
                    v.queue.put(Parcel::new(number, &v.all).unwrap()).unwrap();
                }
            }
            kill_process(Pid::from_raw(pid as i32).expect("a pid"), Signal::CONT).unwrap();
        }
        assert!(!killed(&context), "stopped at access {at}");
        got.extend(drain(&v.queue));
        got.extend((0..64).filter(|&i| v.got.load(i as usize) == 1));
        for number in 0..MESSAGES {
            let times = got.iter().filter(|&&n| n == number).count();
            assert_eq!(times, 1, "message {number}, stopped at access {at}: {got:?}");
        }
        reached
    });
}

#[test]
fn tensor_producer_stopped_anywhere_delays_no_other() {
    stop_at_every_access(produce, false);
}

#[test]
fn tensor_consumer_stopped_anywhere_delays_no_other() {
    stop_at_every_access(consume, true);
}

/// Puts more messages than the first segment of a queue has room for.
fn produce_growing(_: usize, (queue, at): (Queue<u64>, u64)) -> mp::AnyResult<()> {
    for number in 0..254 {
        queue.put(number)?;
    }
    inject::arm(at, Signal::KILL.as_raw());
    for number in 254..259 {
        queue.put(number)?;
    }
    Ok(())
}

#[test]
fn killed_producer_of_a_growing_queue_leaks_nothing() {
    for_every_access(|at| {
        let queue = Queue::unbounded().unwrap();
        let context = one_process(produce_growing, (queue.clone(), at));
        let killed = killed(&context);
        // Other processes continue, at whatever access the producer died.
        (300..304).for_each(|number| queue.try_put(number).unwrap());
        queue.close();
        let got: Vec<u64> = queue.iter().map(Result::unwrap).collect();
        let theirs = got.len() as u64 - 4;
        assert!(got.iter().copied().eq((0..theirs).chain(300..304)), "killed at access {at}: {got:?}");
        assert!(theirs >= 254 && (killed || theirs == 259));
        killed
    });
}

type Job = (u64, FrozenTensor<u64>, Vec<u8>);

fn consume_with_acknowledgement(_: usize, (queue, v): (Queue<Job>, Victim)) -> mp::AnyResult<()> {
    inject::arm(v.at, v.signal);
    for i in 0..MESSAGES {
        let job = queue.get_lease_timeout(DEADLINE)?.ok_or("closed")?;
        assert_eq!(job.1.get(&[1])?, 77);
        if i == 1 {
            continue; // given back, and got again
        }
        // Recorded before the acknowledgement. After a death in between, the message may be delivered again,
        // but it is never lost.
        v.got.store(job.0 as usize, 1);
        job.ack();
    }
    Ok(())
}

#[test]
fn killed_leaseholder_of_tensors_leaks_nothing() {
    for_every_access(|at| {
        let v = Victim::new(at, Signal::KILL).unwrap();
        let queue = Queue::bounded(4).unwrap();
        for number in 0..MESSAGES {
            let bytes = vec![1; if number == 1 { 1000 } else { 10 }];
            queue.put((number, v.all.clone(), bytes)).unwrap();
        }
        let context = start_processes(
            consume_with_acknowledgement,
            (queue.clone(), v.clone()),
            SpawnOptions::nprocs(1),
        );
        let killed = killed(&context.unwrap());
        Arena::current().unwrap().reclaim().unwrap();
        queue.close();
        let mut all: BTreeSet<u64> = (0..MESSAGES).filter(|&i| v.got.load(i as usize) == 1).collect();
        while let Some(job) = queue.get_lease_timeout(DEADLINE).unwrap() {
            all.insert(job.ack().0);
        }
        assert!(all.into_iter().eq(0..MESSAGES), "lost, killed at access {at}");
        killed
    });
}
