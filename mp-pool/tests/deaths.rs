//! Workers that die or are stopped, and the effects on tasks.

mod common;

use std::collections::HashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, Random, alive, eventually, got, join, kill, lost, signal, stop_at, stopped};
use mp_pool::{Latencies, Pool, TaskError, WorkerState};
use mp_spawn::{ExitDetail, ExitStatus, Signal as Kind, Stdio, closure};
use mp_tensor::{SharedTensor, Tensor};
use rustix::process::Signal;

fn square(x: u64) -> u64 {
    x * x
}

#[test]
fn killed_worker_loses_only_its_current_task() {
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    // The chunks are larger than the number of lost tasks.
    let results = pool.task(stop_at).chunksize(50).map_async((0..100).map(|x| (gate.clone(), x)));
    let (victim, pid) = gate.arrived();
    kill(pid);
    gate.open(200);
    for (x, result) in (0..100).zip(results.results()) {
        if x == victim {
            let lost = lost(result);
            assert_eq!((lost.pid, lost.attempts.count()), (pid, 1));
            assert!(matches!(lost.exit, ExitStatus::Signal { signal: Kind::KILL, .. }), "{lost}");
        } else {
            assert_eq!(result.unwrap(), x);
        }
    }
    assert!(!alive(pid));
    assert_eq!(pool.map(square, 0..4).unwrap(), [0, 1, 4, 9]);
    join(&pool);
}

#[test]
fn task_error_states_how_its_worker_ended() {
    let pool = Pool::new(1).unwrap();
    let end = |code: i32| -> u32 { std::process::exit(code) };
    assert_eq!(lost(pool.apply(end, 3)).exit, ExitStatus::Code(3));
    assert_eq!(lost(pool.apply(end, 0)).exit, ExitStatus::Code(0));
    let lost_task = lost(pool.apply(|(): ()| -> u32 { std::process::abort() }, ()));
    assert!(lost_task.to_string().contains("SIGABRT"), "{lost_task}");
    #[allow(unconditional_recursion)]
    fn deep(x: u64) -> u64 {
        deep(std::hint::black_box(x) + 1) + std::hint::black_box(1)
    }
    let lost_task = lost(pool.apply(deep, 0));
    assert!(matches!(lost_task.detail, Some(ExitDetail::StackOverflow { .. })), "{lost_task}");
    assert_eq!(pool.apply(square, 3).unwrap(), 9);
}

/// A program may have several pools.
#[test]
fn task_errors_name_their_pool() {
    let task = |x: u32| match x {
        0 => std::process::abort(),
        1 => loop {
            std::thread::park();
        },
        x => x,
    };
    for name in [Some("resize"), None] {
        let builder = || {
            let builder = Pool::builder().processes(1).stderr(Stdio::Null);
            if let Some(name) = name { builder.name(name) } else { builder }
        };
        let (of, the) = name.map_or((String::new(), "the pool".into()), |name| {
            (format!(" of pool {name:?}"), format!("pool {name:?}"))
        });
        let pool = builder().build().unwrap();
        let lost = lost(pool.apply(task, 0));
        assert_eq!(lost.pool.as_deref(), name);
        let (text, pid) = (lost.to_string(), lost.pid);
        assert!(text.starts_with(&format!("worker 0 (pid {pid}){of} had this task when it ")), "{text}");

        let late = pool.task(task).timeout(Duration::from_millis(50)).apply(1).unwrap_err();
        let TaskError::TimedOut { pid, pool: its, .. } = &late else { panic!("it parks: {late}") };
        assert_eq!(its.as_deref(), name);
        let text = format!("the task took more than 50ms; its worker 0 (pid {pid}){of} was killed");
        assert_eq!(late.to_string(), text);

        pool.close();
        let closed = pool.apply(task, 2).unwrap_err();
        assert!(matches!(&closed, TaskError::Closed { pool } if pool.as_deref() == name), "{closed}");
        assert_eq!(closed.to_string(), format!("{the} is closed: it accepts no more tasks"));
        join(&pool);

        let pool = builder().initializer(|(): ()| Err::<(), _>("no device"), ()).build().unwrap();
        let Err(TaskError::Broken(broken)) = got(pool.apply_async(task, 2)) else { panic!("it can't begin") };
        assert_eq!(broken.pool.as_deref(), name);
        assert!(broken.to_string().starts_with(&format!("{the} has no workers left: 5 starts")), "{broken}");
    }
}

