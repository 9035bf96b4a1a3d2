//! Streams that must wait for readers, and memory that is reused after work of several streams and processes.
//! A missing wait results in wrong values, or in a race that the simulator reports.

use std::time::Duration;

use mp_cuda::{CudaStream, CudaTensor, FrozenCudaTensor, SharedCudaTensor, memory_stats};
use mp_harness::eventually;
use mp_queue::Queue;

use crate::support::{
    Outcome, join, kernels, nothing_is_left, run, session, stat, stream, taken, under, under_each_order,
    with_gpu,
};

pub(crate) const LEN: usize = 1 << 16;
pub(crate) const SLOW: Duration = Duration::from_millis(100);

pub(crate) type Signals = Queue<()>;

pub(crate) fn queues<T: mp_core::message::Message, const N: usize>() -> [Queue<T>; N] {
    [(); N].map(|()| Queue::unbounded().unwrap())
}

/// Copies a tensor on a stream, after the stream has spun for this time. Returns the copy.
pub(crate) fn copies<M: mp_cuda::CudaMode>(
    t: &CudaTensor<f32, M>,
    stream: &CudaStream,
    time: Duration,
) -> Outcome<CudaTensor<f32>> {
    let mut copy = CudaTensor::<f32>::empty([t.len()], stream)?;
    let (on, to) = (t.on(stream)?, copy.on_mut(stream)?);
    kernels().spin(stream, time);
    kernels().multiply(stream, to.ptr(), on.ptr(), on.len(), 1.0);
    drop((on, to));
    Ok(copy)
}

/// Fills a tensor on a stream, after the stream has spun for this time.
pub(crate) fn fills(t: &mut CudaTensor<f32>, stream: &CudaStream, time: Duration, value: f32) -> Outcome {
    let on = t.on_mut(stream)?;
    kernels().spin(stream, time);
    kernels().fill(stream, on.ptr(), on.len(), value);
    Ok(())
}

fn writes_what_another_stream_reads((): ()) -> Outcome {
    let (first, reader, writer) = (stream(), stream(), stream());
    let mut t = CudaTensor::<f32>::full([LEN], 1.0, &first)?;
    let copy = copies(&t, &reader, SLOW)?;
    fills(&mut t, &writer, Duration::ZERO, 2.0)?;
    writer.synchronize()?;
    assert_eq!(copy.to_vec(&reader)?, [1.0; LEN], "the writer waited for the reader");
    // The same with a writer before a reader.
    fills(&mut t, &writer, SLOW, 3.0)?;
    let copy = copies(&t, &reader, Duration::ZERO)?;
    assert_eq!(copy.to_vec(&reader)?, [3.0; LEN], "the reader waited for the writer");
    Ok(())
}

under_each_order! {
fn writer_waits_for_a_reader_of_its_process(order: Order) {
    let session = under(order);
    run(&session, writes_what_another_stream_reads, ());
    nothing_is_left(&session);
}
}

pub(crate) type Moved = Queue<CudaTensor<f32>>;

fn makes_and_moves(out: Moved) -> Outcome {
    out.put(CudaTensor::<f32>::full([LEN], 1.0, &stream())?).unwrap();
    Ok(())
}

fn reads_and_moves_on((from, to, written): (Moved, Moved, Signals)) -> Outcome {
    let ([slow, quick], t) = ([stream(), stream()], taken(&from));
    let [late, early] = [copies(&t, &slow, SLOW)?, copies(&t, &quick, Duration::ZERO)?];
    to.put(t).unwrap();
    taken(&written);
    for (copy, stream) in [(late, slow), (early, quick)] {
        assert_eq!(copy.to_vec(&stream)?, [1.0; LEN], "the next owner waited for the reader");
    }
    Ok(())
}

fn writes_what_was_read((from, written): (Moved, Signals)) -> Outcome {
    let (stream, mut t) = (stream(), taken(&from));
    fills(&mut t, &stream, Duration::ZERO, 2.0)?;
    stream.synchronize()?;
    assert_eq!(t.to_vec(&stream)?, [2.0; LEN]);
    written.put(()).unwrap();
    Ok(())
}

under_each_order! {
fn next_owner_waits_for_a_relay_that_reads(order: Order) {
    let session = under(order);
    let ([one, two], [written]) = (queues(), queues());
    let args = (one.clone(), two.clone(), written.clone());
    let relay = with_gpu(&session).spawn(reads_and_moves_on, args).unwrap();
    let last = with_gpu(&session).spawn(writes_what_was_read, (two, written)).unwrap();
    run(&session, makes_and_moves, one);
    join(last);
    join(relay);
    nothing_is_left(&session);
}
}

