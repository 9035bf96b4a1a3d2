//! Processes that are started by the start method `fork`, and killed at their n-th access to shared memory,
//! for every n of a script.
//!
//! A child begins with its parent's memory, and is not a member of the arena. After each death, the parent
//! and other children continue, their resources are unchanged, and no resources of the dead child are left.
#![allow(unsafe_code)]

use mp::process::{ExitStatus, Signal};
use mp::sync::RawValue;
use mp::{
    Bundle, FrozenTensor, GetError, Lock, LockError, Process, ProcessContext, Queue, SharedTensor,
    SpawnOptions, StartMethod, Tensor, start_processes,
};
use mp_core::inject;
use mp_tests::kill::{KILL, for_every_access, killed};
use mp_tests::parcel::Parcel;
use mp_tests::{DEADLINE, Outcome, alone, eventually_in_use, in_use, join, next, one_process, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Number of messages that a child puts or gets.
const MESSAGES: u64 = 3;

/// Runs a test in a separate process, which is allowed to fork. Checks that the process leaves nothing in
/// shared memory.
fn in_an_original(test: impl Fn(usize, ()) -> Outcome + Copy + Send + 'static) {
    let _alone = alone();
    // Only a process that has used a queue can release messages in the queues of other processes.
    drop(Queue::<u8>::bounded(1).unwrap());
    let before = in_use();
    // Each child of that process has a deadline.
    one_process(test, ()).join().unwrap();
    eventually_in_use(before, "no resources are left");
}

fn allow() {
    // SAFETY: what these tests do in copies needs nothing of other threads, and nothing that is there once.
    unsafe { mp::process::allow_fork() };
}

fn copy<F, A>(f: F, args: A) -> ProcessContext
where
    F: Fn(usize, A) -> Outcome + Copy + Send + 'static,
    A: Serialize + DeserializeOwned + 'static,
{
    start_processes(f, args, SpawnOptions::nprocs(1).start_method(StartMethod::Fork)).expect("it starts")
}

#[test]
fn forked_copy_killed_while_joining_leaks_nothing() {
    // The child gets no shared arguments: it joins the arena when it allocates.
    fn script(_: usize, at: u64) -> Outcome {
        inject::arm(at, KILL);
        let kept = Tensor::<u64>::zeros([100])?.freeze();
        drop(Tensor::<u64>::zeros([100_000])?);
        drop(kept);
        Ok(())
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let mut kept = Tensor::<u64>::full([1000], 5)?;
        for_every_access(|at| {
            let killed = killed(&copy(script, at));
            // Memory that only the parent holds stays private to the parent, before and after the child's
            // death.
            assert!(kept.iter().all(|x| x == 4 + at), "killed at access {at}");
            kept.as_mut_slice().unwrap().iter_mut().for_each(|x| *x += 1);
            killed
        });
        Ok(())
    }
    in_an_original(original);
}

#[test]
fn forked_copy_killed_at_any_access_leaks_nothing() {
    type Args = (FrozenTensor<u64>, SharedTensor<u64>);
    type Value = Bundle<(Tensor<u64>, FrozenTensor<u64>)>;
    // The child joins to read its arguments, and its result goes back through shared memory. Accesses count
    // from the child's first one.
    fn script((frozen, shared): Args) -> mp::AnyResult<Value> {
        assert_eq!(frozen.get(&[3])?, 77, "torn");
        shared.fetch_add(0, 1);
        Ok(Bundle((Tensor::full([200], 9)?, frozen)))
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let frozen = Tensor::<u64>::full([1000], 77)?.freeze();
        let shared = Tensor::<u64>::zeros([1])?.share();
        let here = frozen.as_slice()?.as_ptr();
        for_every_access(|at| {
            let before = shared.load(0);
            inject::arm_copies(at, KILL);
            let builder = Process::builder().start_method(StartMethod::Fork);
            let process = builder.spawn(script, (frozen.clone(), shared.clone())).expect("it starts");
            inject::arm_copies(u64::MAX, 0);
            assert!(process.wait_timeout(DEADLINE), "{process:?}");
            let killed = process.exit().is_none_or(|exit| !exit.success());
            match process.join() {
                Ok(Bundle((own, same))) => {
                    assert!(own.iter().all(|x| x == 9) && same.as_slice().unwrap().as_ptr() == here);
                    assert_eq!(shared.load(0), before + 1);
                }
                Err(error) => {
                    let is_kill =
                        |exit| matches!(exit, ExitStatus::Signal { signal, .. } if signal == Signal::KILL);
                    let ours = matches!(&error, mp::SpawnError::ProcessExited(e) if is_kill(e.exit));
                    assert!(killed && ours, "{error}; killed at access {at}");
                    assert!((before..=before + 1).contains(&shared.load(0)));
                }
            }
            assert!(frozen.iter().all(|x| x == 77), "killed at access {at}");
            killed
        });
        Ok(())
    }
    in_an_original(original);
}

#[derive(Clone, Serialize, Deserialize)]
struct Victim {
    queue: Queue<Parcel>,
    all: FrozenTensor<u64>,
    /// Numbers of the messages that the victim has received. The victim writes them itself.
    got: SharedTensor<u64>,
    at: u64,
}

impl Victim {
    fn new(at: u64) -> mp::AnyResult<Self> {
        let (all, got) = (Tensor::full([2000], 77)?.freeze(), Tensor::zeros([8])?.share());
        Ok(Self { queue: Queue::bounded(4)?, all, got, at })
    }
}

fn produce(_: usize, v: Victim) -> Outcome {
    inject::arm(v.at, KILL);
    for number in 0..MESSAGES {
        send(&v.queue, Parcel::new(number, &v.all)?)?;
    }
    Ok(())
}

fn consume(_: usize, v: Victim) -> Outcome {
    inject::arm(v.at, KILL);
    for _ in 0..MESSAGES {
        let Some(parcel) = next(&v.queue)? else { break };
        parcel.check();
        v.got.store(parcel.number as usize, 1);
    }
    Ok(())
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

/// Starts another child that puts messages into the victim's queue, and takes the messages out. The queue
/// must have enough room.
fn another_process_continues(v: &Victim) {
    let after = Victim { at: u64::MAX, ..v.clone() };
    join(&copy(produce, after)).expect("another copy continues");
    assert!(drain(&v.queue).into_iter().eq(0..MESSAGES));
}

#[test]
fn forked_copy_killed_while_putting_leaks_no_tensor() {
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        for_every_access(|at| {
            let v = Victim::new(at).unwrap();
            let killed = killed(&copy(produce, v.clone()));
            let got = drain(&v.queue);
            let whole: Vec<_> = (0..got.len() as u64).collect();
            assert_eq!(got, whole, "killed at access {at}");
            assert!(killed || got.len() as u64 == MESSAGES);
            another_process_continues(&v);
            killed
        });
        Ok(())
    }
    in_an_original(original);
}

#[test]
fn forked_copy_killed_while_getting_leaks_no_tensor() {
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        for_every_access(|at| {
            let v = Victim::new(at).unwrap();
            for number in 0..MESSAGES {
                v.queue.put(Parcel::new(number, &v.all).unwrap()).unwrap();
            }
            let killed = killed(&copy(consume, v.clone()));
            let mut all: Vec<u64> = (0..MESSAGES).filter(|&i| v.got.load(i as usize) == 1).collect();
            let there = all.len() as u64;
            // If the dead child had not completed a get, its message may be delivered again.
            all.extend(drain(&v.queue));
            let mut once = all.clone();
            once.dedup();
            assert!(all.is_sorted() && once == all, "{all:?}, killed at access {at}");
            let lost = MESSAGES - all.len() as u64;
            assert!(lost <= u64::from(killed), "{lost} lost, killed at access {at}");
            assert!(killed || there == MESSAGES);
            another_process_continues(&v);
            killed
        });
        Ok(())
    }
    in_an_original(original);
}