#[test]
fn earlier_task_panic_is_not_the_cause_of_an_abort() {
    let pool = Pool::new(1).unwrap();
    let task = |at: u32| -> u32 {
        match at {
            0 => panic!("a bad text, long ago"),
            4 => std::process::abort(),
            _ => at,
        }
    };
    assert!(matches!(pool.apply(task, 0), Err(TaskError::Raised(_))));
    assert_eq!(pool.map(task, 1..4).unwrap(), [1, 2, 3]);
    let lost_task = lost(pool.apply(task, 4));
    assert_eq!(lost_task.detail, None, "{lost_task}");
    assert!(lost_task.to_string().contains("SIGABRT"), "{lost_task}");
    assert!(!lost_task.to_string().contains("a bad text"), "{lost_task}");
}

#[test]
fn lost_task_is_retried_on_request() {
    let pool = Pool::new(2).unwrap();
    let begun: SharedTensor<u64> = Tensor::zeros([3]).unwrap().share();
    // Dies `deaths` times.
    let fragile = |(begun, task, deaths): (SharedTensor<u64>, usize, u64)| {
        if begun.fetch_add(task, 1) < deaths {
            std::process::abort();
        }
        task
    };
    let call = pool.task(fragile).retries(2);
    let results = call.map_async([(begun.clone(), 0, 0), (begun.clone(), 1, 2), (begun.clone(), 2, 9)]);
    let [first, second, third] = results.results().try_into().unwrap();
    assert_eq!((first.unwrap(), second.unwrap()), (0, 1));
    assert_eq!(lost(third).attempts.count(), 3);
    assert_eq!(begun.to_vec(), [1, 3, 3]);
}

#[test]
fn pool_metrics_count_outcomes_and_show_workers() {
    let pool = Pool::builder().processes(1).stderr(Stdio::Null).build().unwrap();
    let gate = Gate::new();
    let at_gate = pool.map_async(stop_at, (0..4).map(|x| (gate.clone(), x)));
    let (_, pid) = gate.arrived();
    let metrics = pool.metrics();
    assert_eq!((metrics.running, metrics.queued, metrics.done), (1, 3, 0), "{metrics}");
    let [worker] = metrics.workers.as_slice() else { panic!("one worker: {metrics}") };
    assert_eq!((worker.worker, worker.pid, worker.state), (0, pid, WorkerState::Busy));
    let shown = metrics.to_string();
    assert!(
        shown.starts_with("1 running, 3 queued, 0 done") && shown.contains(&format!("(pid {pid}): busy"))
    );
    // The running task is lost, two are done, and the last one is withdrawn or done.
    kill(pid);
    let (_, next) = gate.arrived();
    let cancelled = at_gate.cancel() as u64;
    gate.open(4);
    assert_eq!(at_gate.results().len(), 4);
    let dies = |begun: SharedTensor<u64>| {
        if begun.fetch_add(0, 1) == 0 {
            std::process::abort()
        }
    };
    let begun = Tensor::zeros([1]).unwrap().share();
    pool.task(dies).retries(1).apply(begun).unwrap();
    pool.apply(|(): ()| Err::<(), _>("no"), ()).unwrap_err();
    let metrics = pool.metrics();
    assert_eq!((metrics.running, metrics.queued, metrics.cancelled), (0, 0, cancelled), "{metrics}");
    assert_eq!((metrics.done, metrics.failed, metrics.lost), (4 - cancelled, 1, 1), "{metrics}");
    assert_eq!((metrics.retried, metrics.restarts), (1, 2), "{metrics}");
    // Tasks that a worker has answered, with any outcome.
    let answered = metrics.done + metrics.failed;
    assert_eq!((metrics.waiting.count, metrics.running_time.count), (answered, answered), "{metrics}");
    let worker = metrics.workers[0];
    assert!(
        worker.state == WorkerState::Idle && worker.pid != next && worker.busy_for.is_zero(),
        "{metrics}"
    );
    // A slow task appears in the times: it does not wait, and the next task waits for it.
    let slow = |ms: u64| std::thread::sleep(Duration::from_millis(ms)); // sleep: a task that takes its time
    let pair = pool.map_async(slow, [300, 0]);
    got(pair).unwrap();
    let Latencies { max: waited, .. } = pool.metrics().waiting;
    let Latencies { max: ran, p50, .. } = pool.metrics().running_time;
    // If both answers arrive together, each counts as the mean.
    let least = Duration::from_millis(150);
    assert!(waited >= least && ran >= least && p50 <= ran, "{}", pool.metrics());
    join(&pool);
    assert_eq!(pool.metrics().workers[0].state, WorkerState::Absent);
}

