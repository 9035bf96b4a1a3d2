//! Growing queues, messages with acknowledgement, channels, joinable queues and pipes, between processes of
//! which some are killed.

use std::time::{Duration, Instant};

use mp::connection::{RecvIntoError, one_way_pipe};
use mp::queue::JoinableQueueError;
use mp::{
    Connection, FrozenTensor, GetError, JoinableQueue, PutError, Queue, QueueOptions, Receiver, Sender,
    SpawnOptions, Tensor, bounded_channel, channel, pipe, start_processes,
};
use mp_core::words::BlockKind;
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, eventually_in_use, give, in_use, join, one_process, send, signal,
    take,
};
use rustix::process::Signal;

const MOMENT: Duration = Duration::from_millis(20);

/// Waits until all shared memory of the test is released.
fn nothing_is_left(before: (u64, u64, u64)) {
    eventually_in_use(before, "all memory is released");
}

/// A crate marks the memory of an exclusive tensor as shared, which violates the contract of `Storage`. A put
/// then returns the tensor with an error.
#[test]
fn opened_exclusive_tensor_is_returned_unsent() {
    let _alone = alone();
    let before = in_use();
    let queue = Queue::bounded(1).unwrap();
    let tensor = Tensor::<u8>::full([100], 7).unwrap();
    tensor.storage().share_as(BlockKind::Shared);
    let error = queue.put(tensor).unwrap_err();
    assert!(error.to_string().contains("share_as"), "{error}");
    assert!(queue.is_empty());
    let tensor = error.into_value();
    assert!(tensor.iter().all(|v| v == 7));
    // As a shared tensor, it can be sent.
    let (there, back) = (Queue::bounded(1).unwrap(), tensor.share());
    give(&there, back);
    assert_eq!(take(&there).to_vec(), [7; 100]);
    drop((queue, there));
    nothing_is_left(before);
}

#[test]
fn growing_queue_keeps_its_order_between_processes() {
    let _alone = alone();
    fn produce(rank: usize, queue: Queue<(usize, u32)>) -> Outcome {
        (0..20_000).try_for_each(|i| queue.try_put((rank, i)).map_err(|e| e.to_string().into()))
    }
    let before = in_use();
    let queue = Queue::unbounded().unwrap();
    let context = start_processes(produce, queue.clone(), SpawnOptions::nprocs(2)).unwrap();
    join(&context).unwrap();
    assert_eq!(queue.len(), 40_000);
    queue.close();
    let mut next = [0, 0];
    for message in queue.iter() {
        let (rank, i) = message.unwrap();
        assert_eq!(i, next[rank], "of producer {rank}");
        next[rank] += 1;
    }
    assert_eq!(next, [20_000, 20_000]);
    // The queue is filled again. Its segments stay, and are used as a ring.
    let again = Queue::unbounded().unwrap();
    for round in 0..3 {
        (0..3000).for_each(|i| give(&again, (round, i)));
        (0..3000).for_each(|i| assert_eq!(take(&again), (round, i)));
    }
    drop((queue, again, context));
    nothing_is_left((before.0, before.1, 1));
}

#[test]
fn growing_queue_is_full_at_its_limit() {
    let _alone = alone();
    let queue = Queue::growing(1000).unwrap();
    (0..1000).for_each(|i| queue.try_put(i).unwrap());
    assert!(matches!(queue.try_put(1000), Err(PutError::Full(1000))));
    assert!((queue.len(), queue.is_full(), queue.capacity()) == (1000, true, 1000));
    assert_eq!(take(&queue), 0);
    queue.put_deadline(1000, Instant::now() + MOMENT).unwrap();
    assert!(queue.put_deadline(1001, Instant::now() + MOMENT).unwrap_err().is_full());
    queue.close();
    assert!(matches!(queue.try_put(1001), Err(PutError::Closed(1001))));
    assert!(queue.iter().map(Result::unwrap).eq(1..=1000));
    assert!(queue.get_deadline(Instant::now()).unwrap().is_none());
    assert!(matches!(Queue::<u8>::bounded(1).unwrap().get_deadline(Instant::now()), Err(GetError::Empty)));
}

#[test]
fn rest_of_a_partly_put_batch_is_returned() {
    let _alone = alone();
    let queue = Queue::bounded(100).unwrap();
    let error = queue.try_put_many((0..150).map(|i| i.to_string())).unwrap_err();
    assert_eq!(error.put, 100);
    assert_eq!(error.error.into_value(), "100");
    assert!(error.rest.eq((101..150).map(|i| i.to_string())));
    let mut got = Vec::new();
    assert_eq!(queue.try_get_many(&mut got, 70).unwrap(), 70);
    assert_eq!(queue.get_many(&mut got, 70).unwrap(), 30);
    assert!(got.into_iter().eq((0..100).map(|i| i.to_string())));
    assert!(queue.try_get_many(&mut Vec::new(), 1).unwrap_err().is_empty());
    queue.close();
    assert_eq!(queue.get_many(&mut Vec::new(), 5).unwrap(), 0);
}

