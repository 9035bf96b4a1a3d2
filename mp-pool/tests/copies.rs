//! Public interface in a fork of the process that owns the pool: each call returns an error or nothing, and
//! no call crashes. Threads of the parent use the pool meanwhile, so the forks are made while locks are held.
#![allow(unsafe_code)]

mod common;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{DEADLINE, Gate, eventually, got, stop_at};
use mp_core::{Waitable, select, wait};
use mp_pool::{
    AsCompleted, AsyncResult, Call, Imap, MapResult, Pool, PoolError, PushError, StatePool, TaskError,
    TaskRaised, TaskStream, Ticket, as_completed,
};
use mp_spawn::{Closure, Process, StartMethod, closure};

/// Handles of the parent that its forks borrow.
struct Borrowed {
    pool: Pool,
    states: StatePool<u64>,
    call: Call<u64, u64>,
    stream: TaskStream<u64, u64>,
    ticket: Ticket,
    waits: MapResult<u32>,
    done: MapResult<u32>,
}

/// Handles of the parent that its forks consume and drop.
struct Owned {
    pool: Pool,
    states: StatePool<u64>,
    one: AsyncResult<u32>,
    many: MapResult<u32>,
    both: [AsyncResult<u32>; 2],
    completed: AsCompleted<u32>,
    imap: Imap<std::ops::Range<u64>, u64>,
    stream: TaskStream<u64, u64>,
}

static BORROWED: Mutex<Option<Arc<Borrowed>>> = Mutex::new(None);
static OWNED: Mutex<Option<Owned>> = Mutex::new(None);
static STOP: AtomicBool = AtomicBool::new(false);

fn same(x: u64) -> u64 {
    x
}

fn add(state: &mut u64, x: u64) -> u64 {
    *state += x;
    *state
}

fn of_two(x: u64, y: u64) -> u64 {
    x + y
}

/// Outcome of a check: a message if the value was unexpected.
type Checked = Result<(), String>;

#[track_caller]
fn check(right: bool, found: impl Debug) -> Checked {
    if right { Ok(()) } else { Err(format!("{found:?}, at {}", std::panic::Location::caller())) }
}

#[track_caller]
fn ended<T: Debug>(result: Result<T, TaskError>) -> Checked {
    check(matches!(result, Err(TaskError::Terminated | TaskError::Closed { .. })), result)
}

#[track_caller]
fn all_ended<T: Debug>(results: impl IntoIterator<Item = Result<T, TaskError>>) -> Checked {
    let results: Vec<_> = results.into_iter().collect();
    check(!results.is_empty(), "no result")?;
    results.into_iter().try_for_each(ended)
}

#[track_caller]
fn refused(result: Result<Ticket, PushError<u64>>) -> Checked {
    check(matches!(result, Err(PushError::Closed(7))), result)
}

#[track_caller]
fn others<T: Debug>(result: Result<T, PoolError>) -> Checked {
    let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
    check(matches!(result, Err(PoolError::OtherProcess { .. })) && text.contains("forked"), result)
}

/// Returns the output of a future that is ready at the first poll.
fn at_once<F: Future>(future: F) -> Result<F::Output, String> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err("it is pending".into()),
    }
}

fn doubled() -> Closure<u64, u64> {
    let factor = 2_u64;
    closure!([factor] | x: u64 | factor * x)
}

type Check = fn(&Borrowed, Owned) -> Checked;

