//! User code that panics where a pool does not expect it: every call has its outcomes nevertheless, and the
//! pool continues.

mod common;

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, eventually, got, join, kill, stop_at};
use mp_pool::{Pool, PoolError, TaskError};
use mp_spawn::{Stdio, closure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Value whose drop panics if `times` is not 0. The payload of the panic is another `Bomb`, with `times`
/// lower by one. In a received value, `times` is 0.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Bomb {
    #[serde(skip)]
    times: u32,
}

fn bomb(times: u32) -> Bomb {
    Bomb { times }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.times > 0 {
            resume_unwind(Box::new(bomb(self.times - 1)));
        }
    }
}

fn square(x: u64) -> u64 {
    x * x
}

fn passes((gate, _bomb): (Gate, Bomb)) {
    gate.pass(0);
}

fn takes(_bomb: Bomb) {}

/// Keeps the only worker of the pool at the gate.
fn busy(pool: &Pool) -> (Gate, mp_pool::AsyncResult<u32>) {
    let gate = Gate::new();
    let first = pool.apply_async(stop_at, (gate.clone(), 7));
    gate.arrived();
    (gate, first)
}

#[test]
fn panicking_arguments_do_not_stop_terminate() {
    let pool = Pool::new(1).unwrap();
    let (_gate, first) = busy(&pool);
    let bombs = || (0..200).map(|_| bomb(2));
    let calls = [pool.map_async(takes, bombs()), pool.map_async(takes, bombs())];
    let last = pool.map_async(square, 0..300);
    pool.terminate();
    for call in calls {
        assert!(call.wait_timeout(DEADLINE), "{call:?}");
        assert!(call.results().into_iter().all(|result| matches!(result, Err(TaskError::Terminated))));
    }
    assert!(matches!(got(last), Err(TaskError::Terminated)));
    assert!(matches!(got(first), Err(TaskError::Terminated)));
    join(&pool);
}

#[test]
fn panicking_arguments_do_not_stop_a_refusal() {
    let pool = Pool::new(1).unwrap();
    let (gate, first) = busy(&pool);
    let stream = pool.stream(takes);
    pool.close();
    let call = pool.map_async(takes, (0..200).map(|_| bomb(2)));
    assert!(call.results().into_iter().all(|result| matches!(result, Err(TaskError::Closed { .. }))));
    let ticket = stream.push(bomb(3)).unwrap();
    assert!(matches!(stream.take_timeout(ticket, DEADLINE), Ok(Some(Err(TaskError::Closed { .. })))));
    let imap: Vec<_> = pool.imap(takes, (0..3).map(|_| bomb(1))).collect();
    assert!(matches!(imap[..], [Err(TaskError::Closed { .. })]), "{imap:?}");
    gate.open(1);
    assert_eq!(got(first).unwrap(), 7);
    join(&pool);
}

#[test]
fn panicking_arguments_do_not_stop_a_cancel() {
    let pool = Pool::new(1).unwrap();
    let (gate, first) = busy(&pool);
    let call = pool.map_async(takes, (0..200).map(|_| bomb(2)));
    assert!(call.cancel() >= 190);
    assert!(call.wait_timeout(DEADLINE), "{call:?}");
    gate.open(1);
    assert_eq!(got(first).unwrap(), 7);
    assert_eq!(got(pool.apply_async(square, 5)).unwrap(), 25);
    join(&pool);
}

#[test]
fn panicking_arguments_do_not_stop_a_stream_drop() {
    let pool = Pool::new(1).unwrap();
    let gate = Gate::new();
    let sent = gate.clone();
    let mut stream =
        pool.task(passes).max_in_flight(4000).imap((0..4000).map(move |_| (sent.clone(), bomb(1))));
    gate.open(1);
    // Arguments are also dropped when they are sent.
    stream.next().expect("a result").unwrap();
    drop(stream);
    gate.open(4000);
    join(&pool);
}

/// Value that can be encoded a limited number of times. Further encodings panic.
#[derive(Debug, Clone, Default)]
struct Writes(Cell<u32>);

impl Serialize for Writes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let Some(left) = self.0.get().checked_sub(1) else { resume_unwind(Box::new(bomb(2))) };
        self.0.set(left);
        s.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Writes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        <()>::deserialize(d).map(|()| Writes::default())
    }
}

