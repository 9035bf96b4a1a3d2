//! All kinds of calls of a pool, and their results.

mod common;

use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use common::{DEADLINE, Gate, got, join, stop_at};
use mp_core::StorageId;
use mp_core::mutex::Mutex;
use mp_pool::{Pool, TaskError, current_worker};
use mp_queue::{GetError, Queue};
use mp_reduce::Bundle;
use mp_spawn::{Closure, RaisedKind, closure};
use mp_tensor::{FrozenTensor, SharedTensor, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

fn square(x: u64) -> u64 {
    x * x
}

#[test]
fn each_kind_of_pool_call_returns_its_results() {
    let pool = Pool::new(2).unwrap();
    assert_eq!(pool.apply(square, 3).unwrap(), 9);
    assert_eq!(got(pool.apply_async(square, 4)).unwrap(), 16);
    let squares: Vec<u64> = (0..10_000).map(|x| x * x).collect();
    assert_eq!(pool.map(square, 0..10_000).unwrap(), squares);
    assert_eq!(got(pool.map_async(square, 0..10_000)).unwrap(), squares);
    assert_eq!(pool.imap(square, 0..10_000).collect::<Result<Vec<_>, _>>().unwrap(), squares);
    let mut unordered: Vec<u64> = pool.imap_unordered(square, 0..10_000).map(Result::unwrap).collect();
    unordered.sort_unstable();
    assert_eq!(unordered, squares);
    assert_eq!(pool.starmap(|a: u64, b: u64| a - b, [(5, 3), (7, 1)]).unwrap(), [2, 6]);
    assert_eq!(got(pool.starmap_async(|a: u8, b: u8, c: u8| a + b + c, [(1, 2, 3)])).unwrap(), [6]);
    assert_eq!(pool.map(square, []).unwrap(), []);
    assert!(pool.imap(square, []).next().is_none());
    join(&pool);
}

#[test]
fn tasks_of_different_functions_share_a_pool() {
    let pool = Pool::new(2).unwrap();
    let numbers = pool.map_async(square, 0..1000);
    let texts = pool.map_async(|x: u32| format!("{x:x}"), 0..1000);
    let factor = 7_u64;
    let scaled = pool.task_closure(closure!([factor] |x: u64| x * factor)).map_async(0..1000);
    let made = pool.apply_async(|step: u64| closure!([step] |x: u64| x + step), 5);
    assert!(got(scaled).unwrap().into_iter().eq((0..1000).map(|x| 7 * x)));
    assert!(got(texts).unwrap().into_iter().eq((0..1000).map(|x| format!("{x:x}"))));
    assert!(got(numbers).unwrap().into_iter().eq((0..1000).map(|x| x * x)));
    // A closure can be a result and an argument.
    let add: Closure<u64, u64> = got(made).unwrap();
    assert_eq!(pool.apply(|(f, x): (Closure<u64, u64>, u64)| f.call(x), (add, 8)).unwrap(), 13);
}

#[test]
fn closure_captures_are_dropped_after_the_last_task() {
    let pool = Pool::new(2).unwrap();
    let log = Queue::<u64>::unbounded().unwrap();
    let mine = log.clone();
    let note = pool.task_closure(closure!([log] |x: u64| log.put(x).map_err(|e| e.to_string())));
    note.map(0..100).unwrap();
    let mut seen: Vec<u64> = (0..100).map(|_| common::take(&mine)).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..100));
    assert!(mine.try_get().unwrap_err().is_empty());
    drop(note);
    // No other process has the queue, although the workers are alive.
    assert!(matches!(mine.get_timeout(DEADLINE), Err(GetError::Deserted { .. })));
    assert_eq!(pool.map(square, 0..3).unwrap(), [0, 1, 4]);
}