const CALLS: &[(&str, Check)] = &[
    ("Pool::apply", |b, _| ended(b.pool.apply(same, 7))),
    ("Pool::apply_async", |b, _| ended(b.pool.apply_async(same, 7).get())),
    ("Pool::submit_async", |b, _| ended(at_once(b.pool.submit_async(same, 7))?.get())),
    ("Pool::map", |b, _| ended(b.pool.map(same, [7, 8]))),
    ("Pool::map_async", |b, _| all_ended(b.pool.map_async(same, [7, 8]).results())),
    ("Pool::imap", |b, _| all_ended(b.pool.imap(same, 0..3))),
    ("Pool::imap_unordered", |b, _| all_ended(b.pool.imap_unordered(same, 0..3))),
    ("Pool::starmap", |b, _| ended(b.pool.starmap(of_two, [(7, 8)]))),
    ("Pool::starmap_async", |b, _| all_ended(b.pool.starmap_async(of_two, [(7, 8)]).results())),
    ("Pool::task", |b, _| {
        let call = b.pool.task(same).chunksize(2).retries(3).timeout(DEADLINE).max_in_flight(4);
        all_ended(call.map_async(0..3).results())?;
        all_ended(call.imap(0..3))
    }),
    ("Pool::task_closure", |b, _| ended(b.pool.task_closure(doubled()).map(0..3))),
    ("Pool::stream", |b, _| {
        let stream = b.pool.stream(same);
        let ticket = stream.push(7).map_err(|error| error.to_string())?;
        stream.close();
        ended(stream.take(ticket).ok_or("no outcome")?)?;
        check(stream.next().is_none(), "more")
    }),
    ("Pool::processes", |b, _| check(b.pool.processes() == 2, b.pool.processes())),
    ("Pool::pids", |b, _| check(b.pool.pids() == [0, 0], b.pool.pids())),
    ("Pool::metrics", |b, _| {
        let metrics = b.pool.metrics();
        check((metrics.done, metrics.workers.len()) == (0, 0), metrics)
    }),
    ("Pool::running", |b, _| check(b.pool.running().is_empty(), b.pool.running())),
    ("Pool::recycle", |b, _| others(b.pool.recycle())),
    ("Pool::resize", |b, _| others(b.pool.resize(3))),
    ("Pool::close", |b, _| {
        b.pool.close();
        Ok(())
    }),
    ("Pool::terminate", |b, _| {
        b.pool.terminate();
        Ok(())
    }),
    ("Pool::join_timeout", |b, _| others(b.pool.join_timeout(DEADLINE))),
    ("Pool::join", |_, o| others(o.pool.join())),
    ("Pool: Debug", |b, _| check(format!("{:?}", b.pool).contains("forked"), &b.pool)),
    ("Pool::builder", |_, _| {
        let own = Pool::builder().processes(1).build().map_err(|error| error.to_string());
        // A fork that is unknown to the library is refused; other forks can create their own pools.
        own.map_or(Ok(()), |own| check(own.apply(same, 7).is_ok(), "its own pool"))
    }),
    ("StatePool", |b, o| {
        ended(b.states.apply(add, 7))?;
        ended(b.states.apply_async(add, 7).get())?;
        ended(at_once(b.states.submit_async(add, 7))?.get())?;
        ended(b.states.map(add, [7]))?;
        all_ended(b.states.imap(add, 0..3))?;
        others(b.states.pool().resize(1))?;
        others(b.states.join_timeout(DEADLINE))?;
        check(format!("{:?}", b.states).contains("forked"), &b.states)?;
        others(o.states.join())
    }),
    ("Call", |b, _| {
        ended(b.call.apply(7))?;
        ended(b.call.apply_async(7).get())?;
        ended(at_once(b.call.submit_async(7))?.get())?;
        ended(b.call.try_apply_async(7).map_err(|error| error.to_string())?.get())?;
        ended(b.call.clone().retries(2).map(0..3))?;
        check(!format!("{:?}", b.call).is_empty(), "no text")
    }),
    ("AsyncResult: waits", |b, _| {
        for result in [&b.waits, &b.done] {
            result.wait();
            check(result.wait_timeout(DEADLINE) && result.ready(), result)?;
            check((result.successful(), result.cancel()) == (Some(false), 0), result)?;
            let progress = result.progress();
            check((progress.done, progress.failed, progress.total) == (3, 3, 3), progress)?;
        }
        Ok(())
    }),
    ("AsyncResult: Waitable", |b, o| {
        let things: [&dyn Waitable; 3] = [&b.waits, &o.one, &b.done];
        let ready = wait(&things, Some(DEADLINE)).map_err(|error| error.to_string())?;
        check(ready == [0, 1, 2], ready)?;
        let first = select(&things, None).map_err(|error| error.to_string())?;
        check(first.is_some(), first)
    }),
    ("AsyncResult::get", |_, o| ended(o.one.get())),
    ("AsyncResult::get_timeout", |_, o| {
        ended(o.many.get_timeout(DEADLINE).map_err(|left| format!("{left:?}"))?)
    }),
    ("AsyncResult::results", |_, o| all_ended(o.many.results())),
    ("AsyncResult::on_done", |_, o| {
        let (report, reported) = channel();
        o.one.on_done(move |result| _ = report.send(result));
        ended(reported.try_recv().map_err(|error| error.to_string())?)
    }),
    ("AsyncResult: Future", |_, o| ended(at_once(o.many)?)),
    ("as_completed", |_, o| {
        let mut places: Vec<usize> = Vec::new();
        for (place, result) in as_completed(o.both) {
            ended(result)?;
            places.push(place);
        }
        places.sort_unstable();
        check(places == [0, 1], places)
    }),
    ("AsCompleted", |_, mut o| {
        let first = o.completed.next_timeout(Duration::ZERO).map_err(|error| error.to_string())?;
        ended(first.ok_or("no result")?.1)?;
        ended(o.completed.next().ok_or("no second result")?.1)?;
        check(o.completed.next().is_none() && o.completed.len() == 0, &o.completed)
    }),
    ("Imap", |_, mut o| {
        check(!format!("{:?}", o.imap).is_empty() && o.imap.size_hint().0 > 0, "no text")?;
        ended(o.imap.next().ok_or("no result")?)?;
        check(o.imap.next_timeout(Duration::ZERO).is_ok_and(|next| next.is_none()), "more")
    }),
    ("TaskStream: pushes", |b, _| {
        refused(b.stream.push(7))?;
        refused(b.stream.push_to(1, 7))?;
        refused(b.stream.try_push(7))?;
        refused(b.stream.try_push_to(1, 7))?;
        refused(b.stream.push_timeout(7, DEADLINE))?;
        refused(b.stream.push_to_timeout(1, 7, DEADLINE))?;
        refused(at_once(b.stream.push_async(7))?)?;
        refused(at_once(b.stream.push_to_async(1, 7))?)
    }),
    ("TaskStream: results", |b, o| {
        check(b.stream.next().is_none() && b.stream.take(b.ticket).is_none(), &b.stream)?;
        check(b.stream.try_next().is_ok_and(|next| next.is_none()), &b.stream)?;
        check(b.stream.next_timeout(DEADLINE).is_ok_and(|next| next.is_none()), &b.stream)?;
        check(b.stream.take_timeout(b.ticket, DEADLINE).is_ok_and(|next| next.is_none()), &b.stream)?;
        check(at_once(b.stream.next_async())?.is_none(), &b.stream)?;
        check(at_once(b.stream.take_async(b.ticket))?.is_none(), &b.stream)?;
        check(b.stream.in_flight() == 0 && b.stream.running().is_empty(), &b.stream)?;
        b.stream.close();
        check(o.stream.in_order().next().is_none(), "a result")
    }),
    ("current_worker", |_, _| {
        mp_pool::note(5);
        check(mp_pool::current_worker().is_none(), mp_pool::current_worker())
    }),
];