#[test]
fn lock_survives_forked_copy_killed_at_any_access() {
    type Args = (Lock<[u64; 2]>, RawValue<u64>, u64);
    fn script(_: usize, (lock, between, at): Args) -> Outcome {
        inject::arm(at, KILL);
        for _ in 0..2 {
            let mut pair = match lock.lock_timeout(DEADLINE) {
                Err(LockError::OwnerDied { .. }) => lock.recover()?,
                other => other?,
            };
            pair[0] += 1;
            // Accesses shared memory between the two halves.
            between.set(between.get() + 1);
            pair[1] = pair[0];
        }
        Ok(())
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        for_every_access(|at| {
            let (lock, between) = (Lock::new([0; 2]).unwrap(), RawValue::new(0).unwrap());
            let killed = killed(&copy(script, (lock.clone(), between.clone(), at)));
            match lock.lock_timeout(DEADLINE) {
                Ok(pair) => assert_eq!(pair[0], pair[1], "torn, and not reported; killed at {at}"),
                Err(LockError::OwnerDied { .. }) => {
                    assert!(killed);
                    // The next child recovers the lock.
                }
                Err(e) => panic!("{e}; killed at access {at}"),
            }
            let args = (lock.clone(), between, u64::MAX);
            join(&copy(script, args)).expect("another copy continues");
            let pair = lock.try_lock().expect("the lock was recovered and unlocked");
            assert!(pair[0] == pair[1] && (2..=4).contains(&pair[0]), "{:?}", *pair);
            drop(pair);
            killed
        });
        Ok(())
    }
    in_an_original(original);
}