#[test]
fn waiting_time_of_tasks_is_not_running_time() {
    let pool = Pool::builder().processes(1).build().unwrap();
    let slow = |ms: u64| std::thread::sleep(Duration::from_millis(ms)); // sleep: a task that takes its time
    // One task runs for long, and three wait for it.
    got(pool.task(slow).chunksize(1).map_async([300, 0, 0, 0])).unwrap();
    let metrics = pool.metrics();
    assert!(metrics.waiting.p50 > metrics.running_time.p50, "{metrics}");
    join(&pool);
}

#[test]
fn stopped_worker_delays_only_its_own_task() {
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    let results = pool.task(stop_at).chunksize(10).map_async((0..20).map(|x| (gate.clone(), x)));
    let ((task, stopped), _) = (gate.arrived(), gate.arrived());
    signal(stopped, Signal::STOP);
    gate.open(40);
    eventually("all but one are done", || results.progress().done == 19);
    assert_eq!(pool.map(square, 0..100).unwrap().len(), 100);
    assert!(!results.ready());
    signal(stopped, Signal::CONT);
    assert!(got(results).unwrap().into_iter().eq(0..20), "task {task} included");
}

#[test]
fn timed_out_task_ends_no_other_task() {
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    let some_stop = |(gate, x): (Gate, u32)| {
        if x % 10 == 3 {
            gate.pass(x);
        }
        x
    };
    // The gate is never opened, so tasks that reach it stay.
    let call = pool.task(some_stop).timeout(Duration::from_secs(1)).chunksize(5);
    let results = call.map_async((0..40).map(|x| (gate.clone(), x))).results();
    for (x, result) in (0..).zip(results) {
        match result {
            Ok(y) => assert_eq!((x, x % 10 == 3), (y, false)),
            Err(TaskError::TimedOut { timeout, .. }) => {
                assert_eq!((x % 10, timeout), (3, Duration::from_secs(1)));
            }
            Err(other) => panic!("task {x}: {other}"),
        }
    }
    join(&pool);
}

#[test]
fn task_that_begins_late_has_its_full_time() {
    let pool = Pool::new(1).unwrap();
    let slow = |x: u64| std::thread::sleep(Duration::from_millis(x)); // sleep: a task that takes its time
    pool.apply(slow, 0).unwrap();
    let pid = pool.pids()[0];
    signal(pid, Signal::STOP);
    eventually("the worker is stopped", || stopped(pid));
    let result = pool.task(slow).timeout(Duration::from_secs(4)).apply_async(2500);
    let result = result.get_timeout(Duration::from_millis(2500)).unwrap_err();
    signal(pid, Signal::CONT);
    got(result).unwrap();
    assert_eq!(pool.pids(), [pid]);
}

