//! Shared values between processes: locks whose holders are killed, stopped, or slow; arrays, atomics, lists.
//! The tests run one at a time, because a test counts blocks.

use std::time::{Duration, Instant};

use mp::list::{ListError, ListItem};
use mp::sync::bytemuck::{Pod, Zeroable};
use mp::sync::{RawArray, RawValue};
use mp::{Array, Lock, LockError, Queue, ShareableList, SpawnOptions, Tensor, start_processes};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, failure, give, in_use, interrupts, join, one_process, signal, take,
    threads_are,
};
use rustix::process::Signal;

/// Two halves that belong together.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "mp::sync::bytemuck")]
#[repr(C)]
struct Pair {
    a: u64,
    b: u64,
}

fn add(_: usize, (pair, counts, times): (Lock<Pair>, Array<u32>, u64)) -> Outcome {
    for i in 0..times {
        let mut pair = pair.lock()?;
        assert_eq!(pair.a, pair.b, "torn");
        pair.a += 1;
        pair.b += 1;
        drop(pair);
        counts.lock()?[(i % 5) as usize] += 1;
    }
    Ok(())
}

#[test]
fn additions_under_a_value_lock_are_not_lost() {
    let _alone = alone();
    let pair = Lock::new(Pair { a: 0, b: 0 }).unwrap();
    let counts = Array::<u32>::zeros(5).unwrap();
    let context =
        start_processes(add, (pair.clone(), counts.clone(), 2000), SpawnOptions::nprocs(3)).unwrap();
    add(0, (pair.clone(), counts.clone(), 2000)).unwrap();
    join(&context).unwrap();
    assert_eq!(pair.get().unwrap(), Pair { a: 8000, b: 8000 });
    assert_eq!(counts.to_vec().unwrap(), [1600; 5]);
}

fn hold(_: usize, (pair, ready): (Lock<Pair>, Queue<u32>)) -> Outcome {
    let mut pair = pair.lock()?;
    pair.a += 1;
    give(&ready, std::process::id());
    // Sleeps until another process kills this process, and not forever if none does.
    std::thread::sleep(DEADLINE); // sleep: the test kills or stops this process in the middle of its change
    Ok(())
}

#[test]
fn killed_holder_poisons_value_until_recovery() {
    let _alone = alone();
    let pair = Lock::new(Pair { a: 1, b: 1 }).unwrap();
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(hold, (pair.clone(), ready.clone()));
    let pid = take(&ready);
    let held = pair.lock_timeout(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(held, LockError::Held { pid: p, .. } if p == pid), "{held}");
    assert!(held.to_string().contains(&pid.to_string()));
    signal(pid, Signal::KILL);
    for _ in 0..2 {
        let died = pair.lock().unwrap_err();
        assert!(matches!(died, LockError::OwnerDied { pid: p, .. } if p == pid), "{died}");
    }
    {
        let mut pair = pair.recover().unwrap();
        assert_eq!(pair.died().unwrap().pid, pid);
        assert_eq!(*pair, Pair { a: 2, b: 1 }, "the value is as the dead process left it");
        pair.b = 2;
    }
    assert_eq!(pair.get().unwrap(), Pair { a: 2, b: 2 });
    failure(&context);
}

#[test]
fn panic_during_lock_recovery_keeps_the_poison_mark() {
    let _alone = alone();
    let pair = Lock::new(Pair { a: 1, b: 1 }).unwrap();
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(hold, (pair.clone(), ready.clone()));
    signal(take(&ready), Signal::KILL);
    let copy = pair.clone();
    let recovering = std::thread::spawn(move || {
        let _pair = copy.recover().unwrap();
        panic!("in the middle of the repair");
    });
    recovering.join().unwrap_err();
    assert!(matches!(pair.lock(), Err(LockError::OwnerDied { .. })));
    drop(pair.recover().unwrap());
    drop(pair.lock().unwrap());
    failure(&context);
}