#[test]
fn pool_passes_tensors_without_a_copy() {
    let pool = Pool::new(2).unwrap();
    let weights = Tensor::<f32>::full([1 << 20], 1.5).unwrap().freeze();
    let views = (0..4).map(|i| weights.slice(0, i.., 1).unwrap());
    let lens = pool.map(|view: FrozenTensor<f32>| (view.storage().id(), view.len()), views).unwrap();
    for (i, (id, len)) in lens.into_iter().enumerate() {
        assert_eq!((id, len), (weights.storage().id(), (1 << 20) - i));
    }
    // An exclusive tensor is sent to a worker and back.
    let mine = Tensor::<u64>::zeros([1000]).unwrap();
    let fill = |mut tensor: Tensor<u64>| {
        tensor.as_mut_slice()?.fill(9);
        Ok::<_, mp_core::Error>(tensor)
    };
    let id = id_of(&mine);
    let mine = pool.apply(fill, mine).unwrap();
    assert_eq!((id_of(&mine), mine.iter().sum::<u64>()), (id, 9000));
    // Several tensors in one message.
    let pair = Bundle((Tensor::<u8>::full([2], 1).unwrap(), Tensor::<u8>::full([3], 2).unwrap()));
    let swap = |Bundle((a, b)): Bundle<(Tensor<u8>, Tensor<u8>)>| Bundle((b, a));
    let Bundle((a, b)) = pool.apply(swap, pair).unwrap();
    assert_eq!((a.len(), b.len()), (3, 2));
    // A tensor that all workers write.
    let sums: SharedTensor<u64> = Tensor::zeros([4]).unwrap().share();
    let add = |(sums, x): (SharedTensor<u64>, usize)| _ = sums.fetch_add(x % 4, 1);
    pool.map(add, (0..400).map(|x| (sums.clone(), x))).unwrap();
    assert_eq!(sums.to_vec(), [100; 4]);
}

fn id_of(tensor: &Tensor<u64>) -> (usize, usize) {
    (tensor.len(), tensor.as_slice().map_or(0, |s| s.as_ptr().addr()))
}

#[derive(Debug)]
struct Outer(std::num::ParseIntError);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table has a bad row")
    }
}

impl Error for Outer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn task_errors_and_panics_arrive_with_details() {
    let pool = Pool::new(2).unwrap();
    let parse = |text: String| text.parse::<u32>().map_err(Outer);
    let texts = ["1", "x", "3"].map(str::to_string);
    let results = pool.map_async(parse, texts.clone()).results();
    assert!(matches!(results[..], [Ok(1), Err(_), Ok(3)]));
    let Err(TaskError::Raised(raised)) = pool.map(parse, texts) else { panic!("an error was expected") };
    assert_eq!((raised.kind, raised.message.as_str()), (RaisedKind::Error, "the table has a bad row"));
    assert_eq!(raised.chain, ["invalid digit found in string"]);
    assert!(raised.debug.contains("Outer("), "{raised:?}");
    let number = raised.who.rank.expect("workers of a pool have numbers");
    assert!(number < 2 && raised.who.name == format!("pool-worker-{number}"), "{raised:?}");

    let pid = pool.apply(|(): ()| std::process::id(), ()).unwrap();
    let index = |i: usize| [1, 2, 3][i];
    let Err(TaskError::Raised(raised)) = pool.apply(index, 7) else { panic!("a panic was expected") };
    assert_eq!(raised.kind, RaisedKind::Panic);
    assert_eq!(raised.message, "index out of bounds: the len is 3 but the index is 7");
    assert!(raised.location.as_deref().is_some_and(|at| at.contains("calls.rs:")), "{raised:?}");
    // The worker is alive.
    let pids: HashSet<u32> = pool.map(|_: u32| std::process::id(), 0..100).unwrap().into_iter().collect();
    assert!(pids.contains(&pid) && pids.len() <= 2, "{pids:?}");
}

struct Stubborn;

impl Serialize for Stubborn {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("I stay here"))
    }
}

impl<'de> Deserialize<'de> for Stubborn {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Ok(Stubborn)
    }
}

/// Value that is encoded without an error, and can't be decoded.
#[derive(Serialize)]
struct Fragile;

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("it fell apart"))
    }
}

/// Value whose encoding panics.
#[derive(Deserialize)]
struct Bomb;

impl Serialize for Bomb {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("it went off")
    }
}

/// Value that is encoded without an error, and can't be decoded if the number of a part is odd.
#[derive(Serialize, Deserialize)]
struct Report {
    name: String,
    parts: Vec<Part>,
}

#[derive(Serialize, Deserialize)]
struct Part {
    #[serde(deserialize_with = "even")]
    number: u32,
}