#[test]
fn unbegun_tasks_can_be_cancelled() {
    let pool = Pool::new(1).unwrap();
    let gate = Gate::new();
    let results = pool.map_async(stop_at, (0..1000).map(|x| (gate.clone(), x)));
    gate.arrived();
    let cancelled = results.cancel();
    assert!((990..1000).contains(&cancelled), "{cancelled}");
    gate.open(1000);
    let results = results.results();
    let (done, rest): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((done.len(), rest.len()), (1000 - cancelled, cancelled));
    assert!(rest.iter().all(|result| matches!(result, Err(TaskError::Cancelled))));
    assert_eq!(pool.apply(square, 9).unwrap(), 81);
}

#[test]
fn cancel_takes_tasks_of_a_busy_worker() {
    let pool = Pool::new(1).unwrap();
    let (gate, quick) = (Gate::new(), Gate::new());
    quick.open(1);
    assert_eq!(pool.apply(stop_at, (quick, 0)).unwrap(), 0);
    // The worker knows the function now, so its chunk may be withdrawn, except the running task.
    let results = pool.task(stop_at).chunksize(100).map_async((0..100).map(|x| (gate.clone(), x)));
    gate.arrived();
    assert_eq!(results.cancel(), 99);
    gate.open(1);
    assert_eq!(results.results().iter().filter(|result| result.is_ok()).count(), 1);
}

#[test]
fn pool_with_failing_initializer_reports_the_cause() {
    let initializer = |path: String| std::fs::read(path).map(drop);
    let pool =
        Pool::builder().processes(2).initializer(initializer, "/nowhere/at all".to_string()).build().unwrap();
    let Err(TaskError::Broken(why)) = got(pool.apply_async(square, 1)) else { panic!("it can't work") };
    assert!(why.starts >= 10 && why.to_string().contains("No such file"), "{why}");
    assert!(matches!(pool.apply(square, 1), Err(TaskError::Broken(_))));
    assert!(pool.join().unwrap_err().to_string().contains("No such file"));

    let abort = |(): ()| -> () { std::process::abort() };
    let pool = Pool::builder().processes(1).initializer(abort, ()).build().unwrap();
    let results = got(pool.map_async(square, 0..10_000));
    assert!(
        matches!(&results, Err(TaskError::Broken(why)) if why.to_string().contains("SIGABRT")),
        "{results:?}"
    );
    assert!(pool.imap(square, 0..).take(100).all(|result| result.is_err()));
}

#[test]
fn failed_worker_initializer_is_retried() {
    let count: SharedTensor<u64> = Tensor::zeros([1]).unwrap().share();
    let third_time = |count: SharedTensor<u64>| match count.fetch_add(0, 1) {
        0 => panic!("not yet"),
        1 => std::process::exit(0),
        _ => {}
    };
    let pool = Pool::builder().processes(1).initializer(third_time, count.clone()).build().unwrap();
    assert_eq!(got(pool.apply_async(square, 4)).unwrap(), 16);
    assert_eq!(count.to_vec(), [3]);
}

