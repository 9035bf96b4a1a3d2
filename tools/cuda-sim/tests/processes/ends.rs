//! Tests of processes that exit or are killed while other processes hold their tensors.

use std::time::Duration;

use mp_cuda::{CudaEvent, CudaStream, CudaTensor, Error, FrozenCudaTensor, SharedCudaTensor, memory_stats};
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;

use crate::support::{
    Outcome, join, kernels, nothing_found, nothing_is_left, on_the_device, run, session, setup, stat, stays,
    stream, taken, under, under_each_order, with_gpu, without_gpu,
};

const LEN: usize = 1 << 16;

fn makes_slowly((): ()) -> Outcome<CudaTensor<f32>> {
    makes_slowly_on(&stream())
}

fn makes_slowly_on(stream: &CudaStream) -> Outcome<CudaTensor<f32>> {
    let mut t = CudaTensor::<f32>::zeros([LEN], stream)?;
    let on = t.on_mut(stream)?;
    kernels().spin(stream, Duration::from_millis(100));
    kernels().fill(stream, on.ptr(), on.len(), 3.0);
    drop(on);
    Ok(t)
}

fn reads(t: CudaTensor<f32>) -> Outcome {
    assert_eq!(t.to_vec(&stream())?, [3.0; LEN]);
    Ok(())
}

fn passes_on(t: CudaTensor<f32>) -> Outcome<CudaTensor<f32>> {
    assert!(mp_cuda::Device::new(0).is_err(), "there is no device here");
    Ok(t)
}

under_each_order! {
fn tensor_of_ended_producer_passes_without_gpu(order: Order) {
    let session = under(order);
    let t = run(&session, makes_slowly, ());
    let t = join(without_gpu().spawn(passes_on, t).unwrap());
    run(&session, reads, t);
    nothing_is_left(&session);
}
}