#[test]
fn panicking_arguments_kept_for_retry_are_dropped() {
    let pool = Pool::new(1).unwrap();
    let task = |(gate, ..): (Gate, Writes, Bomb)| gate.pass(3);
    let kept = |gate: &Gate, writes, times| (gate.clone(), Writes(Cell::new(writes)), bomb(times));
    let gate = Gate::new();
    // Arguments that are kept for a retry panic on drop when the task is done.
    let results = pool.task(task).retries(1).map_async([1, 2, 0].map(|times| kept(&gate, 1, times)));
    gate.open(3);
    assert!(results.wait_timeout(DEADLINE), "{results:?}");
    assert_eq!(got(pool.apply_async(square, 5)).unwrap(), 25);
    // Encoding for another worker fails.
    let gate = Gate::new();
    let result = pool.task(task).retries(3).apply_async(kept(&gate, 1, 2));
    kill(gate.arrived().1);
    assert!(matches!(got(result), Err(TaskError::Arguments { .. })));
    assert_eq!(got(pool.apply_async(square, 5)).unwrap(), 25);
    join(&pool);
}

/// Waker that sends a message and panics when it is called.
struct Rude(mpsc::Sender<()>);

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        _ = self.0.send(());
        resume_unwind(Box::new(bomb(2)));
    }
}

#[test]
fn pool_survives_panicking_wakers_and_callbacks() {
    let pool = Pool::new(1).unwrap();
    let (gate, first) = busy(&pool);
    let (report, reported) = mpsc::channel();
    let rude = || Waker::from(Arc::new(Rude(report.clone())));
    let mut polled = pin!(pool.apply_async(square, 3));
    for waker in [rude(), rude()] {
        assert!(polled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    first.on_done(|_| resume_unwind(Box::new(bomb(2))));
    let captured = (bomb(2), report.clone());
    pool.apply_async(square, 4).on_done(move |_| {
        let all = captured;
        _ = all.1.send(());
    });
    gate.open(1);
    for _ in 0..3 {
        reported.recv_timeout(DEADLINE).expect("each waker is woken, and each callback called");
    }
    assert!(matches!(polled.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(9))));
    assert_eq!(got(pool.apply_async(square, 5)).unwrap(), 25);
    join(&pool);
}

/// Error whose `Display` panics.
#[derive(Debug)]
struct Mute;

impl fmt::Display for Mute {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        resume_unwind(Box::new("no words"))
    }
}

impl std::error::Error for Mute {}

/// Error that panics on drop.
#[derive(Debug)]
struct Last;

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the last")
    }
}

impl std::error::Error for Last {}

impl Drop for Last {
    fn drop(&mut self) {
        resume_unwind(Box::new("dropped"));
    }
}

/// Value that panics on drop in any process.
#[derive(Serialize, Deserialize)]
struct Everywhere;

impl Drop for Everywhere {
    fn drop(&mut self) {
        resume_unwind(Box::new("everywhere"));
    }
}

#[test]
fn panic_in_user_code_does_not_end_a_worker() {
    let pool = Pool::new(1).unwrap();
    let pid = || pool.apply(|(): ()| std::process::id(), ()).unwrap();
    let worker = pid();
    let raised = |result: Result<(), TaskError>| match result {
        Err(TaskError::Raised(raised)) => raised.message.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(raised(got(pool.apply_async(|(): ()| Err::<(), _>(Mute), ()))), "no words");
    assert_eq!(raised(got(pool.apply_async(|(): ()| Err::<(), _>(Last), ()))), "dropped");
    // A result is sent although its drop panics, small or not.
    let result = pool.apply_async(|(): ()| Ok::<_, TaskError>(Everywhere), ());
    std::mem::forget(got(result).unwrap());
    let result = pool.apply_async(|(): ()| Ok::<_, TaskError>((Everywhere, "x".repeat(1000))), ());
    std::mem::forget(got(result).unwrap());
    // Captures are dropped in the worker when the pool no longer needs the closure.
    let captured = Everywhere;
    let factor = 2;
    let scaled = pool.task_closure(closure!([captured, factor] |x: u64| {
        let _ = captured;
        x * factor
    }));
    assert_eq!(got(scaled.apply_async(4)).unwrap(), 8);
    drop(scaled);
    (0..20).for_each(|_| assert_eq!(pid(), worker));
    join(&pool);
}

#[test]
fn panicking_iterator_keeps_earlier_items() {
    let pool = Pool::new(2).unwrap();
    let items = (0..100_u64).inspect(|&x| {
        if x == 50 {
            resume_unwind(Box::new("no more"))
        }
    });
    let mut stream = pool.imap(square, items);
    let (mut squares, mut panics) = (Vec::new(), 0);
    loop {
        match catch_unwind(AssertUnwindSafe(|| stream.next())) {
            Ok(None) => break,
            Ok(Some(result)) => squares.push(result.unwrap()),
            Err(_) => panics += 1,
        }
    }
    assert!(squares.into_iter().eq((0..50).map(square)) && panics == 1);
    // An iterator with a wrong size hint, too large or too small, is handled.
    struct Liar(u64);
    impl Iterator for Liar {
        type Item = u64;
        fn next(&mut self) -> Option<u64> {
            self.0 = self.0.checked_sub(1)?;
            Some(self.0)
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            (usize::MAX, Some(0))
        }
    }
    assert_eq!(pool.imap(square, Liar(5)).map(Result::unwrap).sum::<u64>(), 30);
    assert!(catch_unwind(AssertUnwindSafe(|| pool.map(square, Liar(5)))).is_err());
    assert_eq!(got(pool.apply_async(square, 5)).unwrap(), 25);
    join(&pool);
}

#[test]
fn panicking_settings_are_a_failed_start() {
    let error = Pool::builder().processes(2).per_worker(|number, process| match number {
        0 => process,
        _ => resume_unwind(Box::new("no settings")),
    });
    let error = error.build().unwrap_err();
    assert!(matches!(&error, PoolError::Settings(why) if why.contains("no settings")), "{error}");
    // After a panic for a replacement, the start is retried.
    let times = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&times);
    let pool = Pool::builder()
        .processes(1)
        .per_worker(move |_, process| match counted.fetch_add(1, Ordering::Relaxed) {
            1 | 2 => resume_unwind(Box::new(bomb(2))),
            _ => process,
        })
        .build()
        .unwrap();
    kill(pool.apply(|(): ()| std::process::id(), ()).unwrap());
    assert_eq!(got(pool.apply_async(square, 5)).unwrap(), 25);
    eventually("the worker was started again", || times.load(Ordering::Relaxed) == 4);
    join(&pool);
}

