//! Queues, channels and pipes.

use std::time::Duration;

use mp::connection::one_way_pipe;
use mp::queue::broadcast;
use mp::{Queue, SpawnOptions, Tensor, bounded_channel, channel, pipe};

use crate::says;

#[derive(serde::Serialize, serde::Deserialize, Debug)]
struct Job {
    rows: u32,
}

#[test]
fn zero_capacity_error_suggests_alternatives() {
    let what_to_do =
        ["a queue for 0 messages", "1 to", "unbounded()", "until a message was taken", "JoinableQueue"];
    says(Queue::<u8>::bounded(0).unwrap_err(), &what_to_do);
    says(bounded_channel::<u8>(0).unwrap_err(), &what_to_do);
}

#[test]
fn put_after_close_error_returns_the_value() {
    let queue = Queue::bounded(1).unwrap();
    queue.close();
    let error = queue.put(3).unwrap_err();
    says(&error, &["closed", "close()"]);
    assert_eq!(error.into_value(), 3);
}

#[test]
fn full_queue_error_suggests_waiting() {
    let queue = Queue::bounded(1).unwrap();
    queue.try_put(1).unwrap();
    says(queue.try_put(2).unwrap_err(), &["full", "wait", "more room"]);
}

#[test]
fn empty_queue_error_suggests_waiting() {
    let queue = Queue::<u8>::bounded(1).unwrap();
    says(queue.get_timeout(Duration::ZERO).unwrap_err(), &["empty", "without a time-out"]);
    says(queue.try_get().unwrap_err(), &["empty", "without a time-out"]);
}

#[test]
fn receive_after_disconnect_error_says_disconnected() {
    let (sender, receiver) = bounded_channel(1).unwrap();
    sender.send(7).unwrap();
    drop(sender);
    assert_eq!(receiver.recv().unwrap(), 7);
    says(receiver.recv().unwrap_err(), &["other side is gone", "no message is left"]);
}

#[test]
fn send_without_receiver_error_says_disconnected() {
    let (sender, receiver) = channel().unwrap();
    drop(receiver);
    says(sender.send(7).unwrap_err(), &["other side is gone"]);
}

#[test]
fn received_type_error_names_both_types() {
    let (here, there) = pipe().unwrap();
    here.send(Job { rows: 3 }).unwrap();
    says(
        there.recv::<(u32, u32)>().unwrap_err(),
        &["mistakes::queues::Job", "(u32, u32)", "crate that both"],
    );
}

#[test]
fn wrong_pipe_end_error_names_the_other_end() {
    let (receiver, sender) = one_way_pipe().unwrap();
    says(receiver.send(1).unwrap_err(), &["one-way", "can't send", "other end"]);
    says(sender.recv::<u8>().unwrap_err(), &["one-way", "can't receive", "other end"]);
}

#[test]
fn unsendable_gradient_error_names_detach() {
    let mut x = Tensor::<f32>::zeros([3]).unwrap();
    x.set_requires_grad(true).unwrap();
    let queue = Queue::bounded(1).unwrap();
    let row = x.freeze();
    let part = row.narrow(0, 0, 1).unwrap();
    says(queue.put(part).unwrap_err(), &["requires_grad", "detach()"]);
}

#[test]
fn lagging_receiver_error_counts_missed_messages() {
    let (sender, receiver) = broadcast::channel(2).unwrap();
    for i in 0..5 {
        sender.send(i).unwrap();
    }
    says(receiver.recv().unwrap_err(), &["missed 3", "receive faster, or keep more"]);
}

#[test]
fn full_queue_is_drained_by_a_later_worker() {
    let queue = Queue::bounded(2).unwrap();
    queue.put(1).unwrap();
    queue.put(2).unwrap();
    says(queue.put_timeout(3, Duration::ZERO).unwrap_err(), &["full"]);
    let worker = |_: usize, queue: Queue<i32>| -> mp::AnyResult<i32> {
        let mut sum = 0;
        while let Some(n) = queue.get()? {
            sum += n;
        }
        Ok(sum)
    };
    let context = mp::start_processes(worker, queue.clone(), SpawnOptions::nprocs(1)).unwrap();
    queue.put(3).unwrap();
    queue.close();
    assert_eq!(context.join().unwrap(), [6]);
}
