//! A program that was told to survive the end of its terminal: so do its workers.
#![allow(unsafe_code)]

mod common;

use common::{Outcome, join};
use mp_spawn::{Options, StartMethod, allow_fork, start_processes};

/// The signals that this thread's process ignores; those above 31 belong to the C library.
fn ignored() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    (1..=31).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

#[test]
fn what_nohup_ignores_workers_ignore() {
    fn test(_: usize, (): ()) -> Outcome {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            // SAFETY: this installs no handler.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        // SAFETY: this process has one thread besides those of the library.
        unsafe { allow_fork() };
        for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
            let worker = |_: usize, (): ()| Ok::<_, String>(ignored());
            let seen = start_processes(worker, (), Options::nprocs(1).start_method(method))?.join()?;
            // Without the first two, the terminal's end or Ctrl-C would end it; with SIGTERM, `terminate` would not.
            assert_eq!(seen, [[libc::SIGHUP, libc::SIGINT, libc::SIGPIPE]], "{method:?}");
        }
        Ok(())
    }
    join(&start_processes(test, (), Options::nprocs(1)).unwrap()).unwrap();
}
