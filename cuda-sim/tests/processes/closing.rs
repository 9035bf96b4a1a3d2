//! Legacy handles are closed beside the work of a process: to close one waits for all that its streams have.

use std::time::Duration;

use mp_cuda::{FrozenCudaTensor, ipc_collect, memory_stats};
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
    kernels().spin(&busy, Duration::from_secs(3600));
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

/// To close a handle waits for all that runs in its process. No drop waits for that, and the end of the process not for ever.
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

fn sends_three((out, gone): (Clones, Queue<()>)) -> Outcome {
    let stream = stream();
    let t = shared(By::Legacy, 1.0, &stream).0.freeze();
    (0..3).for_each(|_| out.put(t.clone()).unwrap());
    drop(t);
    taken(&gone);
    eventually("the owner is dropped", || {
        ipc_collect();
        freed() == 1
    });
    Ok(())
}

/// The first one is being closed, for which a thread waits; the second one is opened anew, and in line to be closed when the third comes.
fn takes_three(from: Clones) -> Outcome {
    let (stream, busy) = (stream(), kernels().stream_of_another(()));
    for i in 0..3 {
        let t = taken(&from);
        assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
        if i == 0 {
            kernels().spin(&busy, Duration::from_secs(3600));
        }
        drop(t);
        if i == 0 {
            let mapped = || memory_stats(stream.device()).mapped_slabs;
            eventually("it is being closed", || mapped() == 0);
        }
    }
    Ok(())
}

#[test]
fn what_comes_again_while_it_is_in_line_to_be_closed_stays_open() {
    let session = session();
    let (out, gone) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(sends_three, (out.clone(), gone.clone())).unwrap();
    let rule = "fail=cuIpcOpenMemHandle_v2:3:999";
    join(with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule).spawn(takes_three, out).unwrap());
    gone.put(()).unwrap();
    join(maker);
    nothing_is_left(&session);
}
