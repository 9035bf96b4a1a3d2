//! Futures that wait for descriptors within tokio runtimes. The runtime's own driver wakes them, and the
//! library needs no thread for that. Without a driver, or after the driver has ended, the futures work as in
//! other programs.
//!
//! Threads are counted in worker processes, because this program also has the threads of all its tests.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use mp::connection::{SocketOptions, connect_async};
use mp::process::Stdio;
use mp::wait::{Descriptor, wait_async};
use mp::{
    Connection, GetError, Process, Queue, SpawnError, SpawnOptions, StartMethod, connect, start_processes,
};
use mp_tests::block_on::{block_on, poll_once};
use mp_tests::{DEADLINE, Outcome, alone, eventually, failure, join, next, one_process, send};
use tokio::runtime::{Builder, Runtime};

/// Number of bytes that is larger than the buffers of a socket.
const MUCH: usize = 1 << 19;
const ROUNDS: u64 = 50;

/// Returns a name that no other test listens at.
fn name(what: &str) -> String {
    format!("@mp-tokio-{what}-{}", std::process::id())
}

/// Returns `true` if this process has the thread that waits for descriptors.
fn has_thread() -> bool {
    let mut threads = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread that has just ended has no name.
    threads.any(|thread| {
        let name = std::fs::read_to_string(thread.unwrap().path().join("comm"));
        name.is_ok_and(|name| name.trim() == "mp-descriptors")
    })
}

fn with_io() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn without_io() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// Calls `what`, in which a waiter must be woken. Panics if the call takes so long that the waiter may have
/// polled again by itself.
fn woken<R>(what: impl FnOnce() -> R) -> R {
    let begun = Instant::now();
    let returned = what();
    assert!(begun.elapsed() < DEADLINE / 2, "no thread woke the waiter");
    returned
}

/// Awaits a future with a deadline.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(DEADLINE, future).await.expect("the future is ready in time")
}

