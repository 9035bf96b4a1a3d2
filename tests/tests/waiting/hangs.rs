//! Reports of waits that can't end, and reports of all waits if enabled. Each hang is a separate program,
//! which is killed after its stderr was read.

use std::time::{Duration, Instant};

use mp::process::{Process, Restart, Stdio};
use mp::queue::{broadcast, watch};
use mp::wait::{report_hangs_after, report_waits_after};
use mp::{Event, Listener, Lock, Queue, SpawnOptions, connect, pipe, start_processes};
use mp_tests::{DEADLINE, Outcome, eventually, signal, take};
use rustix::process::Signal;

/// Time after which these tests report hangs.
const SOON: Duration = Duration::from_millis(600);
/// Text in each report of a hang.
const HANG: &str = "can't end by itself";

/// Returns the output of a program up to `until`. Then the program is killed.
fn said<F>(program: F, environment: &[(&str, &str)], until: &str) -> String
where
    F: Fn(()) -> Outcome + Copy + Send + 'static,
{
    let mut builder = Process::builder().name("program").daemon(true).stderr(Stdio::Capture);
    for (name, value) in environment {
        builder = builder.env(name, value);
    }
    let child = builder.spawn(program, ()).unwrap();
    eventually(until, || child.stderr().text().contains(until) || !child.is_alive());
    let text = child.stderr().text();
    child.kill().unwrap();
    assert!(child.join().is_err());
    assert!(text.contains(until), "it said: {text}");
    text
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

fn gets_from_its_own_queue((): ()) -> Outcome {
    report_hangs_after(Some(SOON));
    let queue = Queue::<Vec<u8>>::bounded(64)?.named("results");
    queue.get()?;
    Ok(())
}

#[test]
fn get_from_an_unshared_queue_is_reported() {
    let text = said(gets_from_its_own_queue, &[], HANG);
    has(
        &text,
        &[
            "mp: thread `main` of pid ",
            "in Queue::get::<",
            "of queue \"results\" (#",
            "0 of 64 messages) [tests/tests/waiting/hangs.rs:",
            "no other process",
            "close()",
        ],
    );
}

fn waits_for_a_failed_start((): ()) -> Outcome {
    report_hangs_after(Some(SOON));
    let event = Event::new()?;
    let setter = Process::builder().name("setter").command(["/bin/false"]);
    let _setter = setter.spawn(|event: Event| event.set(), event.clone())?;
    event.wait()?;
    Ok(())
}

#[test]
fn hang_after_a_failed_start_names_the_failure() {
    let text = said(waits_for_a_failed_start, &[], HANG);
    has(&text, &["in Event::wait", "failed before: setter (pid ", "/bin/false", "exited with code 1"]);
}

fn receives_from_its_own_pipe((): ()) -> Outcome {
    report_hangs_after(Some(SOON));
    let (here, _there) = pipe()?;
    here.recv::<u32>()?;
    Ok(())
}

#[test]
fn recv_from_its_own_pipe_is_reported() {
    let text = said(receives_from_its_own_pipe, &[], HANG);
    has(&text, &["in Connection::recv of pipe", "no other process", "other end"]);
}

fn puts_too_many(_: usize, results: Queue<u64>) -> Outcome {
    for n in 0..3 {
        results.put(n)?;
    }
    Ok(())
}

fn joins_before_it_takes((): ()) -> Outcome {
    report_hangs_after(Some(SOON));
    let results = Queue::bounded(2)?;
    start_processes(puts_too_many, results.clone(), SpawnOptions::nprocs(1))?.join()?;
    Ok(())
}

#[test]
fn join_before_the_results_are_taken_is_reported() {
    let text = said(joins_before_it_takes, &[], HANG);
    has(
        &text,
        &[
            "has waited",
            "in join of rank-0 [tests/tests/waiting/hangs.rs:",
            "(rank-0, running; itself waiting",
            "in Queue::put of queue",
            ") [tests/tests/waiting/hangs.rs:",
            "before join()",
        ],
    );
}

fn gets_all(_: usize, jobs: Queue<u64>) -> Outcome {
    while jobs.get()?.is_some() {}
    Ok(())
}

fn forgets_to_close((): ()) -> Outcome {
    report_hangs_after(Some(SOON));
    let jobs = Queue::bounded(2)?;
    let workers = start_processes(gets_all, jobs.clone(), SpawnOptions::nprocs(2))?;
    jobs.put(1)?;
    workers.join()?;
    Ok(())
}

#[test]
fn unclosed_queue_is_reported_as_a_hang() {
    let text = said(forgets_to_close, &[], HANG);
    has(&text, &["in join of rank-0, rank-1", "in Queue::get of queue", "close()"]);
}

fn waits_for_a_lock(_: usize, lock: Lock<u32>) -> Outcome {
    *lock.lock()? += 1;
    Ok(())
}

fn joins_while_it_has_the_lock((): ()) -> Outcome {
    report_hangs_after(Some(SOON));
    let weights = Lock::new(0_u32)?.named("weights");
    let guard = weights.lock()?;
    start_processes(waits_for_a_lock, weights.clone(), SpawnOptions::nprocs(1))?.join()?;
    drop(guard);
    Ok(())
}

#[test]
fn child_waiting_for_the_parents_lock_is_reported() {
    let text = said(joins_while_it_has_the_lock, &[], HANG);
    has(&text, &["in join of rank-0", "in lock of lock \"weights\"", "all of these processes wait"]);
}

/// Enables reports of hangs and reports of all long waits. A report of a long wait must not claim a hang.
fn reports_both() {
    report_hangs_after(Some(SOON / 4));
    report_waits_after(Some(SOON * 2));
}

/// Returns the report of a long wait that another process or thread may end. Checks that it does not claim a
/// hang.
fn may_end<F>(program: F) -> String
where
    F: Fn(()) -> Outcome + Copy + Send + 'static,
{
    let text = said(program, &[], "has waited");
    assert!(!text.contains(HANG), "a false alarm: {text}");
    text
}

fn waits_for_another_thread((): ()) -> Outcome {
    reports_both();
    let queue = Queue::<u32>::bounded(1)?;
    let put = queue.clone();
    // This thread may put at any time.
    let thread = std::thread::spawn(move || {
        std::thread::park_timeout(DEADLINE);
        _ = put.put(1);
    });
    queue.get()?;
    thread.join().map_err(|_| "it panicked")?;
    Ok(())
}

#[test]
fn wait_for_a_working_thread_is_not_reported_as_hang() {
    let text = may_end(waits_for_another_thread);
    has(&text, &["in Queue::get::<u32> of queue", "0 of 1 message"]);
}

fn has_a_timeout((): ()) -> Outcome {
    reports_both();
    let queue = Queue::<u32>::bounded(1)?;
    _ = queue.get_timeout(DEADLINE);
    Ok(())
}

#[test]
fn timed_wait_is_not_reported_as_a_hang() {
    may_end(has_a_timeout);
}

fn sends_a_handle((): ()) -> Outcome {
    reports_both();
    let (queue, carrier) = (Queue::<u32>::bounded(1)?, Queue::bounded(1)?);
    carrier.put(queue.clone())?;
    queue.get()?;
    Ok(())
}

#[test]
fn wait_with_a_handle_in_transit_is_not_a_hang() {
    let text = may_end(sends_a_handle);
    has(&text, &["1 message(s) on the way"]);
}

fn idles(_: usize, (jobs, ready): (Queue<u32>, Queue<()>)) -> Outcome {
    ready.put(())?;
    jobs.get()?;
    Ok(())
}

fn joins_a_process_that_is_stopped((): ()) -> Outcome {
    reports_both();
    let (jobs, ready) = (Queue::bounded(1)?, Queue::bounded(1)?);
    let workers = start_processes(idles, (jobs.clone(), ready.clone()), SpawnOptions::nprocs(1))?;
    take(&ready);
    // The worker's wait is reported meanwhile, in most runs. It isn't reported as a hang in either case.
    assert!(!workers.join_timeout(SOON)?);
    signal(workers.pids()[0], Signal::STOP);
    // Value that the worker gets when it continues.
    jobs.put(1)?;
    workers.join()?;
    Ok(())
}

#[test]
fn wait_for_a_stopped_process_is_not_a_hang() {
    let text = may_end(joins_a_process_that_is_stopped);
    has(&text, &["rank-0, stopped by a signal"]);
}

fn consumes(_: usize, jobs: Queue<u32>) -> Outcome {
    reports_both();
    while jobs.get()?.is_some() {}
    Ok(())
}

/// Starts a worker that waits for a message, which only this process can put. This process polls the worker
/// without waiting for long, and puts nothing.
fn waits_for_its_parent((): ()) -> Outcome {
    let jobs = Queue::bounded(1)?;
    let workers = start_processes(consumes, jobs.clone(), SpawnOptions::nprocs(1))?;
    while !workers.join_timeout(Duration::from_millis(10))? {}
    Ok(())
}

#[test]
fn idle_consumer_is_not_reported_as_a_hang() {
    let text = may_end(waits_for_its_parent);
    has(&text, &["(rank-0) has waited", "could feed it: pid ", "(program, running"]);
}

fn waits_for_an_event((): ()) -> Outcome {
    Event::new()?.wait()?;
    Ok(())
}

#[test]
fn environment_enables_reports_of_all_waits() {
    let text = said(waits_for_an_event, &[("MP_STALL", "0.3")], "has waited");
    has(&text, &["in Event::wait of event (#"]);
    let text = said(waits_for_an_event, &[("MP_STALL", "soon")], "is ignored");
    has(&text, &["mp: MP_STALL=soon is ignored: it takes a number of seconds"]);
}

fn joins_a_process_that_is_always_started_again((): ()) -> Outcome {
    let service = Process::builder().name("service").restart(Restart::always());
    service.spawn(waits_for_an_event, ())?.join()?;
    Ok(())
}

#[test]
fn join_of_a_restarted_process_is_reported() {
    let program = joins_a_process_that_is_always_started_again;
    let text = said(program, &[("MP_STALL", "0.3")], "in join");
    has(&text, &["service, which is started again whenever it ends: kill() or terminate() ends that"]);
}

fn receives_from_a_named_pipe((): ()) -> Outcome {
    let (here, there) = pipe()?;
    let _there = there.named("control");
    here.recv::<u32>()?;
    Ok(())
}

fn receives_from_a_named_cell((): ()) -> Outcome {
    let (sender, receiver) = watch::channel(1)?;
    let _sender = sender.named("weights");
    receiver.wait_changed()?;
    Ok(())
}

fn receives_from_a_named_broadcast((): ()) -> Outcome {
    let (_sender, receiver) = broadcast::channel::<u32>(2)?;
    receiver.named("news").recv()?;
    Ok(())
}

fn receives_from_a_named_socket((): ()) -> Outcome {
    let address = format!("@mp-hangs-{}", std::process::id());
    let listener = Listener::bind(&*address)?;
    let client = connect(&*address)?.named("results");
    let _server = listener.accept()?;
    client.recv::<u32>()?;
    Ok(())
}

fn accepts_at_a_named_listener((): ()) -> Outcome {
    let listener = Listener::bind(format!("@mp-hangs-{}", std::process::id()))?.named("front");
    listener.accept()?;
    Ok(())
}

#[test]
fn reports_include_names_of_objects() {
    fn report<F: Fn(()) -> Outcome + Copy + Send + 'static>(program: F) -> String {
        said(program, &[("MP_STALL", "0.3")], "has waited")
    }
    has(&report(receives_from_a_named_pipe), &["in Connection::recv of pipe \"control\" (#"]);
    has(&report(receives_from_a_named_cell), &["of cell \"weights\" (#"]);
    has(&report(receives_from_a_named_broadcast), &["of channel \"news\" (#"]);
    has(&report(receives_from_a_named_socket), &["of socket \"results\" to pid "]);
    has(&report(accepts_at_a_named_listener), &["of listener \"front\" at @mp-hangs-"]);
}

