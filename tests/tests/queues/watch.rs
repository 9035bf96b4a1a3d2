//! Watch channels: values that several processes watch.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mp::queue::watch::{self, Receiver, Sender};
use mp::{FrozenTensor, GetError, PutError, Queue, SpawnOptions, Tensor, select, start_processes};
use mp_tests::block_on::woken_by;
use mp_tests::kill::killed;
use mp_tests::{DEADLINE, Outcome, alone, join, one_process, signal};
use rustix::process::Signal;
use serde::{Deserialize, Serialize, Serializer};

type Weights = (u64, FrozenTensor<u64>);

const LAST: u64 = 2000;

fn weights(version: u64) -> Weights {
    (version, Tensor::full([256], version).unwrap().freeze())
}

fn version((version, tensor): &Weights) -> u64 {
    assert!(tensor.iter().all(|v| v == *version), "version {version} is torn: {tensor}");
    *version
}

/// Reads until it has the last value. Checks that versions never decrease.
fn look(_: usize, receiver: Receiver<Weights>) -> mp::AnyResult<u64> {
    let (mut seen, mut looks) = (0, 0);
    while seen < LAST {
        receiver.wait_changed_timeout(DEADLINE)?;
        let now = version(&*receiver.borrow_and_update()?);
        assert!(now >= seen, "{now} after {seen}");
        (seen, looks) = (now, looks + 1);
    }
    Ok(looks)
}

#[test]
fn watch_readers_get_whole_values_and_the_last_one() {
    let _alone = alone();
    let (sender, receiver) = watch::channel(weights(0)).unwrap();
    let context = start_processes(look, receiver, SpawnOptions::nprocs(3)).unwrap();
    (1..=LAST).for_each(|n| sender.send(weights(n)).unwrap());
    // The readers may have started after the last value was sent.
    assert!(context.join_timeout(DEADLINE).unwrap());
}

fn count(_: usize, sender: Sender<Vec<u32>>) -> Outcome {
    for _ in 0..200 {
        sender.send_if_modified(|counts| {
            counts[0] += 1;
            true
        })?;
    }
    Ok(())
}

#[test]
fn concurrent_modifications_of_a_watch_are_atomic() {
    let _alone = alone();
    let (sender, receiver) = watch::channel(vec![0_u32]).unwrap();
    let context = start_processes(count, sender, SpawnOptions::nprocs(3)).unwrap();
    let end = receiver.wait_for_timeout(DEADLINE, |counts| counts[0] == 600);
    assert_eq!(*end.unwrap(), [600]);
    join(&context).unwrap();
    assert!(matches!(receiver.wait_changed_timeout(DEADLINE), Err(GetError::Disconnected)));
}

fn send_and_stay(_: usize, sender: Sender<String>) -> Outcome {
    sender.send("the last one".into())?;
    signal(std::process::id(), Signal::STOP);
    Ok(())
}

#[test]
fn killed_watch_sender_leaves_the_last_value() {
    let _alone = alone();
    let (sender, receiver) = watch::channel("first".to_string()).unwrap();
    let context = one_process(send_and_stay, sender);
    receiver.wait_changed_timeout(DEADLINE).unwrap();
    assert!(receiver.wait_changed_timeout(Duration::from_millis(10)).unwrap_err().is_empty());
    signal(context.pids()[0], Signal::KILL);
    assert!(matches!(receiver.wait_changed_timeout(DEADLINE), Err(GetError::Disconnected)));
    assert!(matches!(receiver.has_changed(), Err(GetError::Disconnected)) && receiver.is_closed());
    assert_eq!(*receiver.borrow().unwrap(), "the last one");
    assert!(killed(&context));
}

fn read_and_stay(_: usize, receiver: Receiver<String>) -> Outcome {
    assert_eq!(*receiver.borrow_and_update()?, "for you");
    signal(std::process::id(), Signal::STOP);
    Ok(())
}

#[test]
fn watch_sender_is_closed_when_last_reader_is_killed() {
    let _alone = alone();
    let (sender, receiver) = watch::channel("for you".to_string()).unwrap();
    let context = one_process(read_and_stay, receiver);
    assert!(!sender.wait_closed_timeout(Duration::from_millis(10)).unwrap());
    signal(context.pids()[0], Signal::KILL);
    assert!(sender.wait_closed_timeout(DEADLINE).unwrap() && sender.is_closed());
    assert!(killed(&context));
    let Err(PutError::NoReceivers { value: back, .. }) = sender.send("for no reader".into()) else {
        panic!("the channel has no receivers")
    };
    assert_eq!(sender.send_replace(back).unwrap(), "for you");
    assert_eq!(*sender.borrow().unwrap(), "for no reader");
}

#[test]
fn borrowed_watch_value_stays_and_is_decoded_once() {
    let _alone = alone();
    let (sender, receiver) = watch::channel(weights(0)).unwrap();
    let other = receiver.clone();
    let (first, again) = (receiver.borrow().unwrap(), receiver.borrow().unwrap());
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    // More values are sent than there are slots.
    (1..1000).for_each(|n| sender.send(weights(n)).unwrap());
    assert_eq!(version(&first), 0);
    assert_eq!(version(&receiver.borrow().unwrap()), 999);
    assert!(receiver.has_changed().unwrap(), "a borrowed value does not count as seen");
    receiver.mark_unchanged();
    assert!(!receiver.has_changed().unwrap() && other.has_changed().unwrap());
    receiver.mark_changed();
    assert!(receiver.has_changed().unwrap());
}