fn panics(deep: u32) -> u32 {
    match deep {
        0 => panic!("at the bottom"),
        _ => std::hint::black_box(panics(deep - 1)),
    }
}

/// The first backtrace of a process takes long, because its symbols are read.
#[test]
fn slow_backtrace_is_not_a_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(50);
    let pool = Pool::builder()
        .processes(1)
        .max_tasks_per_child(1)
        .per_worker(|_, process| process.env("RUST_BACKTRACE", "1").stderr(Stdio::Null));
    let pool = pool.build().unwrap();
    for round in 0..5 {
        match got(pool.task(panics).timeout(TIMEOUT).apply_async(round)) {
            Err(TaskError::Raised(raised)) => {
                let backtrace = raised.backtrace.as_deref().unwrap_or_default();
                assert!(backtrace.contains("user_code::panics"), "round {round}: {backtrace}");
            }
            other => panic!("round {round}: {other:?}"),
        }
    }
    join(&pool);
}

/// The panic hook blocks while it writes to a full pipe. After the task has caught the panic, its clock
/// continues.
#[test]
fn slow_panic_hook_does_not_time_a_task_out() {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let path = std::env::temp_dir().join(format!("mp-pool-hook-{}", std::process::id()));
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    let flags = libc::O_NONBLOCK;
    let mut pipe = File::options().read(true).write(true).custom_flags(flags).open(&path).unwrap();
    let pool = Pool::builder().processes(1).stderr(Stdio::Append(path.clone())).build().unwrap();
    let long = |catches: bool| {
        let panics = || panic!("{}", "more than a pipe holds ".repeat(10_000));
        match catches {
            true => _ = catch_unwind(panics),
            false => panics(),
        }
        // sleep: like a task that hangs
        std::thread::sleep(4 * DEADLINE);
    };
    for catches in [false, true] {
        let result = pool.task(long).timeout(TIMEOUT).apply_async(catches);
        assert!(!result.wait_timeout(4 * TIMEOUT), "{result:?}");
        let mut text = vec![0; 1 << 16];
        eventually("an outcome", || {
            _ = pipe.read(&mut text);
            result.ready()
        });
        match got(result) {
            Err(TaskError::Raised(raised)) => assert!(!catches && raised.message.starts_with("more than")),
            Err(TaskError::TimedOut { timeout, .. }) => assert_eq!((timeout, catches), (TIMEOUT, true)),
            other => panic!("unexpected: {other:?}"),
        }
    }
    drop(pool);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn slow_callbacks_delay_no_time_limit_for_long() {
    const LIMIT: Duration = Duration::from_millis(200);
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    let endless = pool.task(stop_at).timeout(LIMIT).apply_async((gate.clone(), 1));
    gate.arrived();
    let (begun, (called, calls)) = (Instant::now(), mpsc::channel());
    while !endless.ready() {
        for x in 0..4 {
            let called = called.clone();
            pool.apply_async(|x: u32| x, x).on_done(move |_| {
                // sleep: a callback that takes its time
                std::thread::sleep(LIMIT / 5);
                called.send(()).unwrap();
            });
        }
        (0..4).for_each(|_| calls.recv_timeout(DEADLINE).unwrap());
        assert!(begun.elapsed() < 25 * LIMIT, "the task was not ended");
    }
    assert!(matches!(endless.get(), Err(TaskError::TimedOut { .. })));
}