#[test]
fn batch_and_task_waits_keep_their_time_limit() {
    let _alone = alone();
    let queue = Queue::bounded(2).unwrap();
    let error = queue.put_many_timeout(0..5, MOMENT).unwrap_err();
    assert!(error.put == 2 && error.error.is_full() && error.rest.eq(3..5));
    let mut got = Vec::new();
    assert_eq!(queue.get_many_timeout(&mut got, 5, MOMENT).unwrap(), 2);
    assert!(queue.get_many_timeout(&mut got, 5, MOMENT).unwrap_err().is_empty());
    assert_eq!(got, [0, 1]);
    let (tasks, begin) = (JoinableQueue::bounded(1).unwrap(), Instant::now());
    assert!(tasks.get_deadline(begin + MOMENT).unwrap_err().is_empty());
    tasks.put_deadline(7, begin + DEADLINE).unwrap();
    assert!(tasks.is_full() && tasks.capacity() == 1);
    assert!(tasks.put_deadline(8, Instant::now() + MOMENT).unwrap_err().is_full());
    let task = tasks.get_deadline(begin + DEADLINE).unwrap().expect("the queue is open");
    assert!(!tasks.is_full() && tasks.unfinished() == 1);
    assert_eq!(task.ack(), 7);
    tasks.join().unwrap();
}

type Job = (u64, FrozenTensor<u64>, String);

#[test]
fn leased_message_of_a_killed_holder_is_redelivered() {
    let _alone = alone();
    fn holds(_: usize, (jobs, ready): (Queue<Job>, Queue<u64>)) -> Outcome {
        let job = jobs.get_lease_timeout(DEADLINE)?.ok_or("closed")?;
        send(&ready, job.0)?;
        loop {
            std::thread::park();
        }
    }
    let before = in_use();
    let (jobs, ready) = (Queue::bounded(4).unwrap(), Queue::bounded(4).unwrap());
    // The second message spills.
    for i in 0..2 {
        let text = "x".repeat(i as usize * 1000);
        give(&jobs, (i, Tensor::full([1000], i).unwrap().freeze(), text));
    }
    let context = start_processes(holds, (jobs.clone(), ready.clone()), SpawnOptions::nprocs(2)).unwrap();
    let mut held = [take(&ready), take(&ready)];
    held.sort_unstable();
    assert_eq!(held, [0, 1]);
    assert!(jobs.try_get_lease().unwrap_err().is_empty());
    context.pids().into_iter().for_each(|pid| signal(pid, Signal::KILL));
    assert!(join(&context).is_err());
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let job = jobs.get_lease_timeout(DEADLINE).unwrap().expect("the queue is open");
        assert_eq!(job.deliveries(), 2);
        assert!(job.1.iter().all(|v| v == job.0) && job.2.len() as u64 == job.0 * 1000);
        numbers.push(job.ack().0);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1]);
    jobs.close();
    assert!(jobs.get_lease().unwrap().is_none());
    drop((jobs, ready, context));
    nothing_is_left((before.0, before.1, 1));
}

#[test]
fn message_returned_too_often_is_a_dead_letter() {
    let _alone = alone();
    let queue = QueueOptions::new().capacity(4).deliveries(2).create::<String>().unwrap();
    give(&queue, "poison".to_string());
    give(&queue, "fine".to_string());
    for times in 1..=2 {
        let lease = queue.get_lease().unwrap().expect("the queue is open");
        assert_eq!((lease.as_str(), lease.deliveries()), ("poison", times));
        lease.give_back();
    }
    assert_eq!(queue.get_lease().unwrap().expect("the queue is open").ack(), "fine");
    assert!(queue.try_get_lease().unwrap_err().is_empty());
    assert_eq!(queue.dead_letter().unwrap().as_deref(), Some("poison"));
    assert_eq!(queue.dead_letter().unwrap(), None);
}

fn sends_and_waits(_: usize, (sender, ready): (Sender<u32>, Queue<()>)) -> Outcome {
    sender.send(7).map_err(|e| e.to_string())?;
    send(&ready, ())?;
    loop {
        std::thread::park();
    }
}

#[test]
fn killed_senders_disconnect_receivers() {
    let _alone = alone();
    let (sender, receiver) = channel::<u32>().unwrap();
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(sends_and_waits, (sender, ready.clone()));
    take(&ready);
    assert!(!receiver.is_disconnected());
    assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), 7);
    assert!(receiver.recv_timeout(MOMENT).unwrap_err().is_empty());
    signal(context.pids()[0], Signal::KILL);
    assert!(matches!(receiver.recv_timeout(DEADLINE), Err(GetError::Disconnected)));
    assert!(join(&context).is_err());
}