fn even<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    match u32::deserialize(d)? {
        13 => panic!("thirteen"),
        number if number % 2 == 0 => Ok(number),
        number => Err(serde::de::Error::custom(format!("{number} is odd"))),
    }
}

fn report(numbers: Vec<u32>) -> Report {
    let parts = numbers.into_iter().map(|number| Part { number }).collect();
    Report { name: "parts".into(), parts }
}

/// Returns the contents of an encoded value, which follow a length of one byte. If the first byte is 255, the
/// length is in the next four bytes.
#[track_caller]
fn without_length(bytes: &[u8]) -> &[u8] {
    let (head, len) = match *bytes {
        [u8::MAX, a, b, c, d, ..] => (5, u32::from_le_bytes([a, b, c, d]) as usize),
        [len, ..] => (1, usize::from(len)),
        [] => panic!("no bytes"),
    };
    assert_eq!(bytes.len(), head + len, "no other bytes");
    &bytes[head..]
}

fn reports(numbers: Vec<u32>) -> Result<Report, String> {
    Ok(report(numbers))
}

#[test]
fn undecodable_task_result_error_has_path_and_bytes() {
    let pool = Pool::new(1).unwrap();
    let sent = |numbers| mp_reduce::to_bytes(&mut report(numbers)).unwrap();
    let check = |error: TaskError, numbers: Vec<u32>, path: &str, why: &str| {
        let TaskError::Value { undecodable: Some(undecodable), .. } = &error else { panic!("{error:?}") };
        assert_eq!(undecodable.path(), path);
        assert!(undecodable.type_name().contains("Report"), "{error}");
        assert!(error.to_string().contains(why) && error.to_string().contains("Report"), "{error}");
        let bytes = error.bytes().expect("the bytes of the result, and no others");
        assert_eq!(without_length(bytes), without_length(&sent(numbers)));
        assert!(
            error.source().is_some_and(|source| source.is::<mp_core::message::Undecodable>()),
            "{error:?}"
        );
    };
    // Results received alone, together, one after another, and after a panic of `Deserialize`.
    let error = pool.apply(reports, vec![2, 4, 5]).map(|_| ()).unwrap_err();
    check(error, vec![2, 4, 5], "parts[2].number", "5 is odd");
    let result = pool.map_async(reports, [vec![2], vec![7]]);
    let error = result.get().map(|_| ()).unwrap_err();
    check(error, vec![7], "parts[0].number", "7 is odd");
    let mut stream = pool.imap(reports, [vec![2], vec![4, 9]]);
    assert_eq!(stream.next().unwrap().unwrap().parts[0].number, 2);
    let error = stream.next().unwrap().map(|_| ()).unwrap_err();
    check(error, vec![4, 9], "parts[1].number", "9 is odd");
    let error = pool.apply(reports, vec![13]).map(|_| ()).unwrap_err();
    check(error, vec![13], "", "thirteen");
    // A result that was not sent has no bytes here.
    let error = pool.apply(|(): ()| Ok::<_, String>(Stubborn), ()).map(|_| ()).unwrap_err();
    assert!(error.bytes().is_none() && error.undecodable().is_none(), "{error:?}");
    assert_eq!(pool.apply(reports, vec![6]).unwrap().name, "parts");
}

