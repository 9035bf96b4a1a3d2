//! Values that several processes watch.

use std::time::Duration;

use mp::queue::watch::{self, Receiver, Sender};
use mp::{FrozenTensor, GetError, PutError, SpawnOptions, Tensor, start_processes};
use mp_tests::kill::killed;
use mp_tests::{DEADLINE, Outcome, join, one_process, signal};
use rustix::process::Signal;

type Weights = (u64, FrozenTensor<u64>);

const LAST: u64 = 2000;

fn weights(version: u64) -> Weights {
    (version, Tensor::full([256], version).unwrap().freeze())
}

fn version((version, tensor): &Weights) -> u64 {
    assert!(tensor.iter().all(|v| v == *version), "version {version} is torn: {tensor}");
    *version
}

/// Looks until it has seen the last one: never an older one than before.
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
fn readers_in_several_processes_see_whole_values_and_the_last_one() {
    let (sender, receiver) = watch::channel(weights(0)).unwrap();
    let context = start_processes(look, receiver, SpawnOptions::nprocs(3)).unwrap();
    (1..=LAST).for_each(|n| sender.send(weights(n)).unwrap());
    // The readers may have been started after the last one.
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
fn a_change_by_one_of_several_senders_is_one_step() {
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
fn a_killed_sender_leaves_the_last_value() {
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
fn a_sender_is_told_when_the_last_reader_is_killed() {
    let (sender, receiver) = watch::channel("for you".to_string()).unwrap();
    let context = one_process(read_and_stay, receiver);
    assert!(!sender.wait_closed_timeout(Duration::from_millis(10)).unwrap());
    signal(context.pids()[0], Signal::KILL);
    assert!(sender.wait_closed_timeout(DEADLINE).unwrap() && sender.is_closed());
    assert!(killed(&context));
    let Err(PutError::Disconnected(back)) = sender.send("for no reader".into()) else {
        panic!("it has none")
    };
    assert_eq!(sender.send_replace(back).unwrap(), "for you");
    assert_eq!(*sender.borrow().unwrap(), "for no reader");
}

#[test]
fn a_value_stays_as_long_as_it_is_held_and_is_decoded_once() {
    let (sender, receiver) = watch::channel(weights(0)).unwrap();
    let other = receiver.clone();
    let (first, again) = (receiver.borrow().unwrap(), receiver.borrow().unwrap());
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    // More often than there are slots.
    (1..1000).for_each(|n| sender.send(weights(n)).unwrap());
    assert_eq!(version(&first), 0);
    assert_eq!(version(&receiver.borrow().unwrap()), 999);
    assert!(receiver.has_changed().unwrap(), "to borrow is not to have seen");
    receiver.mark_unchanged();
    assert!(!receiver.has_changed().unwrap() && other.has_changed().unwrap());
    receiver.mark_changed();
    assert!(receiver.has_changed().unwrap());
}

#[tokio::test]
async fn a_change_ends_a_future() {
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
