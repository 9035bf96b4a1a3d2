//! Memory that is reused after a process was stopped or killed during the release of that memory, and events
//! of streams that have ended.

use std::time::Duration;

use mp_core::{Arena, inject};
use mp_cuda::{
    CudaEvent, CudaStream, CudaTensor, Device, FrozenCudaTensor, Order, ipc_collect, memory_stats,
};
use mp_cuda_sim::session::Session;
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;
use rustix::process::Signal;

use crate::reuse::{Frozen, LEN, Moved, SLOW, Signals, copies, fills, queues};
use crate::support::{
    Outcome, join, kernels, nothing_found, nothing_is_left, on_the_device, profile, run, setup, stat, stays,
    stream, taken, under, under_each_order, with_gpu,
};

const KILL: i32 = 9;
const STOP: i32 = 19;

/// Drops a tensor. The process is stopped at the change with the number `at` among the changes that the drop
/// makes in the arena.
fn is_stopped_while_it_drops((tensors, dropped, at): (Frozen, Signals, u64)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let copy = copies(&t, &stream, SLOW * 3)?;
    inject::arm_at_change(at, STOP);
    drop(t);
    inject::arm_at_change(u64::MAX, 0);
    dropped.put(()).unwrap();
    assert_eq!(copy.to_vec(&stream)?, [1.0; LEN], "the memory was reused after the read");
    Ok(())
}

fn makes_while_one_is_stopped((tensors, go, made): (Frozen, Signals, Signals)) -> Outcome {
    let stream = stream();
    tensors.put(CudaTensor::<f32>::full([LEN], 1.0, &stream)?.freeze()).unwrap();
    taken(&go);
    let mut next = CudaTensor::<f32>::empty([LEN], &stream)?;
    fills(&mut next, &stream, Duration::ZERO, 2.0)?;
    made.put(()).unwrap();
    assert_eq!(next.to_vec(&stream)?, [2.0; LEN]);
    Ok(())
}

