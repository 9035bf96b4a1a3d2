//! Shutdown of a manager, explicit or by drop, while calls run. Ctrl-C does not end a manager.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, alive, eventually, made, manager, noisy, signal, take};
use mp_manager::{CallError, Manager, ManagerError};
use mp_spawn::{Process, StartMethod, closure};
use rustix::process::Signal;

#[test]
fn manager_shutdown_waits_for_calls_and_drops_objects() {
    let manager = manager();
    let (object, dropped) = noisy(&manager);
    let (idle, idle_dropped) = noisy(&manager);
    let gate = Gate::new();
    let (server, handle) = (manager.server_pid(), manager.handle());
    thread::scope(|threads| {
        let stop = closure!([gate = gate.clone()] |object: &mut common::Noisy| {
            gate.pass();
            object.value += 1;
            object.value
        });
        let running = threads.spawn(|| object.call(stop));
        gate.arrived();
        let waiting = threads.spawn(|| object.call(closure!([] |object: &mut common::Noisy| object.value)));
        let ending = threads.spawn(move || manager.shutdown(DEADLINE));
        // Idle objects are dropped while a call runs. The object of the running call is dropped after the
        // call.
        take(&idle_dropped);
        gate.open(1);
        assert_eq!(running.join().unwrap().unwrap(), 1);
        let waited = waiting.join().unwrap();
        assert!(matches!(waited, Err(CallError::ServerGone { .. })), "{waited:?}");
        ending.join().unwrap().unwrap();
    });
    take(&dropped);
    assert!(!alive(server));
    assert!(idle.call(closure!([] |idle: &mut common::Noisy| idle.value)).unwrap_err().is_server_gone());
    assert!(handle.create(|| 1).unwrap_err().is_server_gone());
}

#[test]
fn shutdown_kills_manager_server_during_a_long_call() {
    let manager = manager();
    let object = made(&manager, closure!([] || 0_u32));
    let gate = Gate::new();
    thread::scope(|threads| {
        let stop = closure!([gate = gate.clone()] |_object: &mut u32| gate.pass());
        let running = threads.spawn(|| object.call(stop));
        let server = gate.arrived();
        let begin = Instant::now();
        manager.shutdown(Duration::from_millis(10)).unwrap();
        assert!(begin.elapsed() < DEADLINE / 2 && !alive(server));
        assert!(running.join().unwrap().unwrap_err().is_server_gone());
    });
}

#[test]
fn shutdown_kills_stopped_manager_server_after_grace() {
    let manager = manager();
    let server = manager.server_pid();
    signal(server, Signal::STOP);
    eventually("the process is stopped", || mp_core::waits::is_stopped(server));
    let given = Duration::from_millis(100);
    let error = manager.shutdown(given).unwrap_err();
    assert!(matches!(error, ManagerError::Killed { grace, .. } if grace == given), "{error}");
    assert!(!alive(server));
}

#[test]
fn dropped_manager_ends_its_server() {
    let manager = manager();
    let (object, dropped) = noisy(&manager);
    let server = manager.server_pid();
    drop(manager);
    assert!(!alive(server));
    take(&dropped);
    assert!(object.free().unwrap_err().is_server_gone());
}

static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    INTERRUPTS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn manager_server_survives_ctrl_c() {
    let test = |(): ()| {
        rustix::process::setpgid(None, None).unwrap();
        // SAFETY: the handler only touches an atomic.
        unsafe { libc::signal(libc::SIGINT, count as *const () as libc::sighandler_t) };
        let manager = Manager::start().unwrap();
        let object = made(&manager, closure!([] || 0_u32));
        for round in 1..=3 {
            // SAFETY: sends to the group of this process.
            assert_eq!(unsafe { libc::kill(0, libc::SIGINT) }, 0);
            assert_eq!(object.call(closure!([] |n: &mut u32| { *n += 1; *n })).unwrap(), round);
        }
        assert!(INTERRUPTS.load(Ordering::SeqCst) > 0);
        manager.shutdown(DEADLINE).unwrap();
    };
    let alone = Process::builder().start_method(StartMethod::Spawn).spawn(test, ()).unwrap();
    assert!(alone.wait_timeout(2 * DEADLINE), "{alone:?}");
    alone.join().unwrap();
}
