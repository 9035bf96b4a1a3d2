//! Ordering of kernels of several streams and processes that share tensors. A missing wait results in wrong
//! values, or in a race that the simulator reports.

use std::time::Duration;

use mp_cuda::{CudaTensor, Device, FrozenCudaTensor, Order, SharedCudaTensor, order};
use mp_cuda_sim::session::Session;
use mp_queue::Queue;

use crate::support::{
    Outcome, join, kernels, nothing_is_left, profile, run, session, setup, stat, stream, taken, under,
    under_each_order, with_gpu,
};

const SLOW: Duration = Duration::from_millis(100);
const LEN: usize = 1 << 16;

fn sends_again((tensors, seen): (Queue<SharedCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, other) = (stream(), stream());
    let t = CudaTensor::<f32>::full([LEN], 1.0, &stream)?.share();
    tensors.put(t.clone()).unwrap();
    taken(&seen);
    let on = t.on_mut(&other)?;
    kernels().spin(&other, SLOW);
    kernels().fill(&other, on.ptr(), on.len(), 2.0);
    drop(on);
    // The tensor is put while the kernel spins.
    tensors.put(t).unwrap();
    taken(&seen);
    Ok(())
}

fn receives_again((tensors, seen): (Queue<SharedCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let stream = stream();
    let first = taken(&tensors);
    assert_eq!(first.to_vec(&stream)?, [1.0; LEN]);
    seen.put(()).unwrap();
    let second = taken(&tensors);
    assert_eq!(first.storage(), second.storage());
    assert_eq!(second.to_vec(&stream)?, [2.0; LEN], "a tensor received again is waited for");
    seen.put(()).unwrap();
    Ok(())
}

const ALL: [Order; 3] = [Order::Clocks, Order::IpcEvents, Order::Host];

/// Returns the orders to test. Without the simulator, only the order of the existing device can be tested.
fn orders() -> &'static [Order] {
    if session().has_figures() { &ALL } else { &ALL[..1] }
}

/// Returns a session for each order to test.
fn all() -> Vec<Session> {
    orders().iter().copied().map(under).collect()
}

fn which((): ()) -> Outcome<String> {
    Ok(format!("{:?}", order(&Device::new(0)?)?))
}

#[test]
fn each_device_has_its_stream_order() {
    let found: Vec<_> = all().iter().map(|session| run(session, which, ())).collect();
    let wanted: Vec<_> = orders().iter().map(|order| format!("{order:?}")).collect();
    assert_eq!(found, wanted);
}

#[test]
fn resent_tensor_waits_for_slow_kernel() {
    all().iter().for_each(sent_again);
}

fn sent_again(session: &Session) {
    let (tensors, seen) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let one = with_gpu(session).spawn(sends_again, (tensors.clone(), seen.clone())).unwrap();
    let other = with_gpu(session).spawn(receives_again, (tensors, seen)).unwrap();
    join(one);
    join(other);
    nothing_is_left(session);
}

fn doubles((from, to): (Queue<CudaTensor<f32>>, Queue<CudaTensor<f32>>)) -> Outcome {
    let streams = [stream(), stream()];
    for i in 0..20 {
        let (mut t, stream) = (taken(&from), &streams[i % 2]);
        let on = t.on_mut(stream)?;
        kernels().multiply(stream, on.ptr(), on.ptr(), on.len(), 2.0);
        drop(on);
        to.put(t).unwrap();
    }
    Ok(())
}

fn plays((there, back): (Queue<CudaTensor<f32>>, Queue<CudaTensor<f32>>)) -> Outcome {
    let (stream, other) = (stream(), stream());
    let mut t = CudaTensor::<f32>::full([LEN], 1.0, &stream)?;
    for _ in 0..20 {
        let on = t.on_mut(&stream)?;
        kernels().multiply(&stream, on.ptr(), on.ptr(), on.len(), 0.5);
        drop(on);
        there.put(t).unwrap();
        t = taken(&back);
    }
    assert_eq!(t.to_vec(&other)?, [1.0; LEN]);
    Ok(())
}