#[test]
fn stopped_holder_of_a_value_lock_is_awaited() {
    let _alone = alone();
    let pair = Lock::new(Pair { a: 1, b: 1 }).unwrap();
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(hold, (pair.clone(), ready.clone()));
    let pid = take(&ready);
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    assert!(matches!(pair.try_lock(), Err(LockError::Held { .. })));
    // The wait is longer than a poll interval, after which it checks if the holder is dead.
    let begin = Instant::now();
    let error = pair.lock_timeout(Duration::from_millis(250)).unwrap_err();
    assert!(matches!(error, LockError::Held { pid: p, .. } if p == pid), "{error}");
    assert!(begin.elapsed() >= Duration::from_millis(250));
    signal(pid, Signal::KILL);
    assert!(matches!(pair.lock(), Err(LockError::OwnerDied { .. })));
    failure(&context);
}

#[test]
fn relock_of_a_value_by_its_thread_is_an_error() {
    let _alone = alone();
    let value = Lock::new(1_u8).unwrap();
    let held = value.lock().unwrap();
    assert!(matches!(value.lock(), Err(LockError::WouldDeadlock)));
    let other = value.clone();
    let in_other_thread = std::thread::spawn(move || other.try_lock().map(|_| ()));
    assert!(matches!(in_other_thread.join().unwrap(), Err(LockError::Held { .. })));
    drop(held);
    drop(value.lock().unwrap());
}

#[test]
fn signals_do_not_keep_a_waiter_from_noticing_a_death() {
    let _alone = alone();
    interrupts::allow();
    let pair = Lock::new(Pair { a: 1, b: 1 }).unwrap();
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(hold, (pair.clone(), ready.clone()));
    let pid = take(&ready);
    let copy = pair.clone();
    let waiter = std::thread::spawn(move || copy.lock().map(drop));
    let mut signals = 0;
    eventually("the waiter detects the death", || {
        signals += 1;
        if signals == 20 {
            signal(pid, Signal::KILL);
        }
        interrupts::send(&waiter);
        waiter.is_finished()
    });
    assert!(matches!(waiter.join().unwrap(), Err(LockError::OwnerDied { .. })));
    failure(&context);
}

fn waits(_: usize, (value, order): (Lock<u64>, Queue<u64>)) -> Outcome {
    let mut value = value.lock_timeout(DEADLINE)?;
    *value += 1;
    let mine = *value;
    drop(value);
    give(&order, mine);
    Ok(())
}

#[test]
fn sleeping_waiters_acquire_a_value_lock_in_turn() {
    let _alone = alone();
    let value = Lock::new(0_u64).unwrap();
    let order = Queue::bounded(8).unwrap();
    let held = value.lock().unwrap();
    let context = start_processes(waits, (value.clone(), order.clone()), SpawnOptions::nprocs(4)).unwrap();
    drop(held);
    join(&context).unwrap();
    let mut got: Vec<u64> = (0..4).map(|_| take(&order)).collect();
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3, 4]);
}

#[test]
fn value_handles_of_another_type_are_refused() {
    let _alone = alone();
    fn confuse<A: mp::Message, B: mp::Message>(mut a: A, what: &str) {
        use mp::message::{Incoming, Outgoing};
        let mut out = Outgoing::default();
        a.encode::<mp_reduce::MessagePack>(&mut out).unwrap();
        let mut inc: Incoming = out.into_incoming();
        let Err(error) = B::decode::<mp_reduce::MessagePack>(&mut inc) else { panic!("{what} was taken") };
        assert!(error.to_string().contains("attachment"), "{what}: {error}");
    }
    confuse::<Lock<u64>, Lock<i64>>(Lock::new(1).unwrap(), "an u64 as an i64");
    confuse::<Lock<u64>, RawValue<u64>>(Lock::new(1).unwrap(), "a Lock as a RawValue");
    confuse::<RawArray<u32>, Array<u32>>(RawArray::zeros(4).unwrap(), "a RawArray as an Array");
    confuse::<Queue<u8>, Lock<u8>>(Queue::bounded(1).unwrap(), "a queue as a Lock");
}

/// Tensor with the bytes of a `Value`'s block, encoded as a value.
struct Forged(mp::SharedTensor<u64>);

impl serde::Serialize for Forged {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let attach = |out: &mut mp::message::Attached| out.attach_object(self.0.storage().hold());
        mp::message::scope::outgoing("forged", attach).map_err(serde::ser::Error::custom)?.serialize(s)
    }
}

