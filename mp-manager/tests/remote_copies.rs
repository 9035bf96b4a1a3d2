//! Forks of a program that is connected to a manager's server. The forks have copies of the program's
//! sockets. Also a stopped server.
#![cfg(feature = "authkey")]
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::served::{KEY, Served};
use common::{DEADLINE, Gate, Noisy, eventually, kill, signal, take, threads_are};
use mp_manager::{CallError, Methods, RemoteManager};
use mp_queue::Queue;
use mp_spawn::{Process, closure};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

/// Starts a server in which the gate stops the constructor if its argument is 0.
fn served(test: &str) -> Served {
    Served::new(test, |dropped, gate| {
        let (reported, stop) = (dropped.clone(), gate.clone());
        Methods::<Noisy>::of("Noisy")
            .constructor(closure!([reported, stop] |value: u64| {
                if value == 0 { stop.pass() }
                Noisy { value, dropped: reported.clone() }
            }))
            .method("value", closure!([] |noisy: &mut Noisy| noisy.value))
    })
}

impl Served {
    /// Returns the number of voluntary sleeps of each thread of the server whose name is `name`, or `name`
    /// and a number.
    fn sleeps(&self, name: &str) -> Vec<u64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.manager.server_pid())).unwrap().flatten();
        let tasks = tasks.filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|found| {
                found.trim().strip_prefix(name).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
            })
        });
        let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
        let sleeps = |status: String| {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse().unwrap()
        };
        tasks.filter_map(status).map(sleeps).collect()
    }

    fn connections(&self) -> usize {
        self.sleeps("connection").len()
    }

    fn stop(&self) {
        signal(self.manager.server_pid(), Signal::STOP);
        eventually("the process is stopped", || threads_are(self.manager.server_pid(), 'T'));
    }

    fn go_on(&self) {
        signal(self.manager.server_pid(), Signal::CONT);
    }
}

/// Forks this process and calls `run` in the fork, which exits after some time unless it is killed before.
fn copied(run: impl FnOnce() -> bool) -> u32 {
    // SAFETY: the fork uses only copied memory, and ends without destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends this process after a time.
        unsafe { libc::alarm(120) };
        let code = if mp_core::user_code::catch_panic(run) == Some(true) { 7 } else { 8 };
        // SAFETY: ends this process.
        unsafe { libc::_exit(code) };
    }
    u32::try_from(pid).unwrap()
}

/// Fork that does nothing until it is dropped.
struct Copy(u32);

impl Copy {
    fn new() -> Copy {
        Copy(copied(|| {
            loop {
                thread::park();
            }
        }))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        kill(self.0);
        _ = waitpid(Pid::from_raw(self.0.cast_signed()), WaitOptions::empty());
    }
}

/// Waits until the fork exits, and returns its result.
fn says(pid: u32) -> bool {
    let mut ended = None;
    let in_time = mp_core::user_code::catch_panic(|| {
        eventually("the copy ends", || {
            ended = waitpid(Pid::from_raw(pid.cast_signed()), WaitOptions::NOHANG).unwrap();
            ended.is_some()
        });
    });
    if in_time.is_none() {
        drop(Copy(pid));
    }
    ended.is_some_and(|(_, status)| status.exit_status() == Some(7))
}

#[test]
fn object_created_too_late_is_freed_despite_a_fork() {
    let served = served("late");
    drop(served.create(5)); // the connection is idle after this
    served.one_is_dropped();
    let _copy = Copy::new();
    let hasty = served.remote.clone().with_timeout(Duration::from_millis(20));
    assert!(matches!(hasty.create("Noisy", 0_u64).unwrap_err(), CallError::TimedOut { .. }));
    served.gate.arrived();
    served.gate.open(1);
    served.one_is_dropped();
}

#[test]
fn dropped_manager_session_ends_despite_a_forked_copy() {
    let served = served("dropped");
    let before = served.connections();
    let remote = RemoteManager::connect(&*served.address, KEY).unwrap();
    let object = remote.create("Noisy", 1_u64).unwrap();
    let _copy = Copy::new();
    drop((remote, object));
    served.one_is_dropped();
    eventually("the connections end", || served.connections() == before);
}

