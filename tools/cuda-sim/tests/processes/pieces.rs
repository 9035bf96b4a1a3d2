//! Pieces of memory that `mp-cuda` declares to the simulator in builds for tests. The simulator reports work
//! that exceeds its tensor's memory, and does not report intended overlaps as races.

use std::time::Duration;

use mp_cuda::{CudaTensor, SharedCudaTensor};
use mp_cuda_sim::session::Session;
use mp_queue::Queue;

use crate::support::{Outcome, join, kernels, nothing_is_left, run, session, stream, taken, with_gpu};

const LEN: usize = 1 << 10;

/// Writes `beyond` elements past the end of the tensor.
fn writes_beyond(beyond: usize) -> Outcome {
    let stream = stream();
    let mut t = CudaTensor::<f32>::zeros([LEN], &stream)?;
    let neighbour = CudaTensor::<f32>::full([LEN], 1.0, &stream)?;
    let on = t.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len() + beyond, 2.0);
    drop(on);
    stream.synchronize()?;
    drop(neighbour);
    Ok(())
}

fn kinds(session: &Session) -> Vec<String> {
    session.findings().unwrap().into_iter().map(|finding| finding.kind).collect()
}

#[test]
fn simulator_finds_kernel_outside_of_its_piece() {
    let session = session();
    run(&session, writes_beyond, 0);
    nothing_is_left(&session);
    run(&session, writes_beyond, 1);
    assert_eq!(kinds(&session), ["out-of-bounds"]);
}

/// Allocates a piece in memory with pending work. The pending work was within the piece that existed when it
/// was submitted.
fn cuts_anew((): ()) -> Outcome {
    let (stream, other) = (stream(), stream());
    for elements in [LEN, LEN / 2, LEN / 4] {
        let mut t = CudaTensor::<f32>::empty([elements], &stream)?;
        let on = t.on_mut(&stream)?;
        kernels().spin(&stream, Duration::from_millis(20));
        kernels().fill(&stream, on.ptr(), on.len(), 1.0);
        drop(on);
        drop(t);
        let mut t = CudaTensor::<f32>::empty([elements / 8], &other)?;
        let on = t.on_mut(&other)?;
        kernels().fill(&other, on.ptr(), on.len(), 2.0);
        drop(on);
        assert_eq!(t.to_vec(&other)?, vec![2.0; elements / 8]);
    }
    Ok(())
}

#[test]
fn device_work_is_checked_against_its_own_piece() {
    let session = session();
    run(&session, cuts_anew, ());
    nothing_is_left(&session);
}

fn writes_along((t, both): (SharedCudaTensor<f32>, Queue<()>)) -> Outcome {
    let stream = stream();
    let on = t.on_mut(&stream)?;
    both.put(()).unwrap();
    mp_harness::eventually("both processes have the tensor", || both.len() == 2);
    kernels().fill(&stream, on.ptr(), on.len(), 5.0);
    drop(on);
    stream.synchronize()?;
    // Memory that is no longer shared is checked like all other memory.
    drop(t);
    Ok(())
}

fn shares(tensors: Queue<SharedCudaTensor<f32>>) -> Outcome {
    let t = CudaTensor::<f32>::zeros([LEN], &stream())?.share();
    tensors.put(t.clone()).unwrap();
    tensors.put(t).unwrap();
    Ok(())
}

#[test]
fn writers_of_a_shared_tensor_race_on_purpose() {
    let session = session();
    let (tensors, both) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    run(&session, shares, tensors.clone());
    let writers: Vec<_> = (0..2)
        .map(|_| with_gpu(&session).spawn(writes_along, (taken(&tensors), both.clone())).unwrap())
        .collect();
    writers.into_iter().for_each(join);
    nothing_is_left(&session);
}