#[test]
fn debug_output_shows_names_of_objects() {
    let (here, there) = pipe().unwrap();
    let (here, there) = (here.named("control"), format!("{there:?}"));
    assert_eq!(here.given_name().as_deref(), Some("control"));
    has(&there, &["\"control\""]);
    let (sender, receiver) = watch::channel(1).unwrap();
    let receiver = receiver.named("weights");
    sender.send(2).unwrap();
    has(&format!("{sender:?}"), &["\"weights\""]);
    assert_eq!((*receiver.borrow().unwrap(), receiver.given_name().as_deref()), (2, Some("weights")));
    let (sender, receiver) = broadcast::channel(2).unwrap();
    let sender = sender.named("news");
    (0..4).for_each(|n| sender.send(n).unwrap());
    has(&format!("{receiver:?}"), &["\"news\""]);
    assert_eq!(sender.given_name().as_deref(), Some("news"));
    let (sender, receiver) = mp::channel::<u8>().unwrap();
    has(&format!("{:?} {receiver:?}", sender.named("jobs")), &["Sender<u8>", "\"jobs\") Receiver"]);
}

fn works_while_a_thread_waits((): ()) -> Outcome {
    let jobs = Queue::<u32>::bounded(1)?;
    std::thread::Builder::new().name("busy".into()).spawn(|| std::thread::park_timeout(DEADLINE))?;
    jobs.get()?;
    Ok(())
}