fn makes_and_stays((out, done): (Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let stream = stream();
    let t = makes_slowly_on(&stream)?;
    assert_eq!(t.to_vec(&stream)?, [3.0; LEN]);
    out.put(t).unwrap();
    // The wait includes the stream's record of its work, which follows the work if the order is by events.
    stream.synchronize()?;
    done.put(()).unwrap();
    stays();
    Ok(())
}

under_each_order! {
fn completed_tensor_survives_killed_producer(order: Order) {
    let session = under(order);
    let queue = Queue::unbounded().unwrap();
    let done = Queue::unbounded().unwrap();
    let producer = with_gpu(&session).spawn(makes_and_stays, (queue.clone(), done.clone())).unwrap();
    let t = taken(&queue);
    taken(&done);
    producer.kill().unwrap();
    assert!(producer.wait_timeout(DEADLINE));
    run(&session, reads, t);
    eventually("all memory is free", || stat(&session, "bytes") == 0);
    nothing_found(&session);
}
}

fn makes_for_ever(out: Queue<CudaTensor<f32>>) -> Outcome {
    let stream = stream();
    let mut t = CudaTensor::<f32>::zeros([LEN], &stream)?;
    let on = t.on_mut(&stream)?;
    kernels().spin(&stream, Duration::from_secs(3600));
    kernels().fill(&stream, on.ptr(), on.len(), 3.0);
    drop(on);
    out.put(t).unwrap();
    stays();
    Ok(())
}

type Derived = (Queue<CudaTensor<f32>>, Queue<CudaTensor<f32>>, Queue<()>);

fn copies_what_is_not_there_yet((tensors, copies, killed): Derived) -> Outcome {
    let (stream, from) = (stream(), taken(&tensors));
    let copy = || -> Outcome<_> {
        let mut copy = CudaTensor::<f32>::empty([LEN], &stream)?;
        copy.copy_from(&from, &stream)?;
        Ok(copy)
    };
    let (sent, kept) = (copy()?, copy()?);
    copies.put(sent).unwrap();
    taken(&killed);
    for lost in [&kept, &from] {
        let error = lost.to_vec(&stream).unwrap_err();
        assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
    }
    drop((kept, from));
    // New work of the stream is not ordered after the lost work.
    let next = CudaTensor::<f32>::full([LEN], 5.0, &stream)?;
    assert_eq!(next.to_vec(&stream)?, [5.0; LEN]);
    copies.put(next).unwrap();
    Ok(())
}

fn reads_a_lost_and_a_whole_one(copies: Queue<CudaTensor<f32>>) -> Outcome {
    let stream = stream();
    let error = taken(&copies).to_vec(&stream).unwrap_err();
    assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
    assert_eq!(taken(&copies).to_vec(&stream)?, [5.0; LEN]);
    Ok(())
}

/// The stream that copies the tensor continues after the producer's death, and copies invalid bytes. So the
/// copying process and its receiver get errors.
#[test]
fn copy_of_lost_tensor_is_lost() {
    let session = session();
    let queue = || Queue::unbounded().unwrap();
    let (tensors, copies, killed) = (queue(), queue(), Queue::unbounded().unwrap());
    let producer = with_gpu(&session).spawn(makes_for_ever, tensors.clone()).unwrap();
    let relay = with_gpu(&session)
        .spawn(copies_what_is_not_there_yet, (tensors, copies.clone(), killed.clone()))
        .unwrap();
    eventually("a copy is sent", || !copies.is_empty() || !relay.is_alive());
    producer.kill().unwrap();
    assert!(producer.wait_timeout(DEADLINE));
    killed.put(()).unwrap();
    run(&session, reads_a_lost_and_a_whole_one, copies);
    join(relay);
    eventually("all memory is free", || stat(&session, "bytes") == 0);
    // The simulator also reports that the copy reads unfinished data.
    let unordered = |text: &str| text.contains("cuMemcpyDtoD") && text.contains(" reads ");
    let findings = session.findings().unwrap();
    assert!(findings.iter().all(|found| found.kind == "race" && unordered(&found.text)), "{findings:?}");
}

type Shared = Queue<SharedCudaTensor<f32>>;

fn shares_what_never_comes(out: Shared) -> Outcome {
    let stream = stream();
    let t = CudaTensor::<f32>::zeros([LEN], &stream)?.share();
    let on = t.on_mut(&stream)?;
    kernels().spin(&stream, Duration::from_secs(3600));
    kernels().fill(&stream, on.ptr(), on.len(), 3.0);
    drop(on);
    out.put(t).unwrap();
    stays();
    Ok(())
}

fn writes_anew_after_a_death((tensors, killed): (Shared, Queue<()>)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    taken(&killed);
    let error = t.on(&stream).map(drop).unwrap_err();
    assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
    t.fill(5.0, &stream)?;
    assert_eq!(t.to_vec(&stream)?, [5.0; LEN]);
    Ok(())
}

on_the_device! {
/// The first use of a shared tensor after the death of a writer returns an error. Later uses succeed.
fn death_of_a_tensor_sharer_is_reported_once(order: Order) {
    let session = under(order);
    let (tensors, killed) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let producer = with_gpu(&session).spawn(shares_what_never_comes, tensors.clone()).unwrap();
    eventually("it is sent", || !tensors.is_empty());
    let user = with_gpu(&session).spawn(writes_anew_after_a_death, (tensors, killed.clone())).unwrap();
    producer.kill().unwrap();
    assert!(producer.wait_timeout(DEADLINE));
    killed.put(()).unwrap();
    join(user);
    nothing_is_left(&session);
}
}

type Two = (Queue<CudaTensor<f32>>, Queue<CudaEvent>, Queue<()>);

fn makes_one_after_the_other((tensors, events, ready): Two) -> Outcome {
    let (stream, event) = (stream(), CudaEvent::new()?);
    kernels();
    taken(&ready);
    for time in [Duration::from_secs(1), Duration::from_secs(3600)] {
        let mut t = CudaTensor::<f32>::zeros([LEN], &stream)?;
        let on = t.on_mut(&stream)?;
        kernels().spin(&stream, time);
        kernels().fill(&stream, on.ptr(), on.len(), 3.0);
        drop(on);
        if events.is_empty() {
            event.record(&stream)?;
            events.put(event.clone()).unwrap();
        }
        tensors.put(t).unwrap();
    }
    stays();
    Ok(())
}

fn waits_for_the_later_first(((tensors, events, ready), copies): (Two, Queue<CudaTensor<f32>>)) -> Outcome {
    let stream = stream();
    let mut copy = CudaTensor::<f32>::zeros([LEN], &stream)?;
    assert_eq!(copy.to_vec(&stream)?, [0.0; LEN]);
    kernels();
    ready.put(()).unwrap();
    let (first, second) = (taken(&tensors), taken(&tensors));
    let (from, beside, to) = (second.on(&stream)?, first.on(&stream)?, copy.on_mut(&stream)?);
    kernels().multiply(&stream, to.ptr(), from.ptr(), from.len(), 1.0);
    drop((from, beside, to));
    taken(&events).synchronize()?;
    copies.put(copy).unwrap();
    Ok(())
}

/// A stream waits for the later of two tensors of one producer before it waits for the earlier one. The work
/// of the earlier tensor is done, and then the producer is killed.
#[test]
fn work_after_a_lost_tensor_is_lost() {
    let session = session();
    let (two, copies) = (
        (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap()),
        Queue::unbounded().unwrap(),
    );
    let producer = with_gpu(&session).spawn(makes_one_after_the_other, two.clone()).unwrap();
    let relay = with_gpu(&session).spawn(waits_for_the_later_first, (two, copies.clone())).unwrap();
    let copy = taken(&copies);
    producer.kill().unwrap();
    assert!(producer.wait_timeout(DEADLINE));
    run(&session, reads_what_never_comes, copy);
    join(relay);
    eventually("all memory is free", || stat(&session, "bytes") == 0);
}

fn reads_what_never_comes(from: CudaTensor<f32>) -> Outcome {
    let error = from.to_vec(&stream()).unwrap_err();
    assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
    Ok(())
}

/// The stream that copies to the host continues after the producer's death, but the copy must return an
/// error.
#[test]
fn read_of_killed_producer_returns_no_values() {
    let session = session();
    let tensors = Queue::unbounded().unwrap();
    let producer = with_gpu(&session).spawn(makes_for_ever, tensors.clone()).unwrap();
    let t = taken(&tensors);
    let before = stat(&session, "queued");
    let reader = with_gpu(&session).spawn(reads_what_never_comes, t).unwrap();
    eventually("the reader has queued its work", || {
        stat(&session, "queued") >= before + 2 || !reader.is_alive()
    });
    producer.kill().unwrap();
    assert!(producer.wait_timeout(DEADLINE));
    join(reader);
    eventually("all memory is free", || stat(&session, "bytes") == 0);
}

fn gets_the_loss(from: CudaTensor<f32>) -> Outcome {
    let stream = stream();
    let error = from.on(&stream).unwrap_err();
    assert!(matches!(error, Error::ProducerDied { pid: Some(_) }), "{error}");
    // Other tensors are unaffected.
    assert_eq!(CudaTensor::<f32>::full([4], 1.0, &stream)?.to_vec(&stream)?, [1.0; 4]);
    Ok(())
}

on_the_device! {
fn unfinished_tensor_of_killed_producer_is_lost(order: Order) {
    let session = under(order);
    let queue = Queue::unbounded().unwrap();
    let producer = with_gpu(&session).spawn(makes_for_ever, queue.clone()).unwrap();
    let t = taken(&queue);
    producer.kill().unwrap();
    assert!(producer.wait_timeout(DEADLINE));
    run(&session, gets_the_loss, t);
    eventually("all memory is free", || stat(&session, "bytes") == 0);
    nothing_found(&session);
}
}

fn reads_and_stays((t, ready): (FrozenCudaTensor<f32>, Queue<()>)) -> Outcome {
    let stream = stream();
    assert_eq!(t.to_vec(&stream)?, [7.0; LEN]);
    let on = t.on(&stream)?;
    kernels().spin(&stream, Duration::from_secs(3600));
    let mut sink = CudaTensor::<f32>::empty([LEN], &stream)?;
    let to = sink.on_mut(&stream)?;
    kernels().multiply(&stream, to.ptr(), on.ptr(), on.len(), 1.0);
    drop((to, on));
    ready.put(()).unwrap();
    stays();
    Ok(())
}

fn broadcasts((out, go): (Queue<FrozenCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let stream = stream();
    let t = CudaTensor::<f32>::full([LEN], 7.0, &stream)?.freeze();
    for _ in 0..4 {
        out.put(t.clone()).unwrap();
    }
    taken(&go);
    assert_eq!(t.to_vec(&stream)?, [7.0; LEN]);
    drop(t);
    // The memory is freed although its readers were killed, because pending reads harm no other process.
    let before = memory_stats(stream.device()).reserved;
    for i in 0..200 {
        let t = CudaTensor::<f32>::full([LEN], i as f32, &stream)?;
        assert_eq!(t.narrow(0, 0, 2)?.to_vec(&stream)?, [i as f32; 2]);
    }
    assert_eq!(memory_stats(stream.device()).reserved, before);
    Ok(())
}

on_the_device! {
fn memory_is_freed_after_receivers_are_killed(order: Order) {
    let session = under(order);
    let (tensors, ready, go) =
        (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(broadcasts, (tensors.clone(), go.clone())).unwrap();
    let receivers: Vec<_> = (0..4)
        .map(|_| with_gpu(&session).spawn(reads_and_stays, (taken(&tensors), ready.clone())).unwrap())
        .collect();
    receivers.iter().for_each(|_| taken(&ready));
    for receiver in &receivers {
        receiver.kill().unwrap();
        assert!(receiver.wait_timeout(DEADLINE));
    }
    go.put(()).unwrap();
    join(maker);
    eventually("all memory is free", || stat(&session, "bytes") == 0);
    nothing_found(&session);
}
}

fn makes_slowly_for(out: Queue<CudaTensor<f32>>) -> Outcome {
    out.put(makes_slowly(())?).unwrap();
    stays();
    Ok(())
}

under_each_order! {
fn stopped_producer_blocks_no_reader(order: Order) {
    let session = under(order);
    let queue = Queue::unbounded().unwrap();
    let producer = with_gpu(&session).spawn(makes_slowly_for, queue.clone()).unwrap();
    let t = taken(&queue);
    // The kernel of the stopped process continues.
    mp_harness::signal(producer.pid(), rustix::process::Signal::STOP);
    run(&session, reads, t);
    producer.kill().unwrap();
    assert!(producer.wait_timeout(DEADLINE));
    eventually("all memory is free", || stat(&session, "bytes") == 0);
    nothing_found(&session);
}
}

fn waits_on_its_stream((tensors, ready): (Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let on = t.on(&stream)?;
    ready.put(()).unwrap();
    stream.synchronize()?;
    drop(on);
    Ok(())
}

/// The stream waits in the driver for a word that the dead process's stream would have written.
#[test]
fn stream_waiting_for_a_killed_process_continues() {
    let session = setup().set("STUCK_MS", 5_000).start().unwrap();
    let (queue, ready) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let producer = with_gpu(&session).spawn(makes_for_ever, queue.clone()).unwrap();
    let process = with_gpu(&session).spawn(waits_on_its_stream, (queue, ready.clone())).unwrap();
    taken(&ready);
    producer.kill().unwrap();
    assert!(producer.wait_timeout(DEADLINE));
    eventually("the process ends, or is stuck", || !process.is_alive() || stat(&session, "findings") > 0);
    nothing_found(&session);
    join(process);
    nothing_is_left(&session);
}

fn ends_during_an_endless_kernel((): ()) -> Outcome {
    let (stream, busy, event) = (stream(), kernels().stream_of_another(()), CudaEvent::new()?);
    event.record(&stream)?;
    event.synchronize()?;
    kernels().spin(&busy, Duration::from_secs(3600));
    Ok(())
}

/// The exit of a process waits only for work that other processes may need, and not for kernels of another
/// library.
#[test]
fn process_ends_during_endless_foreign_kernel() {
    let session = session();
    run(&session, ends_during_an_endless_kernel, ());
    nothing_is_left(&session);
}

fn makes_two((): ()) -> Outcome<Vec<FrozenCudaTensor<f32>>> {
    let t = CudaTensor::<f32>::full([LEN], 3.0, &stream())?.freeze();
    Ok(vec![t.clone(), t])
}

fn reads_one(t: FrozenCudaTensor<f32>) -> Outcome {
    assert_eq!(t.to_vec(&stream())?, [3.0; LEN]);
    Ok(())
}

#[test]
fn sent_memory_is_opened_by_successive_processes() {
    let session = session();
    for t in run(&session, makes_two, ()) {
        run(&session, reads_one, t);
    }
    nothing_is_left(&session);
}