/// Arguments that the worker can't decode: one task of many, one alone, and one with a tensor.
#[test]
fn undecodable_arguments_error_has_path_and_bytes() {
    let pool = Pool::new(1).unwrap();
    let report = |numbers: &[u32]| report(numbers.to_vec());
    let count = |report: Report| report.parts.len();
    let check = |error: TaskError, numbers: &[u32], path: &str| {
        let undecodable = error.undecodable().unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!(undecodable.path(), path);
        assert!(undecodable.type_name().contains("Report"), "{error}");
        let whole = mp_reduce::to_bytes(&mut report(numbers)).unwrap();
        assert_eq!(without_length(error.bytes().unwrap()), without_length(&whole));
        let said = error.to_string();
        assert!(said.contains("can't be received by the worker") && said.contains("is odd"), "{said}");
        let TaskError::Arguments { cause: Some(cause), .. } = &error else { panic!("{error:?}") };
        assert!(cause.undecodable().is_some() && error.source().is_some());
    };
    check(pool.apply(count, report(&[2, 5])).unwrap_err(), &[2, 5], "parts[1].number");
    let results = pool.map_async(count, [report(&[2]), report(&[4, 6, 7]), report(&[8])]);
    let [first, second, third] = results.results().try_into().unwrap();
    assert_eq!((first.unwrap(), third.unwrap()), (1, 1));
    check(second.unwrap_err(), &[4, 6, 7], "parts[2].number");
    // With a tensor, which is released.
    let with_tensor = |(_, report): (FrozenTensor<u8>, Report)| report.parts.len();
    let tensor = Tensor::<u8>::zeros([100]).unwrap().freeze();
    let error = pool.apply(with_tensor, (tensor.clone(), report(&[3]))).unwrap_err();
    assert!(error.undecodable().is_some_and(|u| u.path().contains("parts[0].number")), "{error:?}");
    assert!(error.bytes().is_some_and(|bytes| !bytes.is_empty()));
    assert_eq!(pool.apply(count, report(&[2])).unwrap(), 1);
}

#[test]
fn unsendable_value_is_an_error_of_its_task() {
    let pool = Pool::new(1).unwrap();
    let good = pool.map_async(square, 0..100);
    let says = |result: Result<u32, TaskError>| result.unwrap_err();
    let error = says(pool.apply(|_: Stubborn| 1_u32, Stubborn));
    assert!(matches!(&error, TaskError::Arguments { why, .. } if why.contains("I stay here")), "{error}");
    let mut result = Tensor::<f32>::zeros([2]).unwrap();
    result.set_requires_grad(true).unwrap();
    result.set_non_leaf();
    let error = says(pool.apply(|_: Tensor<f32>| 1_u32, result));
    let TaskError::Arguments { cause: Some(cause), .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**cause, mp_reduce::Error::Memory(mp_core::Error::NonLeaf)), "{cause:?}");
    let source = error.source().expect("the cause of the refusal").downcast_ref::<mp_reduce::Error>();
    assert_eq!(source.map(ToString::to_string), Some(cause.to_string()));
    let error = says(pool.apply(|_: Fragile| 1_u32, Fragile));
    assert!(matches!(&error, TaskError::Arguments { why, .. } if why.contains("it fell apart")), "{error}");
    let error = says(pool.apply(|_: Bomb| 1_u32, Bomb));
    assert!(matches!(&error, TaskError::Arguments { why, .. } if why.contains("it went off")), "{error}");
    let error = pool.apply(|(): ()| Ok::<_, String>(Stubborn), ()).map(|_| ()).unwrap_err();
    assert!(matches!(&error, TaskError::Value { why, .. } if why.contains("I stay here")), "{error}");
    let error = pool.apply(|(): ()| Ok::<_, String>(Fragile), ()).map(|_| ()).unwrap_err();
    assert!(matches!(&error, TaskError::Value { why, .. } if why.contains("it fell apart")), "{error}");
    let error = pool.apply(|(): ()| Ok::<_, String>(Bomb), ()).map(|_| ()).unwrap_err();
    assert!(matches!(&error, TaskError::Value { why, .. } if why.contains("it went off")), "{error}");
    assert_eq!(got(good).unwrap().len(), 100);
    assert_eq!(pool.apply(square, 5).unwrap(), 25);
}

#[test]
fn pool_reads_endless_iterator_a_bounded_number_ahead() {
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    let read = Mutex::new(0);
    let items = std::iter::from_fn(|| {
        let mut read = read.lock();
        *read += 1;
        Some((gate.clone(), *read))
    });
    let mut results = pool.task(stop_at).max_in_flight(10).imap(items);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| results.next().unwrap().unwrap());
        // The iterator waits for the first result, with the maximum number of items in flight.
        common::eventually("ten items are read", || *read.lock() >= 10);
        gate.open(1000);
        assert_eq!(first.join().unwrap(), 1);
    });
    assert_eq!(*read.lock(), 10);
    for x in 2..=100 {
        assert_eq!(results.next().unwrap().unwrap(), x);
    }
    drop(results);
    let read = *read.lock();
    assert!((100..=110).contains(&read), "{read}");
    let mut count = 0_u64;
    let mut results = pool.task(square).max_in_flight(10).imap(std::iter::from_fn(|| {
        count += 1;
        Some(count)
    }));
    assert!((1..=1000).all(|x| results.next().unwrap().unwrap() == x * x));
    drop(results);
    assert!((1000..=1010).contains(&count), "{count}");
    join(&pool);
}