pub(crate) type Frozen = Queue<FrozenCudaTensor<f32>>;

/// Waits for a signal, submits a read that takes this many milliseconds, drops the tensor, and reports the
/// drop.
fn reads_and_drops((tensors, go, dropped, milliseconds): (Frozen, Signals, Signals, u64)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    taken(&go);
    let copy = copies(&t, &stream, Duration::from_millis(milliseconds))?;
    drop(t);
    dropped.put(()).unwrap();
    assert_eq!(copy.to_vec(&stream)?, [1.0; LEN], "the copy has no later writes");
    Ok(())
}

fn makes_for_two((tensors, gone): (Frozen, Signals)) -> Outcome {
    let stream = stream();
    let t = CudaTensor::<f32>::full([LEN], 1.0, &stream)?.freeze();
    // A quick reader in this process, too.
    let copy = copies(&t, &stream, Duration::ZERO)?;
    tensors.put(t.clone()).unwrap();
    tensors.put(t).unwrap();
    taken(&gone);
    let early = CudaTensor::<f32>::full([LEN], 2.0, &stream)?;
    assert_eq!(early.to_vec(&stream)?, [2.0; LEN]);
    // Two pieces of this process are in use. The third piece is freed when both readers have run.
    eventually("the memory returns", || memory_stats(stream.device()).pieces == 2);
    let late = CudaTensor::<f32>::full([LEN], 3.0, &stream)?;
    assert_eq!(late.to_vec(&stream)?, [3.0; LEN]);
    assert_eq!(copy.to_vec(&stream)?, [1.0; LEN]);
    Ok(())
}

under_each_order! {
/// A slow reader drops the tensor before or after a fast reader.
fn memory_of_two_readers_is_reused_after_both(order: Order) {
    for times in [[300, 0], [0, 300], [100, 200]] {
        let session = under(order);
        let ([tensors], [gone, dropped]) = (queues(), queues());
        let [one, two] = times.map(|time| {
            let [go] = queues();
            let args = (tensors.clone(), go.clone(), dropped.clone(), time);
            (with_gpu(&session).spawn(reads_and_drops, args).unwrap(), go)
        });
        let maker = with_gpu(&session).spawn(makes_for_two, (tensors, gone.clone())).unwrap();
        for (_, go) in [&one, &two] {
            go.put(()).unwrap();
            taken(&dropped);
        }
        gone.put(()).unwrap();
        [maker, one.0, two.0].into_iter().for_each(join);
        nothing_is_left(&session);
    }
}
}

/// Drops three adjacent tensors with pending work, of which the work of tensor `slow` is slow. Then allocates
/// a tensor that covers the memory of all three.
fn covers_what_was_dropped(slow: u32) -> Outcome {
    let (streams, last) = ([(); 3].map(|()| stream()), stream());
    let mut parts = Vec::new();
    for (i, stream) in (0..).zip(&streams) {
        let mut t = CudaTensor::<f32>::full([LEN], 1.0, stream)?;
        fills(&mut t, stream, if i == slow { SLOW } else { Duration::from_millis(10) }, 2.0)?;
        parts.push(t);
    }
    let first = parts[0].on(&streams[0])?.ptr();
    drop(parts);
    let mut whole = CudaTensor::<f32>::empty([3 * LEN], &last)?;
    let on = whole.on_mut(&last)?;
    assert_eq!(on.ptr(), first, "the tensor has the memory of the three");
    kernels().fill(&last, on.ptr(), on.len(), 3.0);
    drop(on);
    last.synchronize()?;
    streams.iter().try_for_each(CudaStream::synchronize)?;
    assert!(whole.to_vec(&last)?.iter().all(|x| *x == 3.0), "the earlier works wrote nothing afterwards");
    assert_eq!(memory_stats(last.device()).slabs, 1);
    Ok(())
}

under_each_order! {
fn new_piece_waits_for_all_cooling_ranges(order: Order) {
    for slow in 0..3 {
        let session = under(order);
        run(&session, covers_what_was_dropped, slow);
        nothing_is_left(&session);
    }
}
}

