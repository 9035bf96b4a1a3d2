//! Processes that are killed, or stopped, at their n-th access to shared memory, for every n of a script: in
//! batches, channels, pipes, tasks, recovery and reclaim. (Single messages, acknowledgement and growing:
//! `messages`.)
//!
//! After each death, other processes continue, or get an error that names the lost end. No resources of the
//! dead process are left.

use std::time::Instant;

use mp::queue::JoinableQueueError;
use mp::{
    Arena, Connection, FrozenTensor, GetError, JoinableQueue, PutError, Queue, Receiver, Sender,
    SharedTensor, SpawnOptions, Tensor, bounded_channel, channel, pipe, start_processes,
};
use mp_core::inject;
use mp_tests::kill::{KILL, STOP, for_every_access, killed, stopped};
use mp_tests::{DEADLINE, Outcome, give, one_process, signal};
use rustix::process::Signal;

/// Number of messages that a script puts or gets.
const MESSAGES: u64 = 5;

type Numbered = (u64, FrozenTensor<u64>);

fn numbered(number: u64) -> Numbered {
    (number, Tensor::full([20], number).unwrap().freeze())
}

/// Returns the number of a message. Panics if the message is torn.
fn number((number, tensor): Numbered) -> u64 {
    assert!(tensor.iter().all(|v| v == number), "message {number} is torn: {tensor}");
    number
}

/// Takes all messages of a queue.
fn drain(queue: &Queue<Numbered>) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Ok(Some(message)) = queue.try_get() {
        numbers.push(number(message));
    }
    numbers
}

/// Returns the numbers that a victim has recorded in `got`.
fn noted(got: &SharedTensor<u64>) -> Vec<u64> {
    (0..MESSAGES).filter(|&n| got.load(n as usize) != 0).collect()
}

type Script = (Queue<Numbered>, SharedTensor<u64>, u64, i32);

fn script(queue: Queue<Numbered>, at: u64, signal: i32) -> Script {
    (queue, Tensor::zeros([MESSAGES as usize]).unwrap().share(), at, signal)
}

fn put_batches(_: usize, (queue, _, at, signal): Script) -> Outcome {
    let all: Vec<_> = (0..MESSAGES).map(numbered).collect();
    inject::arm(at, signal);
    let mut all = all.into_iter();
    queue.put_many(all.by_ref().take(3)).map_err(|e| e.to_string())?;
    queue.put_many(all).map_err(|e| e.to_string())?;
    Ok(())
}

fn get_batches(_: usize, (queue, got, at, signal): Script) -> Outcome {
    inject::arm(at, signal);
    let mut left = MESSAGES as usize;
    while left > 0 {
        let mut messages = Vec::new();
        left -= queue.get_many_deadline(&mut messages, left.min(3), Instant::now() + DEADLINE)?;
        messages.into_iter().for_each(|message| got.store(number(message) as usize, 1));
    }
    Ok(())
}

/// Checks that other processes can use the queue after a death, and returns its messages.
fn pass_messages(queue: &Queue<Numbered>, at: u64) -> Vec<u64> {
    let mut got = Vec::new();
    for n in 100..110 {
        queue.put_timeout(numbered(n), DEADLINE).unwrap_or_else(|e| panic!("{e}, at access {at}"));
        got.extend(drain(queue));
    }
    assert_eq!(got.iter().filter(|&&n| n >= 100).count(), 10, "at access {at}");
    got.retain(|&n| n < 100);
    got
}

#[test]
fn producer_killed_in_a_batch_keeps_message_order() {
    for_every_access(|at| {
        let script = script(Queue::bounded(8).unwrap(), at, KILL);
        let queue = script.0.clone();
        let killed = killed(&one_process(put_batches, script));
        let got = pass_messages(&queue, at);
        assert!(got.iter().copied().eq(0..got.len() as u64), "killed at access {at}: {got:?}");
        assert!(killed || got.len() as u64 == MESSAGES);
        killed
    });
}

#[test]
fn killed_batch_consumer_loses_at_most_its_batch() {
    for_every_access(|at| {
        let script = script(Queue::bounded(8).unwrap(), at, KILL);
        let (queue, got) = (script.0.clone(), script.1.clone());
        (0..MESSAGES).for_each(|n| queue.put(numbered(n)).unwrap());
        let killed = killed(&one_process(get_batches, script));
        let mut all = noted(&got);
        assert!(killed || all.len() as u64 == MESSAGES);
        all.extend(pass_messages(&queue, at));
        let lost = MESSAGES as usize - all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(MESSAGES as usize - all.len(), lost, "a message arrived twice, killed at access {at}");
        // A killed consumer loses the batch that it has taken.
        assert!(lost <= if killed { 3 } else { 0 }, "{lost} lost, killed at access {at}");
        killed
    });
}

