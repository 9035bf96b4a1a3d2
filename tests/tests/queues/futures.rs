//! Queues as futures, without a runtime and under tokio. Nothing is lost or duplicated if futures are
//! dropped, or processes killed or stopped.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_core::Stream;
use futures_sink::Sink;
use mp::queue::JoinableQueueError;
use mp::wait::wait_async;
use mp::{
    BoundedSemaphore, Connection, Event, GetError, JoinableQueue, Process, PutError, Queue, Receiver, Sender,
    bounded_channel, channel, pipe,
};
use mp_core::inject;
use mp_tests::block_on::{block_on, poll_once};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, failure, give, join, next, one_process, send, signal, take,
};
use rustix::process::Signal;

const MOMENT: Duration = Duration::from_millis(20);

/// Polls a future once, drops it, and returns `true` if it was pending.
fn is_pending<F: Future>(future: F) -> bool {
    poll_once(&mut pin!(future)).is_pending()
}

fn echo(_: usize, (there, back): (Queue<u64>, Queue<u64>)) -> Outcome {
    block_on(async {
        while let Some(value) = there.get_async().await? {
            back.put_async(value).await.map_err(|e| e.to_string())?;
        }
        back.close();
        Ok(())
    })
}

#[test]
fn futures_of_two_processes_answer_each_other() {
    let _alone = alone();
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(echo, (there.clone(), back.clone()));
    // If each answer waited for a poll interval to end, this would take longer than `block_on` allows.
    block_on(async {
        for i in 0..4000 {
            there.put_async(i).await.unwrap();
            assert_eq!(back.get_async().await.unwrap(), Some(i));
        }
        there.close();
        assert_eq!(back.get_async().await.unwrap(), None);
        assert!(matches!(there.put_async(5).await, Err(PutError::Closed(5))));
    });
    join(&context).unwrap();
}

/// Puts `numbers` numbers by blocking calls.
fn produce(_: usize, (queue, numbers): (Queue<u64>, u64)) -> Outcome {
    (0..numbers).try_for_each(|i| send(&queue, i))?;
    queue.close();
    Ok(())
}

#[test]
fn get_future_dropped_at_any_poll_takes_nothing() {
    let _alone = alone();
    const NUMBERS: u64 = 500;
    let queue = Queue::bounded(2).unwrap();
    let context = one_process(produce, (queue.clone(), NUMBERS));
    let mut expected = 0;
    let mut polls = 0;
    // Each future is polled a few times more than the previous future, and dropped if it is still pending.
    'all: loop {
        let mut future = pin!(queue.get_async());
        polls = polls % 5 + 1;
        for _ in 0..polls {
            match poll_once(&mut future) {
                std::task::Poll::Ready(got) => match got.unwrap() {
                    Some(i) => {
                        assert_eq!(i, expected);
                        expected += 1;
                        break;
                    }
                    None => break 'all,
                },
                std::task::Poll::Pending => std::thread::yield_now(),
            }
        }
    }
    assert_eq!(expected, NUMBERS);
    join(&context).unwrap();
}

#[test]
fn put_future_dropped_before_completion_puts_nothing() {
    let _alone = alone();
    let before = mp_tests::in_use();
    let queue = Queue::bounded(1).unwrap();
    give(&queue, "first".to_string());
    assert!(is_pending(queue.put_async("x".repeat(5000))));
    {
        let mut future = pin!(queue.put_async("second".to_string()));
        (0..3).for_each(|_| assert!(poll_once(&mut future).is_pending()));
        assert_eq!(take(&queue), "first");
        assert!(poll_once(&mut future).is_ready());
    }
    assert_eq!(take(&queue), "second");
    assert!(queue.is_empty());
    // The queue gets room before the value is put, so the value still belongs to the caller.
    give(&queue, "third".to_string());
    assert!(is_pending(wait_async(queue.put_ready())));
    drop(queue);
    assert_eq!(mp_tests::in_use(), before);
}