/// Kills one of two workers, or all workers. Each slot gets a worker again.
#[test]
fn once_ready_pool_survives_failing_starts() {
    for (processes, killed) in [(2, 1), (2, 2), (1, 1)] {
        let count: SharedTensor<u64> = Tensor::zeros([1]).unwrap().share();
        let failing = processes..processes + 7 * killed;
        let not_for_a_while = |(count, failing): (SharedTensor<u64>, Range<u64>)| {
            let number = count.fetch_add(0, 1);
            if failing.contains(&number) { Err(format!("start {number} fails")) } else { Ok(()) }
        };
        let builder = Pool::builder().processes(processes as usize);
        let pool = builder.initializer(not_for_a_while, (count.clone(), failing.clone())).build().unwrap();
        // The tasks wait for each other, so all workers are ready.
        eventually("all workers are ready", || count.to_vec() == [processes]);
        let gates: Vec<Gate> = (0..processes).map(|_| Gate::new()).collect();
        let results: Vec<_> = gates.iter().map(|gate| pool.apply_async(stop_at, (gate.clone(), 1))).collect();
        gates.iter().for_each(|gate| _ = gate.arrived());
        gates.iter().for_each(|gate| gate.open(1));
        results.into_iter().for_each(|result| assert_eq!(got(result).unwrap(), 1));
        let before = pool.pids();
        before.iter().take(killed as usize).for_each(|pid| kill(*pid));
        eventually("starts fail and are tried again", || count.to_vec()[0] >= failing.end + killed);
        assert_eq!(got(pool.map_async(square, 0..100)).unwrap().len(), 100);
        let alive = || pool.pids().iter().filter(|pid| **pid != 0).count() as u64;
        eventually("all slots have a worker", || alive() == processes);
        join(&pool);
    }
}

#[test]
fn once_ready_pool_breaks_after_lasting_failures() {
    let count: SharedTensor<u64> = Tensor::zeros([1]).unwrap().share();
    let once = |count: SharedTensor<u64>| assert_eq!(count.fetch_add(0, 1), 0, "only once");
    let pool = Pool::builder().processes(1).initializer(once, count).build().unwrap();
    assert_eq!(got(pool.apply_async(square, 4)).unwrap(), 16);
    let began = Instant::now();
    pool.pids().into_iter().for_each(kill);
    let Err(TaskError::Broken(why)) = got(pool.apply_async(square, 1)) else { panic!("it can't work") };
    assert!(why.why.contains("only once") && began.elapsed() >= Duration::from_secs(10), "{why}");
}

#[test]
fn killed_idle_worker_is_replaced() {
    let pool = Pool::new(2).unwrap();
    assert_eq!(pool.map(square, 0..100).unwrap().len(), 100);
    let before = pool.pids();
    before.iter().for_each(|pid| kill(*pid));
    eventually("both are replaced", || pool.pids().iter().all(|pid| *pid != 0 && !before.contains(pid)));
    assert_eq!(pool.map(square, 0..100).unwrap().len(), 100);
    join(&pool);
}

/// Kills workers at random times while tasks of all kinds run. Each task without a result was lost with a
/// killed worker.
#[test]
fn random_kills_cost_at_most_one_task_each() {
    let seed = std::env::var("MP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20);
    println!("seed {seed}");
    let mut random = Random(seed);
    let pool = Pool::new(2).unwrap();
    let counts: SharedTensor<u64> = Tensor::zeros([3]).unwrap().share();
    let spin = |(counts, kind, x): (SharedTensor<u64>, usize, u64)| {
        counts.fetch_add(kind, 1);
        let mut sum = x;
        (0..2000_u64).for_each(|i| sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(i)));
        let mut tensor = Tensor::zeros([64])?;
        tensor.as_mut_slice()?[0] = x;
        Ok::<_, mp_core::Error>((x, tensor.freeze()))
    };
    let check =
        |x: u64, (y, tensor): (u64, mp_tensor::FrozenTensor<u64>)| assert_eq!((x, x), (y, tensor[[0]]));
    // Without a worker that was ready once, the pool would break at once.
    assert_eq!(pool.apply(square, 9).unwrap(), 81);
    let mut killed = HashSet::new();
    let (mut lost_tasks, mut total) = (0, [0; 3]);
    while killed.len() < 60 {
        const TASKS: u64 = 2000;
        let items = |kind: usize| (0..TASKS).map(|x| (counts.clone(), kind, x)).collect::<Vec<_>>();
        let plain = pool.map_async(spin, items(0));
        let chunked = pool.task(spin).chunksize(33).map_async(items(1));
        let again = pool.task(spin).retries(1000).map_async(items(2));
        total.iter_mut().for_each(|total| *total += TASKS);
        while !(plain.ready() && chunked.ready() && again.ready()) {
            let pids = pool.pids();
            let pid = pids[random.below(pids.len() as u64) as usize];
            if pid != 0 && alive(pid) && killed.len() < 60 && killed.insert(pid) {
                kill(pid);
            }
            let until = std::time::Instant::now() + Duration::from_micros(random.below(8000));
            while std::time::Instant::now() < until {
                std::thread::yield_now();
            }
            assert!(total[0] < 1_000_000, "{pool:?}");
        }
        for (kind, results) in [plain, chunked].into_iter().enumerate() {
            for (x, result) in (0..).zip(results.results()) {
                match result {
                    Ok(value) => check(x, value),
                    Err(TaskError::WorkerLost(lost)) => {
                        assert!(killed.contains(&lost.pid), "{lost}");
                        lost_tasks += 1;
                    }
                    Err(other) => panic!("task {x} of kind {kind}: {other}"),
                }
            }
        }
        for (x, value) in (0..).zip(got(again).unwrap()) {
            check(x, value);
        }
    }
    assert!(lost_tasks <= killed.len(), "{lost_tasks} tasks lost by {} kills", killed.len());
    let begun = counts.to_vec();
    // No task was begun twice unless it was lost, and none was forgotten.
    assert!(begun.iter().zip(total).all(|(begun, total)| *begun <= total + 60), "{begun:?} of {total:?}");
    assert!(begun[2] >= total[2], "{begun:?} of {total:?}");
    println!("{lost_tasks} tasks lost by {} kills", killed.len());
    assert!(pool.join_timeout(DEADLINE).unwrap());
}