/// Makes one call in a fork.
fn run(number: usize) -> Checked {
    let (name, call) = CALLS[number];
    let borrowed = BORROWED.lock().map_err(|_| "poisoned")?.clone().ok_or("it was copied along")?;
    let owned = OWNED.lock().map_err(|_| "poisoned")?.take().ok_or("no other copy has it")?;
    call(&borrowed, owned).map_err(|error| format!("{name}: {error}"))
}

/// Runs a check in a fork that is unknown to the library. Returns the exit code of the fork, or the negated
/// number of the signal that ended it.
fn raw(number: usize) -> i32 {
    // SAFETY: the fork has only this thread, and its calls take no lock that another thread could have held,
    // which this test checks.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let result = catch_unwind(AssertUnwindSafe(|| run(number)));
        let code = match result {
            Ok(Ok(())) => 0,
            Ok(Err(error)) => {
                eprintln!("in the copy: {error}");
                1
            }
            Err(_) => 101,
        };
        // SAFETY: ends the fork at once, without running exit handlers of its parent.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    eventually(&format!("the copy of {} ends", CALLS[number].0), || {
        // SAFETY: the status is valid for writes, and the process is a child of this one.
        unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) == pid }
    });
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

fn pool() -> Pool {
    Pool::new(2).unwrap()
}

