//! Streams that have to wait for readers, and memory that is used again after work of several streams and processes. Each wait that is
//! missing here is a race for the simulator, or wrong values.

use std::time::Duration;

use mp_core::inject;
use mp_cuda::{CudaTensor, Event, FrozenCudaTensor, Order, Stream, memory_stats};
use mp_cuda_sim::session::Session;
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;
use rustix::process::Signal;

use crate::support::{
    Outcome, join, kernels, nothing_found, nothing_is_left, on_the_device, run, setup, stat, stream, taken,
    under, under_each_order, with_gpu,
};

const LEN: usize = 1 << 16;
const SLOW: Duration = Duration::from_millis(100);
const STOP: i32 = 19;

type Told = Queue<()>;

fn queues<T: mp_core::message::Message, const N: usize>() -> [Queue<T>; N] {
    [(); N].map(|()| Queue::unbounded().unwrap())
}

/// Has a stream copy a tensor, after it has spun for this time; the copy.
fn copies<M: mp_cuda::CudaMode>(
    t: &CudaTensor<f32, M>,
    stream: &Stream,
    time: Duration,
) -> Outcome<CudaTensor<f32>> {
    let mut copy = CudaTensor::<f32>::empty([t.len()], stream)?;
    let (on, to) = (t.on(stream)?, copy.on_mut(stream)?);
    kernels().spin(stream, time);
    kernels().multiply(stream, to.ptr(), on.ptr(), on.len(), 1.0);
    drop((on, to));
    Ok(copy)
}

/// Has a stream fill a tensor, after it has spun for this time.
fn fills(t: &mut CudaTensor<f32>, stream: &Stream, time: Duration, value: f32) -> Outcome {
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
    // The other order.
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

type Moved = Queue<CudaTensor<f32>>;

fn makes_and_moves(out: Moved) -> Outcome {
    out.put(CudaTensor::<f32>::full([LEN], 1.0, &stream())?).unwrap();
    Ok(())
}

fn reads_and_moves_on((from, to, written): (Moved, Moved, Told)) -> Outcome {
    let ([slow, quick], t) = ([stream(), stream()], taken(&from));
    let [late, early] = [copies(&t, &slow, SLOW)?, copies(&t, &quick, Duration::ZERO)?];
    to.put(t).unwrap();
    taken(&written);
    for (copy, stream) in [(late, slow), (early, quick)] {
        assert_eq!(copy.to_vec(&stream)?, [1.0; LEN], "the next owner waited for the reader");
    }
    Ok(())
}

fn writes_what_was_read((from, written): (Moved, Told)) -> Outcome {
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
    let relay = with_gpu(&session).spawn(reads_and_moves_on, (one.clone(), two.clone(), written.clone())).unwrap();
    let last = with_gpu(&session).spawn(writes_what_was_read, (two, written)).unwrap();
    run(&session, makes_and_moves, one);
    join(last);
    join(relay);
    nothing_is_left(&session);
}
}

type Frozen = Queue<FrozenCudaTensor<f32>>;

/// A reader: it reads for this many milliseconds, when it is told to, and says that it has dropped the tensor.
fn reads_and_drops((tensors, go, dropped, milliseconds): (Frozen, Told, Told, u64)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    taken(&go);
    let copy = copies(&t, &stream, Duration::from_millis(milliseconds))?;
    drop(t);
    dropped.put(()).unwrap();
    assert_eq!(copy.to_vec(&stream)?, [1.0; LEN], "what was made later is not in it");
    Ok(())
}

fn makes_for_two((tensors, gone): (Frozen, Told)) -> Outcome {
    let stream = stream();
    let t = CudaTensor::<f32>::full([LEN], 1.0, &stream)?.freeze();
    // A quick reader of this process, too.
    let copy = copies(&t, &stream, Duration::ZERO)?;
    tensors.put(t.clone()).unwrap();
    tensors.put(t).unwrap();
    taken(&gone);
    let early = CudaTensor::<f32>::full([LEN], 2.0, &stream)?;
    assert_eq!(early.to_vec(&stream)?, [2.0; LEN]);
    // Two pieces of its own are out. The third comes back when both readers have run.
    eventually("the memory comes back", || memory_stats(stream.device()).pieces == 2);
    let late = CudaTensor::<f32>::full([LEN], 3.0, &stream)?;
    assert_eq!(late.to_vec(&stream)?, [3.0; LEN]);
    assert_eq!(copy.to_vec(&stream)?, [1.0; LEN]);
    Ok(())
}