#[tokio::test]
async fn change_of_a_watch_completes_a_future() {
    let (sender, receiver) = watch::channel(0_u32).unwrap();
    let task = tokio::spawn(async move {
        while *receiver.borrow_and_update().unwrap() < 50 {
            tokio::time::timeout(DEADLINE, receiver.changed()).await.expect("in time").unwrap();
        }
    });
    for n in 1..=50 {
        sender.send(n).unwrap();
        tokio::task::yield_now().await;
    }
    task.await.unwrap();
    tokio::time::timeout(DEADLINE, sender.closed()).await.expect("in time").unwrap();
}

/// Each receiver stores the version that it has seen, and a message with the receiver contains that version.
#[test]
fn watch_receivers_track_versions_independently() {
    let _alone = alone();
    let (sender, receiver) = watch::channel(0_u32).unwrap();
    let copy = receiver.clone();
    assert!(!copy.has_changed().unwrap(), "a copy has seen the same version as its original");
    sender.send(1).unwrap();
    assert_eq!(*copy.borrow_and_update().unwrap(), 1);
    assert!(!copy.has_changed().unwrap() && receiver.has_changed().unwrap());
    let queue = Queue::bounded(1).unwrap();
    for (sent, changed) in [(&receiver, true), (&copy, false)] {
        queue.put(sent.clone()).unwrap();
        let got = queue.get().unwrap().unwrap();
        assert_eq!(got.has_changed().unwrap(), changed);
        assert!(got.same_channel(sent));
    }
    assert!(!receiver.same_channel(&watch::channel(0_u32).unwrap().1));
    // A value that `wait_for` returns counts as seen.
    assert_eq!(*receiver.wait_for(|n| *n == 1).unwrap(), 1);
    assert!(!receiver.has_changed().unwrap());
    // A value sent before the last sender was dropped is still a change, and the last one.
    sender.send(2).unwrap();
    drop(sender);
    assert!(receiver.has_changed().unwrap());
    receiver.wait_changed_timeout(DEADLINE).unwrap();
    assert!(matches!(receiver.has_changed(), Err(GetError::Disconnected)));
    assert_eq!(*receiver.wait_for(|n| *n == 2).unwrap(), 2);
    assert!(matches!(receiver.wait_for(|n| *n == 3), Err(GetError::Disconnected)));
}

#[test]
fn panic_in_watch_change_or_predicate_changes_nothing() {
    let _alone = alone();
    let (sender, receiver) = watch::channel(vec![1]).unwrap();
    let change = || {
        sender.send_if_modified(|list| {
            list.push(2);
            panic!("in the middle of the change")
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(change)).is_err());
    assert!(!receiver.has_changed().unwrap());
    assert_eq!(*receiver.borrow().unwrap(), [1]);
    let wait = || receiver.wait_for(|_| panic!("in the predicate"));
    assert!(catch_unwind(AssertUnwindSafe(wait)).is_err());
    assert!(sender.send_if_modified(|list| list.pop() == Some(1)).unwrap());
    assert!(receiver.has_changed().unwrap() && receiver.borrow_and_update().unwrap().is_empty());
}

#[test]
fn watch_future_and_wait_end_when_peer_is_dropped() {
    let _alone = alone();
    let (sender, receiver) = watch::channel(0_u32).unwrap();
    woken_by(receiver.changed(), || sender.send(1).unwrap()).unwrap();
    // The previous change was seen.
    let end = woken_by(receiver.changed(), || drop(sender));
    assert!(matches!(end, Err(GetError::Disconnected)));
    assert_eq!(select(&[&receiver], Some(DEADLINE)).unwrap(), Some(0));

    let (sender, receiver) = watch::channel(0_u32).unwrap();
    woken_by(sender.closed(), || drop(receiver)).unwrap();
    assert!(sender.wait_closed_timeout(Duration::ZERO).unwrap());
    let error = sender.named("rate").send(2).unwrap_err();
    assert!(matches!(&error, PutError::NoReceivers { value: 2, channel } if channel == "rate"), "{error}");
    for part in ["watch channel \"rate\" of u32", "no receivers", "send_replace"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

thread_local! {
    /// Function that this thread calls while it encodes a [`Meanwhile`].
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

#[derive(Debug, PartialEq, Deserialize)]
struct Meanwhile(u32);

impl Serialize for Meanwhile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(meanwhile) = MEANWHILE.take() {
            meanwhile();
        }
        serializer.serialize_newtype_struct("Meanwhile", &self.0)
    }
}

/// Another sender replaces the value after this sender has read the newest value, and before this sender
/// replaces it.
#[test]
fn watch_replace_returns_newest_unmodified_value() {
    let _alone = alone();
    let (sender, receiver) = watch::channel(Meanwhile(1)).unwrap();
    let before = |number| {
        let other = sender.clone();
        MEANWHILE.set(Some(Box::new(move || other.send(Meanwhile(number)).unwrap())));
    };
    before(2);
    assert_eq!(sender.send_replace(Meanwhile(3)).unwrap(), Meanwhile(2));
    assert_eq!(*receiver.borrow().unwrap(), Meanwhile(3));
    before(4);
    let mut seen = Vec::new();
    let modified = sender.send_if_modified(|value| {
        seen.push(value.0);
        value.0 += 10;
        true
    });
    assert!(modified.unwrap());
    assert_eq!((seen, receiver.borrow_and_update().unwrap().0), (vec![3, 4], 14));
    let unmodified = sender.send_if_modified(|value| {
        value.0 = 99;
        false
    });
    assert!(!unmodified.unwrap());
    assert_eq!((receiver.has_changed().unwrap(), receiver.borrow().unwrap().0), (false, 14));
}