#[test]
fn task_results_arrive_in_order_or_as_completed() {
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    let slow_first = |(gate, x): (Gate, u32)| {
        if x == 0 {
            gate.pass(x);
        }
        x
    };
    let items = || (0..20).map(|x| (gate.clone(), x));
    let mut as_done = pool.imap_unordered(slow_first, items());
    let first = as_done.next().unwrap().unwrap();
    assert_ne!(first, 0, "it waits for the gate");
    let mut others: Vec<u32> = as_done.by_ref().take(18).map(Result::unwrap).collect();
    others.push(first);
    others.sort_unstable();
    assert!(others.into_iter().eq(1..20));
    gate.open(1);
    assert_eq!(as_done.next().unwrap().unwrap(), 0);
    assert!(as_done.next().is_none());
    gate.open(1);
    assert!(pool.imap(slow_first, items()).map(Result::unwrap).eq(0..20));
}

#[test]
fn unbegun_chunk_of_a_busy_worker_moves_to_another() {
    let pool = Pool::new(2).unwrap();
    let (gate, quick) = (Gate::new(), Gate::new());
    quick.open(1000);
    // Both workers know the function.
    let warm = pool.map_async(stop_at, (0..50).map(|x| (quick.clone(), x)));
    assert_eq!(got(warm).unwrap().len(), 50);
    let items = (0..40).map(|x| (if x == 0 { gate.clone() } else { quick.clone() }, x));
    let results = pool.task(stop_at).chunksize(20).map_async(items);
    gate.arrived();
    common::eventually("all but one are done", || results.progress().done == 39);
    gate.open(1);
    assert!(got(results).unwrap().into_iter().eq(0..40));
}

/// Number of arguments that were encoded in this process: as many as were sent to workers.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Argument that counts its encodings.
struct Counted(Gate, u32);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        GIVEN.fetch_add(1, Ordering::SeqCst);
        (&self.0, self.1).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <(Gate, u32)>::deserialize(deserializer).map(|(gate, number)| Counted(gate, number))
    }
}

/// Returns the number of tasks that the only worker of a pool receives while it runs the first of them.
fn given_ahead(pool: &Pool) -> usize {
    let gate = Gate::new();
    let before = GIVEN.load(Ordering::SeqCst);
    let results =
        pool.map_async(|Counted(gate, number)| gate.pass(number), (0..500).map(|x| Counted(gate.clone(), x)));
    gate.arrived();
    // All tasks of an assignment are encoded before the first is sent, and the next assignment waits for an
    // answer.
    let given = GIVEN.load(Ordering::SeqCst) - before;
    results.cancel();
    gate.open(500);
    common::eventually("the other tasks are done", || results.ready());
    given
}

#[test]
fn only_short_tasks_are_queued_ahead_at_a_worker() {
    let pool = Pool::new(1).unwrap();
    assert_eq!(given_ahead(&pool), 1, "the duration is unknown");
    let mut ahead = 0;
    common::eventually("the worker receives many short tasks", || {
        pool.map(square, 0..2000).unwrap();
        ahead = given_ahead(&pool);
        ahead > 16
    });
    // Tasks with a handle are sent one by one, which shows when they are encoded, up to 64 at once.
    assert!(ahead < 512 + 64, "{ahead}");
    let slow = |x: u64| std::thread::sleep(Duration::from_millis(x)); // sleep: a task that takes its time
    pool.map(slow, [20, 20]).unwrap();
    assert_eq!(given_ahead(&pool), 1, "long tasks are sent one by one");
    join(&pool);
}

#[test]
fn initializer_runs_once_in_each_worker() {
    let counts: SharedTensor<u64> = Tensor::zeros([2]).unwrap().share();
    let count = |counts: SharedTensor<u64>| _ = counts.fetch_add(current_worker().unwrap(), 1);
    let pool = Pool::builder().processes(2).initializer(count, counts.clone()).build().unwrap();
    pool.map(square, 0..1000).unwrap();
    join(&pool);
    assert_eq!(counts.to_vec(), [1, 1]);
}

