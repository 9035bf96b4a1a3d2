//! Events of other processes that a process opens, where streams are ordered by those: each is closed again, whichever of both ends first.

use std::time::Duration;

use mp_cuda::{CudaTensor, FrozenCudaTensor, Order, ipc_collect};
use mp_cuda_sim::session::Session;
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;
use mp_spawn::Process;

use crate::support::{
    Outcome, join, kernels, nothing_found, nothing_is_left, stat, stream, taken, under, with_gpu,
};

const LEN: usize = 1 << 10;
const EVER: u64 = 3600;

type Tensors = Queue<FrozenCudaTensor<f32>>;

/// Sends a tensor whose work takes this many seconds; and stays, if it is to.
fn makes((tensors, (milliseconds, ends)): (Tensors, (u64, Queue<()>))) -> Outcome {
    let stream = stream();
    let mut t = CudaTensor::<f32>::zeros([LEN], &stream)?;
    let on = t.on_mut(&stream)?;
    kernels().spin(&stream, Duration::from_millis(milliseconds));
    kernels().fill(&stream, on.ptr(), on.len(), 3.0);
    drop(on);
    tensors.put(t.freeze()).unwrap();
    taken(&ends);
    Ok(())
}

/// Has a stream wait for it. Meanwhile it looks after the deaths of others.
fn waits((tensors, (opened, ends)): (Tensors, (Queue<()>, Queue<bool>))) -> Outcome {
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

/// Both processes, when the second has opened an event of the first; and how they are told to end.
struct Both {
    session: Session,
    tensors: Tensors,
    maker: Process<()>,
    waiter: Process<()>,
    opened: Queue<()>,
    maker_ends: Queue<()>,
    waiter_ends: Queue<bool>,
}

fn both(milliseconds: u64) -> Both {
    let session = under(Order::IpcEvents);
    let tensors = Queue::unbounded().unwrap();
    let (opened, maker_ends, waiter_ends) =
        (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let made = (tensors.clone(), (milliseconds, maker_ends.clone()));
    let maker = with_gpu(&session).spawn(makes, made).unwrap();
    let waiter = (tensors.clone(), (opened.clone(), waiter_ends.clone()));
    let waiter = with_gpu(&session).spawn(waits, waiter).unwrap();
    taken(&opened);
    assert_eq!(stat(&session, "opened-events"), 1);
    Both { session, tensors, maker, waiter, opened, maker_ends, waiter_ends }
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
fn those_of_a_killed_process_are_closed() {
    let both = both(1000 * EVER);
    kill(&both.maker);
    none_is_open(&both.session);
    assert!(both.waiter.is_alive(), "it closed them, and was not ended");
    kill(&both.waiter);
    nothing_is_left(&both.session);
}

#[test]
fn a_killed_process_has_none_open() {
    let both = both(1000 * EVER);
    kill(&both.waiter);
    none_is_open(&both.session);
    kill(&both.maker);
    nothing_is_left(&both.session);
}

#[test]
fn those_of_a_process_that_ended_are_closed() {
    let both = both(300);
    both.maker_ends.put(()).unwrap();
    join(both.maker);
    none_is_open(&both.session);
    both.waiter_ends.put(true).unwrap();
    join(both.waiter);
    nothing_is_left(&both.session);
}

#[test]
fn a_process_that_ends_closes_what_it_has_opened() {
    let both = both(300);
    both.waiter_ends.put(true).unwrap();
    join(both.waiter);
    assert_eq!(stat(&both.session, "opened-events"), 0, "its maker is there");
    both.maker_ends.put(()).unwrap();
    join(both.maker);
    nothing_is_left(&both.session);
}

#[test]
fn what_is_collected_is_opened_again() {
    let both = both(1000 * EVER);
    both.waiter_ends.put(false).unwrap();
    taken(&both.opened);
    assert_eq!(stat(&both.session, "opened-events"), 0);
    // Of another stream, behind the first one's work.
    let made = (both.tensors.clone(), (1000 * EVER, both.maker_ends.clone()));
    let other = with_gpu(&both.session).spawn(makes, made).unwrap();
    taken(&both.opened);
    assert_eq!(stat(&both.session, "opened-events"), 1);
    [&both.maker, &other, &both.waiter].into_iter().for_each(kill);
    none_is_open(&both.session);
    nothing_found(&both.session);
}