impl<'de> serde::Deserialize<'de> for Forged {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("never read"))
    }
}

#[test]
fn tensor_posing_as_a_value_is_refused() {
    let _alone = alone();
    use mp::message::{Message, Outgoing};
    // Contains the header of the structure of a `Lock<u64>`, and its words.
    let name = mp_core::fnv1a(b"mp_sync::Lock<u64> of 8 bytes aligned to 8");
    let mut words = [0; 17];
    words[..3].copy_from_slice(&[6, name, 9]);
    words[8 + 3] = 1;
    let tensor = Tensor::from_slice(&words, [17]).unwrap().share();
    let mut out = Outgoing::default();
    Forged(tensor).encode::<mp_reduce::MessagePack>(&mut out).unwrap();
    let taken = Lock::<u64>::decode::<mp_reduce::MessagePack>(&mut out.into_incoming());
    assert!(taken.unwrap_err().to_string().contains("no structure at all"));
}

fn atomics(rank: usize, (flags, pair): (RawArray<u16>, RawValue<Pair>)) -> Outcome {
    flags.set(rank, rank as u16 + 1)?;
    pair.set(Pair { a: 3, b: 4 });
    Ok(())
}

#[test]
fn raw_values_work_without_a_lock() {
    let _alone = alone();
    let flags = RawArray::<u16>::zeros(3).unwrap();
    let pair = RawValue::new(Pair { a: 0, b: 0 }).unwrap();
    let context = start_processes(atomics, (flags.clone(), pair.clone()), SpawnOptions::nprocs(3)).unwrap();
    join(&context).unwrap();
    assert_eq!(flags.to_vec(), [1, 2, 3]);
    assert_eq!(pair.get(), Pair { a: 3, b: 4 });
}

#[test]
fn values_without_handles_are_freed() {
    let _alone = alone();
    let before = in_use().0;
    let (value, array) = (Lock::new(1_u64).unwrap(), Array::<u8>::zeros(10_000).unwrap());
    let list = ShareableList::new([1.into()]).unwrap();
    let context = start_processes(add_one, (value.clone(), array, list), SpawnOptions::nprocs(2)).unwrap();
    join(&context).unwrap();
    assert_eq!(value.get().unwrap(), 3);
    drop(value);
    drop(context);
    eventually("all memory is freed", || in_use().0 == before);
}

fn add_one(_: usize, (value, array, list): (Lock<u64>, Array<u8>, ShareableList)) -> Outcome {
    *value.lock()? += 1;
    array.set(9_999, 1)?;
    list.set(0, 2)?;
    Ok(())
}

fn items() -> Vec<ListItem> {
    vec!["text".into(), 7.into(), 0.5.into(), true.into(), ListItem::None, ListItem::Bytes(vec![1, 0])]
}

fn change(_: usize, list: ShareableList) -> Outcome {
    assert_eq!(list.to_vec()?, items());
    list.set(1, "now text")?;
    list.set(0, -7)?;
    Ok(())
}

#[test]
fn lists_are_shared_between_processes() {
    let _alone = alone();
    let list = ShareableList::new(items()).unwrap();
    let context = one_process(change, list.clone());
    join(&context).unwrap();
    assert_eq!(list.get(0).unwrap(), ListItem::Int(-7));
    assert_eq!(list.get(1).unwrap(), ListItem::Str("now text".into()));
    assert_eq!(list.get(5).unwrap(), ListItem::Bytes(vec![1, 0]), "a NUL at its end is kept");
    assert_eq!(list.count(true).unwrap(), 1);
    assert_eq!(list.index(0.5).unwrap(), Some(2));
    assert_eq!(list.format().unwrap(), "q8sdxxxxxxx?xxxxxx?x02s");
    let error = list.set(1, "nine char").unwrap_err();
    assert!(matches!(error, ListError::NoRoom { slot: 1, asked: 9, room: 8 }), "{error}");
    assert_eq!(list.get(1).unwrap(), ListItem::Str("now text".into()), "nothing has changed");
    assert!(matches!(list.get(6), Err(ListError::NoSlot { slot: 6, len: 6 })));
}