#[test]
fn stream_and_sink_keep_order_and_bound() {
    let _alone = alone();
    let (there, back) = (Queue::bounded(2).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(echo, (there.clone(), back.clone()));
    let producer = std::thread::spawn({
        let there = there.clone();
        move || {
            let mut sink = there.sink();
            for i in 0..200_u64 {
                block_on(std::future::poll_fn(|cx| Pin::new(&mut sink).poll_ready(cx))).unwrap();
                Pin::new(&mut sink).start_send(i).unwrap();
            }
            block_on(std::future::poll_fn(|cx| Pin::new(&mut sink).poll_close(cx))).unwrap();
            there.close();
        }
    });
    let mut stream = back.stream();
    let mut got = Vec::new();
    while let Some(i) = block_on(std::future::poll_fn(|cx| Pin::new(&mut stream).poll_next(cx))) {
        got.push(i.unwrap());
    }
    assert!(got.into_iter().eq(0..200));
    producer.join().unwrap();
    join(&context).unwrap();
    // Only one message waits in a sink.
    let queue = Queue::bounded(1).unwrap();
    let mut sink = queue.sink();
    for i in 0..2 {
        block_on(std::future::poll_fn(|cx| Pin::new(&mut sink).poll_ready(cx))).unwrap();
        Pin::new(&mut sink).start_send(i).unwrap();
    }
    assert!(is_pending(std::future::poll_fn(|cx| Pin::new(&mut sink).poll_flush(cx))));
    assert!(matches!(Pin::new(&mut sink).start_send(2), Err(PutError::Full(2))));
    assert_eq!((take(&queue), queue.len()), (0, 0));
    block_on(std::future::poll_fn(|cx| Pin::new(&mut sink).poll_flush(cx))).unwrap();
    assert_eq!(take(&queue), 1);
}

#[test]
fn channels_and_connections_work_as_futures() {
    let _alone = alone();
    type Ends = (Sender<u64>, Receiver<u64>, Connection);
    fn answers(_: usize, (sender, receiver, connection): Ends) -> Outcome {
        block_on(async {
            while let Ok(i) = receiver.recv_async().await {
                sender.send_async(i + 1).await.map_err(|e| e.to_string())?;
            }
            connection.send_bytes(b"raw")?;
            connection.send("bye".to_string())?;
            assert_eq!(connection.recv_async::<u8>().await?, 3);
            Ok(())
        })
    }
    let (there_sends, there_gets) = bounded_channel(1).unwrap();
    let (back_sends, back_gets) = channel().unwrap();
    let (here, there) = pipe().unwrap();
    let context = one_process(answers, (back_sends, there_gets, there));
    block_on(async {
        for i in 0..50 {
            there_sends.send_async(i).await.unwrap();
            assert_eq!(back_gets.recv_async().await.unwrap(), i + 1);
        }
        drop(there_sends);
        assert_eq!(here.recv_bytes_async().await.unwrap(), b"raw");
        assert_eq!(here.recv_async::<String>().await.unwrap(), "bye");
        here.send(3_u8).unwrap();
        // The other process ends.
        assert!(matches!(back_gets.recv_async().await, Err(GetError::Disconnected)));
        assert!(matches!(here.recv_async::<u8>().await, Err(GetError::Disconnected)));
    });
    let mut stream = back_gets.stream();
    assert!(block_on(std::future::poll_fn(|cx| Pin::new(&mut stream).poll_next(cx))).is_none());
    join(&context).unwrap();
}

#[test]
fn join_future_reports_tasks_of_dead_consumers() {
    let _alone = alone();
    fn takes_one(_: usize, (tasks, ready): (JoinableQueue<u32>, Queue<()>)) -> Outcome {
        let _task = block_on(tasks.get_async())?.ok_or("closed")?;
        send(&ready, ())?;
        loop {
            std::thread::park();
        }
    }
    let (tasks, ready) = (JoinableQueue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(takes_one, (tasks.clone(), ready.clone()));
    block_on(async {
        tasks.put_async(1).await.unwrap();
        ready.get_async().await.unwrap();
        tasks.close();
        // One task is in progress: it is neither done nor in the queue.
        assert!(is_pending(tasks.join_async()) && is_pending(tasks.get_async()));
    });
    signal(context.pids()[0], Signal::KILL);
    failure(&context);
    block_on(async {
        assert!(matches!(tasks.join_async().await, Err(JoinableQueueError::Lost(1))));
        assert!(tasks.get_async().await.unwrap().is_none());
    });
    // The message of a plain queue is delivered again.
    let queue = Queue::bounded(1).unwrap();
    give(&queue, 5);
    block_on(async {
        drop(queue.get_lease_async().await.unwrap());
        let again = queue.get_lease_async().await.unwrap().unwrap();
        assert_eq!((*again, again.deliveries()), (5, 2));
        again.ack();
    });
}

#[test]
fn events_and_permits_work_as_futures() {
    let _alone = alone();
    fn sets(_: usize, (event, permits, order): (Event, BoundedSemaphore, Queue<u8>)) -> Outcome {
        permits.acquire()?.keep();
        send(&order, 0)?;
        eventually("a task waits", || order.is_empty());
        event.set()?;
        event.clear()?;
        loop {
            std::thread::park();
        }
    }
    let (event, permits) = (Event::new().unwrap(), BoundedSemaphore::new(1).unwrap());
    let order = Queue::bounded(1).unwrap();
    let args = (event.clone(), permits.clone(), order.clone());
    let context = one_process(sets, args);
    let mut set = Box::pin(event.wait_async());
    assert!(poll_once(&mut set).is_pending());
    take(&order);
    // The event was cleared at once, and the wake-up is not missed.
    block_on(set).unwrap();
    assert!(is_pending(permits.acquire_async()));
    signal(context.pids()[0], Signal::KILL);
    failure(&context);
    drop(block_on(permits.acquire_async()).unwrap());
    assert_eq!(permits.available(), 1);
}

/// Gets and puts with futures.
fn relays(_: usize, (from, to, at): (Queue<u64>, Queue<u64>, u64)) -> Outcome {
    inject::arm(at, Signal::KILL.as_raw());
    block_on(async {
        for _ in 0..3 {
            let Some(value) = from.get_async().await? else { break };
            to.put_async(value).await.map_err(|e| e.to_string())?;
        }
        Ok(())
    })
}

#[test]
fn process_killed_in_a_future_leaks_nothing() {
    mp_tests::kill::for_every_access(|at| {
        let (from, to) = (Queue::bounded(4).unwrap(), Queue::bounded(1).unwrap());
        let context = one_process(relays, (from.clone(), to.clone(), at));
        (0..3).for_each(|i| give(&from, i));
        from.close();
        let mut got = Vec::new();
        loop {
            match to.get_timeout(DEADLINE) {
                Ok(Some(i)) => got.push(i),
                Err(GetError::Deserted { .. }) => break,
                other => panic!("{other:?}"),
            }
        }
        let killed = mp_tests::kill::killed(&context);
        got.extend(from.iter().map(Result::unwrap));
        assert!(got.is_sorted() && got.len() >= 3 - usize::from(killed), "{got:?}");
        assert_eq!(BTreeSet::from_iter(&got).len(), got.len(), "{got:?}");
        killed
    });
}

#[test]
fn timed_out_futures_of_many_tasks_lose_nothing() {
    let _alone = alone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    const NUMBERS: u64 = 600;
    fn produces(_: usize, queues: Vec<Queue<u64>>) -> Outcome {
        for i in 0..NUMBERS {
            send(&queues[i as usize % queues.len()], i)?;
        }
        queues.iter().for_each(|queue| _ = queue.close());
        Ok(())
    }
    // More queues than the number of words on which one thread can sleep.
    let queues: Vec<Queue<u64>> = (0..150).map(|_| Queue::bounded(1).unwrap()).collect();
    let tasks: Vec<_> = (0..queues.len() * 2)
        .map(|i| {
            let queue = queues[i / 2].clone();
            runtime.spawn(async move {
                let mut got = Vec::new();
                loop {
                    // Every second task times out repeatedly.
                    let time = if i % 2 == 0 { Duration::from_millis(1) } else { DEADLINE };
                    match tokio::time::timeout(time, queue.get_async()).await {
                        Ok(Ok(Some(i))) => got.push(i),
                        Ok(Ok(None)) => return got,
                        Ok(Err(e)) => panic!("{e}"),
                        Err(_) => assert!(i % 2 == 0, "nothing within {time:?}"),
                    }
                }
            })
        })
        .collect();
    let child = Process::spawn(|queues| produces(0, queues).map_err(|e| e.to_string()), queues).unwrap();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(runtime.block_on(task).unwrap());
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..NUMBERS));
    child.join().unwrap();
}

