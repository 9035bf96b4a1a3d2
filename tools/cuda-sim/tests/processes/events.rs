//! Events between processes: the scenarios of PyTorch's tests of events, and deaths.

use std::time::Duration;

use mp_cuda::{CudaEvent, CudaStream, Device, Error, Order, order};
use mp_harness::DEADLINE;
use mp_queue::Queue;
use mp_spawn::Process;

use crate::support::{
    Outcome, hosts_wait, join, kernels, nothing_is_left, on_the_device, profile, run, setup, stat, stays,
    stream, taken, under, under_each_order, with_gpu, without_gpu,
};

/// Duration of a kernel, long enough to observe the kernel before it ends.
const SLOW: Duration = Duration::from_millis(300);

fn recorded((): ()) -> Outcome {
    let (stream, other) = (stream(), stream());
    let event = CudaEvent::new()?;
    assert!(event.query()?, "an event that was never recorded is complete");
    event.wait(&other)?;
    event.synchronize()?;
    kernels().spin(&stream, SLOW);
    event.record(&stream)?;
    assert_eq!(event.query()?, hosts_wait());
    event.wait(&other)?;
    assert_eq!(other.is_complete()?, hosts_wait());
    event.synchronize()?;
    assert!(event.query()?);
    // If a stream reports an event by a call of the host, the event is complete when that call has returned.
    stream.synchronize()?;
    assert!(stream.is_complete()?);
    other.synchronize()?;
    Ok(())
}

under_each_order! {
fn event_orders_streams_of_one_process(order: Order) {
    let session = under(order);
    run(&session, recorded, ());
    nothing_is_left(&session);
}
}

fn records_before_later_work((): ()) -> Outcome {
    let (stream, event) = (stream(), CudaEvent::new()?);
    event.record(&stream)?;
    kernels().spin(&stream, SLOW * 5);
    event.synchronize()?;
    assert!(!stream.is_complete()?, "the wait does not cover later work of the stream");
    Ok(())
}

under_each_order! {
fn host_waits_for_event_and_not_for_later_work(order: Order) {
    let session = under(order);
    run(&session, records_before_later_work, ());
    nothing_is_left(&session);
}
}

fn records((events, go): (Queue<CudaEvent>, Queue<()>)) -> Outcome {
    let (stream, event) = (stream(), CudaEvent::new()?);
    kernels().spin(&stream, SLOW);
    event.record(&stream)?;
    events.put(event).unwrap();
    taken(&go);
    Ok(())
}

fn waits((events, go): (Queue<CudaEvent>, Queue<()>)) -> Outcome {
    let event = taken(&events);
    let stream = stream();
    assert_eq!(event.query()?, hosts_wait(), "its kernel takes longer");
    event.wait(&stream)?;
    assert_eq!(stream.is_complete()?, hosts_wait());
    event.synchronize()?;
    assert!(event.query()?);
    stream.synchronize()?;
    go.put(()).unwrap();
    Ok(())
}

under_each_order! {
fn event_orders_streams_of_two_processes(order: Order) {
    let session = under(order);
    let queues = || (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let (events, go) = queues();
    let one = with_gpu(&session).spawn(records, (events.clone(), go.clone())).unwrap();
    let other = with_gpu(&session).spawn(waits, (events, go)).unwrap();
    join(one);
    join(other);
    nothing_is_left(&session);
}
}

fn records_again((events, back): (Queue<CudaEvent>, Queue<()>)) -> Outcome {
    let event = taken(&events);
    assert!(event.query()?, "the recording of the event's maker is complete");
    let stream = stream();
    kernels().spin(&stream, SLOW);
    event.record(&stream)?;
    back.put(()).unwrap();
    event.synchronize()?;
    Ok(())
}

fn makes((events, back): (Queue<CudaEvent>, Queue<()>)) -> Outcome {
    let (stream, event) = (stream(), CudaEvent::new()?);
    event.record(&stream)?;
    event.synchronize()?;
    events.put(event.clone()).unwrap();
    taken(&back);
    assert_eq!(event.query()?, hosts_wait(), "the other process's kernel takes longer");
    event.wait(&stream)?;
    stream.synchronize()?;
    // With events, hosts are informed of the work slightly later than streams.
    event.synchronize()?;
    assert!(event.query()?);
    Ok(())
}

under_each_order! {
fn received_event_is_recorded_by_its_receiver(order: Order) {
    let session = under(order);
    let (events, back) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes, (events.clone(), back.clone())).unwrap();
    let other = with_gpu(&session).spawn(records_again, (events, back)).unwrap();
    join(maker);
    join(other);
    nothing_is_left(&session);
}
}

