//! Ctrl-C, which the terminal sends to all processes of a program: the fork server, and the process that it
//! has made in advance, survive it as long as their program does. Each test runs in a separate process and
//! process group.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{alone, eventually, next_worker, server, signal};
use mp_spawn::{
    ExitStatus, Process, SpawnError, SpawnOptions, StartMethod, set_forkserver_preload, start_processes,
};

static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    INTERRUPTS.fetch_add(1, Ordering::SeqCst);
}

/// Puts this process into a new process group, and handles Ctrl-C.
fn handle_interrupts() {
    rustix::process::setpgid(None, None).unwrap();
    // SAFETY: the handler only touches an atomic.
    unsafe { libc::signal(libc::SIGINT, count as *const () as libc::sighandler_t) };
    heed_quit();
}

/// Resets SIGQUIT to its default effect. Programs that a shell runs in the background ignore this signal.
fn heed_quit() {
    // SAFETY: this installs no handler.
    unsafe { libc::signal(libc::SIGQUIT, libc::SIG_DFL) };
}

/// Sends the signal that a terminal sends at Ctrl-C.
fn press_ctrl_c() {
    let before = INTERRUPTS.load(Ordering::SeqCst);
    // SAFETY: to the group of this process.
    assert_eq!(unsafe { libc::kill(0, libc::SIGINT) }, 0);
    eventually("the handler ran", || INTERRUPTS.load(Ordering::SeqCst) > before);
}

/// Returns `true` for each of SIGINT and SIGQUIT that this process ignores.
fn ignored((): ()) -> Result<[bool; 2], String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).ok_or("no such line")?;
    let mask = u64::from_str_radix(line.trim(), 16).map_err(|error| error.to_string())?;
    Ok([libc::SIGINT, libc::SIGQUIT].map(|signal| mask & (1 << (signal - 1)) != 0))
}

fn served() -> SpawnOptions {
    SpawnOptions::nprocs(2).start_method(StartMethod::ForkServer)
}

#[test]
fn fork_server_and_its_next_process_survive_ctrl_c() {
    alone(|()| {
        handle_interrupts();
        let single = || Process::builder().start_method(StartMethod::ForkServer).spawn(ignored, ()).unwrap();
        assert_eq!(single().join().unwrap(), [false, false]);
        let (server_before, next) = (server(), next_worker());
        press_ctrl_c();
        let used = single();
        assert_eq!(used.pid(), next, "the prepared process still waits");
        // Ctrl-C has its default effect on this worker, as on processes of other start methods.
        assert_eq!(used.join().unwrap(), [false, false]);
        press_ctrl_c();
        let context = start_processes(|rank: usize, (): ()| Ok::<_, String>(rank), (), served()).unwrap();
        assert_eq!(context.join().unwrap(), [0, 1]);
        assert_eq!(server(), server_before);
    });
}

#[test]
fn ctrl_c_ends_workers_of_a_parent_with_a_handler() {
    alone(|()| {
        handle_interrupts();
        for method in [StartMethod::Spawn, StartMethod::ForkServer] {
            let (name, meeting) = {
                let meeting = common::Meeting::new(&format!("interrupted-{method}"));
                (meeting.name.clone(), meeting)
            };
            let waits = |name: String| common::say(&name, "here").and_then(|()| common::wait_for_the_end());
            let child = Process::builder().start_method(method).spawn(waits, name).unwrap();
            meeting.recv();
            press_ctrl_c();
            let error = child.join().unwrap_err();
            let SpawnError::ProcessExited(exited) = &error else { panic!("{method}: {error:?}") };
            assert!(
                matches!(exited.exit, ExitStatus::Signal { signal, .. } if signal.number() == libc::SIGINT)
            );
        }
    });
}

#[test]
fn workers_inherit_ignored_ctrl_c() {
    alone(|()| {
        // SAFETY: this installs no handler.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        heed_quit();
        for method in [StartMethod::Spawn, StartMethod::ForkServer] {
            let child = Process::builder().start_method(method).spawn(ignored, ()).unwrap();
            assert_eq!(child.join().unwrap(), [true, false], "{method}");
        }
    });
}

#[test]
fn preloading_fork_server_survives_ctrl_c() {
    alone(|()| {
        handle_interrupts();
        // The signal is sent to the whole group, the server's parent included.
        set_forkserver_preload(|| {
            // SAFETY: to the group of this process.
            assert_eq!(unsafe { libc::kill(0, libc::SIGINT) }, 0);
        })
        .unwrap();
        start_processes(|_: usize, (): ()| {}, (), served()).unwrap().join().unwrap();
        assert!(INTERRUPTS.load(Ordering::SeqCst) > 0);
    });
}

#[test]
fn repeatedly_killed_fork_server_is_always_replaced() {
    alone(|()| {
        for round in 0..4 {
            let single = Process::builder().start_method(StartMethod::ForkServer).spawn(|(): ()| {}, ());
            single.unwrap().join().unwrap();
            let old = server();
            signal(old, if round % 2 == 0 { libc::SIGKILL } else { libc::SIGTERM });
            if round < 2 {
                // Otherwise the start itself may detect the death.
                eventually("the server is dead", || !common::alive(old));
            }
            start_processes(|_: usize, (): ()| {}, (), served()).unwrap().join().unwrap();
            eventually("the dead server is reaped", || common::children().iter().all(|pid| *pid != old));
        }
    });
}