#[test]
fn twenty_round_trips_keep_a_tensors_contents() {
    for (order, seed) in orders().iter().flat_map(|order| [(*order, 1), (*order, 2)]) {
        let session = setup().set("PROFILE", profile(order)).set("SEED", seed).start().unwrap();
        let (there, back) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let one = with_gpu(&session).spawn(plays, (there.clone(), back.clone())).unwrap();
        let other = with_gpu(&session).spawn(doubles, (there, back)).unwrap();
        join(one);
        join(other);
        nothing_is_left(&session);
    }
}

fn on_streams_of_one_process((): ()) -> Outcome {
    let (a, b, c) = (stream(), stream(), stream());
    let mut t = CudaTensor::<f32>::zeros([LEN], &a)?;
    for (i, stream) in [&a, &b, &c, &a, &c, &b].into_iter().enumerate() {
        let on = t.on_mut(stream)?;
        kernels().spin(stream, Duration::from_millis(5));
        kernels().fill(stream, on.ptr(), on.len(), i as f32);
        drop(on);
        if i == 3 {
            // Concurrent readers. The next writer waits for both.
            let mut sink = CudaTensor::<f32>::empty([2, LEN], &b)?;
            for (row, stream) in [&b, &c].into_iter().enumerate() {
                let on = t.on(stream)?;
                let to = sink.on_mut(stream)?;
                let at = to.ptr() + (row * LEN * size_of::<f32>()) as u64;
                kernels().multiply(stream, at, on.ptr(), on.len(), 1.0);
            }
            assert_eq!(sink.to_vec(&a)?, [3.0; 2 * LEN]);
        }
    }
    assert_eq!(t.to_vec(&a)?, [5.0; LEN]);
    // A tensor that was made on one stream is shared, and used on another stream.
    let mut t = CudaTensor::<f32>::zeros([LEN], &a)?;
    let on = t.on_mut(&a)?;
    kernels().spin(&a, SLOW);
    kernels().fill(&a, on.ptr(), on.len(), 9.0);
    drop(on);
    let t = t.share();
    assert_eq!(t.to_vec(&b)?, [9.0; LEN]);
    Ok(())
}

#[test]
fn streams_of_one_process_wait_for_each_other() {
    for session in all() {
        run(&session, on_streams_of_one_process, ());
        nothing_is_left(&session);
    }
}

fn makes_anew((tensors, used): (Queue<FrozenCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, other) = (stream(), stream());
    for i in 0..30 {
        // The tensor is in the memory of the previous tensor, whose readers' kernels may not have run.
        let t = CudaTensor::<f32>::full([LEN], i as f32, if i % 2 == 0 { &stream } else { &other })?.freeze();
        tensors.put(t.clone()).unwrap();
        tensors.put(t).unwrap();
        taken(&used);
        taken(&used);
    }
    Ok(())
}