#[test]
fn pool_workers_are_replaced_after_their_task_limit() {
    let pool = Pool::builder().processes(2).max_tasks_per_child(5).build().unwrap();
    let pids = pool.map(|_: u32| std::process::id(), 0..100).unwrap();
    let mut counts = std::collections::HashMap::<u32, u32>::new();
    pids.iter().for_each(|pid| *counts.entry(*pid).or_default() += 1);
    assert!(counts.len() >= 20 && counts.values().all(|count| *count <= 5), "{counts:?}");
    join(&pool);
}

/// Runs one future to completion.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    let until = std::time::Instant::now() + DEADLINE;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        assert!(std::time::Instant::now() < until, "not woken within {DEADLINE:?}");
        std::thread::park_timeout(DEADLINE);
    }
}

#[test]
fn pending_pool_results_can_be_awaited() {
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    let (first, second) = (pool.apply_async(stop_at, (gate.clone(), 1)), pool.map_async(square, 0..10));
    let sum = async { Ok::<_, TaskError>(u64::from(first.await?) + second.await?.iter().sum::<u64>()) };
    let opener = std::thread::spawn({
        let gate = gate.clone();
        move || {
            gate.arrived();
            gate.open(1);
        }
    });
    assert_eq!(block_on(sum).unwrap(), 286);
    opener.join().unwrap();
}

#[test]
fn pool_callbacks_get_results_and_errors() {
    let pool = Pool::new(1).unwrap();
    let (notify, reported) = mpsc::channel();
    let half = |x: u32| if x.is_multiple_of(2) { Ok(x / 2) } else { Err("odd") };
    pool.apply_async(square, 1).on_done(|_| panic!("a callback that panics costs no other call anything"));
    for x in [4, 5] {
        let notify = notify.clone();
        pool.apply_async(half, x)
            .on_done(move |result| notify.send(result.map_err(|e| e.to_string())).unwrap());
    }
    assert_eq!(reported.recv_timeout(DEADLINE).unwrap(), Ok(2));
    assert!(reported.recv_timeout(DEADLINE).unwrap().unwrap_err().contains("odd"));
    // A callback that is set when all tasks are done is called at once, in this thread.
    let done = pool.apply_async(square, 6);
    done.wait();
    done.on_done(move |result| notify.send(Ok(result.unwrap() as u32)).unwrap());
    assert_eq!(reported.try_recv().unwrap(), Ok(36));
}

#[test]
fn progress_and_success_of_a_map_are_reported() {
    let pool = Pool::new(1).unwrap();
    let gate = Gate::new();
    let results = pool.map_async(stop_at, (0..4).map(|x| (gate.clone(), x)));
    assert_eq!((results.ready(), results.successful()), (false, None));
    gate.open(2);
    common::eventually("two are done", || results.progress().done == 2);
    assert_eq!(results.progress().total, 4);
    let results = results.get_timeout(std::time::Duration::from_millis(1)).unwrap_err();
    gate.open(2);
    results.wait();
    assert_eq!((results.ready(), results.successful()), (true, Some(true)));
    let failed = pool.apply_async(|(): ()| Err::<(), _>("no"), ());
    failed.wait();
    assert_eq!((failed.successful(), failed.progress().failed), (Some(false), 1));
}

#[test]
fn worker_task_may_use_its_own_pool() {
    let pool = Pool::new(2).unwrap();
    let inner = |x: u64| {
        let pool = Pool::new(2)?;
        let sum: u64 = pool.map(square, 0..x)?.into_iter().sum();
        Ok::<_, Box<dyn Error + Send + Sync>>(sum)
    };
    assert_eq!(pool.map(inner, [2, 3, 4]).unwrap(), [1, 5, 14]);
}

#[test]
fn storage_ids_are_returned_as_results() {
    let pool = Pool::new(1).unwrap();
    let tensor = Tensor::<u8>::zeros([8]).unwrap().freeze();
    let id: StorageId =
        pool.apply(|t: FrozenTensor<u8>| Ok::<_, String>(t.storage().id()), tensor.clone()).unwrap();
    assert_eq!(id, tensor.storage().id());
}
