//! Streams and their clocks after their owners are dropped, after a process ends, or after the processes for
//! which they wait have died.

use std::path::PathBuf;
use std::time::Duration;

use mp_core::clocks::Clock;
use mp_core::{Arena, Error as CoreError};
use mp_cuda::{CudaEvent, CudaStream, CudaTensor, Device, Order};
use mp_cuda_sim::session::Session;
use mp_harness::eventually;
use mp_queue::Queue;
use mp_spawn::{Process, StartMethod};
use rustix::process::Signal;

use crate::support::{
    Outcome, alone, join, kernels, nothing_found, nothing_is_left, profile, run, session, setup, stat, stays,
    stream, taken, with_gpu,
};

/// Duration that is long enough to observe the work before it ends.
const SLOW: Duration = Duration::from_millis(200);
const ENDLESS: Duration = Duration::from_secs(3600);

/// Drops a stream with work that waits for `gate`. Returns an event that is recorded after the work.
fn ends_with_work(gate: &CudaEvent) -> mp_cuda::Result<CudaEvent> {
    let (stream, event) = (stream(), CudaEvent::new()?);
    gate.wait(&stream)?;
    event.record(&stream)?;
    Ok(event)
}

/// Returns an event that completes after some time, and the stream on which it is recorded.
fn gate() -> mp_cuda::Result<(CudaStream, CudaEvent)> {
    let (stream, gate) = (stream(), CudaEvent::new()?);
    kernels().spin(&stream, Duration::from_secs(2));
    gate.record(&stream)?;
    Ok((stream, gate))
}

const ENDED: u64 = 20;