#[test]
fn signal_dumps_the_waits_of_all_threads() {
    let builder = Process::builder().name("asked").daemon(true).stderr(Stdio::Capture);
    let child = builder.env("MP_DUMP_SIGNAL", "USR2").spawn(works_while_a_thread_waits, ()).unwrap();
    // The handler is installed before its thread starts, which precedes the start of the other thread. The
    // other thread sets its own name.
    let threads = || std::fs::read_dir(format!("/proc/{}/task", child.pid())).into_iter().flatten().flatten();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let busy = || threads().any(|thread| name(thread).is_ok_and(|name| name.trim() == "busy"));
    eventually("the threads have started", || threads().count() == 3 && busy());
    let (mut dumps, mut text) = (0, String::new());
    let until = Instant::now() + DEADLINE;
    // The first dumps may be printed before the wait is long enough to be shown.
    while !text.contains("in Queue::get::<u32> of queue") {
        assert!(Instant::now() < until, "the wait is not in: {text}");
        dumps += 1;
        signal(child.pid(), Signal::USR2);
        eventually("a dump", || child.stderr().text().matches("`busy` (").count() == dumps);
        text = child.stderr().text();
    }
    has(
        &text,
        &["what the threads of pid", "(asked):", "thread `main` of pid", "is in no call of mp that waits"],
    );
    child.kill().unwrap();
    assert!(child.join().is_err());
}