/// Drops a tensor with slow pending work. Then allocates two tensors, each in one half of its memory.
fn divides_what_was_dropped((): ()) -> Outcome {
    let [slow, one, two] = [(); 3].map(|()| stream());
    let mut t = CudaTensor::<f32>::full([2 * LEN], 1.0, &slow)?;
    fills(&mut t, &slow, SLOW, 2.0)?;
    let first = t.on(&slow)?.ptr();
    drop(t);
    let mut halves = Vec::new();
    for (i, stream) in (0_u64..).zip([&one, &two]) {
        let mut half = CudaTensor::<f32>::empty([LEN], stream)?;
        fills(&mut half, stream, Duration::ZERO, 3.0)?;
        assert_eq!(half.on(stream)?.ptr(), first + i * (LEN * size_of::<f32>()) as u64);
        halves.push(half);
    }
    slow.synchronize()?;
    for half in &halves {
        assert_eq!(half.to_vec(&one)?, [3.0; LEN]);
    }
    Ok(())
}

under_each_order! {
fn each_half_of_a_cooling_range_is_awaited(order: Order) {
    let session = under(order);
    run(&session, divides_what_was_dropped, ());
    nothing_is_left(&session);
}
}

/// Drops a tensor with slow pending work on the stream `slow`. The memory becomes free for streams that wait
/// for the work.
fn leaves_slow_work(slow: &CudaStream) -> Outcome {
    let mut t = CudaTensor::<f32>::full([LEN], 1.0, slow)?;
    fills(&mut t, slow, SLOW, 2.0)
}

/// Allocates a tensor on one stream, and first uses it on another stream, of this or another process.
fn uses_new_memory_elsewhere((out, read): (Moved, Signals)) -> Outcome {
    let [slow, one, other] = [(); 3].map(|()| stream());
    leaves_slow_work(&slow)?;
    let mut t = CudaTensor::<f32>::empty([LEN], &one)?;
    fills(&mut t, &other, Duration::ZERO, 3.0)?;
    slow.synchronize()?;
    assert_eq!(t.to_vec(&other)?, [3.0; LEN]);
    leaves_slow_work(&slow)?;
    out.put(CudaTensor::empty([LEN], &one)?).unwrap();
    taken(&read);
    Ok(())
}

under_each_order! {
fn first_use_of_new_memory_waits_for_the_last_use(order: Order) {
    let session = under(order);
    let ([moved], [written]) = (queues(), queues());
    let args = (moved.clone(), written.clone());
    let maker = with_gpu(&session).spawn(uses_new_memory_elsewhere, args).unwrap();
    run(&session, writes_what_was_read, (moved, written));
    join(maker);
    nothing_is_left(&session);
}
}

fn is_refused_and_used_elsewhere((): ()) -> Outcome {
    let [slow, other] = [(); 2].map(|()| stream());
    let mut t = CudaTensor::<f32>::full([LEN], 1.0, &slow)?;
    fills(&mut t, &slow, SLOW, 2.0)?;
    let closed = Queue::unbounded()?;
    closed.close();
    let mut t = closed.put(t).unwrap_err().into_value();
    fills(&mut t, &other, Duration::ZERO, 3.0)?;
    slow.synchronize()?;
    assert_eq!(t.to_vec(&other)?, [3.0; LEN], "the first stream's work ran before");
    Ok(())
}

under_each_order! {
fn returned_tensor_is_used_after_its_earlier_work(order: Order) {
    let session = under(order);
    run(&session, is_refused_and_used_elsewhere, ());
    nothing_is_left(&session);
}
}

type Shared = Queue<SharedCudaTensor<f32>>;

fn sends_during_a_use((out, read): (Shared, Signals)) -> Outcome {
    let stream = stream();
    let t = CudaTensor::<f32>::full([LEN], 1.0, &stream)?.share();
    let on = t.on_mut(&stream)?;
    out.put(t.clone()).unwrap();
    taken(&read);
    kernels().spin(&stream, SLOW);
    kernels().fill(&stream, on.ptr(), on.len(), 2.0);
    out.put(t.clone()).unwrap();
    taken(&read);
    kernels().spin(&stream, SLOW);
    kernels().fill(&stream, on.ptr(), on.len(), 3.0);
    drop(on);
    out.put(t).unwrap();
    taken(&read);
    Ok(())
}

fn reads_each_time((from, read): (Shared, Signals)) -> Outcome {
    let stream = stream();
    for value in [1.0, 2.0, 3.0] {
        assert_eq!(taken(&from).to_vec(&stream)?, [value; LEN]);
        read.put(()).unwrap();
    }
    Ok(())
}

under_each_order! {
fn each_message_covers_all_work_of_an_open_use(order: Order) {
    let session = under(order);
    let ([tensors], [read]) = (queues(), queues());
    let sender = with_gpu(&session).spawn(sends_during_a_use, (tensors.clone(), read.clone())).unwrap();
    run(&session, reads_each_time, (tensors, read));
    join(sender);
    nothing_is_left(&session);
}
}