/// Stops a process within a batch, while other processes use the queue. Then the stopped process continues.
fn stop_in_a_batch<F: Fn(usize, Script) -> Outcome + Copy + Send + 'static>(work: F, put: bool) {
    for_every_access(|at| {
        let script = script(Queue::bounded(8).unwrap(), at, STOP);
        let (queue, got) = (script.0.clone(), script.1.clone());
        if !put {
            (0..MESSAGES).for_each(|n| queue.put(numbered(n)).unwrap());
        }
        let context = one_process(work, script);
        let (pid, ended) = (context.pids()[0], !stopped(&context));
        let mut all = Vec::new();
        if !ended {
            all = pass_messages(&queue, at);
            // The consumer waits for the rest of its messages.
            (0..if put { 0 } else { MESSAGES }).for_each(|_| queue.put(numbered(MESSAGES - 1)).unwrap());
            signal(pid, Signal::CONT);
            assert!(!killed(&context));
        }
        all.extend(drain(&queue));
        all.extend(noted(&got));
        all.sort_unstable();
        all.dedup();
        assert!(all.into_iter().eq(0..MESSAGES), "stopped at access {at}");
        !ended
    });
}

#[test]
fn producer_stopped_in_a_batch_delays_no_other() {
    stop_in_a_batch(put_batches, true);
}

#[test]
fn consumer_stopped_in_a_batch_delays_no_other() {
    stop_in_a_batch(get_batches, false);
}

fn send(_: usize, (sender, at): (Sender<Numbered>, u64)) -> Outcome {
    inject::arm(at, KILL);
    for n in 0..MESSAGES {
        let another = sender.clone();
        another.send(numbered(n))?;
    }
    drop(sender);
    // More accesses, so that the process can also die after its last drop.
    (0..8).for_each(|n| drop(numbered(n)));
    Ok(())
}

#[test]
fn killed_sender_disconnects_its_receiver() {
    for bounded in [false, true] {
        for_every_access(|at| {
            let (sender, receiver) = if bounded { bounded_channel(2) } else { channel() }.unwrap();
            let context = one_process(send, (sender, at));
            let mut got = Vec::new();
            let end = loop {
                match receiver.recv_timeout(DEADLINE) {
                    Ok(message) => got.push(number(message)),
                    Err(error) => break error,
                }
            };
            assert!(matches!(end, GetError::Disconnected), "{end}, killed at access {at}");
            let killed = killed(&context);
            assert!(got.iter().copied().eq(0..got.len() as u64), "killed at access {at}: {got:?}");
            assert!(killed || got.len() as u64 == MESSAGES);
            killed
        });
    }
}

fn receive(_: usize, (receiver, at): (Receiver<Numbered>, u64)) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..3 {
        number(receiver.clone().recv_timeout(DEADLINE)?);
    }
    drop(receiver);
    (0..8).for_each(|n| drop(numbered(n)));
    Ok(())
}

#[test]
fn killed_receiver_disconnects_its_sender() {
    for_every_access(|at| {
        let (sender, receiver) = bounded_channel(2).unwrap();
        let context = one_process(receive, (receiver, at));
        let end = (0..).find_map(|n| sender.send_timeout(numbered(n), DEADLINE).err()).unwrap();
        // The returned value is whole.
        assert!(matches!(&end, PutError::Disconnected(_)), "{end}, killed at access {at}");
        number(end.into_value());
        killed(&context)
    });
}

fn talk(_: usize, (connection, at): (Connection, u64)) -> Outcome {
    inject::arm(at, KILL);
    for n in 0..2 {
        connection.send(numbered(n))?;
        connection.send_bytes(&[n as u8; 300])?;
        assert!(connection.poll(DEADLINE)?);
        assert_eq!(connection.recv::<u64>()?, n);
    }
    Ok(())
}

