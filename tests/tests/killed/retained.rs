//! Processes that are killed, or stopped, at every access while they replace and read a watched value, or
//! send and receive broadcast messages. Other processes continue, and receive whole values in one order. No
//! resources of the dead process are left.

use mp::queue::broadcast::{self, RecvError};
use mp::queue::watch;
use mp::{Arena, FrozenTensor, Tensor};
use mp_core::inject;
use mp_tests::kill::{KILL, STOP, for_every_access, killed, stopped};
use mp_tests::{DEADLINE, Outcome, eventually, in_use, one_process, signal};
use rustix::process::Signal;

/// Number of values that a script sends, counted from 1.
const VALUES: u64 = 3;
/// Number of further values, which reuse every slot.
const MANY: u64 = 300;

type Numbered = (u64, FrozenTensor<u64>, Vec<u8>);

/// Returns a value that is too long for an envelope, and so has a separate block.
fn numbered(number: u64) -> Numbered {
    (number, Tensor::full([20], number).unwrap().freeze(), vec![number as u8; 300])
}

/// Returns the number of a value. Panics if the value is torn.
fn number((number, tensor, bytes): &Numbered) -> u64 {
    assert!(tensor.iter().all(|v| v == *number), "value {number} is torn: {tensor}");
    assert!(bytes.iter().all(|&b| b == *number as u8), "value {number} is torn: {bytes:?}");
    *number
}

type Watched = (watch::Sender<Numbered>, watch::Receiver<Numbered>);

fn replace_and_read(_: usize, ((sender, receiver), at, signal): (Watched, u64, i32)) -> Outcome {
    inject::arm(at, signal);
    for n in 1..=VALUES {
        sender.send(numbered(n)).map_err(|e| e.to_string())?;
        let seen = number(&*receiver.borrow_and_update()?);
        assert!(seen >= n, "{seen} after {n}");
    }
    Ok(())
}

#[test]
fn killed_watch_user_leaves_a_whole_value() {
    for_every_access(|at| {
        let (sender, receiver) = watch::channel(numbered(0)).unwrap();
        let there = (sender.clone(), receiver.clone());
        let killed = killed(&one_process(replace_and_read, (there, at, KILL)));
        let last = number(&receiver.borrow_and_update().unwrap());
        assert!(last <= VALUES && (killed || last == VALUES), "{last}, killed at access {at}");
        for n in 100..103 {
            sender.send(numbered(n)).unwrap();
            assert_eq!(number(&receiver.borrow().unwrap()), n, "killed at access {at}");
        }
        drop(sender);
        assert!(receiver.wait_changed_timeout(DEADLINE).is_ok(), "the last one was not seen");
        assert!(receiver.wait_changed_timeout(DEADLINE).is_err_and(|e| !e.is_empty()), "at access {at}");
        killed
    });
}

#[test]
fn others_continue_while_a_watch_user_is_stopped() {
    for_every_access(|at| {
        let (sender, receiver) = watch::channel(numbered(0)).unwrap();
        let there = (sender.clone(), receiver.clone());
        let context = one_process(replace_and_read, (there, at, STOP));
        let (pid, ended) = (context.pids()[0], !stopped(&context));
        if !ended {
            for n in 100..100 + MANY {
                sender.send(numbered(n)).unwrap();
                assert_eq!(number(&receiver.borrow().unwrap()), n, "stopped at access {at}");
            }
            signal(pid, Signal::CONT);
            assert!(!killed(&context), "stopped at access {at}");
        }
        !ended
    });
}

/// Returns the number of blocks that `made` allocates.
fn blocks_of<T>(made: impl FnOnce() -> T) -> u64 {
    let before = in_use().0;
    let made = made();
    let blocks = in_use().0 - before;
    drop(made);
    blocks
}

