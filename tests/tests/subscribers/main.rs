//! Spans and events for the `tracing` crate, in a process that starts workers, and in the workers.

mod recorder;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mp::process::{Process, Stdio};
use mp::wait::report_waits_after;
use mp::{Arena, Lock, Pool, Queue, SpawnOptions, Tensor, start_processes};
use mp_tests::{DEADLINE, Outcome, eventually, sleeps, take};
use recorder::{Entry, install};
use tracing::Level;

/// Time-out of waits that are to time out.
const MOMENT: Duration = Duration::from_millis(50);

/// Waits for the closed span of the start of process `pid`, and returns it.
fn start_of(pid: u32) -> Entry {
    let mut found = None;
    eventually("the span of the start is closed", || {
        let starts = install(None).entries("mp::start");
        found = starts.into_iter().find(|span| span.field("pid") == pid.to_string() && span.handles == 0);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn span_of_a_start_ends_when_the_process_is_ready() {
    install(None);
    let queue = Queue::<u8>::bounded(4).unwrap();
    let outer = tracing::info_span!("outer");
    let waits = |queue: Queue<u8>| take(&queue);
    let child = outer.in_scope(|| Process::builder().name("loader").spawn(waits, queue.clone()).unwrap());
    let span = start_of(child.pid());
    assert!(child.is_alive(), "the span ended before the process");
    assert_eq!((span.field("name"), span.field("method")), ("\"loader\"", "\"spawn\""));
    assert_eq!((span.field("rank"), span.field("ready")), ("", "true"));
    assert_eq!(span.parent, outer.id().map(|id| id.into_u64()));
    queue.put(1).unwrap();
    child.join().unwrap();
    let group = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(2).name("pair")).unwrap();
    for rank in 0..2 {
        let span = start_of(group.pids()[rank]);
        assert_eq!(span.number("rank"), rank as u64);
        assert_eq!((span.field("name"), span.field("ready")), (&*format!("\"pair-{rank}\""), "true"));
    }
    group.join().unwrap();
}

#[test]
fn span_of_a_failed_start_is_not_ready() {
    install(None);
    let child = Process::builder().executable("/bin/false").spawn(|(): ()| {}, ()).unwrap();
    let pid = child.pid();
    child.join().unwrap_err();
    assert_eq!(start_of(pid).field("ready"), "false");
}

/// Task that returns its worker's number, the fields of its own span, and the field of an event in the span.
fn span_of_this_task(x: u64) -> (Option<usize>, u64, String, u64, u64) {
    let recorder = install(None);
    assert!(x != 3, "the fourth task fails");
    tracing::info!(target: "user", x);
    let event = recorder.entries("user").pop().unwrap();
    let span = recorder.entry(event.parent.unwrap());
    assert_eq!((span.metadata.target(), span.parent), ("mp::task", None));
    assert!(recorder.entries("mp::task").iter().filter(|span| span.handles > 0).count() == 1, "one is open");
    let worker = mp::pool::current_worker();
    (worker, span.number("worker"), span.field("pool").to_owned(), span.number("task"), event.number("x"))
}

#[test]
fn event_of_a_task_is_inside_its_span() {
    install(None);
    let begin = |(): ()| _ = install(None);
    let pool = Pool::builder().name("resize").processes(2).initializer(begin, ()).build().unwrap();
    let outcomes = pool.task(span_of_this_task).chunksize(4).imap(0..12_u64);
    let outcomes: Vec<_> = outcomes.collect();
    assert_eq!(outcomes.len(), 12);
    for (i, outcome) in outcomes.into_iter().enumerate().filter(|(i, _)| *i != 3) {
        let (current, worker, pool, task, x) = outcome.unwrap();
        assert_eq!((current, &*pool, task, x), (Some(worker as usize), "\"resize\"", i as u64, i as u64));
    }
    pool.close();
    assert!(pool.join_timeout(DEADLINE).unwrap());
}

/// Returns the events of waits for the object of this name.
fn waits_for(name: &str) -> Vec<Entry> {
    let name = format!("{name:?}");
    install(None).entries("mp::wait").into_iter().filter(|event| event.field("name") == name).collect()
}

#[test]
fn wait_that_slept_is_a_tracing_event() {
    install(None);
    let queue = Queue::<u8>::bounded(4).unwrap().named("waited");
    queue.put(1).unwrap();
    assert_eq!(take(&queue), 1);
    assert!(queue.try_get().is_err());
    assert!(waits_for("waited").is_empty(), "nothing has waited");
    assert!(queue.get_timeout(MOMENT).is_err());
    let (tell, thread) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            assert_eq!(take(&queue), 2);
        });
        let thread = thread.recv().unwrap();
        eventually("the thread sleeps", || sleeps(thread));
        queue.put(2).unwrap();
    });
    let events = waits_for("waited");
    assert_eq!(events.len(), 2, "{events:?}");
    for (event, timed_out) in events.iter().zip(["true", "false"]) {
        assert_eq!((event.field("call"), event.field("object")), ("\"Queue::get\"", "\"queue\""));
        assert_eq!((event.field("timed_out"), *event.metadata.level()), (timed_out, Level::TRACE));
        assert_eq!(event.number("block"), events[0].number("block"));
    }
    assert!(events[0].number("duration_us") >= 40_000, "{events:?}");
}