async fn answer(connection: Connection) -> Outcome {
    loop {
        match connection.recv_async::<(u64, Vec<u8>)>().await {
            Ok((i, bytes)) => connection.send_async((i + 1, bytes)).await.map_err(|e| e.to_string())?,
            Err(GetError::Disconnected) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

async fn ask(connection: Connection) -> Outcome {
    for i in 0..ROUNDS {
        let bytes = vec![i as u8; if i == 0 { MUCH } else { 10 }];
        connection.send_async((i, bytes.clone())).await.map_err(|e| e.to_string())?;
        let (answer, back) = connection.recv_async::<(u64, Vec<u8>)>().await?;
        assert!(answer == i + 1 && back == bytes, "answer {answer} to {i}");
    }
    Ok(())
}

/// Rank 0 listens, reports that to each of the two other ranks, and answers both at the same time.
async fn meet(rank: usize, at: String, listening: Queue<()>) -> Outcome {
    if rank > 0 {
        soon(listening.get_async()).await?;
        return soon(async { ask(connect_async(at.as_str()).await?).await }).await;
    }
    let listener = SocketOptions::new().listen(at)?;
    let mut answers = Vec::new();
    for _ in 0..2 {
        listening.put_async(()).await?;
    }
    for _ in 0..2 {
        answers.push(tokio::spawn(answer(soon(listener.accept_async()).await?)));
    }
    for answer in answers {
        soon(answer).await??;
    }
    Ok(())
}

fn one_thread(rank: usize, (at, listening): (String, Queue<()>)) -> Outcome {
    with_io().block_on(meet(rank, at, listening))?;
    assert!(!has_thread(), "rank {rank} has a thread that waits for descriptors");
    Ok(())
}

fn many_threads(rank: usize, (at, listening): (String, Queue<()>)) -> Outcome {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async { tokio::spawn(meet(rank, at, listening)).await? })?;
    assert!(!has_thread(), "rank {rank} has a thread that waits for descriptors");
    Ok(())
}

fn no_driver(rank: usize, (at, listening): (String, Queue<()>)) -> Outcome {
    without_io().block_on(async {
        meet(rank, at, listening).await?;
        assert!(has_thread(), "rank {rank}: no thread waits for descriptors");
        Ok(())
    })
}

fn three(method: StartMethod) -> SpawnOptions {
    SpawnOptions::nprocs(3).start_method(method)
}

#[test]
fn one_runtime_thread_waits_for_both_directions() {
    let _alone = alone();
    for method in [StartMethod::Spawn, StartMethod::ForkServer] {
        let args = (name(&format!("one-{method}")), Queue::bounded(2).unwrap());
        join(&start_processes(one_thread, args, three(method)).unwrap()).unwrap();
    }
}

#[test]
fn runtime_threads_wait_for_both_directions() {
    let _alone = alone();
    let args = (name("many"), Queue::bounded(2).unwrap());
    join(&start_processes(many_threads, args, three(StartMethod::Spawn)).unwrap()).unwrap();
}

#[test]
fn runtime_without_io_waits_on_a_thread() {
    let _alone = alone();
    let args = (name("none"), Queue::bounded(2).unwrap());
    join(&start_processes(no_driver, args, three(StartMethod::Spawn)).unwrap()).unwrap();
}

type Waiting = Pin<Box<dyn Future<Output = mp_core::Result<()>> + Send>>;

/// Returns a future that waits for a descriptor, and the stream that makes the descriptor ready.
fn waiting() -> (Waiting, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    (Box::pin(wait_async(Descriptor(here))), there)
}

/// Does the same as [`waiting`], and polls the future in a runtime.
fn polled_in(runtime: &Runtime) -> (Waiting, UnixStream) {
    let (mut future, there) = waiting();
    assert!(runtime.block_on(async { poll_once(&mut future) }).is_pending());
    (future, there)
}

#[test]
fn runtime_without_io_does_not_panic() {
    let _alone = alone();
    fn leaves(_: usize, (): ()) -> Outcome {
        let (_future, _there) = polled_in(&without_io());
        std::process::exit(3);
    }
    let options = SpawnOptions::nprocs(1).stderr(Stdio::Capture);
    let context = start_processes(leaves, (), options).unwrap();
    let error = failure(&context);
    assert!(matches!(error, SpawnError::ProcessExited { .. }), "unexpected: {error:?}");
    let printed = context.stderr(0).unwrap().text();
    assert!(!printed.contains("panicked"), "the process has printed {printed}");
}

#[test]
fn future_outlives_its_runtime() {
    let _alone = alone();
    for moves_on in [false, true] {
        let runtime = with_io();
        let (future, mut there) = polled_in(&runtime);
        // Another thread polls the future, and waits when the runtime ends.
        let waits = std::thread::spawn(move || match moves_on {
            true => woken(|| with_io().block_on(soon(future))),
            false => woken(|| block_on(future)),
        });
        drop(runtime);
        there.write_all(b"x").unwrap();
        waits.join().unwrap().unwrap();
    }
}

#[test]
fn ending_runtime_wakes_waiters_in_its_context() {
    let _alone = alone();
    let runtime = with_io();
    let (mut future, mut there) = waiting();
    let (context, (polled, polls)) = (runtime.handle().clone(), std::sync::mpsc::channel());
    let waits = std::thread::spawn(move || {
        let _context = context.enter();
        woken(|| {
            block_on(std::future::poll_fn(|cx| {
                let ended = future.as_mut().poll(cx);
                polled.send(()).unwrap();
                ended
            }))
        })
    });
    polls.recv_timeout(DEADLINE).unwrap();
    drop(runtime);
    // The descriptor has no event, and nothing but the end of the runtime can wake the future.
    polls.recv_timeout(DEADLINE / 2).expect("the waiter is woken");
    there.write_all(b"x").unwrap();
    waits.join().unwrap().unwrap();
}

#[test]
fn future_of_an_idle_runtime_is_woken_elsewhere() {
    let _alone = alone();
    let (runtime, other) = (with_io(), with_io());
    let (future, mut there) = polled_in(&runtime);
    let second = polled_in(&runtime);
    let writes = std::thread::spawn(move || there.write_all(b"x").unwrap());
    woken(|| block_on(future)).unwrap();
    writes.join().unwrap();
    let (future, mut there) = second;
    let writes = std::thread::spawn(move || there.write_all(b"x").unwrap());
    woken(|| other.block_on(soon(future))).unwrap();
    writes.join().unwrap();
}

#[test]
fn futures_of_one_descriptor_are_independent() {
    let _alone = alone();
    let all = async {
        let (mut a, b) = UnixStream::pair().unwrap();
        let b = Arc::new(b);
        let waits = || Box::pin(wait_async(Descriptor(b.clone())));
        let (mut one, mut two, mut gone) = (waits(), waits(), waits());
        assert!(poll_once(&mut one).is_pending() && poll_once(&mut two).is_pending());
        assert!(poll_once(&mut gone).is_pending());
        drop(gone);
        let two = tokio::spawn(two);
        a.write_all(b"x").unwrap();
        one.await.unwrap();
        two.await.unwrap().unwrap();
        // The future is woken by a message that another receiver takes, and waits again.
        (&*b).read_exact(&mut [0]).unwrap();
        let mut again = waits();
        for _ in 0..3 {
            assert!(poll_once(&mut again).is_pending());
            a.write_all(b"y").unwrap();
            // The sleep lets the driver run, which wakes the future.
            tokio::time::sleep(Duration::from_millis(1)).await;
            (&*b).read_exact(&mut [0]).unwrap();
        }
        drop(a);
        again.await.unwrap();
        // A wait for a process also needs a descriptor.
        let child = Process::spawn(|(): ()| Ok::<_, String>(5), ()).unwrap();
        let sentinel = child.sentinel().try_clone_to_owned().unwrap();
        wait_async(Descriptor(sentinel)).await.unwrap();
        assert_eq!(child.join().unwrap(), 5);
    };
    woken(|| with_io().block_on(soon(all)));
}

fn sends_twenty(_: usize, at: String) -> Outcome {
    let there = connect(at)?;
    for i in 0..20_u8 {
        there.send(vec![i; MUCH / 4]).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[test]
fn tokio_receive_dropped_at_any_poll_takes_nothing() {
    let _alone = alone();
    let listener = SocketOptions::new().listen(name("drops")).unwrap();
    let context = one_process(sends_twenty, name("drops"));
    with_io().block_on(soon(async {
        let here = listener.accept_async().await.unwrap();
        for i in 0..20_u8 {
            let mut polls = 0;
            let got = loop {
                // The future is dropped after one poll, after a wake-up, or when a time has expired.
                let mut future = Box::pin(here.recv_async::<Vec<u8>>());
                polls += 1;
                let got = match polls % 3 {
                    0 => poll_once(&mut future),
                    1 => tokio::time::timeout(Duration::from_micros(50), future)
                        .await
                        .map_or(Poll::Pending, Poll::Ready),
                    _ => Poll::Ready(future.await),
                };
                if let Poll::Ready(got) = got {
                    break got.unwrap();
                }
            };
            assert!(got == vec![i; MUCH / 4], "message {i}");
        }
        let end = here.recv_async::<u8>().await;
        assert!(matches!(end, Err(GetError::Disconnected)), "unexpected: {end:?}");
    }));
    join(&context).unwrap();
}

fn receives_one(_: usize, (at, go): (String, Queue<()>)) -> Outcome {
    let there = connect(at)?;
    next(&go)?;
    assert!(there.recv_timeout::<Vec<u8>>(DEADLINE)? == vec![7; MUCH]);
    let end = there.recv_timeout::<u8>(DEADLINE);
    assert!(matches!(end, Err(GetError::Disconnected)), "unexpected: {end:?}");
    Ok(())
}

#[test]
fn begun_message_is_sent_without_a_running_runtime() {
    let _alone = alone();
    let go = Queue::bounded(1).unwrap();
    let listener = SocketOptions::new().listen(name("begun")).unwrap();
    let context = one_process(receives_one, (name("begun"), go.clone()));
    let runtime = with_io();
    runtime.block_on(async {
        let here = soon(listener.accept_async()).await.unwrap();
        let mut sends = Box::pin(here.send_async(vec![7_u8; MUCH]));
        assert!(poll_once(&mut sends).is_pending(), "the socket has no room for the message");
    });
    send(&go, ()).unwrap();
    join(&context).unwrap();
    // The message could have been unsent until this point.
    drop(runtime);
}

/// Future that waits in a process that forks.
static WAITS: Mutex<Option<Waiting>> = Mutex::new(None);

fn in_a_copy(_: usize, (at, listening): (String, Queue<()>)) -> Outcome {
    // Inherited handles return errors. Dropping them releases nothing that the parent holds.
    let mut waits = WAITS.lock().unwrap().take().ok_or("it was copied along")?;
    let refused = poll_once(&mut waits);
    assert!(matches!(refused, Poll::Ready(Err(mp_core::Error::Forked))), "unexpected: {refused:?}");
    drop(waits);
    // The copy may be in the context of the parent's runtime.
    for _ in 0..2 {
        next(&listening)?;
        block_on(async { ask(connect_async(at.as_str()).await?).await })?;
    }
    assert!(has_thread(), "no thread waits for descriptors");
    Ok(())
}

fn is_copied(_: usize, (at, listening): (String, Queue<()>)) -> Outcome {
    // SAFETY: the code of the copy uses no resources of other threads, and none that exist only once.
    unsafe { mp::process::allow_fork() };
    with_io().block_on(async {
        let (mut future, mut there) = waiting();
        assert!(poll_once(&mut future).is_pending());
        *WAITS.lock().unwrap() = Some(future);
        // The copy is made in the context of this runtime.
        let options = SpawnOptions::nprocs(1).start_method(StartMethod::Fork);
        let context = start_processes(in_a_copy, (at.clone(), listening.clone()), options)?;
        meet(0, at, listening).await?;
        eventually("the copy is gone", || context.join_timeout(Duration::ZERO).unwrap());
        let future = WAITS.lock().unwrap().take().ok_or("it stays here")?;
        let waits = tokio::spawn(future);
        tokio::task::yield_now().await;
        there.write_all(b"x")?;
        soon(waits).await??;
        assert!(!has_thread(), "the original has a thread that waits for descriptors");
        Ok(())
    })
}

#[test]
fn fork_copy_does_not_affect_waits_of_the_original() {
    let _alone = alone();
    let args = (name("fork"), Queue::bounded(2).unwrap());
    join(&one_process(is_copied, args)).unwrap();
}