#[test]
fn ended_receivers_disconnect_senders() {
    let _alone = alone();
    fn receives_one(_: usize, receiver: Receiver<String>) -> Outcome {
        receiver.recv_timeout(DEADLINE)?;
        Ok(())
    }
    let (sender, receiver) = bounded_channel::<String>(1).unwrap();
    let context = one_process(receives_one, receiver);
    sender.send_timeout("one".into(), DEADLINE).unwrap();
    join(&context).unwrap();
    let error = loop {
        match sender.send_timeout("more".into(), DEADLINE) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, PutError::Disconnected(v) if v == "more"), "{error:?}");
}

#[test]
fn dropped_senders_disconnect_threads() {
    let _alone = alone();
    let (sender, receiver) = channel::<u32>().unwrap();
    let other = sender.clone();
    let thread = std::thread::spawn(move || receiver.iter().collect::<Result<Vec<_>, _>>());
    sender.send(1).unwrap();
    drop(sender);
    other.send(2).unwrap();
    drop(other);
    assert_eq!(thread.join().unwrap().unwrap(), [1, 2]);
    // A sender in a message in flight counts, too.
    let (sender, receiver) = channel::<u32>().unwrap();
    let carrier = Queue::bounded(1).unwrap();
    give(&carrier, sender);
    assert!(receiver.try_recv().unwrap_err().is_empty());
    take(&carrier).send(3).unwrap();
    assert_eq!(receiver.recv().unwrap(), 3);
    assert!(matches!(receiver.try_recv(), Err(GetError::Disconnected)));
}

#[test]
fn join_reports_tasks_of_a_killed_consumer() {
    let _alone = alone();
    fn worker(rank: usize, (tasks, ready): (JoinableQueue<u32>, Queue<usize>)) -> Outcome {
        let task = tasks.get_timeout(DEADLINE)?.ok_or("closed")?;
        send(&ready, rank)?;
        if *task == 0 {
            loop {
                std::thread::park();
            }
        }
        task.ack();
        Ok(())
    }
    let (tasks, ready) = (JoinableQueue::unbounded().unwrap(), Queue::bounded(2).unwrap());
    tasks.join().unwrap();
    tasks.put(0).unwrap();
    tasks.put(1).unwrap();
    let contexts: Vec<_> = (0..2).map(|_| one_process(worker, (tasks.clone(), ready.clone()))).collect();
    (0..2).for_each(|_| _ = take(&ready));
    eventually("one task is done", || tasks.unfinished() == 1);
    assert!(matches!(tasks.join_timeout(MOMENT), Err(JoinableQueueError::Unfinished { tasks: 1, .. })));
    eventually("the other process has ended", || {
        contexts.iter().any(|c| c.join_timeout(Duration::ZERO).unwrap())
    });
    for context in &contexts {
        if !context.join_timeout(Duration::ZERO).unwrap() {
            signal(context.pids()[0], Signal::KILL);
        }
    }
    assert!(matches!(tasks.join_timeout(DEADLINE), Err(JoinableQueueError::Lost(1))));
    assert_eq!(tasks.dead_letter().unwrap(), Some(0));
    tasks.join().unwrap();
    assert_eq!(contexts.iter().filter(|c| join(c).is_err()).count(), 1);
}

#[test]
fn connection_transfers_values_and_bytes_both_ways() {
    let _alone = alone();
    fn answers(_: usize, there: Connection) -> Outcome {
        let (name, n) = there.recv_timeout::<(String, u32)>(DEADLINE)?;
        there.send(format!("{name} {n}"))?;
        let bytes = there.recv_bytes()?;
        there.send_bytes(&bytes.repeat(2))?;
        Ok(())
    }
    let (here, there) = pipe().unwrap();
    assert!(!here.poll(Duration::ZERO).unwrap());
    let context = one_process(answers, there);
    here.send(("seven".to_string(), 7_u32)).unwrap();
    assert!(here.poll(DEADLINE).unwrap());
    assert_eq!(here.recv::<String>().unwrap(), "seven 7");
    here.send_bytes(b"ab").unwrap();
    let error = here.recv_into(&mut [0; 3]).unwrap_err();
    assert!(matches!(error, RecvIntoError::TooShort(m) if m == b"abab"));
    join(&context).unwrap();
    assert!(matches!(here.recv_timeout::<u8>(DEADLINE), Err(GetError::Disconnected)));
    assert!(here.poll(DEADLINE).unwrap(), "the end of the connection counts as ready");
    assert!(matches!(here.send(5), Err(PutError::Disconnected(5))));
}

#[test]
fn one_way_pipe_transfers_in_one_direction() {
    let _alone = alone();
    let (into, out) = one_way_pipe().unwrap();
    assert!(into.readable() && !into.writable() && out.writable() && !out.readable());
    out.send_bytes(b"xyz").unwrap();
    let mut buffer = [0; 8];
    assert_eq!(into.recv_into(&mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..3], b"xyz");
    assert!(into.send(1).unwrap_err().to_string().contains("one-way"));
    assert!(out.try_recv::<u8>().unwrap_err().to_string().contains("one-way"));
    out.send(1_u8).unwrap();
    assert!(into.recv::<String>().is_err(), "another type than was sent");
}
