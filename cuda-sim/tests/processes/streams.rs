//! Streams and their clocks: what becomes of them when their owners are gone, when a process ends, and when those die for which they wait.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use mp_core::clocks::Clock;
use mp_core::{Arena, Error as CoreError};
use mp_cuda::{CudaTensor, Device, Error, Event, Order, Stream};
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;

use crate::support::{
    Outcome, join, kernels, nothing_found, nothing_is_left, profile, run, session, setup, stat, stays,
    stream, taken, with_gpu,
};

/// Long enough to be looked at before it ends.
const SLOW: Duration = Duration::from_millis(200);
const ENDLESS: Duration = Duration::from_secs(3600);

/// A stream is dropped that has work which others may wait for, behind what a gate waits for.
fn ends_with_work(gate: &Event) -> mp_cuda::Result<Event> {
    let (stream, event) = (stream(), Event::new()?);
    gate.wait(&stream)?;
    event.record(&stream)?;
    Ok(event)
}

/// It is complete after some time.
fn gate() -> mp_cuda::Result<(Stream, Event)> {
    let (stream, gate) = (stream(), Event::new()?);
    kernels().spin(&stream, Duration::from_secs(2));
    gate.record(&stream)?;
    Ok((stream, gate))
}

const ENDED: u64 = 20;

fn drops_streams((step, go): (Queue<()>, Queue<()>)) -> Outcome {
    let (kept, gate) = gate()?;
    let events = (0..ENDED).map(|_| ends_with_work(&gate)).collect::<Result<Vec<_>, _>>()?;
    assert!(!gate.query()?, "they have work left");
    for event in &events {
        event.synchronize()?;
    }
    step.put(()).unwrap();
    taken(&go);
    // No stream is made.
    for _ in 0..3 {
        kept.synchronize()?;
    }
    step.put(()).unwrap();
    taken(&go);
    for _ in 0..3 {
        events[0].record(&kept)?;
    }
    step.put(()).unwrap();
    taken(&go);
    Ok(())
}

