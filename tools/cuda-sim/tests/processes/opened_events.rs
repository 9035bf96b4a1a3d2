//! Events that a process opens to make its streams wait for other processes. Each opened event is closed, no
//! matter which process ends first.

use mp_cuda::{CudaTensor, Error, FrozenCudaTensor, Order, ipc_collect};
use mp_cuda_sim::session::Session;
use mp_harness::{DEADLINE, eventually, signal, threads_are};
use mp_queue::Queue;
use mp_spawn::{Process, StartMethod};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open};

use crate::support::{
    Outcome, alone, join, kernels, nothing_found, nothing_is_left, stat, stays, stream, taken, under,
    with_gpu,
};

const LEN: usize = 1 << 10;

type Tensors = Queue<FrozenCudaTensor<f32>>;
type Signals = Queue<()>;

/// Sends a tensor with pending work. Lets the work end after the first signal, and returns after the second
/// signal.
fn makes((tensors, reported): (Tensors, Signals)) -> Outcome {
    let stream = stream();
    let mut t = CudaTensor::<f32>::zeros([LEN], &stream)?;
    let on = t.on_mut(&stream)?;
    let gate = kernels().gate(&stream);
    kernels().fill(&stream, on.ptr(), on.len(), 3.0);
    drop(on);
    tensors.put(t.freeze()).unwrap();
    taken(&reported);
    drop(gate);
    taken(&reported);
    Ok(())
}

/// Makes a stream wait for the work of each received tensor, which opens an event of the tensor's maker. Then
/// closes the opened events by `ipc_collect` and continues, or returns, as the test requests.
fn waits((tensors, (opened, ends)): (Tensors, (Signals, Queue<bool>))) -> Outcome {
    let stream = stream();
    let mut all = Vec::new();
    loop {
        let t = taken(&tensors);
        drop(t.on(&stream)?);
        all.push(t);
        opened.put(()).unwrap();
        if taken(&ends) {
            return Ok(());
        }
        ipc_collect();
        opened.put(()).unwrap();
    }
}

/// Process that made an event, process that has opened the event, and queues that control both processes.
struct Both {
    session: Session,
    tensors: Tensors,
    maker: Process<()>,
    waiter: Process<()>,
    opened: Signals,
    to_maker: Signals,
    to_waiter: Queue<bool>,
}

fn both() -> Both {
    let session = under(Order::IpcEvents);
    let tensors = Queue::unbounded().unwrap();
    let (opened, to_maker, to_waiter) =
        (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes, (tensors.clone(), to_maker.clone())).unwrap();
    let waiter = (tensors.clone(), (opened.clone(), to_waiter.clone()));
    let waiter = with_gpu(&session).spawn(waits, waiter).unwrap();
    taken(&opened);
    assert_eq!(stat(&session, "opened-events"), 1);
    Both { session, tensors, maker, waiter, opened, to_maker, to_waiter }
}

#[track_caller]
fn kill(process: &Process<()>) {
    process.kill().unwrap();
    assert!(process.wait_timeout(DEADLINE));
}

#[track_caller]
fn none_is_open(session: &Session) {
    eventually("no event of another process is open", || stat(session, "opened-events") == 0);
}

#[test]
fn opened_events_of_a_killed_maker_are_closed() {
    let both = both();
    kill(&both.maker);
    none_is_open(&both.session);
    assert!(both.waiter.is_alive(), "the waiter closed the events, and is alive");
    kill(&both.waiter);
    nothing_is_left(&both.session);
}

#[test]
fn killed_process_leaves_no_open_event() {
    let both = both();
    kill(&both.waiter);
    none_is_open(&both.session);
    kill(&both.maker);
    nothing_is_left(&both.session);
}

#[test]
fn opened_events_of_an_ended_maker_are_closed() {
    let both = both();
    for _ in 0..2 {
        both.to_maker.put(()).unwrap();
    }
    join(both.maker);
    none_is_open(&both.session);
    both.to_waiter.put(true).unwrap();
    join(both.waiter);
    nothing_is_left(&both.session);
}

#[test]
fn ending_process_closes_its_opened_events() {
    let both = both();
    both.to_maker.put(()).unwrap();
    both.to_waiter.put(true).unwrap();
    join(both.waiter);
    assert_eq!(stat(&both.session, "opened-events"), 0, "the events' maker is alive");
    both.to_maker.put(()).unwrap();
    join(both.maker);
    nothing_is_left(&both.session);
}