/// Creates the handles that forks copy. Some of their tasks are blocked at the gate.
fn copied_along(gate: &Gate) {
    let (first, second) = (pool(), pool());
    let stop = |pool: &Pool| pool.apply_async(stop_at, (gate.clone(), 7));
    let state = || Pool::with_state(1, || 0_u64).unwrap();
    let done = first.map_async(|x: u32| x, 0..3);
    done.wait();
    let stream = first.stream(same);
    let ticket = stream.push(3).unwrap();
    let waits = first.map_async(stop_at, (0..3).map(|number| (gate.clone(), number)));
    let mut imap = second.imap(same, 0..5);
    assert_eq!(imap.next().unwrap().unwrap(), 0);
    let owned = Owned {
        one: stop(&second),
        many: second.map_async(stop_at, (0..3).map(|number| (gate.clone(), number))),
        both: [stop(&second), second.apply_async(|x: u32| x, 1)],
        completed: as_completed([stop(&second), second.apply_async(|x: u32| x, 1)]),
        imap,
        stream: second.stream(same),
        states: state(),
        pool: second,
    };
    let call = first.task(same);
    let borrowed = Borrowed { call, stream, ticket, waits, done, states: state(), pool: first };
    *BORROWED.lock().unwrap() = Some(Arc::new(borrowed));
    *OWNED.lock().unwrap() = Some(owned);
}

#[test]
fn pool_calls_in_a_forked_copy_return_without_effect() {
    // SAFETY: each fork makes one call, which needs no lock of other threads.
    unsafe { mp_spawn::allow_fork() };
    let gate = Gate::new();
    copied_along(&gate);
    let borrowed = BORROWED.lock().unwrap().clone().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !STOP.load(Ordering::Relaxed) {
                    _ = (borrowed.pool.metrics(), borrowed.waits.progress(), borrowed.stream.in_flight());
                    assert_eq!(borrowed.states.pool().apply(same, 3).unwrap(), 3);
                }
            });
        }
        let failed: Vec<_> = (0..CALLS.len())
            .flat_map(|number| {
                let code = raw(number);
                let known = Process::builder().start_method(StartMethod::Fork).spawn(run, number).unwrap();
                let is_over = known.wait_timeout(DEADLINE);
                let error =
                    if is_over { known.join().err().map(|e| e.to_string()) } else { Some("hangs".into()) };
                let of_raw = (code != 0).then(|| format!("{} ends with {code}", CALLS[number].0));
                of_raw.into_iter().chain(error)
            })
            .collect();
        STOP.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{failed:#?}");
    });
    // The parent continues as before.
    gate.open(20);
    assert!(borrowed.waits.wait_timeout(DEADLINE) && borrowed.waits.successful() == Some(true));
    assert_eq!(borrowed.stream.take(borrowed.ticket).unwrap().unwrap(), 3);
    assert_eq!((borrowed.call.apply(4).unwrap(), borrowed.states.apply(add, 4).unwrap()), (4, 4));
    let owned = OWNED.lock().unwrap().take().unwrap();
    assert_eq!((got(owned.one).unwrap(), got(owned.many).unwrap()), (7, vec![0, 1, 2]));
    assert_eq!(owned.completed.map(|(_, result)| result.unwrap()).sum::<u32>(), 8);
    assert_eq!(owned.imap.map(Result::unwrap).collect::<Vec<_>>(), [1, 2, 3, 4]);
    owned.stream.close();
    assert!(owned.stream.next().is_none());
    assert!(owned.pool.join_timeout(DEADLINE).unwrap());
    borrowed.pool.resize(1).unwrap();
    eventually("the pool has one worker", || borrowed.pool.pids().len() == 1);
    for pool in [&borrowed.pool, borrowed.states.pool()] {
        assert!(pool.join_timeout(DEADLINE).unwrap());
    }
    *BORROWED.lock().unwrap() = None;
}

#[test]
fn forked_copy_of_a_pool_worker_is_not_a_worker() {
    let work = |number: u64| -> Result<(), String> {
        // SAFETY: the fork makes two calls, which need no lock of other threads.
        unsafe { mp_spawn::allow_fork() };
        mp_pool::note(number);
        let in_copy = |(): ()| {
            mp_pool::note(99);
            mp_pool::current_worker().is_none()
        };
        let copy = Process::builder().start_method(StartMethod::Fork).spawn(in_copy, ());
        let is_none = copy.and_then(|copy| copy.join()).map_err(|error| error.to_string())?;
        Err(format!("{is_none} {}", mp_pool::current_worker().is_some()))
    };
    let pool = Pool::new(1).unwrap();
    let Err(TaskError::Raised(raised)) = pool.apply(work, 5) else { panic!("it fails") };
    let TaskRaised { note, .. } = &*raised;
    assert_eq!((raised.message.as_str(), *note), ("true true", Some(5)));
    common::join(&pool);
}