#[test]
fn wait_for_a_lock_is_a_tracing_event() {
    install(None);
    let lock = Lock::new(0_u8).unwrap().named("guarded");
    let guard = lock.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(lock.lock_timeout(MOMENT).is_err()));
    });
    drop(guard);
    let events = waits_for("guarded");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!((events[0].field("call"), events[0].field("object")), ("\"lock\"", "\"lock\""));
}

/// Makes tensors that only this process holds, reports that, and waits for a request to end.
fn hold_tensors((queue, ended): (Queue<u8>, Queue<u8>)) -> Outcome {
    let _tensors = [1.0, 2.0].map(|value| Tensor::<f32>::full([1000], value));
    let message = mp_core::Messages(Arena::current()?).pack(&mut mp_core::message::Outgoing::default(), 0)?;
    queue.put(1)?;
    take(&ended);
    drop(message);
    Ok(())
}

/// Kills a process that holds tensors, and returns its pid.
fn kill_a_holder() -> u32 {
    let (queue, ended) = (Queue::bounded(4).unwrap(), Queue::bounded(4).unwrap());
    let arguments = (queue.clone(), ended.clone());
    let child = Process::builder().name("holder").spawn(hold_tensors, arguments).unwrap();
    take(&queue);
    child.kill().unwrap();
    child.join().unwrap_err();
    child.pid()
}

#[test]
fn recovery_event_counts_released_resources() {
    let recorder = install(None);
    let pid = kill_a_holder().to_string();
    let mut events = Vec::new();
    eventually("the recovery is an event", || {
        events = recorder.entries("mp::recovery");
        events.retain(|event| event.field("pid") == pid);
        !events.is_empty()
    });
    let [event] = &events[..] else { panic!("once: {events:?}") };
    assert_eq!((event.field("name"), *event.metadata.level()), ("\"holder\"", Level::DEBUG));
    assert!(event.number("blocks") >= 2 && event.number("envelopes") >= 1, "{event:?}");
    assert!(!event.field("member").is_empty() && event.number("duration_us") < 60_000_000, "{event:?}");
}

/// Number of calls of [`use_mp_and_panic`].
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Hook of the subscriber that takes locks of the library, waits, and panics.
fn use_mp_and_panic(target: &str) {
    if !target.starts_with("mp::") {
        return;
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
    let queue = Queue::<u8>::bounded(4).unwrap();
    assert!(queue.get_timeout(Duration::from_millis(5)).is_err());
    Arena::current().unwrap().reclaim().unwrap();
    let many = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(100_000));
    assert!(many.is_err(), "the children are counted, and are too many");
    resume_unwind(Box::new("a rude subscriber"));
}

#[test]
fn tracing_subscriber_may_use_mp_and_panic() {
    fn program((): ()) -> Outcome {
        install(Some(use_mp_and_panic));
        let queue = Queue::<u8>::bounded(4)?;
        assert!(queue.get_timeout(MOMENT).is_err());
        assert_eq!(CALLS.load(Ordering::Relaxed), 1, "waits of the subscriber itself are not events");
        kill_a_holder();
        let recoveries = || install(None).entries("mp::recovery").len();
        eventually("the recovery is an event", || recoveries() == 1);
        let pool = Pool::builder().processes(1).initializer(|(): ()| _ = install(Some(use_mp_and_panic)), ());
        let pool = pool.build()?;
        assert_eq!(pool.map(|x: u64| x + 1, vec![1, 2, 3])?, [2, 3, 4]);
        pool.close();
        assert!(pool.join_timeout(DEADLINE)?);
        Ok(())
    }
    install(None);
    let child = Process::spawn(program, ()).unwrap();
    assert!(child.wait_timeout(2 * DEADLINE));
    child.join().unwrap();
}

#[test]
fn report_is_delivered_once_with_a_logger() {
    fn program((): ()) -> Outcome {
        let recorder = install(None);
        mp::process::log_to_stderr(log::LevelFilter::Warn)?;
        report_waits_after(Some(MOMENT));
        assert!(Queue::<u8>::bounded(4)?.named("slow").get_timeout(Duration::from_millis(500)).is_err());
        let reports = recorder.entries("mp::waits");
        assert!(!reports.is_empty() && reports.iter().all(|report| *report.metadata.level() == Level::WARN));
        assert!(reports[0].field("message").contains("of queue \"slow\""), "{reports:?}");
        Ok(())
    }
    install(None);
    let child = Process::builder().stderr(Stdio::Capture).spawn(program, ()).unwrap();
    assert!(child.wait_timeout(2 * DEADLINE));
    let text = child.stderr().text();
    child.join().unwrap();
    assert!(text.contains("of queue \"slow\"") && !text.contains("[WARN"), "{text}");
}