/// A send releases the pin of a killed reader before it reuses the pinned slot.
#[test]
fn next_send_releases_pins_of_a_killed_reader() {
    let usual = || {
        let (sender, receiver) = watch::channel(numbered(0)).unwrap();
        sender.send(numbered(100)).unwrap();
        (sender, receiver)
    };
    for_every_access(|at| {
        let mut was_killed = false;
        let blocks = blocks_of(|| {
            let (sender, receiver) = watch::channel(numbered(0)).unwrap();
            let there = (sender.clone(), receiver.clone());
            was_killed = killed(&one_process(replace_and_read, (there, at, KILL)));
            eventually("the dead process is reclaimed", || {
                Arena::current().unwrap().reclaim().unwrap();
                Arena::current().unwrap().members().len() == 1
            });
            sender.send(numbered(100)).unwrap();
            (sender, receiver)
        });
        assert_eq!(blocks, blocks_of(usual), "killed at access {at}");
        was_killed
    });
}

/// Message of a broadcast channel, which is small if its number is odd.
type MixedMessage = (u64, Option<Numbered>);

fn mixed(n: u64) -> MixedMessage {
    (n, n.is_multiple_of(2).then(|| numbered(n)))
}

/// Returns the number of a message. Panics if the message is torn.
fn number_of((n, more): &MixedMessage) -> u64 {
    assert_eq!(more.as_ref().map(number), n.is_multiple_of(2).then_some(*n), "message {n} is torn");
    *n
}

type Sides = (broadcast::Sender<MixedMessage>, broadcast::Receiver<MixedMessage>);

fn send_and_receive(_: usize, ((sender, receiver), at, signal): (Sides, u64, i32)) -> Outcome {
    inject::arm(at, signal);
    for n in 1..=VALUES {
        sender.send(mixed(n)).map_err(|e| e.to_string())?;
        match receiver.recv_timeout(DEADLINE) {
            Ok(message) => _ = number_of(&message),
            Err(RecvError::Lagged(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Receives all available messages. Panics if a message was missed.
fn received(receiver: &broadcast::Receiver<MixedMessage>) -> Vec<u64> {
    std::iter::from_fn(|| match receiver.try_recv() {
        Ok(message) => Some(number_of(&message)),
        Err(RecvError::Empty) => None,
        Err(e) => panic!("{e}"),
    })
    .collect()
}

#[test]
fn killed_broadcast_user_leaves_messages_in_order() {
    for_every_access(|at| {
        let (sender, receiver) = broadcast::channel(8).unwrap();
        let there = (sender.clone(), receiver.resubscribe().unwrap());
        let killed = killed(&one_process(send_and_receive, (there, at, KILL)));
        let got = received(&receiver);
        assert!(got.iter().copied().eq(1..=got.len() as u64), "killed at access {at}: {got:?}");
        assert!(killed || got.len() as u64 == VALUES);
        for n in 100..100 + MANY {
            sender.send(mixed(n)).unwrap();
            assert_eq!(received(&receiver), [n], "killed at access {at}");
        }
        drop(sender);
        assert!(matches!(receiver.recv_timeout(DEADLINE), Err(RecvError::Closed)), "at access {at}");
        killed
    });
}

#[test]
fn others_continue_while_a_broadcaster_is_stopped() {
    for_every_access(|at| {
        let (sender, receiver) = broadcast::channel(8).unwrap();
        let there = (sender.clone(), receiver.resubscribe().unwrap());
        let context = one_process(send_and_receive, (there, at, STOP));
        let (pid, ended) = (context.pids()[0], !stopped(&context));
        let mut got = received(&receiver);
        if !ended {
            for n in 100..100 + MANY {
                sender.send(mixed(n)).unwrap();
                assert_eq!(received(&receiver), [n], "stopped at access {at}");
            }
            signal(pid, Signal::CONT);
            assert!(!killed(&context), "stopped at access {at}");
            got.extend(received(&receiver));
        }
        assert_eq!(got, [1, 2, 3], "stopped at access {at}");
        !ended
    });
}
