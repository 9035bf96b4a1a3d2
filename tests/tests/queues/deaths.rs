//! Queues between processes that are killed or stopped. Other processes continue, and resources of dead
//! processes are released. Some tests count usage of shared memory, so the tests run one at a time.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use mp::process::OnFailure;
use mp::start_processes;
use mp::{Arena, FrozenTensor, GetError, ProcessContext, PutError, Queue, SpawnOptions, Tensor};
use mp_tests::kill::killed;
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, eventually_in_use, give, in_use, interrupts, join, next,
    one_process, open_files, send, signal, take, threads_are,
};
use rustix::process::Signal;

/// Deadline for events that take a few poll intervals.
const SOON: Duration = Duration::from_secs(10);

/// Holds a queue until it gets a message to end.
fn holder(_: usize, (queue, ready, go): (Queue<u32>, Queue<()>, Queue<()>)) -> Outcome {
    send(&ready, ())?;
    next(&go)?;
    drop(queue);
    Ok(())
}

struct Held {
    queue: Queue<u32>,
    go: Queue<()>,
    context: ProcessContext,
}

/// Returns a queue of capacity 1 that other processes hold, too.
fn held_by(nprocs: usize) -> Held {
    let queue = Queue::bounded(1).unwrap();
    let (ready, go) = (Queue::bounded(nprocs).unwrap(), Queue::bounded(nprocs).unwrap());
    let options = SpawnOptions::nprocs(nprocs).on_failure(OnFailure::Continue);
    let context = start_processes(holder, (queue.clone(), ready.clone(), go.clone()), options).unwrap();
    (0..nprocs).for_each(|_| take(&ready));
    Held { queue, go, context }
}

#[test]
fn wait_for_a_killed_process_ends_and_names_it() {
    let _alone = alone();
    let held = held_by(1);
    let pid = held.context.pids()[0];
    signal(pid, Signal::KILL);
    let error = held.queue.get_timeout(DEADLINE).unwrap_err();
    assert!(matches!(error, GetError::Deserted { pid: p, .. } if p == pid), "{error:?}");
    assert!(error.to_string().contains(&format!("process {pid} (member ")), "{error}");
    // The queue still has room for one message, and then it is full.
    give(&held.queue, 1);
    let error = held.queue.put_timeout(2, DEADLINE).unwrap_err();
    assert!(matches!(error, PutError::Deserted { value: 2, pid: p, .. } if p == pid), "{error:?}");
    assert!(error.to_string().contains(&format!("process {pid} (member ")), "{error}");
    assert_eq!(held.queue.get().unwrap(), Some(1), "available messages are taken first");
    assert!(join(&held.context).is_err());
}

/// Forks, in a worker, a child by a raw `fork`. The child keeps its files, including one of the two locks
/// that show that the worker is alive, until the other end of its connection is closed. The worker waits to
/// be killed.
#[allow(unsafe_code)]
fn leaves_a_copy(meeting: &str) -> Outcome {
    let refused = |e: std::io::Error| e.to_string();
    let address = SocketAddr::from_abstract_name(meeting).map_err(refused)?;
    let mut stream = UnixStream::connect_addr(&address).map_err(refused)?;
    // SAFETY: the copy makes two system calls.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        let mut byte = 0_u8;
        // SAFETY: the byte is valid for writes.
        unsafe { libc::read(stream.as_raw_fd(), (&raw mut byte).cast(), 1) };
        // SAFETY: ends the copy at once.
        unsafe { libc::_exit(0) };
    }
    stream.write_all(b"!").map_err(refused)?;
    std::thread::park_timeout(DEADLINE);
    Err("it was not killed".into())
}

/// Holds a tensor, and calls [`leaves_a_copy`]. With a given tensor, the process becomes a member when it
/// starts, otherwise when it allocates a tensor.
fn dies_before_its_copy(_: usize, (meeting, given): (String, Option<FrozenTensor<u8>>)) -> Outcome {
    let _kept = match given {
        Some(tensor) => tensor,
        None => Tensor::zeros([100_000])?.freeze(),
    };
    leaves_a_copy(&meeting)
}