fn reads_late((tensors, used): (Queue<FrozenCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let streams = [stream(), stream()];
    let mut sinks = Vec::new();
    for _ in 0..30 {
        let t = taken(&tensors);
        for stream in &streams {
            let mut sink = CudaTensor::<f32>::empty([LEN], stream)?;
            let on = t.on(stream)?;
            kernels().spin(stream, Duration::from_millis(2));
            let to = sink.on_mut(stream)?;
            kernels().multiply(stream, to.ptr(), on.ptr(), on.len(), 1.0);
            drop((to, on));
            sinks.push(sink);
        }
        drop(t);
        used.put(()).unwrap();
    }
    for sink in &sinks {
        let values = sink.to_vec(&streams[0])?;
        assert!(values.iter().all(|x| *x == values[0]), "{:?}", &values[..4]);
    }
    Ok(())
}

#[test]
fn device_memory_is_reused_after_its_last_reader() {
    all().iter().for_each(used_again);
}

fn used_again(session: &Session) {
    let (tensors, used) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(session).spawn(makes_anew, (tensors.clone(), used.clone())).unwrap();
    let readers =
        [0, 1].map(|_| with_gpu(session).spawn(reads_late, (tensors.clone(), used.clone())).unwrap());
    join(maker);
    readers.into_iter().for_each(join);
    nothing_is_left(session);
}

fn reads_then_shares((tensors, read): (Queue<SharedCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, other) = (stream(), stream());
    let x = CudaTensor::<f32>::full([LEN], 1.0, &stream)?;
    kernels().spin(&other, SLOW);
    // The copy reads `x` after the spinning has ended.
    let copy = x.to_device(&other)?;
    tensors.put(x.share()).unwrap();
    taken(&read);
    assert_eq!(copy.to_vec(&other)?, [1.0; LEN], "the copy has no later writes");
    Ok(())
}

fn overwrites((tensors, read): (Queue<SharedCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let stream = stream();
    let x = taken(&tensors);
    let on = x.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len(), 7.0);
    drop(on);
    stream.synchronize()?;
    read.put(()).unwrap();
    Ok(())
}

#[test]
fn shared_tensor_is_written_after_senders_reads() {
    for session in all() {
        let (tensors, read) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let one = with_gpu(&session).spawn(reads_then_shares, (tensors.clone(), read.clone())).unwrap();
        let other = with_gpu(&session).spawn(overwrites, (tensors, read)).unwrap();
        join(other);
        join(one);
        nothing_is_left(&session);
    }
}

fn reads_on_new_streams((begin, done): (Queue<()>, Queue<()>)) -> Outcome {
    let first = stream();
    let weights = CudaTensor::<f32>::full([LEN], 1.0, &first)?.freeze();
    for _ in 0..50 {
        let new = stream();
        let on = weights.on(&new)?;
        kernels().spin(&new, Duration::ZERO);
        drop(on);
        new.synchronize()?;
    }
    done.put(()).unwrap();
    taken(&begin);
    Ok(())
}

#[test]
fn idle_readers_of_frozen_memory_are_released() {
    let session = session();
    let (begin, done) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let process = with_gpu(&session).spawn(reads_on_new_streams, (begin.clone(), done.clone())).unwrap();
    taken(&done);
    let streams = stat(&session, "streams");
    assert!(streams < 12, "{streams} streams, 50 of 51 were dropped");
    begin.put(()).unwrap();
    join(process);
    nothing_is_left(&session);
}

fn moves_slowly(tensors: Queue<CudaTensor<f32>>) -> Outcome {
    let stream = stream();
    let mut t = CudaTensor::<f32>::empty([LEN], &stream)?;
    let on = t.on_mut(&stream)?;
    kernels().spin(&stream, SLOW);
    kernels().fill(&stream, on.ptr(), on.len(), 4.0);
    drop(on);
    tensors.put(t).unwrap();
    Ok(())
}

fn copies_at_once(tensors: Queue<CudaTensor<f32>>) -> Outcome {
    let stream = stream();
    let t = taken(&tensors);
    let mut copy = CudaTensor::<f32>::empty([LEN], &stream)?;
    let (on, to) = (t.on(&stream)?, copy.on_mut(&stream)?);
    kernels().multiply(&stream, to.ptr(), on.ptr(), on.len(), 1.0);
    drop((on, to));
    let values = copy.to_vec(&stream)?;
    assert_eq!((values[0], values[LEN - 1]), (4.0, 4.0));
    Ok(())
}

under_each_order! {
fn moved_tensor_is_read_after_senders_work(order: Order) {
    let session = under(order);
    let tensors = Queue::unbounded().unwrap();
    let one = with_gpu(&session).spawn(moves_slowly, tensors.clone()).unwrap();
    let other = with_gpu(&session).spawn(copies_at_once, tensors).unwrap();
    let read = other.wait_timeout(mp_harness::DEADLINE);
    join(one);
    nothing_is_left(&session);
    assert!(read);
    join(other);
}
}