#[test]
fn killed_program_frees_objects_despite_a_forked_copy() {
    let served = served("killed");
    let before = served.connections();
    let copies = Queue::<u32>::unbounded().unwrap();
    let program = |(address, copies, killed): (String, Queue<u32>, Gate)| {
        let remote = RemoteManager::connect(address, KEY).unwrap();
        let _object = remote.create("Noisy", 7_u64).unwrap();
        let copy = Copy::new();
        copies.put(copy.0).unwrap();
        killed.pass();
    };
    let killed = Gate::new();
    let program = Process::spawn(program, (served.address.clone(), copies.clone(), killed.clone())).unwrap();
    let copy = take(&copies);
    program.kill().unwrap();
    let given_up = mp_core::user_code::catch_panic(|| {
        served.one_is_dropped();
        eventually("the connections end", || served.connections() == before);
    });
    assert!(common::alive(copy), "the copy is still alive");
    kill(copy);
    assert!(given_up.is_some());
}

#[test]
fn remote_object_calls_in_a_forked_copy_are_errors() {
    let served = served("asks");
    let object = served.create(4);
    served.stop();
    // This thread holds a lock of the session most of the time, because each request times out at once and
    // its handle is reported as dropped.
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let hasty = served.remote.clone().with_timeout(Duration::ZERO);
        let over = &over;
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                assert!(hasty.get("none").is_err());
            }
        });
        let all = (0..100).all(|_| {
            let (remote, object) = (served.remote.clone(), object.clone());
            says(copied(move || {
                let is_copy = |error: &CallError| error.to_string().contains("forked copy");
                let asked = remote.get("none").is_err_and(|error| is_copy(&error));
                let called = object.call::<u64>("value", ()).is_err_and(|error| is_copy(&error));
                drop((remote, object));
                asked && called
            }))
        });
        over.store(true, Ordering::Relaxed);
        assert!(all);
    });
    served.go_on();
    assert_eq!(object.call::<u64>("value", ()).unwrap(), 4);
}

#[test]
fn many_proxies_wait_once_for_a_stopped_server() {
    let served = served("wait");
    let wait = Duration::from_millis(500);
    let object = served.create(4).with_timeout(wait);
    let queue = Queue::unbounded().unwrap();
    served.stop();
    let began = Instant::now();
    for _ in 0..100 {
        assert!(queue.put(object.clone()).is_err());
    }
    // Without the rule, each proxy would wait for `wait`.
    assert!(began.elapsed() < 100 * wait / 2, "{:?}", began.elapsed());
    served.go_on();
    // After the server has answered, shares are requested again.
    assert_eq!(object.clone().with_timeout(DEADLINE).call::<u64>("value", ()).unwrap(), 4);
    queue.put(object.with_timeout(DEADLINE)).unwrap();
    assert_eq!(take(&queue).call::<u64>("value", ()).unwrap(), 4);
}

#[test]
fn server_connection_threads_sleep_while_idle() {
    let served = served("sleep");
    let (object, queue) = (served.create(1), Queue::unbounded().unwrap());
    (0..20).for_each(|_| queue.put(object.clone()).unwrap());
    let all = || served.sleeps("connection");
    // Only the thread of an object wakes up periodically.
    let looks = || served.sleeps("object-").into_iter().max().unwrap_or(0);
    let mut before = Vec::new();
    eventually("all threads wait", || std::mem::replace(&mut before, all()) == all());
    let (before, began) = (all(), looks());
    eventually("some time is over", || looks() > began + 5);
    assert_eq!((all(), before.len()), (before, 22));
    // The end of the manager ends the threads of connections.
    let Served { manager, .. } = served;
    let began = Instant::now();
    manager.shutdown(DEADLINE).unwrap();
    assert!(began.elapsed() < DEADLINE, "the shutdown has waited for the threads");
    assert!(object.call::<u64>("value", ()).unwrap_err().is_server_gone());
}
