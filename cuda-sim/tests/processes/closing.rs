//! Legacy handles are closed beside the work of a process: to close one waits for all that its streams have, and has threads wait that launch.

use std::time::{Duration, Instant};

use mp_cuda::{CudaTensor, Event, FrozenCudaTensor, Stream, ipc_collect, memory_stats};
use mp_harness::eventually;
use mp_queue::Queue;

use crate::allocations::{By, freed};
use crate::foreign::{LEN, Moved, shared};
use crate::support::{Outcome, join, kernels, nothing_is_left, session, stream, taken, with_gpu};

fn keeps_until_it_is_free((out, gone): (Moved, Queue<()>)) -> Outcome {
    let stream = stream();
    out.put(shared(By::Legacy, 1.0, &stream).0).unwrap();
    taken(&gone);
    eventually("the owner is dropped", || {
        ipc_collect();
        freed() == 1
    });
    Ok(())
}

/// Drops the tensor when its stream has run, or before; and ends.
fn drops_beside_an_endless_kernel((under_work, from, dropped): (bool, Moved, Queue<()>)) -> Outcome {
    let (stream, busy) = (stream(), kernels().stream_of_another(()));
    let mut t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    busy_for(&busy, Duration::from_secs(3600));
    if under_work {
        let on = t.on_mut(&stream)?;
        kernels().spin(&stream, Duration::from_millis(50));
        kernels().fill(&stream, on.ptr(), LEN, 2.0);
        drop(on);
    }
    drop(t);
    dropped.put(()).unwrap();
    Ok(())
}

/// To close a handle waits for all that runs in its process. No drop waits for that, and the end of the process not for ever: a clock knows of
/// the kernel.
#[test]
fn memory_is_dropped_beside_an_endless_kernel() {
    for under_work in [false, true] {
        let session = session();
        let (out, dropped, gone) =
            (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let maker = with_gpu(&session).spawn(keeps_until_it_is_free, (out.clone(), gone.clone())).unwrap();
        let args = (under_work, out, dropped.clone());
        let receiver = with_gpu(&session).spawn(drops_beside_an_endless_kernel, args).unwrap();
        taken(&dropped);
        join(receiver);
        gone.put(()).unwrap();
        join(maker);
        nothing_is_left(&session);
    }
}

type Clones = Queue<FrozenCudaTensor<f32>>;

fn sends_clones((count, out, gone): (usize, Clones, Queue<()>)) -> Outcome {
    let stream = stream();
    let t = shared(By::Legacy, 1.0, &stream).0.freeze();
    (0..count).for_each(|_| out.put(t.clone()).unwrap());
    drop(t);
    taken(&gone);
    eventually("the owner is dropped", || {
        ipc_collect();
        freed() == 1
    });
    Ok(())
}

/// Runs a receiver of this many tensors of one maker; `rule` is what goes wrong in its driver.
fn receive(count: usize, rule: &str, receiver: impl Fn(Clones) -> Outcome + Send + Sync + Copy + 'static) {
    let session = session();
    let (out, gone) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(sends_clones, (count, out.clone(), gone.clone())).unwrap();
    join(with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule).spawn(receiver, out).unwrap());
    gone.put(()).unwrap();
    join(maker);
    nothing_is_left(&session);
}

fn mapped(stream: &Stream) -> usize {
    memory_stats(stream.device()).mapped_slabs
}

/// A kernel, as one that a program has between tensors of this library.
fn busy_for(busy: &Stream, time: Duration) -> Event {
    kernels().spin(busy, time);
    let over = Event::new().unwrap();
    over.record(busy).unwrap();
    over
}

/// The first second is as long as the library waits for streams that go on, and this one doesn't.
///
/// A handle that is closed has other threads of its process wait that launch kernels: not for as long as this one takes.
fn works_beside_a_long_kernel(from: Clones) -> Outcome {
    let (stream, busy) = (stream(), stream());
    let (mut mine, t) = (CudaTensor::<f32>::zeros([LEN], &stream)?, taken(&from));
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let over = busy_for(&busy, Duration::from_millis(2500));
    drop(t);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        mine.fill(2.0, &stream)?;
        stream.synchronize()?;
        assert!(!over.query()?, "a launch has waited for the long kernel");
        assert_eq!(mapped(&stream), 1);
    }
    over.synchronize()?;
    eventually("it is closed", || mapped(&stream) == 0);
    Ok(())
}

#[test]
fn other_work_goes_on_beside_a_long_kernel() {
    receive(1, "", works_beside_a_long_kernel);
}

/// One stream or the other has a kernel, at each moment.
fn is_never_at_rest(from: Clones) -> Outcome {
    let (stream, busy) = (stream(), [stream(), stream()]);
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let kernel = Duration::from_millis(50);
    let mut over = busy_for(&busy[0], kernel);
    drop(t);
    let mut turns = 0;
    eventually("it is closed", || {
        turns += 1;
        let next = busy_for(&busy[turns % 2], 2 * kernel);
        over.synchronize().unwrap();
        over = next;
        mapped(&stream) == 0
    });
    Ok(())
}

#[test]
fn a_program_whose_streams_are_never_at_rest_closes_memory_all_the_same() {
    receive(1, "", is_never_at_rest);
}

fn asks_for_it(from: Clones) -> Outcome {
    let (stream, busy) = (stream(), stream());
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let over = busy_for(&busy, Duration::from_millis(300));
    drop(t);
    assert_eq!(mapped(&stream), 1);
    ipc_collect();
    assert_eq!(mapped(&stream), 0);
    assert!(over.query()?, "to close memory waits for all that the device runs");
    Ok(())
}

#[test]
fn a_thread_that_asks_for_memory_to_be_given_back_waits_for_that() {
    receive(1, "", asks_for_it);
}

/// The second one comes when the first one is in line.
fn takes_three(from: Clones) -> Outcome {
    let (stream, busy) = (stream(), stream());
    let over = busy_for(&busy, Duration::from_millis(500));
    for _ in 0..3 {
        let t = taken(&from);
        assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
        drop(t);
        assert_eq!(mapped(&stream), 1);
    }
    assert!(!over.query()?, "the kernel was too short to see it");
    over.synchronize()?;
    Ok(())
}

/// To open it a second time fails.
#[test]
fn what_comes_again_while_it_is_in_line_to_be_closed_stays_open() {
    receive(3, "fail=cuIpcOpenMemHandle_v2:2:999", takes_three);
}
