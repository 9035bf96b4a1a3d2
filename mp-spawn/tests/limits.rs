//! Limits and leaks: resources that a process may use up, and resources that it leaves behind. Each test
//! measures its whole process, so each runs in a separate worker.
#![allow(unsafe_code)]

mod common;

use common::{LIFETIME, Meeting, Outcome, eventually, join, refuse, say, wait_for_the_end, wait_for_word};
use mp_spawn::{
    ExitStatus, OnFailure, Process, Signal, SpawnError, SpawnOptions, StartMethod, Stdio, Waitable,
    start_processes, wait,
};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn children() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of_task = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap();
    tasks.map(|task| of_task(task.unwrap())).collect::<String>().trim().to_string()
}

#[test]
fn two_hundred_spawns_leave_no_resources() {
    fn test(_: usize, (): ()) -> Outcome {
        let round = || mp_spawn::spawn(|_: usize, (): ()| {}, (), 1).map(drop);
        round()?;
        let before = open_files();
        for _ in 0..200 {
            round()?;
        }
        // The thread that watches a process closes its files with a delay, also those of the process before
        // the first count.
        eventually("no file is left", || open_files() <= before);
        assert_eq!(children(), "", "children are left");
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}

#[test]
fn failed_starts_leave_no_resources() {
    fn test(_: usize, (): ()) -> Outcome {
        mp_spawn::spawn(|_: usize, (): ()| {}, (), 1)?;
        let before = open_files();
        for _ in 0..50 {
            let options = SpawnOptions::nprocs(2).executable("/no/such/program");
            let error = start_processes(|_: usize, (): ()| {}, (), options).unwrap_err();
            assert!(error.to_string().contains("/no/such/program"), "{error}");
            assert!(matches!(error, SpawnError::Launch(_)), "{error:?}");
        }
        // The thread that watches a process closes its files with a delay, also those of the process before
        // the first count.
        eventually("no file is left", || open_files() <= before);
        assert_eq!(children(), "", "children are left");
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}

fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: the structure is valid for reads.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

#[test]
fn start_with_too_many_files_names_the_limit() {
    fn test(_: usize, (): ()) -> Outcome {
        limit(libc::RLIMIT_NOFILE, 64);
        let sleeper = |_: usize, (): ()| wait_for_the_end();
        let error = start_processes(sleeper, (), SpawnOptions::nprocs(100)).unwrap_err();
        assert!(error.to_string().contains("RLIMIT_NOFILE = 64"), "{error}");
        assert_eq!(children(), "", "children are left");
        // Starts within the limit still work.
        let context = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(8))?;
        assert!(context.join_timeout(LIFETIME)?);
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}

#[test]
fn start_without_free_descriptors_names_the_limit() {
    fn test(_: usize, (): ()) -> Outcome {
        // The supervisor can't be started.
        limit(libc::RLIMIT_NOFILE, open_files() as u64);
        let error = mp_spawn::spawn(|_: usize, (): ()| {}, (), 1).unwrap_err();
        assert!(error.to_string().contains("RLIMIT_NOFILE"), "{error}");
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}

#[test]
fn failure_reports_arrive_while_sigchld_is_ignored() {
    fn test(_: usize, (): ()) -> Outcome {
        // SAFETY: this installs no handler. The kernel then reaps children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        mp_spawn::spawn(|_: usize, (): ()| {}, (), 2)?;
        let error = mp_spawn::spawn(|_: usize, (): ()| panic!("received anyway"), (), 1).unwrap_err();
        assert!(error.to_string().contains("received anyway"), "{error}");
        let error = mp_spawn::spawn(|_: usize, (): ()| std::process::exit(3), (), 1).unwrap_err();
        assert!(error.to_string().contains("unknown"), "{error}");
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}

#[test]
fn closed_standard_streams_are_not_taken_by_sockets() {
    fn test(_: usize, meeting: String) -> Outcome {
        // Opens the library's own files first, so only the socket needs a number later.
        mp_spawn::spawn(|_: usize, (): ()| {}, (), 1)?;
        for fd in 0..3 {
            // SAFETY: nothing in this process uses the standard streams.
            unsafe { libc::close(fd) };
        }
        let child = |_: usize, meeting: String| -> Outcome {
            let targets: Vec<_> = (0..3)
                .map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")))
                .collect::<Result<_, _>>()?;
            say(&meeting, &format!("{targets:?}"))
        };
        mp_spawn::spawn(child, meeting, 1)?;
        Ok(())
    }
    let meeting = Meeting::new("streams");
    let context = start_processes(test, meeting.name.clone(), SpawnOptions::nprocs(1)).unwrap();
    let received = meeting.recv();
    assert_eq!(received.matches("/dev/null").count(), 3, "{received}");
    join(&context).unwrap();
}

#[test]
fn signals_of_the_parent_do_not_reach_the_child() {
    fn test(_: usize, (): ()) -> Outcome {
        // The process that started the tests may ignore some signals, which children would inherit.
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: this installs no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: this installs no handler.
        unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
        let mut blocked = std::mem::MaybeUninit::uninit();
        // SAFETY: the pointer is valid for writes.
        unsafe { libc::sigfillset(blocked.as_mut_ptr()) };
        // SAFETY: the set was initialised just now.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), std::ptr::null_mut()) };
        let child = |_: usize, (): ()| {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let field = |name| status.lines().find(|line| line.starts_with(name)).unwrap().to_string();
            let mask =
                |name| u64::from_str_radix(field(name).split_whitespace().nth(1).unwrap(), 16).unwrap();
            assert_eq!(mask("SigBlk:"), 0, "{status}");
            // Signals above 31 belong to the C library.
            assert_eq!(mask("SigIgn:") & 0x7fff_ffff, 1 << (libc::SIGPIPE - 1), "{status}");
        };
        mp_spawn::spawn(child, (), 1)?;
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}

#[test]
fn processes_work_without_pidfds() {
    fn test(_: usize, (error, clone3): (i32, bool)) -> Outcome {
        let third = if clone3 { libc::SYS_pidfd_open } else { libc::SYS_clone3 };
        refuse([libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal, third], error);
        let own = rustix::process::getpid();
        assert!(rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).is_err());
        let before = open_files();
        for method in [StartMethod::Spawn, StartMethod::ForkServer] {
            let options = |nprocs| SpawnOptions::nprocs(nprocs).start_method(method);
            let values = |rank: usize, (): ()| Ok::<_, String>(rank * 2);
            assert_eq!(start_processes(values, (), options(3))?.join()?, [0, 2, 4]);
            // A process that exits by itself, one that is killed, and one that obeys SIGTERM.
            let worker = |rank: usize, (): ()| -> Outcome {
                if rank == 0 { std::process::exit(3) } else { wait_for_the_end() }
            };
            let context = start_processes(worker, (), options(3).on_failure(OnFailure::Continue))?;
            eventually("the first has ended", || matches!(context.exit(0), Ok(Some(ExitStatus::Code(3)))));
            context.kill(1)?;
            context.terminate(2)?;
            assert!(matches!(context.join_timeout(LIFETIME), Err(SpawnError::ProcessExited(_))));
            let signal = |rank| match context.exit(rank) {
                Ok(Some(ExitStatus::Signal { signal, .. })) => signal,
                other => panic!("{other:?}"),
            };
            assert_eq!((signal(1), signal(2)), (Signal::KILL, Signal::TERM));
        }
        let child = Process::spawn(|(): ()| {}, ())?;
        assert_eq!(wait(&[&child as &dyn Waitable], Some(LIFETIME))?, [0]);
        child.join()?;
        // The remaining files belong to the fork server, to the threads that serve all starts, and to the
        // locker.
        eventually("no file is left", || open_files() <= before + 12);
        Ok(())
    }
    // The C library doesn't treat EPERM as the answer of a kernel without clone3.
    for how in [(libc::ENOSYS, true), (libc::EPERM, true), (libc::ENOSYS, false)] {
        join(&start_processes(test, how, SpawnOptions::nprocs(1)).unwrap()).unwrap();
    }
}

#[test]
fn refused_signal_is_an_error_of_kill_or_terminate() {
    fn test(_: usize, word: String) -> Outcome {
        let worker = |word: String| -> Outcome {
            wait_for_word(&word)?;
            // SAFETY: no memory is involved.
            unsafe { libc::raise(libc::SIGKILL) };
            Ok(())
        };
        let child = Process::spawn(worker, word.clone())?;
        refuse([libc::SYS_pidfd_send_signal, libc::SYS_kill, libc::SYS_kill], libc::EPERM);
        let error = child.kill().unwrap_err();
        let SpawnError::NotSignalled { who, signal, .. } = &error else { panic!("{error:?}") };
        assert_eq!((who.pid, *signal), (child.pid(), Signal::KILL));
        let text = error.to_string();
        assert!(text.contains("could not be sent SIGKILL: Operation not permitted"), "{text}");
        assert!(!text.contains("could not start") && error.who().is_some() && child.is_alive(), "{text}");
        eventually("the child waits for its word", || say(&word, "go on").is_ok());
        // The signal that ends it then is not sent by this process.
        let Err(SpawnError::ProcessExited(exited)) = child.join() else { panic!("{child:?}") };
        assert!(exited.exit == ExitStatus::Signal { signal: Signal::KILL, core_dumped: false }, "{exited}");
        assert_ne!(exited.detail, Some(mp_spawn::ExitDetail::Requested));
        Ok(())
    }
    let word = format!("mp-spawn-{}-refused-signal", std::process::id());
    join(&start_processes(test, word, SpawnOptions::nprocs(1)).unwrap()).unwrap();
}

/// Checks the state of a program that was started with several options.
fn finds_what_it_should() -> Outcome {
    // SAFETY: a command without an argument.
    let inherits = |fd: &i32| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == 0;
    let inherited = (0..1000).filter(inherits).count();
    let worker = |_: usize, inherited: usize| {
        print!("out");
        eprint!("err");
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let masks = status.lines().filter(|line| line.starts_with("SigBlk:") || line.starts_with("SigCgt:"));
        let masks: Vec<u64> = masks.map(|line| u64::from_str_radix(line[7..].trim(), 16).unwrap()).collect();
        // SAFETY: this installs no handler.
        let usual = unsafe { libc::signal(libc::SIGUSR1, libc::SIG_DFL) } == libc::SIG_DFL;
        let args: Vec<String> = std::env::args().skip(1).collect();
        assert_eq!((&*std::env::var("COLOUR").unwrap(), args), ("green", vec!["an argument".to_owned()]));
        assert!(usual && masks.iter().all(|mask| mask & (1 << (libc::SIGUSR1 - 1)) == 0), "{status}");
        // The worker's socket, its lifeline, the shared memory, and the directory that is being read.
        assert_eq!(open_files(), inherited + 4);
    };
    extern "C" fn handler(_: libc::c_int) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
    let context = start_processes(
        worker,
        inherited,
        SpawnOptions::nprocs(1)
            .command([std::env::current_exe()?.into_os_string(), "an argument".into()])
            .env("COLOUR", "green")
            .stdout(Stdio::Capture)
            .stderr(Stdio::Capture),
    )?;
    join(&context)?;
    let [out, err] = [context.stdout(0)?, context.stderr(0)?].map(|captured| captured.text());
    assert_eq!((&*out, &*err), ("out", "err"));
    // A file that exists and can't be executed.
    let error = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1).executable("/etc/passwd"))
        .unwrap_err();
    assert!(error.to_string().contains("of /etc/passwd failed: Permission denied"), "{error}");
    Ok(())
}

#[test]
fn processes_work_without_clone3() {
    fn test(_: usize, refused: bool) -> Outcome {
        if refused {
            refuse([libc::SYS_clone3; 3], libc::ENOSYS);
        }
        let before = (finds_what_it_should()?, open_files()).1;
        finds_what_it_should()?;
        eventually("no file is left", || open_files() <= before);
        assert_eq!(children(), "", "children are left");
        Ok(())
    }
    for refused in [false, true] {
        join(&start_processes(test, refused, SpawnOptions::nprocs(1)).unwrap()).unwrap();
    }
}

/// A child that shares its parent's memory would run the parent's handlers in the wrong process.
#[test]
fn parents_signal_handlers_do_not_run_in_a_child() {
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};

    static OWN: AtomicI32 = AtomicI32::new(0);
    static HERE: AtomicU32 = AtomicU32::new(0);
    static ELSEWHERE: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handler(_: libc::c_int) {
        // SAFETY: it has no preconditions.
        let here = unsafe { libc::getpid() } == OWN.load(SeqCst);
        if here { &HERE } else { &ELSEWHERE }.fetch_add(1, SeqCst);
    }

    fn test(_: usize, (): ()) -> Outcome {
        // A separate group, to which it can send signals.
        rustix::process::setpgid(None, None)?;
        OWN.store(rustix::process::getpid().as_raw_nonzero().get(), SeqCst);
        // SAFETY: the handler only touches atomics.
        unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    // SAFETY: to its own group.
                    unsafe { libc::kill(0, libc::SIGUSR1) };
                }
            });
            let killed = (0..50).filter(|_| {
                let died = mp_spawn::spawn(|_: usize, (): ()| wait_for_the_end(), (), 1);
                died.map_err(|died| died.to_string())
                    .is_err_and(|died| died.contains("SIGUSR1") && !died.contains("Only a program"))
            });
            let killed = killed.count();
            done.store(true, SeqCst);
            // A process without a handler is ended by the signal.
            assert_eq!((killed, ELSEWHERE.load(SeqCst)), (50, 0));
            assert!(HERE.load(SeqCst) > 50);
        });
        Ok(())
    }
    join(&start_processes(test, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}
