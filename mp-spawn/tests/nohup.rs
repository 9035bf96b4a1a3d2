//! Programs that ignore signals: programs that survive the end of their terminal, and programs for which the
//! kernel reaps their children.
#![allow(unsafe_code)]

mod common;

use common::{Outcome, join};
use mp_spawn::{ExitStatus, SpawnError, SpawnOptions, StartMethod, allow_fork, start_processes};

/// Returns the signals that the process of this thread ignores. Signals above 31 belong to the C library.
fn ignored() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    (1..=31).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

#[test]
fn workers_inherit_signals_ignored_by_nohup() {
    fn test(_: usize, (): ()) -> Outcome {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            // SAFETY: this installs no handler.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        // The process that started the tests may ignore SIGQUIT.
        // SAFETY: this installs no handler.
        unsafe { libc::signal(libc::SIGQUIT, libc::SIG_DFL) };
        // SAFETY: this process has one thread in addition to the library's threads.
        unsafe { allow_fork() };
        for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
            let worker = |_: usize, (): ()| Ok::<_, String>(ignored());
            let seen = start_processes(worker, (), SpawnOptions::nprocs(1).start_method(method))?.join()?;
            // If SIGHUP and SIGINT were not ignored, the end of the terminal or Ctrl-C would end the worker.
            // If SIGTERM were, `terminate` would not.
            assert_eq!(seen, [[libc::SIGHUP, libc::SIGINT, libc::SIGPIPE]], "{method:?}");
        }
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}

/// The exit status of children is unknown in this case, but their ends and their messages are detected.
#[test]
fn results_arrive_while_sigchld_is_ignored() {
    fn test(_: usize, (): ()) -> Outcome {
        // SAFETY: this installs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        for method in [StartMethod::Spawn, StartMethod::ForkServer] {
            let options = || SpawnOptions::nprocs(1).start_method(method);
            for _ in 0..20 {
                let value = |_: usize, (): ()| Ok::<_, String>(5);
                assert_eq!(start_processes(value, (), options())?.join()?, [5]);
                let exit = |_: usize, (): ()| -> Outcome { std::process::exit(3) };
                let error = start_processes(exit, (), options())?.join().unwrap_err();
                assert!(
                    matches!(&error, SpawnError::ProcessExited(e) if e.exit == ExitStatus::Unknown),
                    "{error:?}"
                );
                assert!(error.to_string().contains("unknown exit status"), "{error}");
            }
        }
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}