#[test]
fn killed_process_disconnects_its_pipe() {
    for_every_access(|at| {
        let (here, there) = pipe().unwrap();
        let context = one_process(talk, (there, at));
        let mut whole = 0;
        let end = loop {
            match here.recv_timeout(DEADLINE) {
                Ok(message) => assert_eq!(number(message), whole, "killed at access {at}"),
                Err(error) => break error,
            }
            match here.recv_bytes() {
                Ok(bytes) => assert_eq!(bytes, [whole as u8; 300], "killed at access {at}"),
                Err(error) => break error,
            }
            // The process may be dead.
            match here.send(whole) {
                Ok(()) | Err(PutError::Disconnected(_)) => whole += 1,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(matches!(end, GetError::Disconnected), "{end}, killed at access {at}");
        assert!(here.is_disconnected() && matches!(here.send(1), Err(PutError::Disconnected(1))));
        let killed = killed(&context);
        assert!(killed || whole == 2);
        killed
    });
}

fn do_tasks(_: usize, (tasks, done, at): (JoinableQueue<Numbered>, SharedTensor<u64>, u64)) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..MESSAGES {
        let task = tasks.get_timeout(DEADLINE)?.ok_or("closed")?;
        let (n, before) = (task.0, done.load(task.0 as usize));
        number(task.ack());
        done.store(n as usize, before + 1);
    }
    Ok(())
}

#[test]
fn join_reports_a_task_killed_at_every_access() {
    for_every_access(|at| {
        let tasks = JoinableQueue::bounded(8).unwrap();
        (0..MESSAGES).for_each(|n| tasks.put(numbered(n)).unwrap());
        let done = Tensor::zeros([MESSAGES as usize]).unwrap().share();
        let args = (tasks.clone(), done.clone(), at);
        let killed = killed(&one_process(do_tasks, args));
        // Tasks that the killed worker had begun are lost. Tasks that it had not begun go to others.
        let mut others = Vec::new();
        while let Ok(Some(task)) = tasks.try_get() {
            others.push(number(task.ack()));
        }
        let lost = match tasks.join_timeout(DEADLINE) {
            Ok(()) => 0,
            Err(JoinableQueueError::Lost(n)) => n,
            Err(error) => panic!("{error}, killed at access {at}"),
        };
        let reported: Vec<u64> = std::iter::from_fn(|| tasks.dead_letter().unwrap()).map(number).collect();
        assert!(reported.len() == lost && lost <= usize::from(killed), "{lost} lost, killed at access {at}");
        let mut all = noted(&done);
        all.extend(reported);
        all.extend(others);
        // One task may be done but not recorded.
        assert!(all.len() as u64 + u64::from(killed) >= MESSAGES, "killed at access {at}: {all:?}");
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] != two[1]), "killed at access {at}: {all:?}");
        killed
    });
}

fn dies(_: usize, go: Queue<()>) -> Outcome {
    go.get_timeout(DEADLINE)?;
    signal(std::process::id(), Signal::KILL);
    loop {
        std::thread::park();
    }
}

/// Recovers and reclaims a child that shares one queue with this process.
fn recovers(_: usize, at: u64) -> Outcome {
    let go = Queue::bounded(1)?;
    let context = start_processes(dies, go.clone(), SpawnOptions::nprocs(1))?;
    inject::arm_at_change(at, STOP);
    go.close();
    assert!(killed(&context));
    Arena::current()?.reclaim()?;
    Ok(())
}

/// A recovering process is stopped while a message, which a dropped lease has returned, is in a queue. The
/// recovering process has no handle of that queue. The queue is then dropped, and its memory is reused. When
/// the process continues, it must not write to this memory.
#[test]
fn stopped_recoverer_writes_no_foreign_memory() {
    for_every_access(|at| {
        let queue = Queue::bounded(1).unwrap();
        give(&queue, 5_u64);
        drop(queue.get_lease().unwrap());
        let context = one_process(recovers, at);
        let (pid, ended) = (context.pids()[0], !stopped(&context));
        if !ended {
            assert_eq!(queue.try_get().unwrap(), Some(5));
            drop(queue);
            // As many tensors as there may be free blocks of that size, so that one of them has the queue's
            // old memory.
            let tensors: Vec<_> = (0..20).map(|_| Tensor::full([1032], 7_u8).unwrap()).collect();
            signal(pid, Signal::CONT);
            assert!(!killed(&context));
            for tensor in tensors {
                assert!(tensor.iter().all(|v| v == 7), "changed by the recoverer stopped at change {at}");
            }
        }
        !ended
    });
}