fn drops_streams((step, go): (Queue<()>, Queue<()>)) -> Outcome {
    let (kept, gate) = gate()?;
    let events = (0..ENDED).map(|_| ends_with_work(&gate)).collect::<Result<Vec<_>, _>>()?;
    assert!(!gate.query()?, "the streams have pending work");
    for event in &events {
        event.synchronize()?;
    }
    step.put(()).unwrap();
    taken(&go);
    // No stream is created meanwhile.
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
fn ended_streams_are_freed_without_a_new_stream() {
    let session = session();
    let (step, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let process = with_gpu(&session).spawn(drops_streams, (step.clone(), go.clone())).unwrap();
    let [all, some, none] = [(); 3].map(|()| {
        taken(&step);
        let streams = stat(&session, "streams");
        go.put(()).unwrap();
        streams
    });
    assert!(all - ENDED < some && some < all, "each call checks some of the streams: {all}, {some}");
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
    // The tick of the ended stream exists now.
    queue.put(error.into_value()).unwrap();
    assert_eq!(taken(&queue).to_vec(&other)?, [1.0; 4]);
    Ok(())
}

#[test]
#[ignore = "it takes all clocks of its family: the next test runs it in one of its own"]
fn alone_process_reuses_all_clocks() {
    let session = session();
    run(&session, takes_all_clocks, ());
    nothing_is_left(&session);
}

#[test]
fn clocks_of_ended_streams_are_reused() {
    alone("streams::alone_process_reuses_all_clocks");
}

fn is_slow((): ()) -> Outcome {
    let (stream, event) = (CudaStream::new(&Device::new(0)?)?, CudaEvent::new()?);
    event.record(&stream)?;
    event.synchronize()?;
    Ok(())
}

/// The device is busy for longer than the first tick usually takes.
#[test]
fn first_stream_use_waits_for_a_busy_device() {
    let session = setup().set("LAZY_MS", 1500).start().unwrap();
    run(&session, is_slow, ());
    nothing_is_left(&session);
}

fn is_busy_for_ever((): ()) -> Outcome {
    let (stream, event) = (stream(), CudaEvent::new()?);
    event.record(&stream)?;
    kernels().spin(&stream, ENDLESS);
    let ticking = Queue::unbounded()?;
    let begun = ticking.clone();
    std::thread::spawn(move || {
        begun.put(()).unwrap();
        // Hosts keep the order, so the recording waits for the stream, and holds its clock meanwhile.
        _ = event.record(&stream);
    });
    taken(&ticking);
    // sleep: a test can't observe a thread that waits within the driver.
    std::thread::sleep(SLOW);
    Ok(())
}

#[test]
fn process_ends_while_a_thread_synchronizes() {
    let session = setup().set("PROFILE", profile(Order::Host)).start().unwrap();
    run(&session, is_busy_for_ever, ());
    eventually("the process has ended", || stat(&session, "processes") == 0);
    nothing_found(&session);
}

fn records_for_ever(events: Queue<CudaEvent>) -> Outcome {
    let (stream, event) = (stream(), CudaEvent::new()?);
    kernels().spin(&stream, ENDLESS);
    event.record(&stream)?;
    events.put(event).unwrap();
    stays();
    Ok(())
}

/// Returns the path of a file that serves as a signal between processes. Waiting for the file, unlike a wait
/// of the library, does not recover dead processes.
fn sign(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mp-cuda-sim-{name}-{}", std::process::id()))
}

type Args = (CudaEvent, Queue<CudaEvent>, PathBuf);

fn waits_for_the_device((event, ready, sign): Args) -> Outcome {
    let stream = stream();
    event.wait(&stream)?;
    ready.put(event).unwrap();
    stream.synchronize()?;
    std::fs::write(sign, "released")?;
    stays();
    Ok(())
}

fn leaves_work_behind_a_wait((event, out, go): Args) -> Outcome {
    let (stream, mine) = (stream(), CudaEvent::new()?);
    event.wait(&stream)?;
    mine.record(&stream)?;
    out.put(mine).unwrap();
    // Polls by itself, because the library's waits would check for deaths.
    eventually("the process may end", || go.exists());
    // The exit callbacks of this process wait for its streams.
    std::process::exit(0)
}

type Pair = (Queue<CudaEvent>, PathBuf, Queue<(u32, u32)>, bool);

/// Starts a process whose event never completes, and a process whose stream waits for that event. Then does
/// nothing until it is stopped or killed.
fn has_both((out, sign, pids, waits): Pair) -> Outcome {
    let child = || Process::builder().start_method(StartMethod::Spawn);
    let events = Queue::unbounded()?;
    let maker = child().spawn(records_for_ever, events.clone())?;
    let args = (taken(&events), out, sign);
    let other = if waits {
        child().spawn(waits_for_the_device, args)?
    } else {
        child().spawn(leaves_work_behind_a_wait, args)?
    };
    pids.put((maker.pid(), other.pid())).unwrap();
    stays();
    Ok(())
}

/// Kills the process for which a stream of another process waits. Stops the parent of both processes, so that
/// only the waiting process can recover the death. Returns an event of the waiting process, and a guard that
/// ends the remaining processes.
fn one_dies(session: &Session, sign: PathBuf, waits: bool) -> (CudaEvent, Both) {
    let (out, pids) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let parent = with_gpu(session).spawn(has_both, (out.clone(), sign, pids.clone(), waits)).unwrap();
    let ((maker, other), event) = (taken(&pids), taken(&out));
    mp_harness::signal(parent.pid(), Signal::STOP);
    mp_harness::signal(maker, Signal::KILL);
    (event, Both { parent, other })
}

/// Guard that ends the two remaining processes when it is dropped.
struct Both {
    parent: Process,
    other: u32,
}

impl Drop for Both {
    fn drop(&mut self) {
        mp_harness::signal(self.other, Signal::KILL);
        _ = self.parent.kill();
    }
}

#[test]
#[ignore = "run by the next test, in a family of its own"]
fn alone_waiter_recovers_deaths() {
    let (session, sign) = (session(), sign("released"));
    let (_event, both) = one_dies(&session, sign.clone(), true);
    eventually("the stream continues", || sign.exists());
    std::fs::remove_file(sign).unwrap();
    drop(both);
    nothing_found(&session);
}

#[test]
fn synchronize_releases_its_stream_from_a_death() {
    alone("streams::alone_waiter_recovers_deaths");
}

#[test]
#[ignore = "run by the next test, in a family of its own"]
fn last_process_exit_recovers_killed_processes() {
    let (session, go) = (session(), sign("ends"));
    let (event, both) = one_dies(&session, go.clone(), false);
    eventually("the killed process has ended", || stat(&session, "processes") == 1);
    std::fs::write(&go, "go").unwrap();
    eventually("the other process has ended", || stat(&session, "processes") == 0);
    std::fs::remove_file(go).unwrap();
    assert!(event.query().unwrap(), "the stream had run before the process ended");
    drop(both);
    nothing_found(&session);
}

#[test]
fn process_exit_recovers_awaited_deaths() {
    alone("streams::last_process_exit_recovers_killed_processes");
}