#[test]
fn replacement_keeps_the_output_of_a_dead_worker() {
    let folder = std::env::temp_dir().join(format!("mp-pool-logs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("pool-worker-0.log");
    std::fs::write(&file, "from another pool\n").unwrap();
    let to = folder.join("{name}.log");
    let pool = Pool::builder()
        .processes(1)
        .per_worker(move |_, process| process.stdout(Stdio::file(&to)).stderr(Stdio::file(&to)))
        .build()
        .unwrap();
    let write = |number: u32| {
        println!("task {number}");
        if number == 1 {
            std::process::abort();
        }
    };
    got(pool.apply_async(write, 0)).unwrap();
    lost(got(pool.apply_async(write, 1)));
    got(pool.apply_async(write, 2)).unwrap();
    join(&pool);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        text.lines().filter(|line| line.starts_with("task")).collect::<Vec<_>>(),
        ["task 0", "task 1", "task 2"]
    );
    assert!(!text.contains("another pool"), "the first worker truncates the file: {text}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// For each item of a chunk at which its worker dies: earlier results are preserved, and later items run in
/// another worker, once.
#[test]
fn worker_death_in_a_chunk_loses_the_running_item() {
    const CHUNK: usize = 6;
    let pool = Pool::builder().processes(2).stderr(Stdio::Null).build().unwrap();
    for deadly in 0..CHUNK {
        let begun: SharedTensor<u64> = Tensor::zeros([2 * CHUNK]).unwrap().share();
        let counts = begun.clone();
        let call = pool.task_closure(closure!([counts, deadly] |item: usize| {
            counts.fetch_add(item, 1);
            if item == *deadly {
                std::process::abort();
            }
            10 * item
        }));
        let results = call.chunksize(CHUNK).map_async(0..2 * CHUNK);
        assert!(results.wait_timeout(DEADLINE), "{results:?}");
        for (item, result) in results.results().into_iter().enumerate() {
            match result {
                Ok(value) => assert!(value == 10 * item && item != deadly, "{item}, {deadly}"),
                Err(error) => {
                    assert!(matches!(error, TaskError::WorkerLost(_)) && item == deadly, "{item}: {error}")
                }
            }
        }
        assert_eq!(begun.to_vec(), [1; 2 * CHUNK], "{deadly}");
    }
    join(&pool);
}
