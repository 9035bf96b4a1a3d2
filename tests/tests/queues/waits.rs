//! Waits on queues: for room for a message of a given size, and for tasks that other processes can still
//! return. Also time-outs that name the holders, and dropped futures that return their values.

use std::pin::pin;
use std::time::Duration;

use mp::queue::{JoinableQueueError, Leaseholder};
use mp::wait::wait_async;
use mp::{
    FrozenTensor, GetError, JoinableQueue, Message, PutError, Queue, QueueOptions, Tensor, bounded_channel,
    select, wait,
};
use mp_tests::block_on::{block_on, poll_once};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, give, in_use, join, next, one_process, send, signal, take,
    threads_are,
};
use rustix::process::Signal;

const MOMENT: Duration = Duration::from_millis(20);

fn by_bytes<T: Message>(bytes: u64) -> Queue<T> {
    QueueOptions::new().capacity(100).bytes(bytes).create().unwrap()
}

fn takes_on_order(_: usize, (queue, orders): (Queue<Vec<u8>>, Queue<()>)) -> Outcome {
    while orders.get()?.is_some() {
        next(&queue)?;
    }
    Ok(())
}

#[test]
fn put_ready_for_waits_for_enough_bytes() {
    let _alone = alone();
    let (queue, orders) = (by_bytes(1000), Queue::bounded(1).unwrap());
    let (small, large, too_large) =
        (queue.put_ready_for(200), queue.put_ready_for(800), queue.put_ready_for(5000));
    assert_eq!(wait(&[&small, &large, &too_large], Some(Duration::ZERO)).unwrap(), [0, 1, 2]);
    let bytes = |n: usize| vec![7_u8; n - 20];
    give(&queue, bytes(300));
    assert_eq!(wait(&[&small, &large, &too_large], Some(MOMENT)).unwrap(), [0]);
    give(&queue, bytes(200));
    give(&queue, bytes(400));
    // The bytes that are left have room only for the smallest message.
    assert!(wait(&[&small, &large, &too_large], Some(MOMENT)).unwrap().is_empty());
    assert_eq!(wait(&[&queue.put_ready()], Some(Duration::ZERO)).unwrap(), [0]);
    let mut value = bytes(800);
    let child = one_process(takes_on_order, (queue.clone(), orders.clone()));
    // In its intended use, the wait returns once for each put that finds room.
    give(&orders, ());
    assert_eq!(select(&[&small, &large], Some(DEADLINE)).unwrap(), Some(0));
    (0..2).for_each(|_| give(&orders, ()));
    assert_eq!(select(&[&large], Some(DEADLINE)).unwrap(), Some(0));
    match queue.try_put(value) {
        Ok(()) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(wait(&[&large], Some(MOMENT)).unwrap().is_empty());
    // A future waits for room for its own message.
    value = bytes(700);
    let mut future = pin!(queue.put_async(value));
    assert!(poll_once(&mut future).is_pending());
    give(&orders, ());
    block_on(future).unwrap();
    orders.close();
    join(&child).unwrap();
    // A closed queue counts as having room: the put then returns the error.
    queue.close();
    assert_eq!(wait(&[&large, &too_large], None).unwrap(), [0, 1]);
}

fn holds_one(_: usize, (jobs, ready): (Queue<u32>, Queue<u32>)) -> Outcome {
    let job = jobs.get_lease_timeout(DEADLINE)?.ok_or("closed")?;
    send(&ready, *job)?;
    loop {
        std::thread::park();
    }
}

#[test]
fn consumer_at_the_end_names_holders_of_leases() {
    let _alone = alone();
    let (jobs, reported) = (Queue::bounded(4).unwrap(), Queue::bounded(4).unwrap());
    let tasks = jobs.lease_ready();
    assert!(wait(&[&tasks], Some(MOMENT)).unwrap().is_empty());
    assert!(matches!(jobs.try_get_lease(), Err(GetError::Empty)));
    give(&jobs, 5);
    assert_eq!(wait(&[&tasks], None).unwrap(), [0]);
    let child = one_process(holds_one, (jobs.clone(), reported.clone()));
    let pid = child.pids()[0];
    assert_eq!(take(&reported), 5);
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    // The queue is open, so a new message may arrive.
    assert!(matches!(jobs.get_lease_timeout(MOMENT), Err(GetError::Empty)));
    jobs.close();
    assert!(wait(&[&tasks], Some(MOMENT)).unwrap().is_empty());
    let theirs = |error: GetError| {
        let GetError::Leased { holders } = &error else { panic!("{error:?}") };
        assert!(matches!(holders[..], [Leaseholder { pid: p, messages: 1, .. }] if p == pid), "{error:?}");
        let said = error.to_string();
        assert!(
            error.is_empty() && said.contains(&format!("process {pid} (member ")) && said.contains("stopped"),
            "{said}"
        );
    };
    theirs(jobs.try_get_lease().unwrap_err());
    theirs(jobs.get_lease_timeout(MOMENT).unwrap_err());
    assert!(poll_once(&mut pin!(wait_async(tasks.clone()))).is_pending());
    signal(pid, Signal::KILL);
    assert!(join(&child).is_err());
    assert_eq!(wait(&[&tasks], Some(DEADLINE)).unwrap(), [0]);
    let job = jobs.try_get_lease().unwrap().expect("the message was returned");
    assert_eq!(job.deliveries(), 2);
    // No other process can return this process's leased message, so the queue counts as drained.
    assert!(jobs.try_get_lease().unwrap().is_none());
    job.ack();
    assert_eq!(wait(&[&tasks], None).unwrap(), [0]);
    assert!(jobs.get_lease().unwrap().is_none());
}

fn holds_a_task(_: usize, (tasks, ready): (JoinableQueue<u32>, Queue<u32>)) -> Outcome {
    let task = tasks.get_timeout(DEADLINE)?.ok_or("closed")?;
    send(&ready, *task)?;
    loop {
        std::thread::park();
    }
}

#[test]
fn timed_out_join_names_its_processes() {
    let _alone = alone();
    let (tasks, reported) = (JoinableQueue::unbounded().unwrap(), Queue::bounded(4).unwrap());
    (0..3).for_each(|task| tasks.put(task).unwrap());
    let child = one_process(holds_a_task, (tasks.clone(), reported.clone()));
    let pid = child.pids()[0];
    take(&reported);
    signal(pid, Signal::STOP);
    let own = tasks.get().unwrap();
    let error = tasks.join_timeout(MOMENT).unwrap_err();
    let JoinableQueueError::Unfinished { tasks: 3, holders } = &error else { panic!("{error:?}") };
    let mut pids: Vec<_> = holders.iter().map(|h| (h.pid, h.messages)).collect();
    pids.sort_unstable();
    let mut both = [(pid, 1), (std::process::id(), 1)];
    both.sort_unstable();
    assert_eq!(pids, both);
    assert!(error.to_string().contains(&format!("process {pid} (member ")), "{error}");
    drop(own);
    signal(pid, Signal::KILL);
    assert!(join(&child).is_err());
}

fn takes_all(_: usize, (queue, until): (Queue<FrozenTensor<u64>>, Queue<()>)) -> Outcome {
    _ = until.get_timeout(DEADLINE)?;
    let mut n = 0;
    while let Some(tensor) = queue.get_timeout(DEADLINE)? {
        if !tensor.iter().all(|v| v == n) {
            return Err(format!("after {n}: {tensor:?}").into());
        }
        n += 1;
    }
    if n == 200 { Ok(()) } else { Err(format!("{n} came").into()) }
}

#[test]
fn dropped_put_future_returns_its_value() {
    let _alone = alone();
    let before = in_use();
    let (queue, until) = (Queue::bounded(2).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(takes_all, (queue.clone(), until.clone()));
    let mut given_up = 0;
    for n in 0..200 {
        let mut value = Some(Tensor::full([50], n).unwrap().freeze());
        // Each future is polled once, and dropped if it is still pending.
        while value.is_some() {
            if poll_once(&mut pin!(queue.put_async_from(&mut value))).is_pending() {
                let back = value.as_ref().expect("the value was returned");
                assert!(back.iter().all(|v| v == n));
                given_up += 1;
                if given_up == 3 {
                    give(&until, ());
                }
                std::thread::yield_now();
            }
        }
    }
    assert!(given_up >= 3);
    queue.close();
    // The value is in the error, and not in the variable as well.
    let mut value = Some(Tensor::full([50], 7).unwrap().freeze());
    let error = block_on(queue.put_async_from(&mut value)).unwrap_err();
    assert!(value.is_none() && matches!(error, PutError::Closed(back) if back.iter().all(|v| v == 7)));
    assert!(block_on(queue.put_async_from(&mut value)).is_ok(), "a future without a value is ready at once");
    join(&context).unwrap();
    // Channels, too.
    let (sender, receiver) = bounded_channel(1).unwrap();
    sender.send("first".to_string()).unwrap();
    let mut value = Some("second".to_string());
    assert!(poll_once(&mut pin!(sender.send_async_from(&mut value))).is_pending());
    assert_eq!(value.as_deref(), Some("second"));
    drop(receiver);
    let error = block_on(sender.send_async_from(&mut value)).unwrap_err();
    assert!(value.is_none() && matches!(error, PutError::Disconnected(back) if back == "second"));
    drop((queue, until, sender, context));
    eventually("nothing is left", || in_use() == before);
}