/// Stops a reader at change `at` of its drop. Returns `false` if the drop makes fewer changes.
fn stops_at(session: &Session, at: u64) -> bool {
    let ([tensors], [dropped, go, made]) = (queues(), queues());
    let reader = with_gpu(session);
    let reader = reader.spawn(is_stopped_while_it_drops, (tensors.clone(), dropped.clone(), at)).unwrap();
    let maker = with_gpu(session);
    let maker = maker.spawn(makes_while_one_is_stopped, (tensors, go.clone(), made.clone())).unwrap();
    let mut stopped = false;
    eventually("the reader stops, or has dropped the tensor", || {
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
/// A drop records the last use before it releases the seat, so the maker never sees the release without the
/// last use.
fn reader_stopped_in_its_drop_delays_no_other_process(order: Order) {
    let session = under(order);
    let stops = (1..).take_while(|at| stops_at(&session, *at)).count();
    assert!((3..100).contains(&stops), "a drop makes {stops} changes");
}
}

type Args = (Moved, Signals, u64);

/// Drops a tensor with pending writes. The process is killed at the change with the number `at` among the
/// changes that the drop makes in the arena.
fn is_killed_while_it_drops((tensors, dropped, at): Args) -> Outcome {
    let (stream, mut t) = (stream(), taken(&tensors));
    fills(&mut t, &stream, SLOW, 7.0)?;
    inject::arm_at_change(at, KILL);
    drop(t);
    inject::arm_at_change(u64::MAX, 0);
    stream.synchronize()?;
    dropped.put(()).unwrap();
    Ok(())
}

fn makes_for_one_that_is_killed((tensors, gone): (Moved, Signals)) -> Outcome {
    let stream = stream();
    tensors.put(CudaTensor::<f32>::full([LEN], 1.0, &stream)?).unwrap();
    taken(&gone);
    eventually("the writer has no seat", || {
        Arena::current().unwrap().reclaim().unwrap();
        memory_stats(stream.device()).pieces == 0
    });
    let next = CudaTensor::<f32>::full([LEN], 2.0, &stream)?;
    // The dead process's remaining work runs during this kernel.
    kernels().spin(&stream, 2 * SLOW);
    assert_eq!(next.to_vec(&stream)?, [2.0; LEN]);
    Ok(())
}

/// Kills a writer at change `at` of its drop. Returns `false` if the drop makes fewer changes.
fn kills_at(session: &Session, at: u64) -> bool {
    let ([tensors], [dropped, gone]) = (queues(), queues());
    let writer = with_gpu(session);
    let writer = writer.spawn(is_killed_while_it_drops, (tensors.clone(), dropped.clone(), at)).unwrap();
    let maker = with_gpu(session);
    let maker = maker.spawn(makes_for_one_that_is_killed, (tensors, gone.clone())).unwrap();
    assert!(writer.wait_timeout(DEADLINE));
    gone.put(()).unwrap();
    join(maker);
    nothing_is_left(session);
    dropped.is_empty()
}

/// The device continues the killed writer's work for a while. Until the end of this work, no tensor is
/// allocated in the memory of the writer's tensor.
#[test]
fn memory_of_writer_killed_in_its_drop_is_not_reused() {
    let session = setup().set("LATE_MS", 1_000).start().unwrap();
    let kills = (1..).take_while(|at| kills_at(&session, *at)).count();
    assert!((3..100).contains(&kills), "a drop makes {kills} changes");
}

type Two = Queue<(FrozenCudaTensor<f32>, FrozenCudaTensor<f32>)>;

/// Sends a tensor, and another tensor with a slab of its own.
fn makes_two_and_stays(out: Two) -> Outcome {
    let (stream, large) = (stream(), 5 << 20);
    let [one, other] = [LEN, large].map(|len| CudaTensor::<f32>::full([len], 1.0, &stream));
    out.put((one?.freeze(), other?.freeze())).unwrap();
    stays();
    Ok(())
}

/// Maps both tensors, and drops the second. When this process detects the maker's death, the second slab is
/// unmapped.
fn reads_what_a_dead_process_made((tensors, opened): (Two, Signals)) -> Outcome {
    let (stream, (one, other)) = (stream(), taken(&tensors));
    assert!(one.to_vec(&stream)?[0] == 1.0 && other.to_vec(&stream)?[0] == 1.0);
    drop(other);
    assert_eq!(memory_stats(stream.device()).mapped_slabs, 2);
    opened.put(()).unwrap();
    eventually("the death is detected", || {
        Arena::current().unwrap().reclaim().unwrap();
        memory_stats(stream.device()).mapped_slabs == 1
    });
    let copy = copies(&one, &stream, SLOW)?;
    drop(one);
    assert_eq!(copy.to_vec(&stream)?, [1.0; LEN], "the memory was mapped during the read");
    Ok(())
}

under_each_order! {
fn memory_of_dead_maker_stays_mapped_during_work(order: Order) {
    let session = under(order);
    let ([tensors], [opened]) = (queues(), queues());
    let maker = with_gpu(&session).spawn(makes_two_and_stays, tensors.clone()).unwrap();
    let reader = with_gpu(&session).spawn(reads_what_a_dead_process_made, (tensors, opened.clone())).unwrap();
    taken(&opened);
    maker.kill().unwrap();
    assert!(maker.wait_timeout(DEADLINE));
    join(reader);
    nothing_is_left(&session);
}
}

fn collects_while_a_thread_unmaps((tensors, reported): (Frozen, Queue<u64>)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    drop(t);
    reported.put(0).unwrap();
    eventually("another thread unmaps the slab", || {
        Arena::current().unwrap().reclaim().unwrap();
        memory_stats(stream.device()).mapped_slabs == 0
    });
    reported.put(ipc_collect()).unwrap();
    stays();
    Ok(())
}

fn makes_one_and_stays(out: Frozen) -> Outcome {
    out.put(CudaTensor::<f32>::full([LEN], 1.0, &stream())?.freeze()).unwrap();
    stays();
    Ok(())
}

#[test]
fn collecting_waits_for_a_thread_that_unmaps() {
    let session = setup().start().unwrap();
    let ([tensors], [reported]) = (queues(), queues());
    let maker = with_gpu(&session).spawn(makes_one_and_stays, tensors.clone()).unwrap();
    let reader = with_gpu(&session).env("MP_CUDA_SIM_INJECT", "delay=cuMemUnmap:1:1500");
    let reader = reader.spawn(collects_while_a_thread_unmaps, (tensors, reported.clone())).unwrap();
    taken(&reported);
    maker.kill().unwrap();
    assert!(maker.wait_timeout(DEADLINE));
    taken(&reported);
    assert!(
        stat(&session, "bytes") == 0 || !session.has_figures(),
        "the call returned before the memory was unmapped"
    );
    reader.kill().unwrap();
    assert!(reader.wait_timeout(DEADLINE));
    nothing_is_left(&session);
}

fn drops_slow_work((tensors, dropped): (Moved, Signals)) -> Outcome {
    let (stream, mut t) = (stream(), taken(&tensors));
    fills(&mut t, &stream, 5 * SLOW, 7.0)?;
    drop(t);
    dropped.put(()).unwrap();
    stays();
    Ok(())
}

type Steps = (Moved, Signals, Signals, Signals);

fn makes_before_a_death((tensors, dropped, made, killed): Steps) -> Outcome {
    let stream = stream();
    let device = stream.device();
    let sent = CudaTensor::full([LEN], 1.0, &stream)?;
    stream.synchronize()?;
    tensors.put(sent).unwrap();
    taken(&dropped);
    // Statistics check the dropped tensor while work of the other process is pending.
    _ = memory_stats(device);
    let mut next = CudaTensor::<f32>::empty([LEN], &stream)?;
    fills(&mut next, &stream, Duration::ZERO, 2.0)?;
    made.put(()).unwrap();
    taken(&killed);
    Arena::current().unwrap().reclaim().unwrap();
    kernels().spin(&stream, 8 * SLOW);
    assert_eq!(next.to_vec(&stream)?, [2.0; LEN]);
    let stats = memory_stats(device);
    assert!(stats.slabs == 1 && stats.retired == stats.reserved, "{stats:?}");
    Ok(())
}

on_the_device! {
/// The process with pending work dies after the maker has made another tensor. If that tensor used the same
/// memory, a stream that waited for the work would be released, and the work would overwrite the tensor.
fn memory_with_work_of_others_is_not_reused(order: Order) {
    let session = setup().set("PROFILE", profile(order)).set("LATE_MS", 2_000).start().unwrap();
    let ([tensors], [dropped, made, killed]) = (queues(), queues());
    let args = (tensors.clone(), dropped.clone(), made.clone(), killed.clone());
    let maker = with_gpu(&session).spawn(makes_before_a_death, args).unwrap();
    let other = with_gpu(&session).spawn(drops_slow_work, (tensors, dropped)).unwrap();
    taken(&made);
    other.kill().unwrap();
    assert!(other.wait_timeout(DEADLINE));
    Arena::current().unwrap().reclaim().unwrap();
    killed.put(()).unwrap();
    join(maker);
    nothing_is_left(&session);
}
}

fn makes_streams((rounds, made, go): (u32, Signals, Signals)) -> Outcome<usize> {
    let mut refused = 0;
    for _ in 0..rounds {
        let (stream, event) = (stream(), CudaEvent::new()?);
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

/// Runs a process that makes and drops `rounds` streams one after another. Returns the number of events that
/// then exist, and the number of refused recordings.
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
    // Only a few more events than those of one stream are allowed.
    let session = setup().set("PROFILE", "no-memops").set("EVENTS", 21).start().unwrap();
    let (events, refused) = events_after(&session, 40, "");
    assert!(refused == 0 && events <= 14, "{events} events of 40 successive streams");
}

fn ends_with_work(tensors: Frozen) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let copy = copies(&t, &stream, SLOW)?;
    drop((copy, t));
    Ok(())
}

under_each_order! {
/// The exit of a process waits for its streams before it unmaps their memory.
fn exiting_process_unmaps_after_its_work(order: Order) {
    let session = under(order);
    let [tensors] = queues();
    let maker = with_gpu(&session).spawn(makes_one_and_stays, tensors.clone()).unwrap();
    join(with_gpu(&session).spawn(ends_with_work, tensors).unwrap());
    maker.kill().unwrap();
    assert!(maker.wait_timeout(DEADLINE));
    nothing_is_left(&session);
}
}

fn records_and_is_refused((): ()) -> Outcome {
    let (slow, other, event) = (stream(), stream(), CudaEvent::new()?);
    kernels().spin(&slow, 3 * SLOW);
    event.record(&slow)?;
    assert!(event.record(&other).is_err(), "the driver refuses it");
    assert!(!event.query()?, "the event is unchanged");
    event.synchronize()?;
    Ok(())
}

#[test]
fn refused_record_leaves_the_event_unchanged() {
    let session = setup().start().unwrap();
    // The registration of the table makes the first write.
    let process = with_gpu(&session).env("MP_CUDA_SIM_INJECT", "fail=cuStreamWriteValue64_v2:3:4321");
    join(process.spawn(records_and_is_refused, ()).unwrap());
    nothing_is_left(&session);
}

fn records_on_one_device_and_another((): ()) -> Outcome {
    for number in [0, 1, 0, 1] {
        let (stream, event) = (CudaStream::new(&Device::new(number)?)?, CudaEvent::new()?);
        event.record(&stream)?;
        event.synchronize()?;
        stream.synchronize()?;
    }
    Ok(())
}

#[test]
fn events_are_reused_on_their_own_device() {
    let session = setup().set("PROFILE", "two-gpus,no-memops").start().unwrap();
    run(&session, records_on_one_device_and_another, ());
    nothing_is_left(&session);
}

#[test]
fn refused_event_creation_destroys_the_other_events() {
    let session = under(Order::IpcEvents);
    let one = events_after(&session, 1, "");
    for call in ["cuEventCreate", "cuIpcGetEventHandle"] {
        let (events, refused) = events_after(&session, 1, &format!("fail={call}:3:4321"));
        assert_eq!((events, refused), (one.0, 1), "{call}");
    }
    nothing_found(&session);
}
