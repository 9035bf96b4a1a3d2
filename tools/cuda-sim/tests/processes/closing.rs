//! Tests when memory that was opened by a legacy handle is closed. Closing waits for all work of the
//! process's streams, and blocks threads that launch work.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mp_core::message::Message;
use mp_cuda::{CudaEvent, CudaStream, CudaTensor, FrozenCudaTensor, ipc_collect, memory_stats};
use mp_cuda_sim::session::Session;
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;

use crate::allocations::{By, freed};
use crate::foreign::{LEN, Moved, shared};
use crate::support::{
    Outcome, join, kernels, nothing_is_left, session, stays, stream, taken, under, under_each_order,
    under_orders, with_gpu,
};

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

/// Drops the tensor during an endless kernel of another stream, and exits. If `under_work` is set, the stream
/// of the tensor has pending work at the drop.
fn drops_during_an_endless_kernel((under_work, from, dropped): (bool, Moved, Queue<()>)) -> Outcome {
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

/// Closing would wait for the endless kernel. Neither the drop nor the exit of the process waits for it.
#[test]
fn memory_drop_does_not_wait_for_an_endless_kernel() {
    for under_work in [false, true] {
        let session = session();
        let (out, dropped, gone) =
            (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let maker = with_gpu(&session).spawn(keeps_until_it_is_free, (out.clone(), gone.clone())).unwrap();
        let args = (under_work, out, dropped.clone());
        let receiver = with_gpu(&session).spawn(drops_during_an_endless_kernel, args).unwrap();
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

/// Runs `receiver` in a process that receives `count` tensors of another process. `rule` is injected into the
/// receiver's driver.
fn receive<A>(
    session: &Session,
    (count, rule): (usize, &str),
    receiver: impl Fn((Clones, A)) -> Outcome + Send + Sync + Copy + 'static,
    args: A,
) where
    (Clones, A): Message,
{
    let (out, gone) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(session).spawn(sends_clones, (count, out.clone(), gone.clone())).unwrap();
    let process = with_gpu(session).env("MP_CUDA_SIM_INJECT", rule);
    join(process.spawn(receiver, (out, args)).unwrap());
    gone.put(()).unwrap();
    join(maker);
}

fn mapped(stream: &CudaStream) -> usize {
    memory_stats(stream.device()).mapped_slabs
}

/// Starts a kernel that uses no tensor of `mp-cuda` and takes this time. Returns an event that completes
/// after the kernel.
fn busy_for(busy: &CudaStream, time: Duration) -> CudaEvent {
    kernels().spin(busy, time);
    let over = CudaEvent::new().unwrap();
    over.record(busy).unwrap();
    over
}

/// Duration that exceeds the time after which memory may be closed although streams are not idle.
const LATER: Duration = Duration::from_millis(1400);
/// Duration of a long kernel.
const LONG: Duration = Duration::from_secs(4);

/// Checks for this time that launches and copies are not blocked, and that the memory stays open. `is_over`
/// returns `true` if the long kernel has ended.
fn works(stream: &CudaStream, time: Duration, mut is_over: impl FnMut() -> bool) -> Outcome {
    let (begin, mut mine) = (Instant::now(), CudaTensor::<f32>::zeros([LEN], stream)?);
    loop {
        mine.fill(2.0, stream)?;
        assert_eq!(mine.to_vec(stream)?, [2.0; LEN]);
        assert!(!is_over(), "a launch has waited for the long kernel");
        assert_eq!(mapped(stream), 1);
        if begin.elapsed() >= time {
            return Ok(());
        }
    }
}

/// Checks that a long kernel doesn't block other work after memory was dropped. The kernel begins before the
/// drop, or, if `after` is set, after the drop and during another kernel.
fn works_during_a_long_kernel((from, after): (Clones, bool)) -> Outcome {
    let (stream, busy, first) = (stream(), stream(), stream());
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let over = if after {
        let first_is_over = busy_for(&first, Duration::from_millis(800));
        drop(t);
        assert!(!first_is_over.query()?, "the kernel was too short to see it");
        busy_for(&busy, LONG)
    } else {
        let over = busy_for(&busy, LONG);
        drop(t);
        over
    };
    works(&stream, LATER, || over.query().unwrap())?;
    over.synchronize()?;
    eventually("the handle is closed", || mapped(&stream) == 0);
    Ok(())
}

fn receive_during_a_long_kernel(after: bool) {
    let session = session();
    receive(&session, (1, ""), works_during_a_long_kernel, after);
    nothing_is_left(&session);
}

#[test]
fn long_kernel_delays_no_other_work() {
    receive_during_a_long_kernel(false);
}

#[test]
fn late_long_kernel_delays_no_other_work() {
    receive_during_a_long_kernel(true);
}

/// Checks that a long kernel doesn't block other work after memory and the stream of the kernel were dropped.
fn works_after_a_stream_was_dropped((from, ()): (Clones, ())) -> Outcome {
    let (stream, busy) = (stream(), stream());
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let over = busy_for(&busy, LONG);
    drop((busy, t));
    works(&stream, LATER, || over.query().unwrap())
}

#[test]
fn dropped_stream_with_work_delays_no_other_work() {
    let session = session();
    receive(&session, (1, ""), works_after_a_stream_was_dropped, ());
    nothing_is_left(&session);
}

/// Checks that a long kernel doesn't block other work after memory was dropped. The kernel uses a tensor that
/// is not dropped, so no tick covers the kernel.
fn works_during_a_kernel_on_a_kept_tensor((from, ()): (Clones, ())) -> Outcome {
    let (stream, busy) = (stream(), stream());
    let (mut weights, t) = (CudaTensor::<f32>::zeros([LEN], &busy)?, taken(&from));
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let on = weights.on_mut(&busy)?;
    kernels().spin(&busy, LONG);
    kernels().fill(&busy, on.ptr(), LEN, 1.0);
    drop(on);
    drop(t);
    works(&stream, Duration::from_millis(600), || false)?;
    assert_eq!(weights.to_vec(&busy)?, [1.0; LEN]);
    Ok(())
}

#[test]
fn kernel_on_live_tensor_delays_no_other_work() {
    let session = session();
    receive(&session, (1, ""), works_during_a_kernel_on_a_kept_tensor, ());
    nothing_is_left(&session);
}

/// Checks that kernels in a row don't block other work after memory was dropped. Each kernel takes longer
/// than the longest permitted delay of other work.
fn works_during_long_kernels((from, ()): (Clones, ())) -> Outcome {
    let (stream, busy) = (stream(), stream());
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let kernel = || busy_for(&busy, Duration::from_millis(700));
    let mut ahead: VecDeque<CudaEvent> = (0..3).map(|_| kernel()).collect();
    eventually("kernels have begun", || matches!(busy.is_complete(), Ok(false)));
    drop(t);
    // This thread launches the kernels. A thread that only launches kernels may be delayed, and its stream be
    // idle meanwhile.
    let goes_on = || {
        if ahead[0].query().unwrap() {
            ahead.push_back(kernel());
            ahead.pop_front();
        }
        false
    };
    works(&stream, Duration::from_millis(4200), goes_on)?;
    busy.synchronize()?;
    eventually("the handle is closed", || mapped(&stream) == 0);
    Ok(())
}

#[test]
fn slow_kernels_delay_no_other_work() {
    let session = session();
    receive(&session, (1, ""), works_during_long_kernels, ());
    nothing_is_left(&session);
}

type Victims = (bool, Queue<CudaEvent>, Queue<()>);

fn records_and_stays(events: Queue<CudaEvent>) -> Outcome {
    let stream = stream();
    let event = busy_for(&stream, Duration::from_secs(3600));
    events.put(event).unwrap();
    stays();
    Ok(())
}

/// Checks that other work is not blocked after memory was dropped while a stream waits for an event of a
/// killed process. If `drops` is set, the waiting stream is dropped.
fn works_during_a_wait_for_a_killed_process((from, (drops, events, killed)): (Clones, Victims)) -> Outcome {
    let (stream, lost) = (stream(), stream());
    let (t, event) = (taken(&from), taken(&events));
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    event.wait(&lost)?;
    killed.put(()).unwrap();
    eventually("the death is detected", || event.query().is_err());
    let kept = if drops {
        drop(lost);
        None
    } else {
        Some(lost)
    };
    drop(t);
    works(&stream, LATER, || false)?;
    drop(kept);
    Ok(())
}

under_orders! { [ipc_events: IpcEvents]
    fn other_work_continues_during_wait_for_dead_process(order: Order) {
        for drops in [false, true] {
            let session = under(order);
            let (events, killed) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
            let victim = with_gpu(&session).spawn(records_and_stays, events.clone()).unwrap();
            std::thread::scope(|scope| {
                let args = (drops, events, killed.clone());
                scope.spawn(|| receive(&session, (1, ""), works_during_a_wait_for_a_killed_process, args));
                taken(&killed);
                victim.kill().unwrap();
                assert!(victim.wait_timeout(DEADLINE));
            });
        }
    }
}

/// Guard whose drop sets a flag that ends threads, even if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps a stream busy until `ends` is set, by kernels of this duration, of which `ahead` are submitted in
/// advance.
fn keeps_busy(stream: &CudaStream, time: Duration, ahead: usize, ends: &AtomicBool) {
    let kernel = || busy_for(stream, time);
    let mut ahead: VecDeque<CudaEvent> = (0..ahead).map(|_| kernel()).collect();
    while !ends.load(Ordering::Relaxed) {
        ahead.push_back(kernel());
        ahead.pop_front().unwrap().synchronize().unwrap();
    }
}

fn is_never_at_rest((from, ()): (Clones, ())) -> Outcome {
    let (stream, busy) = (stream(), [stream(), stream(), stream()]);
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        busy.iter()
            .for_each(|busy| drop(scope.spawn(|| keeps_busy(busy, Duration::from_millis(30), 4, &ends))));
        let _ends = Ends(&ends);
        eventually("kernels have begun", || busy.iter().all(|busy| matches!(busy.is_complete(), Ok(false))));
        drop(t);
        eventually("the handle is closed", || mapped(&stream) == 0);
    });
    // At the exit, opened events would be left to the driver if the call that closes memory had not returned.
    ipc_collect();
    Ok(())
}

under_each_order! {
    fn memory_is_closed_while_streams_stay_busy(order: Order) {
        let session = under(order);
        receive(&session, (1, ""), is_never_at_rest, ());
        nothing_is_left(&session);
    }
}

/// Calls `ipc_collect` in another thread during a kernel. Meanwhile this thread makes copies, which are
/// blocked while the other thread closes memory.
fn asks_for_it((from, ()): (Clones, ())) -> Outcome {
    let (stream, busy) = (stream(), stream());
    let mine = CudaTensor::<f32>::full([LEN], 3.0, &stream)?.share();
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let over = busy_for(&busy, Duration::from_secs(1));
    drop(t);
    assert_eq!(mapped(&stream), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ipc_collect();
            assert_eq!(mapped(&stream), 0);
            assert!(over.query().unwrap(), "closing memory waits for all work of the device");
        });
        while !over.query().unwrap() {
            assert_eq!(mine.to_vec(&stream).unwrap(), [3.0; LEN]);
        }
    });
    Ok(())
}

#[test]
fn collecting_thread_waits_for_the_close() {
    let session = session();
    receive(&session, (1, ""), asks_for_it, ());
    nothing_is_left(&session);
}

/// Receives three tensors of the same memory. The second and third arrive while the memory is queued to be
/// closed.
fn takes_three((from, ()): (Clones, ())) -> Outcome {
    let (stream, busy) = (stream(), stream());
    let mut t = taken(&from);
    let over = busy_for(&busy, Duration::from_secs(3));
    for next in [true, true, false] {
        assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
        drop(t);
        assert_eq!(mapped(&stream), 1);
        if !next {
            break;
        }
        t = taken(&from);
    }
    assert!(!over.query()?, "the kernel was too short to see it");
    over.synchronize()?;
    Ok(())
}

/// The injected failure would make a second opening of the memory fail.
#[test]
fn memory_received_again_stays_open() {
    let session = session();
    receive(&session, (3, "fail=cuIpcOpenMemHandle_v2:2:999"), takes_three, ());
    nothing_is_left(&session);
}