fn second_device((events, go): (Queue<CudaEvent>, Queue<()>)) -> Outcome {
    let event = taken(&events);
    let stream = CudaStream::new(&Device::new(1)?)?;
    event.wait(&stream)?;
    stream.synchronize()?;
    assert!(event.query()?);
    go.put(()).unwrap();
    Ok(())
}

under_each_order! {
fn event_orders_streams_of_two_devices(order: Order) {
    let session = setup().set("PROFILE", format!("two-gpus,{}", profile(order))).start().unwrap();
    let (events, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let one = with_gpu(&session).spawn(records, (events.clone(), go.clone())).unwrap();
    let other = with_gpu(&session).spawn(second_device, (events, go)).unwrap();
    join(one);
    join(other);
    nothing_is_left(&session);
}
}

fn looks(event: CudaEvent) -> Outcome<bool> {
    assert!(Device::new(0).is_err(), "there is no device here");
    assert!(event.synchronize_timeout(DEADLINE)?);
    Ok(event.query()?)
}

fn records_and_leaves((): ()) -> Outcome<CudaEvent> {
    let (stream, event) = (stream(), CudaEvent::new()?);
    kernels().spin(&stream, SLOW);
    event.record(&stream)?;
    Ok(event)
}

under_each_order! {
fn event_of_ended_process_needs_no_device(order: Order) {
    let session = under(order);
    // The process that recorded the event ends at once, and waits for its kernel first.
    let event = run(&session, records_and_leaves, ());
    assert!(event.query().unwrap());
    assert!(join(without_gpu().spawn(looks, event).unwrap()));
    nothing_is_left(&session);
}
}

fn records_for_ever(events: Queue<CudaEvent>) -> Outcome {
    let (stream, event) = (stream(), CudaEvent::new()?);
    kernels().spin(&stream, Duration::from_secs(3600));
    event.record(&stream)?;
    events.put(event).unwrap();
    stays();
    Ok(())
}

fn is_released((event, ready): (CudaEvent, Queue<()>)) -> Outcome {
    let stream = stream();
    event.wait(&stream)?;
    ready.put(()).unwrap();
    // The event's stream waits for a process that is then killed. A waiting host recovers the process, which
    // releases the stream.
    let error = event.synchronize().unwrap_err();
    assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
    // Later waits still return the error.
    let (other, soon) = (self::stream(), CudaEvent::new()?);
    kernels().spin(&other, SLOW);
    soon.record(&other)?;
    soon.wait(&stream)?;
    match stream.synchronize() {
        // With CUDA's events, no process can release the stream from its wait for the dead process.
        Err(Error::ProducerDied { .. }) if order(stream.device())? == Order::IpcEvents => {}
        released => released?,
    }
    let again = event.wait(&stream).unwrap_err();
    assert!(matches!(again, Error::ProducerDied { .. }), "{again}");
    let another = self::stream();
    event.record(&another)?;
    event.synchronize()?;
    assert!(event.query()?, "recorded anew");
    Ok(())
}

on_the_device! {
fn event_of_killed_process_releases_its_waiters(order: Order) {
    let session = under(order);
    let (events, ready) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker: Process = with_gpu(&session).spawn(records_for_ever, events.clone()).unwrap();
    let event: CudaEvent = taken(&events);
    assert!(!event.query().unwrap());
    let waiter = with_gpu(&session).spawn(is_released, (event.clone(), ready.clone())).unwrap();
    taken(&ready);
    maker.kill().unwrap();
    assert!(maker.wait_timeout(DEADLINE));
    join(waiter);
    assert!(event.query().unwrap(), "the other process's record counts");
    mp_harness::eventually("all processes have ended", || stat(&session, "processes") == 0);
    // A stream that waits forever for a killed process is dropped with pending work.
    let kinds: Vec<_> = session.findings().unwrap().into_iter().map(|finding| finding.kind).collect();
    let is_found = order == Order::IpcEvents && session.has_figures();
    let wanted = if is_found { &["destroyed-with-work"][..] } else { &[] };
    assert_eq!(kinds, wanted);
}
}

fn many(count: usize) -> Outcome {
    let stream = stream();
    let events = (0..count).map(|_| CudaEvent::new()).collect::<Result<Vec<_>, _>>()?;
    for event in &events {
        event.record(&stream)?;
    }
    stream.synchronize()?;
    for event in &events {
        assert!(event.query()?);
    }
    Ok(())
}

under_each_order! {
fn ten_thousand_events_are_alive_at_once(order: Order) {
    let session = under(order);
    run(&session, many, 10_000);
    nothing_is_left(&session);
}
}
