//! Tests of work that is pending when its tensor is dropped: the memory is reused during the work, or the
//! work never ends.

use std::time::Duration;

use mp_core::Arena;
use mp_cuda::{CudaTensor, Device, FrozenCudaTensor, empty_cache, ipc_collect, memory_stats};
use mp_queue::Queue;

use crate::support::{
    Outcome, join, kernels, nothing_is_left, on_the_device, profile, run, session, setup, stat, stays,
    stream, taken, under, with_gpu,
};

const LEN: usize = 1 << 16;
const SLOW: Duration = Duration::from_millis(200);
/// Duration of work that never ends during a test.
const ENDLESS: Duration = Duration::from_secs(600);
const SLAB: u64 = 32 << 20;

fn drops_and_stays((tensors, dropped): (Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, mut t) = (stream(), taken(&tensors));
    let on = t.on_mut(&stream)?;
    kernels().spin(&stream, ENDLESS);
    kernels().fill(&stream, on.ptr(), on.len(), 7.0);
    drop(on);
    drop(t);
    dropped.put(()).unwrap();
    stays();
    Ok(())
}

fn makes_another((tensors, killed): (Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, device) = (stream(), Device::new(0)?);
    let kept = CudaTensor::<f32>::full([LEN], 1.0, &stream)?;
    tensors.put(CudaTensor::full([LEN], 1.0, &stream)?).unwrap();
    taken(&killed);
    mp_harness::eventually("the slab is retired", || {
        Arena::current().unwrap().reclaim().unwrap();
        memory_stats(&device).retired == SLAB
    });
    let others: Vec<_> =
        (0..3).map(|_| CudaTensor::<f32>::full([LEN], 2.0, &stream)).collect::<Result<_, _>>()?;
    assert_eq!(memory_stats(&device).slabs, 2, "no piece is cut from the first slab");
    assert_eq!(kept.to_vec(&stream)?, [1.0; LEN]);
    for other in &others {
        assert_eq!(other.to_vec(&stream)?, [2.0; LEN]);
    }
    drop(kept);
    assert_eq!(memory_stats(&device).retired, 0, "the slab is returned with its last tensor");
    Ok(())
}

on_the_device! {
/// The kernel of the killed process may write until the driver ends it, so the slab is not used for new
/// tensors.
fn slab_of_killed_writer_is_retired(order: Order) {
    for late in [0, 100] {
        let session = setup().set("PROFILE", profile(order)).set("LATE_MS", late).start().unwrap();
        let (tensors, dropped, killed) =
            (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let maker = with_gpu(&session).spawn(makes_another, (tensors.clone(), killed.clone())).unwrap();
        let other = with_gpu(&session).spawn(drops_and_stays, (tensors, dropped.clone())).unwrap();
        taken(&dropped);
        other.kill().unwrap();
        assert!(other.wait_timeout(mp_harness::DEADLINE));
        killed.put(()).unwrap();
        join(maker);
        nothing_is_left(&session);
    }
}
}

fn writes_and_moves((from, to): (Moved, Moved)) -> Outcome {
    let (stream, mut t) = (stream(), taken(&from));
    let on = t.on_mut(&stream)?;
    kernels().spin(&stream, ENDLESS);
    kernels().fill(&stream, on.ptr(), on.len(), 7.0);
    drop(on);
    to.put(t).unwrap();
    stays();
    Ok(())
}

fn follows_and_stays((tensors, dropped): (Moved, Queue<()>)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    drop(t.on(&stream)?);
    drop(t);
    dropped.put(()).unwrap();
    stays();
    Ok(())
}

/// The last user's stream waits for the writer, and continues after the writer's death. So the last use is
/// complete, although the killed writer's kernel may still write.
#[test]
fn slab_moved_on_by_a_killed_writer_is_retired() {
    let session = session();
    let (tensors, moved) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let (dropped, killed) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes_another, (tensors.clone(), killed.clone())).unwrap();
    let writer = with_gpu(&session).spawn(writes_and_moves, (tensors, moved.clone())).unwrap();
    let last = with_gpu(&session).spawn(follows_and_stays, (moved, dropped.clone())).unwrap();
    taken(&dropped);
    writer.kill().unwrap();
    assert!(writer.wait_timeout(mp_harness::DEADLINE));
    killed.put(()).unwrap();
    join(maker);
    last.kill().unwrap();
    assert!(last.wait_timeout(mp_harness::DEADLINE));
    nothing_is_left(&session);
}

fn collects_too_early((tensors, done): (Queue<FrozenCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let mut sink = CudaTensor::<f32>::empty([LEN], &stream)?;
    let (on, to) = (t.on(&stream)?, sink.on_mut(&stream)?);
    let gate = kernels().gate(&stream);
    kernels().multiply(&stream, to.ptr(), on.ptr(), on.len(), 2.0);
    drop((on, to));
    drop(t);
    assert_eq!(ipc_collect(), 0, "a kernel reads there");
    drop(gate);
    assert_eq!(sink.to_vec(&stream)?, [6.0; LEN]);
    assert_eq!(ipc_collect(), SLAB);
    let on = sink.on_mut(&stream)?;
    let gate = kernels().gate(&stream);
    kernels().fill(&stream, on.ptr(), on.len(), 1.0);
    drop(on);
    drop(sink);
    assert_eq!(empty_cache(), 0, "a kernel writes there");
    drop(gate);
    stream.synchronize()?;
    assert_eq!(empty_cache(), SLAB);
    done.put(()).unwrap();
    Ok(())
}

fn makes_one((tensors, done): (Queue<FrozenCudaTensor<f32>>, Queue<()>)) -> Outcome {
    tensors.put(CudaTensor::<f32>::full([LEN], 3.0, &stream())?.freeze()).unwrap();
    taken(&done);
    Ok(())
}

on_the_device! {
/// Unmapping memory while a kernel accesses it would be a fault.
fn memory_stays_mapped_while_a_stream_uses_it(order: Order) {
    let session = under(order);
    let (tensors, done) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes_one, (tensors.clone(), done.clone())).unwrap();
    run(&session, collects_too_early, (tensors, done));
    join(maker);
    nothing_is_left(&session);
}
}