under_each_order! {
/// The slow one drops it first, or last.
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

/// Three neighbours are dropped with work on their streams, one of them with slow work; what is made next covers all three.
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
    assert_eq!(on.ptr(), first, "it is cut where the parts were");
    kernels().fill(&last, on.ptr(), on.len(), 3.0);
    drop(on);
    last.synchronize()?;
    streams.iter().try_for_each(Stream::synchronize)?;
    assert!(whole.to_vec(&last)?.iter().all(|x| *x == 3.0), "nothing was written later");
    assert_eq!(memory_stats(last.device()).slabs, 1);
    Ok(())
}

under_each_order! {
fn each_of_several_cooling_ranges_is_waited_for(order: Order) {
    for slow in 0..3 {
        let session = under(order);
        run(&session, covers_what_was_dropped, slow);
        nothing_is_left(&session);
    }
}
}

/// Drops it, and stops at this change that the drop makes in the arena.
fn is_stopped_while_it_drops((tensors, dropped, at): (Frozen, Told, u64)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let copy = copies(&t, &stream, SLOW * 3)?;
    inject::arm_at_change(at, STOP);
    drop(t);
    inject::arm_at_change(u64::MAX, 0);
    dropped.put(()).unwrap();
    assert_eq!(copy.to_vec(&stream)?, [1.0; LEN], "its memory was used again after it");
    Ok(())
}

fn makes_while_one_is_stopped((tensors, go, made): (Frozen, Told, Told)) -> Outcome {
    let stream = stream();
    tensors.put(CudaTensor::<f32>::full([LEN], 1.0, &stream)?.freeze()).unwrap();
    taken(&go);
    let mut next = CudaTensor::<f32>::empty([LEN], &stream)?;
    fills(&mut next, &stream, Duration::ZERO, 2.0)?;
    made.put(()).unwrap();
    assert_eq!(next.to_vec(&stream)?, [2.0; LEN]);
    Ok(())
}

/// Stops a reader at one change of its drop; whether it came so far.
fn stops_at(session: &Session, at: u64) -> bool {
    let ([tensors], [dropped, go, made]) = (queues(), queues());
    let reader = with_gpu(session);
    let reader = reader.spawn(is_stopped_while_it_drops, (tensors.clone(), dropped.clone(), at)).unwrap();
    let maker = with_gpu(session);
    let maker = maker.spawn(makes_while_one_is_stopped, (tensors, go.clone(), made.clone())).unwrap();
    let mut stopped = false;
    eventually("the reader stops, or has dropped it", || {
        stopped = mp_harness::threads_are(reader.pid(), 'T');
        stopped || !dropped.is_empty()
    });
    go.put(()).unwrap();
    taken(&made);
    if stopped {
        mp_harness::signal(reader.pid(), Signal::CONT);
    }
    join(maker);
    join(reader);
    nothing_is_left(session);
    stopped
}

on_the_device! {
/// The last use is in the row before the seat is given up: a maker never finds the one without the other.
fn reader_is_stopped_at_each_change_of_its_drop(order: Order) {
    let session = under(order);
    let stops = (1..).take_while(|at| stops_at(&session, *at)).count();
    assert!((3..100).contains(&stops), "a drop makes {stops} changes");
}
}

fn makes_streams((rounds, made, go): (u32, Told, Told)) -> Outcome<usize> {
    let mut refused = 0;
    for _ in 0..rounds {
        let (stream, event) = (stream(), Event::new()?);
        if event.record(&stream).is_err() {
            refused += 1;
            event.record(&stream)?;
        }
        stream.synchronize()?;
        event.synchronize()?;
    }
    made.put(()).unwrap();
    taken(&go);
    Ok(refused)
}

/// Events that there are after a process has made this many streams, one after the other; and how many records were refused.
fn events_after(session: &Session, rounds: u32, rule: &str) -> (u64, usize) {
    let [made, go] = queues();
    let process = with_gpu(session).env("MP_CUDA_SIM_INJECT", rule);
    let process = process.spawn(makes_streams, (rounds, made.clone(), go.clone())).unwrap();
    made.get_timeout(DEADLINE).unwrap();
    let events = stat(session, "events");
    go.put(()).unwrap();
    let refused = join(process);
    nothing_is_left(session);
    (events, refused)
}

#[test]
fn events_of_ended_streams_are_reused() {
    // There are not many more than the events of one stream.
    let session = setup().set("PROFILE", "no-memops").set("EVENTS", 21).start().unwrap();
    let (events, refused) = events_after(&session, 40, "");
    assert!(refused == 0 && events <= 14, "{events} events of 40 streams, one of which is there at a time");
}

#[test]
fn events_are_destroyed_if_one_of_them_is_refused() {
    let session = under(Order::IpcEvents);
    let one = events_after(&session, 1, "");
    for call in ["cuEventCreate", "cuIpcGetEventHandle"] {
        let (events, refused) = events_after(&session, 1, &format!("fail={call}:3:4321"));
        assert_eq!((events, refused), (one.0, 1), "{call}");
    }
    nothing_found(&session);
}