#[test]
fn collected_event_is_opened_again() {
    let both = both();
    both.to_waiter.put(false).unwrap();
    taken(&both.opened);
    assert_eq!(stat(&both.session, "opened-events"), 0);
    // Another stream, ordered after the first stream's work.
    let made = (both.tensors.clone(), both.to_maker.clone());
    let other = with_gpu(&both.session).spawn(makes, made).unwrap();
    taken(&both.opened);
    assert_eq!(stat(&both.session, "opened-events"), 1);
    [&both.maker, &other, &both.waiter].into_iter().for_each(kill);
    none_is_open(&both.session);
    nothing_found(&both.session);
}

type Pids = Queue<u32>;

/// Starts the maker of an event. While this process is stopped, no process reports the death of the maker to
/// the arena.
fn starts_the_maker((tensors, reported, pids): (Tensors, Signals, Pids)) -> Outcome {
    let maker = Process::builder().start_method(StartMethod::Spawn);
    let maker = maker.spawn(makes, (tensors, reported)).unwrap();
    pids.put(maker.pid()).unwrap();
    stays();
    Ok(())
}

/// Makes a stream wait for the maker's event, kills the maker, and makes a second stream wait for the event.
/// Sends `true` if the second wait is refused.
fn waits_for_a_dead_process((tensors, pids, refused): (Tensors, Pids, Queue<bool>)) -> Outcome {
    let ([first, second], t) = ([stream(), stream()], taken(&tensors));
    drop(t.on(&first)?);
    refused.put(false).unwrap();
    let maker = Pid::from_raw(taken(&pids).cast_signed()).unwrap();
    let end = pidfd_open(maker, PidfdFlags::empty())?;
    kill_process(maker, Signal::KILL)?;
    let deadline = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&deadline))?, 1);
    refused.put(matches!(t.on(&second), Err(Error::ProducerDied { .. }))).unwrap();
    stays();
    Ok(())
}

/// The event was opened before its maker's death, and no recovery has detected the death.
#[test]
#[ignore = "run by the next test, in a family of its own"]
fn alone_wait_for_dead_makers_event_is_refused() {
    let session = under(Order::IpcEvents);
    let (tensors, reported) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let (pids, refused) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let parent =
        with_gpu(&session).spawn(starts_the_maker, (tensors.clone(), reported, pids.clone())).unwrap();
    let pid = taken(&pids);
    let waiter = with_gpu(&session);
    let waiter = waiter.spawn(waits_for_a_dead_process, (tensors, pids.clone(), refused.clone())).unwrap();
    taken(&refused);
    signal(parent.pid(), Signal::STOP);
    eventually("the maker's parent is stopped", || threads_are(parent.pid(), 'T'));
    pids.put(pid).unwrap();
    // A thread that waited for the message would detect the death.
    eventually("the second wait has a result", || !refused.is_empty());
    let is_refused = taken(&refused);
    [&waiter, &parent].into_iter().for_each(kill);
    assert!(is_refused);
    nothing_is_left(&session);
}

#[test]
fn event_of_a_dead_maker_is_not_awaited() {
    alone("opened_events::alone_wait_for_dead_makers_event_is_refused");
}

/// Opens an event, stops until another maker has an event with the same name, and opens that event.
fn is_stopped_between_two_makers((tensors, waits): (Tensors, Signals)) -> Outcome {
    let ([first, second], t) = ([stream(), stream()], taken(&tensors));
    drop(t.on(&first)?);
    kill_process(getpid(), Signal::STOP)?;
    // The second tensor is in the queue. A thread that waited for it would detect the death of the first
    // maker.
    let t = tensors.try_get()?.unwrap();
    drop(t.on(&second)?);
    waits.put(()).unwrap();
    assert_eq!(t.to_vec(&second)?, [3.0; LEN]);
    waits.put(()).unwrap();
    stays();
    Ok(())
}

#[test]
fn event_with_a_reused_name_is_opened_again() {
    let session = under(Order::IpcEvents);
    let tensors = Queue::unbounded().unwrap();
    let [to_maker, waits] = [(); 2].map(|()| Queue::unbounded().unwrap());
    let maker = || with_gpu(&session).spawn(makes, (tensors.clone(), to_maker.clone())).unwrap();
    let first = maker();
    let waiter = with_gpu(&session);
    let waiter = waiter.spawn(is_stopped_between_two_makers, (tensors.clone(), waits.clone())).unwrap();
    eventually("the waiter is stopped", || threads_are(waiter.pid(), 'T'));
    kill(&first);
    eventually("the first maker's events are over", || {
        (stat(&session, "processes"), stat(&session, "leaving")) == (1, 0)
    });
    let second = maker();
    eventually("the second tensor is sent", || !tensors.is_empty());
    signal(waiter.pid(), Signal::CONT);
    taken(&waits);
    // The simulator reports a wait for an event of a dead process.
    nothing_found(&session);
    to_maker.put(()).unwrap();
    taken(&waits);
    to_maker.put(()).unwrap();
    join(second);
    kill(&waiter);
    nothing_is_left(&session);
}