/// Begins a use that stays open while many other uses begin and end. The work of the open use is submitted
/// last.
fn reads_last_in_a_long_use((): ()) -> Outcome {
    let (late, others) = (stream(), [(); 6].map(|()| stream()));
    let t = CudaTensor::<f32>::full([LEN], 1.0, &late)?.freeze();
    let mut copy = CudaTensor::<f32>::zeros([LEN], &late)?;
    late.synchronize()?;
    let on = t.on(&late)?;
    for other in &others {
        copies(&t, other, Duration::ZERO)?;
        other.synchronize()?;
    }
    let to = copy.on_mut(&late)?;
    kernels().spin(&late, SLOW);
    kernels().multiply(&late, to.ptr(), on.ptr(), on.len(), 1.0);
    drop((on, to));
    drop(t);
    let next = CudaTensor::<f32>::full([LEN], 2.0, &others[0])?;
    others[0].synchronize()?;
    assert_eq!(copy.to_vec(&late)?, [1.0; LEN], "the memory is reused after the read");
    assert_eq!(next.to_vec(&others[0])?, [2.0; LEN]);
    Ok(())
}

under_each_order! {
fn open_use_is_recorded_while_others_end(order: Order) {
    let session = under(order);
    run(&session, reads_last_in_a_long_use, ());
    nothing_is_left(&session);
}
}

/// Reads a tensor on two streams, of which stream `slow` takes long. Then drops the tensor.
fn drops_what_two_streams_read(slow: usize) -> Outcome {
    let streams = [stream(), stream()];
    let last = stream();
    let t = CudaTensor::<f32>::full([LEN], 1.0, &last)?.freeze();
    last.synchronize()?;
    let mut all = Vec::new();
    for (i, stream) in streams.iter().enumerate() {
        all.push(copies(&t, stream, if i == slow { SLOW } else { Duration::ZERO })?);
    }
    drop(t);
    let next = CudaTensor::<f32>::full([LEN], 2.0, &last)?;
    last.synchronize()?;
    for (copy, stream) in all.iter().zip(&streams) {
        assert_eq!(copy.to_vec(stream)?, [1.0; LEN], "the memory is reused after both reads");
    }
    assert_eq!(next.to_vec(&last)?, [2.0; LEN]);
    Ok(())
}

under_each_order! {
fn memory_of_two_streams_is_reused_after_both(order: Order) {
    for slow in [0, 1] {
        let session = under(order);
        run(&session, drops_what_two_streams_read, slow);
        nothing_is_left(&session);
    }
}
}

/// Reads a tensor to the host in one thread. Another thread begins a use on the same stream before the read
/// ends, and launches its work afterwards.
fn reads_on_one_stream_by_two_threads((began, go): (Signals, Signals)) -> Outcome {
    let [stream, other] = [(); 2].map(|()| stream());
    let t = CudaTensor::<f32>::full([LEN], 1.0, &stream)?.freeze();
    let mut copy = CudaTensor::<f32>::zeros([LEN], &stream)?;
    stream.synchronize()?;
    let gate = kernels().gate(&stream);
    std::thread::scope(|scope| -> Outcome {
        let reader = scope.spawn(|| t.to_vec(&stream));
        began.put(()).unwrap();
        taken(&go);
        let (on, to) = (t.on(&stream)?, copy.on_mut(&stream)?);
        drop(gate);
        assert_eq!(reader.join().unwrap()?, [1.0; LEN]);
        kernels().spin(&stream, SLOW);
        kernels().multiply(&stream, to.ptr(), on.ptr(), on.len(), 1.0);
        Ok(())
    })?;
    drop(t);
    let next = CudaTensor::<f32>::full([LEN], 2.0, &other)?;
    other.synchronize()?;
    assert_eq!(copy.to_vec(&stream)?, [1.0; LEN], "the memory is reused after the read");
    assert_eq!(next.to_vec(&other)?, [2.0; LEN]);
    Ok(())
}

#[test]
fn tensor_use_begun_during_a_read_is_awaited() {
    let session = session();
    let [began, go] = queues();
    let process = with_gpu(&session).spawn(reads_on_one_stream_by_two_threads, (began.clone(), go.clone()));
    taken(&began);
    // The two queued operations are the gate and the copy to the host.
    eventually("the read has begun", || stat(&session, "queued") == 2);
    go.put(()).unwrap();
    join(process.unwrap());
    nothing_is_left(&session);
}