#[test]
fn process_stopped_during_a_future_continues() {
    let _alone = alone();
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(echo, (there.clone(), back.clone()));
    give(&there, 1);
    assert_eq!(take(&back), 1);
    signal(context.pids()[0], Signal::STOP);
    eventually("the process is stopped", || mp_tests::threads_are(context.pids()[0], 'T'));
    give(&there, 2);
    assert!(back.get_timeout(MOMENT).unwrap_err().is_empty());
    signal(context.pids()[0], Signal::CONT);
    assert_eq!(take(&back), 2);
    there.close();
    assert_eq!(next(&back).unwrap(), None);
    join(&context).unwrap();
}

#[test]
#[allow(unsafe_code)]
fn connection_descriptor_is_readable_while_ready() {
    use tokio::io::unix::AsyncFd;
    let _alone = alone();
    fn answers(_: usize, there: Connection) -> Outcome {
        while let Ok(i) = there.recv_timeout::<u32>(DEADLINE) {
            for _ in 0..i {
                there.send(i)?;
            }
        }
        Ok(())
    }
    let (here, there) = pipe().unwrap();
    let context = one_process(answers, there);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fd = here.as_fd().unwrap();
    let readable = || mp::Waitable::is_ready(&mp::wait::Descriptor(fd));
    let all = async {
        // SAFETY: the descriptor is borrowed from a connection that outlives this value.
        let epoll = unsafe { AsyncFd::register(fd) }.unwrap();
        for i in [1, 3, 0, 2, 1] {
            assert!(!readable(), "no message is available");
            here.send(i).unwrap();
            for _ in 0..i {
                loop {
                    let mut guard = epoll.readable().await.unwrap();
                    match here.try_recv::<u32>() {
                        Ok(got) => break assert_eq!(got, i),
                        Err(e) if e.is_empty() => guard.clear_ready(),
                        Err(e) => panic!("{e}"),
                    }
                }
            }
            assert!(here.try_recv::<u32>().unwrap_err().is_empty());
        }
    };
    runtime.block_on(async { tokio::time::timeout(DEADLINE, all).await.unwrap() });
    // Another handle takes the message first, so the descriptor is readable once without a message.
    here.send(1_u32).unwrap();
    eventually("the descriptor is readable", readable);
    let other = here.clone();
    assert_eq!(other.recv::<u32>().unwrap(), 1);
    assert!(readable() && here.try_recv::<u32>().unwrap_err().is_empty() && !readable());
    // The end of the other process can be received, and stays readable.
    signal(context.pids()[0], Signal::KILL);
    failure(&context);
    eventually("the descriptor is readable", readable);
    assert!(here.poll(Duration::ZERO).unwrap() && readable());
    assert!(matches!(here.try_recv::<u32>(), Err(GetError::Disconnected)) && readable());
    // Other tests open and close files meanwhile, so the file is identified by its number in the kernel.
    let info = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let eventfd = || {
        let info = std::fs::read_to_string(&info).ok()?;
        Some(info.lines().find(|line| line.starts_with("eventfd-id"))?.to_owned())
    };
    let open = eventfd();
    assert!(open.is_some(), "an eventfd");
    drop(here);
    assert_ne!(eventfd(), open);
}