#[test]
fn streams_that_have_ended_go_without_another_one_being_made() {
    let session = session();
    let (step, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let process = with_gpu(&session).spawn(drops_streams, (step.clone(), go.clone())).unwrap();
    let [all, some, none] = [(); 3].map(|()| {
        taken(&step);
        let streams = stat(&session, "streams");
        go.put(()).unwrap();
        streams
    });
    assert!(all - ENDED < some && some < all, "each call looks at some of them: {all}, {some}");
    assert_eq!(none, all - ENDED);
    join(process);
    nothing_is_left(&session);
}

fn takes_all_clocks((): ()) -> Outcome {
    let (other, queue) = (stream(), Queue::unbounded()?);
    let x = CudaTensor::<f32>::full([4], 1.0, &other)?;
    let (_kept, gate) = gate()?;
    let event = ends_with_work(&gate)?;
    let arena = Arena::current()?;
    let mut all = Vec::new();
    let full = loop {
        match Clock::claim(arena) {
            Ok(clock) => all.push(clock),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, CoreError::ArenaFull { .. }), "{full}");
    let on = x.on(&other)?;
    drop(on);
    let error = queue.put(x).unwrap_err();
    assert!(error.to_string().contains("streams"), "{error}");
    event.synchronize()?;
    // That of the stream which has ended is there now.
    queue.put(error.into_value()).unwrap();
    assert_eq!(taken(&queue).to_vec(&other)?, [1.0; 4]);
    Ok(())
}

#[test]
#[ignore = "it takes all clocks of its family: the next test runs it in one of its own"]
fn alone_with_all_clocks() {
    let session = session();
    run(&session, takes_all_clocks, ());
    nothing_is_left(&session);
}

#[test]
fn when_clocks_are_short_those_of_ended_streams_are_taken() {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", "streams::alone_with_all_clocks", "--ignored", "--nocapture"]);
    let out = alone.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

fn is_slow((): ()) -> Outcome<bool> {
    let (stream, event) = (Stream::new(&Device::new(0)?)?, Event::new()?);
    let error = event.record(&stream).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    Ok(event.query()?)
}

/// The first write of a device takes longer than it is waited for, and comes: the memory is there still.
#[test]
fn a_device_that_is_slow_at_first_writes_nowhere_else() {
    let session = setup().set("LAZY_MS", 1500).start().unwrap();
    assert!(run(&session, is_slow, ()), "nothing was recorded");
    nothing_is_left(&session);
}

fn is_busy_for_ever((): ()) -> Outcome {
    let (stream, event) = (stream(), Event::new()?);
    kernels().spin(&stream, ENDLESS);
    let ticking = Queue::unbounded()?;
    let begun = ticking.clone();
    std::thread::spawn(move || {
        begun.put(()).unwrap();
        // The hosts keep the order: it waits for the stream, and has its clock meanwhile.
        _ = event.record(&stream);
    });
    taken(&ticking);
    // sleep: there is no sign of a thread that waits within the driver.
    std::thread::sleep(SLOW);
    Ok(())
}

#[test]
fn a_process_ends_while_one_of_its_threads_waits_for_a_stream() {
    let session = setup().set("PROFILE", profile(Order::Host)).start().unwrap();
    run(&session, is_busy_for_ever, ());
    eventually("it is gone", || stat(&session, "processes") == 0);
    nothing_found(&session);
}

fn records_for_ever(events: Queue<Event>) -> Outcome {
    let (stream, event) = (stream(), Event::new()?);
    kernels().spin(&stream, ENDLESS);
    event.record(&stream)?;
    events.put(event).unwrap();
    stays();
    Ok(())
}

/// What is in no process's memory, so that no process of the family has to look at anything: a file.
fn sign(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mp-cuda-sim-{name}-{}", std::process::id()))
}

fn waits_for_the_device((event, ready, sign): (Event, Queue<()>, PathBuf)) -> Outcome {
    let stream = stream();
    event.wait(&stream)?;
    ready.put(()).unwrap();
    stream.synchronize()?;
    std::fs::write(sign, "released")?;
    stays();
    Ok(())
}

/// No other process of the family waits for anything by this library.
#[test]
fn a_stream_that_is_waited_for_is_released_from_a_killed_process_by_the_one_that_waits() {
    let session = session();
    let (events, ready, sign) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), sign("released"));
    let maker = with_gpu(&session).spawn(records_for_ever, events.clone()).unwrap();
    let event: Event = taken(&events);
    let args = (event, ready.clone(), sign.clone());
    let waiter = with_gpu(&session).spawn(waits_for_the_device, args).unwrap();
    taken(&ready);
    maker.kill().unwrap();
    eventually("the stream goes on", || sign.exists());
    std::fs::remove_file(sign).unwrap();
    waiter.kill().unwrap();
    assert!(maker.wait_timeout(DEADLINE) && waiter.wait_timeout(DEADLINE));
    nothing_found(&session);
}

fn leaves_work_behind_a_wait((event, out, go): (Event, Queue<Event>, PathBuf)) -> Outcome {
    let (stream, mine) = (stream(), Event::new()?);
    event.wait(&stream)?;
    mine.record(&stream)?;
    out.put(mine).unwrap();
    while !go.exists() {
        // sleep: nothing of the library's, which would look after deaths.
        std::thread::sleep(Duration::from_millis(1));
    }
    // Its callbacks of the end wait for its streams.
    std::process::exit(0)
}

/// A process that ends waits for its streams, and one of these for a process that is killed: it finds that itself.
#[test]
fn the_end_of_a_process_looks_after_those_for_whom_its_streams_wait() {
    let session = session();
    let (events, out, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), sign("ends"));
    let maker = with_gpu(&session).spawn(records_for_ever, events.clone()).unwrap();
    let args = (taken(&events), out.clone(), go.clone());
    let leaver = with_gpu(&session).spawn(leaves_work_behind_a_wait, args).unwrap();
    let event: Event = taken(&out);
    maker.kill().unwrap();
    eventually("the killed one is gone", || stat(&session, "processes") == 1);
    std::fs::write(&go, "go").unwrap();
    eventually("the other one, too", || stat(&session, "processes") == 0);
    std::fs::remove_file(go).unwrap();
    assert!(event.query().unwrap(), "its stream had run before it ended");
    assert!(maker.wait_timeout(DEADLINE) && leaver.wait_timeout(DEADLINE));
    nothing_found(&session);
}