/// Checks that a killed process is declared dead when its parent reports its end. A forked copy of the
/// process still holds a lock that shows that the process is alive.
fn is_declared_dead(joins_at_once: bool) {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    let given = joins_at_once.then(|| Tensor::zeros([100_000]).unwrap().freeze());
    let before = in_use();
    let name = format!("mp-copy-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let context = one_process(dies_before_its_copy, (name, given.clone()));
    let mut guest = None;
    eventually("the worker has made a copy", || {
        guest = guest.take().or_else(|| Some(listener.accept().ok()?.0));
        guest.as_mut().is_some_and(|guest| guest.read(&mut [0]).is_ok_and(|n| n == 1))
    });
    let pid = context.pids()[0];
    let lives = || arena.members().iter().any(|member| member.pid == pid && member.live);
    assert!(lives(), "the process is a member");
    signal(pid, Signal::KILL);
    assert!(killed(&context));
    assert!(!lives(), "the process is declared dead when its end is reported");
    eventually_in_use(before, "resources of the dead process are released");
    drop(guest);
}

#[test]
fn killed_process_is_dead_despite_a_copys_files() {
    is_declared_dead(true);
}

#[test]
fn late_joiner_is_dead_despite_a_copys_files() {
    is_declared_dead(false);
}

#[test]
fn get_that_waits_for_an_ended_process_ends() {
    let _alone = alone();
    fn worker(_: usize, queue: Queue<u32>) -> Outcome {
        send(&queue, 7)
    }
    let queue = Queue::bounded(1).unwrap();
    let context = one_process(worker, queue.clone());
    assert_eq!(take(&queue), 7);
    join(&context).unwrap();
    let error = queue.get_timeout(SOON).unwrap_err();
    assert!(matches!(error, GetError::Deserted { pid, .. } if pid == context.pids()[0]), "{error:?}");
}

#[test]
fn wait_continues_while_another_process_has_a_handle() {
    let _alone = alone();
    let held = held_by(2);
    let before = Arena::current().unwrap().memory_stats().deaths;
    signal(held.context.pids()[0], Signal::KILL);
    eventually("the dead process is reclaimed", || Arena::current().unwrap().memory_stats().deaths > before);
    let error = held.queue.get_timeout(Duration::from_millis(300)).unwrap_err();
    assert!(error.is_empty(), "{error:?}");
    give(&held.go, ());
    assert!(matches!(held.queue.get_timeout(DEADLINE).unwrap_err(), GetError::Deserted { .. }));
    assert!(join(&held.context).is_err());
}

type Watched = (Queue<u32>, Queue<(usize, u32)>, Queue<String>);

/// Rank 0 waits for a message while signals interrupt it. Rank 1 holds the queue until it is killed.
fn interrupted_or_killed(rank: usize, (queue, ready, verdict): Watched) -> Outcome {
    send(&ready, (rank, std::process::id()))?;
    if rank == 1 {
        loop {
            std::thread::park();
        }
    }
    interrupts::allow();
    let waiter = std::thread::spawn(move || format!("{:?}", queue.get_timeout(DEADLINE)));
    eventually("the wait ends", || {
        interrupts::send(&waiter);
        waiter.is_finished()
    });
    send(&verdict, waiter.join().map_err(|_| "it panicked")?)
}

fn parent_of_both(_: usize, watched: Watched) -> Outcome {
    let context = start_processes(interrupted_or_killed, watched, SpawnOptions::nprocs(2))?;
    join(&context).map_or(Ok(()), |()| Err("one was to be killed".into()))
}

#[test]
fn signals_do_not_keep_a_waiter_from_noticing_a_death() {
    let _alone = alone();
    let (queue, ready, verdict) =
        (Queue::bounded(1).unwrap(), Queue::bounded(2).unwrap(), Queue::bounded(1).unwrap());
    let watched = (queue, ready.clone(), verdict.clone());
    let context = one_process(parent_of_both, watched);
    let mut pids = [take(&ready), take(&ready)];
    pids.sort_unstable();
    // The parent of the killed process would recover and reclaim it. This process would do so, too, if it
    // waited for the result. So the parent is stopped, and the waiter must do both alone.
    let parent = context.pids()[0];
    signal(parent, Signal::STOP);
    eventually("the parent is stopped", || threads_are(parent, 'T'));
    let killed = pids[1].1;
    signal(killed, Signal::KILL);
    let mut said = None;
    eventually("the waiter notices", || {
        said = verdict.try_get().ok();
        said.is_some()
    });
    signal(parent, Signal::CONT);
    let said = said.flatten().unwrap();
    assert!(
        said.contains("no other process has it any more") && said.contains(&format!("process {killed} ")),
        "{said}"
    );
    join(&context).unwrap();
}

fn square(_: usize, (jobs, results): (Queue<u64>, Queue<(u32, u64)>)) -> Outcome {
    while let Some(n) = next(&jobs)? {
        send(&results, (std::process::id(), n * n))?;
    }
    Ok(())
}

#[test]
fn stopped_consumer_delays_no_other_process() {
    let _alone = alone();
    let (jobs, results) = (Queue::bounded(8).unwrap(), Queue::bounded(8).unwrap());
    let context = start_processes(square, (jobs.clone(), results.clone()), SpawnOptions::nprocs(2)).unwrap();
    let stopped = context.pids()[0];
    for n in 0..4 {
        give(&jobs, n);
        take(&results);
    }
    signal(stopped, Signal::STOP);
    eventually("the process is stopped", || threads_are(stopped, 'T'));
    // The stopped consumer may hold one message. All others are delivered.
    const N: u64 = 2000;
    let mut got = Vec::new();
    for n in 0..N {
        give(&jobs, n);
        if n > 0 {
            got.push(take(&results));
        }
    }
    assert!(got.iter().skip(1).all(|(pid, _)| *pid != stopped), "a stopped process has answered");
    signal(stopped, Signal::CONT);
    got.push(take(&results));
    let mut squares: Vec<u64> = got.iter().map(|(_, square)| *square).collect();
    squares.sort_unstable();
    assert!(squares.into_iter().eq((0..N).map(|n| n * n)), "each result arrives once");
    jobs.close();
    join(&context).unwrap();
}

type Numbered = Queue<(u64, FrozenTensor<u64>)>;

/// Takes tensors, checks each, and sends another tensor for it.
fn relay(_: usize, (jobs, results): (Numbered, Numbered)) -> Outcome {
    while let Some((n, tensor)) = next(&jobs)? {
        if tensor.iter().any(|v| v != n) {
            return Err(format!("the tensor of message {n} holds {tensor}").into());
        }
        let more = Tensor::full([3000], n + 1)?.freeze();
        send(&results, (n, more))?;
    }
    Ok(())
}

#[test]
fn thirty_random_kills_leave_no_resources() {
    let _alone = alone();
    const WORKERS: usize = 3;
    const KILLS: u64 = 30;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    // Memory that the first started process allocates is never freed.
    join(&one_process(|_: usize, (): ()| {}, ())).unwrap();
    // If tensors are in files, a file exists from this point on.
    drop(Tensor::<u64>::zeros([700]).unwrap());
    let before = (in_use(), open_files());
    let (mut put, mut got, mut lost) = (0_u64, 0_u64, 0_u64);
    {
        let (jobs, results) = (Queue::bounded(4).unwrap(), Queue::bounded(4).unwrap());
        let start = || one_process(relay, (jobs.clone(), results.clone()));
        let mut workers: Vec<ProcessContext> = (0..WORKERS).map(|_| start()).collect();
        let mut expected = std::collections::BTreeSet::new();
        let mut receive = |expected: &mut std::collections::BTreeSet<u64>,
                           (n, tensor): (u64, FrozenTensor<u64>)| {
            assert!(expected.remove(&n), "message {n} arrived twice, or was never sent");
            assert!(tensor.iter().all(|v| v == n + 1), "message {n} is torn: {tensor}");
            got += 1;
        };
        for kill in 0..KILLS {
            // The loop makes some progress before each kill, so that the victim is at a random point of its
            // work.
            for _ in 0..20 + random(200) {
                let mut job = (put, Tensor::full([700], put).unwrap().freeze());
                expected.insert(put);
                put += 1;
                while let Err(error) = jobs.try_put(job) {
                    let PutError::Full(back) = error else { panic!("{error}") };
                    job = back;
                    if let Ok(Some(result)) = results.try_get() {
                        receive(&mut expected, result);
                    }
                }
            }
            let victim = random(WORKERS as u64) as usize;
            signal(workers[victim].pids()[0], Signal::KILL);
            let dead = std::mem::replace(&mut workers[victim], start());
            let error = mp_tests::failure(&dead);
            assert!(error.to_string().contains("SIGKILL"), "kill {kill}: {error}");
        }
        jobs.close();
        // The workers drain the queue, and end.
        let all_ended =
            |workers: &[ProcessContext]| workers.iter().all(|w| w.join_timeout(Duration::ZERO).unwrap());
        eventually("the workers end", || {
            while let Ok(Some(result)) = results.try_get() {
                receive(&mut expected, result);
            }
            all_ended(&workers)
        });
        while let Ok(Some(result)) = results.try_get() {
            receive(&mut expected, result);
        }
        lost += expected.len() as u64;
    }
    assert_eq!(got + lost, put);
    assert!(lost <= KILLS, "{lost} messages lost in {KILLS} kills");
    eventually("all memory is released", || {
        Arena::current().unwrap().reclaim().unwrap();
        in_use() == before.0
    });
    // The thread that watches a process closes its files shortly after the end of the process. This also
    // applies to the process before the first count.
    eventually("no file is left open", || open_files() <= before.1);
}