type Moved = Queue<CudaTensor<f32>>;

fn moves_on_under_work((from, to): (Moved, Moved)) -> Outcome {
    let (stream, t) = (stream(), taken(&from));
    let mut sink = CudaTensor::<f32>::empty([LEN], &stream)?;
    let (on, to_sink) = (t.on(&stream)?, sink.on_mut(&stream)?);
    let gate = kernels().gate(&stream);
    kernels().multiply(&stream, to_sink.ptr(), on.ptr(), on.len(), 2.0);
    drop((on, to_sink));
    to.put(t).unwrap();
    assert_eq!(ipc_collect(), 0, "a kernel reads there");
    drop(gate);
    assert_eq!(sink.to_vec(&stream)?, [6.0; LEN]);
    assert_eq!(ipc_collect(), SLAB);
    Ok(())
}

fn makes_and_moves((out, back): (Moved, Moved)) -> Outcome {
    let stream = stream();
    out.put(CudaTensor::full([LEN], 3.0, &stream)?).unwrap();
    assert_eq!(taken(&back).to_vec(&stream)?, [3.0; LEN]);
    Ok(())
}

on_the_device! {
fn moved_memory_stays_mapped_during_work(order: Order) {
    let session = under(order);
    let (out, back) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes_and_moves, (out.clone(), back.clone())).unwrap();
    run(&session, moves_on_under_work, (out, back));
    join(maker);
    nothing_is_left(&session);
}
}

fn writes_and_stays((tensors, begun): (Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, mut t) = (stream(), taken(&tensors));
    let on = t.on_mut(&stream)?;
    for _ in 0..1000 {
        kernels().fill(&stream, on.ptr(), on.len(), 7.0);
        kernels().spin(&stream, Duration::from_millis(1));
    }
    begun.put(()).unwrap();
    stays();
    drop(on);
    Ok(())
}

fn makes_what_is_written((tensors, killed): (Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, device) = (stream(), Device::new(0)?);
    let t = CudaTensor::<f32>::empty([LEN], &stream)?;
    // This process did not use the tensor. The row has only the uses by the process that holds it now.
    tensors.put(t).unwrap();
    taken(&killed);
    mp_harness::eventually("the writer has no seat", || {
        Arena::current().unwrap().reclaim().unwrap();
        ipc_collect();
        memory_stats(&device).pieces == 0
    });
    let other = CudaTensor::<f32>::full([LEN], 2.0, &stream)?;
    // The work is long enough that a kernel of the dead process may be running.
    kernels().spin(&stream, SLOW);
    assert_eq!(other.to_vec(&stream)?, [2.0; LEN]);
    Ok(())
}

/// After a kill, the driver takes a while to end running work, which may still write.
#[test]
fn memory_of_a_killed_writer_is_not_reused() {
    let session = setup().set("LATE_MS", 2_000).set("LAZY_MS", 0).start().unwrap();
    let (tensors, begun, killed) =
        (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes_what_is_written, (tensors.clone(), killed.clone())).unwrap();
    let writer = with_gpu(&session).spawn(writes_and_stays, (tensors, begun.clone())).unwrap();
    taken(&begun);
    writer.kill().unwrap();
    assert!(writer.wait_timeout(mp_harness::DEADLINE));
    killed.put(()).unwrap();
    let ended = maker.wait_timeout(mp_harness::DEADLINE);
    nothing_is_left(&session);
    assert!(ended);
    join(maker);
}

fn opens_and_unmaps(
    (tensors, unmapped, done): (Queue<FrozenCudaTensor<f32>>, Queue<()>, Queue<()>),
) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    assert_eq!(t.to_vec(&stream)?, [3.0; LEN]);
    drop(t);
    ipc_collect();
    unmapped.put(()).unwrap();
    taken(&done);
    Ok(())
}

fn makes_and_ends(tensors: Queue<FrozenCudaTensor<f32>>) -> Outcome {
    tensors.put(CudaTensor::<f32>::full([LEN], 3.0, &stream())?.freeze()).unwrap();
    Ok(())
}

/// A process that has unmapped the memory of a dead maker does not keep the memory allocated.
#[test]
fn unmapped_memory_of_a_dead_maker_is_freed() {
    let session = session();
    let (tensors, unmapped, done) =
        (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    run(&session, makes_and_ends, tensors.clone());
    let other =
        with_gpu(&session).spawn(opens_and_unmaps, (tensors, unmapped.clone(), done.clone())).unwrap();
    taken(&unmapped);
    mp_harness::eventually("all memory is free", || stat(&session, "bytes") == 0);
    done.put(()).unwrap();
    join(other);
    nothing_is_left(&session);
}
