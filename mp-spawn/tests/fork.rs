//! Processes that are copies of the process that starts them. Each test runs in a separate process, whose
//! main thread starts the copies unless stated otherwise.
#![allow(unsafe_code)]

mod common;

use std::io::Write;
use std::os::unix::process::parent_id;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{
    DEADLINE, Folder, Meeting, Outcome, alive, children, eventually, failure, join, say, signal,
    wait_for_the_end,
};
use mp_spawn::{
    ExitDetail, ExitStatus, Process, Signal, SpawnError, SpawnOptions, StartMethod, Stdio, active_children,
    allow_fork, current_process, get_context, get_start_method, name, rank, set_start_method,
    start_processes,
};

fn forked(nprocs: usize) -> SpawnOptions {
    SpawnOptions::nprocs(nprocs).start_method(StartMethod::Fork)
}

/// Allows copies of a test's own process and of the processes that it starts.
fn allow() {
    // SAFETY: code of these tests in copies needs no state of other threads, and nothing that must be unique.
    unsafe { allow_fork() };
}

/// Runs a test in a separate process, which may be copied.
fn alone<F: Fn(()) + Copy + Send + 'static>(test: F) {
    let test = move |(): ()| {
        allow();
        test(());
    };
    let child = Process::builder().start_method(StartMethod::Spawn).spawn(test, ()).unwrap();
    assert!(child.wait_timeout(2 * DEADLINE), "{child:?}");
    child.join().unwrap();
}

/// Returns the open files of this process.
fn files() -> Vec<String> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut links: Vec<_> =
        all.filter_map(|fd| Some(std::fs::read_link(fd.ok()?.path()).ok()?.display().to_string())).collect();
    links.sort();
    links
}

#[test]
fn fork_without_permission_is_refused() {
    // Not `alone`, which allows copies. Here they are not allowed, and no process is copied.
    let test = |(): ()| {
        let error = start_processes(|_: usize, (): ()| {}, (), forked(1)).unwrap_err();
        assert!(matches!(error, SpawnError::ForkRefused(_)), "{error:?}");
        assert!(error.to_string().contains("has not called `allow_fork`"), "{error}");
        set_start_method("fork".parse().unwrap());
        let error = Process::spawn(|(): ()| {}, ()).unwrap_err();
        assert!(matches!(error, SpawnError::ForkRefused(_)), "{error:?}");
        assert!(children().is_empty());
    };
    Process::builder().start_method(StartMethod::Spawn).spawn(test, ()).unwrap().join().unwrap();
}

#[test]
fn fork_refusal_names_its_reason() {
    alone(|()| {
        mp_core::fork::forbid("a driver has been used");
        let error = start_processes(|_: usize, (): ()| {}, (), forked(1)).unwrap_err();
        assert!(matches!(error, SpawnError::ForkRefused("a driver has been used")), "{error:?}");
        // Starting another process is allowed.
        start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1)).unwrap().join().unwrap();
    });
}

#[test]
fn forked_copy_inherits_state_and_is_its_own_worker() {
    static TABLE: OnceLock<Vec<usize>> = OnceLock::new();
    thread_local!(static LOCAL: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    alone(|()| {
        TABLE.set((0..100).collect()).unwrap();
        LOCAL.set(7);
        let who = |rank: usize, base: usize| {
            let current = current_process();
            assert_eq!((current.rank, current.daemon, current.pid), (Some(rank), false, std::process::id()));
            assert_eq!((mp_spawn::rank(), name()), (Some(rank), Some(&*format!("copy-{rank}"))));
            assert_eq!(std::env::var("WHICH"), Ok(rank.to_string()));
            assert!(active_children().is_empty(), "siblings of a copy are not its children");
            let local = LOCAL.get();
            Ok::<_, String>((
                base + TABLE.get().ok_or("no table")?[rank],
                std::process::id(),
                parent_id(),
                local,
            ))
        };
        let options = forked(5).name("copy").per_rank(|rank, setup| setup.env("WHICH", rank.to_string()));
        let context = start_processes(who, 10, options).unwrap();
        let pids = context.pids();
        let all = context.join().unwrap();
        for (rank, &found) in all.iter().enumerate() {
            assert_eq!(found, (10 + rank, pids[rank], std::process::id(), 7));
        }
        assert!(children().is_empty(), "all copies were reaped");
        assert_eq!((rank(), std::env::var("WHICH").ok()), (None, None), "the original is unchanged");
    });
}

#[test]
fn each_kind_of_end_of_a_forked_worker_is_reported() {
    fn fail(how: usize, (): ()) -> Result<(), String> {
        match how {
            0 => Err("an error".to_string()),
            1 => panic!("a panic"),
            2 => std::process::exit(7),
            3 => std::process::abort(),
            _ => {
                overflow(0);
                Ok(())
            }
        }
    }
    #[allow(unconditional_recursion)]
    fn overflow(depth: u64) {
        let room = std::hint::black_box([depth; 512]);
        overflow(depth + 1);
        std::hint::black_box(room);
    }
    fn check() {
        let results = start_processes(fail, (), forked(5).stderr(Stdio::Capture)).unwrap();
        let results = results.results().unwrap();
        let texts: Vec<_> = results.iter().map(|result| result.as_ref().unwrap_err().to_string()).collect();
        assert!(texts[0].contains("failed: an error"), "{texts:?}");
        assert!(texts[1].contains("panicked: a panic\n  at mp-spawn/tests/fork.rs:"), "{texts:?}");
        let exited = |rank: usize| match &results[rank] {
            Err(SpawnError::ProcessExited(exited)) => (exited.exit, exited.detail.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!(exited(2).0, ExitStatus::Code(7));
        assert!(
            matches!(exited(3).0, ExitStatus::Signal { signal, .. } if signal.name() == "SIGABRT"),
            "{texts:?}"
        );
        assert!(
            matches!(exited(4).0, ExitStatus::Signal { signal, .. } if signal.name() == "SIGSEGV"),
            "{texts:?}"
        );
        assert!(matches!(exited(4).1, Some(ExitDetail::StackOverflow { .. })), "{texts:?}");
    }
    alone(|()| {
        check();
        // Starts from another thread, which does not exist in the copies.
        std::thread::spawn(check).join().unwrap();
        assert!(children().is_empty());
    });
}

#[test]
fn forked_copy_runs_no_exit_function_of_the_original() {
    static FOLDER: OnceLock<String> = OnceLock::new();
    extern "C" fn note() {
        let name = format!("{}/original-{}", FOLDER.get().unwrap(), std::process::id());
        std::fs::write(name, "").unwrap();
    }
    extern "C" fn note_own() {
        let name = format!("{}/own-{}", FOLDER.get().unwrap(), std::process::id());
        std::fs::write(name, "").unwrap();
    }
    let folder = Folder::new("at-exit");
    let work = |path: String| {
        FOLDER.set(path).unwrap();
        // SAFETY: the function lives as long as the program.
        unsafe { libc::atexit(note) };
        // A process that is waited for at exit, and another that is ended.
        let _lives = Process::builder().daemon(true).spawn(|(): ()| wait_for_the_end(), ()).unwrap();
        let copies = start_processes(
            |rank: usize, (): ()| {
                print!("copy {rank} ");
                // SAFETY: as above.
                unsafe { libc::atexit(note_own) };
                if rank == 1 {
                    std::process::exit(0);
                }
            },
            (),
            forked(2).stdout(Stdio::Capture),
        )
        .unwrap();
        copies.wait().unwrap();
        assert_eq!(
            (copies.stdout(0).unwrap().text(), copies.stdout(1).unwrap().text()),
            ("copy 0 ".into(), "copy 1 ".into())
        );
        // The process was not ended, and no process waited for it without result.
        assert_eq!(active_children().len(), 1);
        (std::process::id(), copies.pids())
    };
    let work = move |path: String| {
        allow();
        Ok::<_, String>(work(path))
    };
    let path = folder.0.display().to_string();
    let child = Process::builder().start_method(StartMethod::Spawn).spawn(work, path).unwrap();
    let (original, copies) = child.join().unwrap();
    let mut noted: Vec<_> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    noted.sort();
    let mut expected: Vec<_> = copies.iter().map(|pid| format!("own-{pid}")).collect();
    expected.push(format!("original-{original}"));
    expected.sort();
    assert_eq!(noted, expected);
}

#[test]
fn output_buffered_before_a_fork_is_printed_once() {
    let test = |(): ()| {
        allow();
        // Without a newline, so it stays in the buffer.
        print!("before ");
        let copies = start_processes(|rank: usize, (): ()| print!("copy-{rank} "), (), forked(1)).unwrap();
        copies.wait().unwrap();
        // The next copy is made by another thread.
        print!("between ");
        let start = || start_processes(|rank: usize, (): ()| print!("other-{rank} "), (), forked(1));
        std::thread::spawn(start).join().unwrap().unwrap().wait().unwrap();
        print!("after");
    };
    let child = Process::builder().start_method(StartMethod::Spawn).stdout(Stdio::Capture);
    let child = child.spawn(test, ()).unwrap();
    assert!(child.wait_timeout(DEADLINE));
    assert_eq!(child.stdout().text(), "before copy-0 between other-0 after");
    child.join().unwrap();
}

#[test]
fn forked_copy_has_no_signal_handlers_of_its_original() {
    static CAUGHT: AtomicBool = AtomicBool::new(false);
    extern "C" fn catch(_: i32) {
        CAUGHT.store(true, Ordering::Relaxed);
    }
    alone(|()| {
        // SAFETY: the handler stores an atomic.
        unsafe { libc::signal(libc::SIGTERM, catch as *const () as usize) };
        let copy = start_processes(|_: usize, (): ()| wait_for_the_end(), (), forked(1)).unwrap();
        copy.terminate(0).unwrap();
        eventually("the copy ends", || copy.exit(0).unwrap().is_some());
        assert!(matches!(copy.exit(0).unwrap(), Some(ExitStatus::Signal { signal: Signal::TERM, .. })));
        // The handler of this process is still installed.
        signal(std::process::id(), libc::SIGTERM);
        eventually("the signal is caught", || CAUGHT.load(Ordering::Relaxed));
    });
}

#[test]
fn forked_copy_survives_its_starting_thread() {
    alone(|()| {
        let start = || start_processes(|_: usize, (): ()| wait_for_the_end(), (), forked(2));
        let copies = std::thread::spawn(start).join().unwrap().unwrap();
        let pids = copies.pids();
        // The copy would have been killed with the thread. To make that visible, another copy begins and ends
        // meanwhile.
        start_processes(|_: usize, (): ()| {}, (), forked(1)).unwrap().join().unwrap();
        assert!(pids.iter().all(|pid| alive(*pid)));
        copies.kill(0).unwrap();
        let error = failure(&copies);
        assert!(
            matches!(&error, SpawnError::ProcessExited(e) if e.detail == Some(ExitDetail::Requested)),
            "{error:?}"
        );
        eventually("both copies have ended", || !pids.iter().any(|pid| alive(*pid)));
    });
}

#[test]
fn forked_copies_start_processes_by_every_method() {
    alone(|()| {
        let nested = |_: usize, (): ()| {
            assert!(rank() == Some(0) && active_children().is_empty());
            assert_eq!(get_start_method(), StartMethod::ForkServer);
            let mut all = Vec::new();
            for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
                let parents = |_: usize, (): ()| Ok::<_, String>(parent_id());
                all.extend(get_context(method).spawn(parents, (), 2)?);
            }
            // A process that was executed may be copied as well.
            let forks = |_: usize, (): ()| {
                get_context(StartMethod::Fork).spawn(|n: usize, (): ()| Ok::<_, String>(n), (), 2)
            };
            assert_eq!(get_context(StartMethod::Spawn).spawn(forks, (), 1)?, [[0, 1]]);
            assert_eq!(get_context(StartMethod::ForkServer).spawn(forks, (), 1)?, [[0, 1]]);
            let deeper = |_: usize, (): ()| {
                get_context(StartMethod::Fork).spawn(|n: usize, (): ()| Ok::<_, String>(n), (), 3)
            };
            assert_eq!(get_context(StartMethod::Fork).spawn(deeper, (), 1)?, [[0, 1, 2]]);
            assert_eq!(all, [std::process::id(); 6]);
            Ok::<_, SpawnError>(())
        };
        set_start_method(StartMethod::ForkServer);
        // A fork server of the original: the copies have another one.
        assert_eq!(mp_spawn::spawn(|n: usize, (): ()| Ok::<_, String>(n), (), 2).unwrap(), [0, 1]);
        start_processes(nested, (), forked(1)).unwrap().join().unwrap();
        // From a thread of a copy.
        let threaded = move |rank: usize, (): ()| {
            let thread = std::thread::spawn(move || nested(rank, ()).map_err(|e| e.to_string()));
            thread.join().map_err(|_| "it panicked".to_string())?
        };
        start_processes(threaded, (), forked(1)).unwrap().join().unwrap();
    });
}

#[test]
fn forked_copies_nest_up_to_the_limit() {
    alone(|()| {
        fn deeper(_: usize, depth: usize) -> Result<usize, SpawnError> {
            match start_processes(deeper, depth + 1, forked(1)) {
                Err(SpawnError::ForkRefused(_)) => Ok(depth),
                context => Ok(context?.join()?[0]),
            }
        }
        assert_eq!(deeper(0, 0).unwrap(), 15);
    });
}

#[test]
fn forked_copies_end_with_the_original() {
    for how in [libc::SIGKILL, libc::SIGTERM] {
        let meeting = Meeting::new(&format!("fork-outlives-{how}"));
        let original = |meeting: String| -> Outcome {
            allow();
            let copy = |rank: usize, meeting: String| -> Outcome {
                if rank == 0 {
                    let _own = start_processes(
                        |_: usize, meeting: String| {
                            say(&meeting, &std::process::id().to_string())?;
                            wait_for_the_end()
                        },
                        meeting.clone(),
                        forked(1),
                    )?;
                    return wait_for_the_end();
                }
                say(&meeting, &std::process::id().to_string())?;
                wait_for_the_end()
            };
            let _copies = start_processes(copy, meeting, forked(3))?;
            wait_for_the_end()
        };
        let child = Process::builder().start_method(StartMethod::Spawn).spawn(original, meeting.name.clone());
        let child = child.unwrap();
        let pids: Vec<u32> = (0..3).map(|_| meeting.recv().parse().unwrap()).collect();
        signal(child.pid(), how);
        eventually("all copies have ended", || !pids.iter().any(|pid| alive(*pid)));
        assert!(child.join().is_err());
    }
}

#[test]
fn killed_original_leaves_no_forked_copies() {
    let folder = Folder::new("fork-kill");
    for round in 0..8_u64 {
        let work = |path: String| -> Outcome {
            allow();
            let note = |_: usize, path: String| -> Outcome {
                std::fs::write(format!("{path}/{}", std::process::id()), "")?;
                wait_for_the_end()
            };
            let mut all = Vec::new();
            loop {
                all.push(start_processes(note, path.clone(), forked(1))?);
                std::fs::write(format!("{path}/made"), "")?;
                if all.len() == 40 {
                    all.clear();
                }
            }
        };
        let path = folder.0.join(round.to_string());
        std::fs::create_dir(&path).unwrap();
        let child = Process::builder().start_method(StartMethod::Spawn);
        let child = child.spawn(work, path.display().to_string()).unwrap();
        let noted =
            || std::fs::read_dir(&path).unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        let one_lives = || noted().count() > 0 && path.join("made").exists();
        eventually("copies exist", || one_lives() || !child.is_alive());
        std::thread::sleep(Duration::from_micros(777 * round)); // sleep: the kill arrives at a random moment
        child.kill().unwrap();
        assert!(child.wait_timeout(DEADLINE) && child.join().is_err());
        eventually("all copies have ended", || !noted().any(alive));
        assert!(noted().count() > 0);
    }
}

#[test]
fn forked_copy_closes_library_files_of_its_original() {
    alone(|()| {
        // Siblings, with sockets and pipes, and a file of the program.
        let captured = forked(3).stdout(Stdio::Capture);
        let siblings = start_processes(|_: usize, (): ()| wait_for_the_end(), (), captured).unwrap();
        // Processes that have ended, whose sentinels still have owners.
        let ended = start_processes(|_: usize, (): ()| {}, (), forked(2)).unwrap();
        join(&ended).unwrap();
        let own = std::fs::File::open("/proc/self/exe").unwrap();
        let look = |_: usize, (): ()| {
            // The copy is a member of the shared memory.
            let arena = mp_core::Arena::current().map_err(|e| e.to_string())?;
            assert_eq!(arena.members().iter().filter(|m| m.pid == std::process::id()).count(), 1);
            Ok::<_, String>(files())
        };
        let [by_fork] = start_processes(look, (), forked(1)).unwrap().join().unwrap().try_into().unwrap();
        let spawned = SpawnOptions::nprocs(1).start_method(StartMethod::Spawn);
        let [by_spawn] = start_processes(look, (), spawned).unwrap().join().unwrap().try_into().unwrap();
        let count = |files: &[String], what: &str| files.iter().filter(|file| file.contains(what)).count();
        for what in ["mp-arena", "socket:", "pidfd"] {
            assert_eq!(count(&by_fork, what), count(&by_spawn, what), "{what}: {by_fork:?}, {by_spawn:?}");
        }
        let program = std::fs::read_link("/proc/self/exe").unwrap().display().to_string();
        assert_eq!((count(&by_fork, &program), count(&by_spawn, &program)), (1, 0));
        drop((own, ended, siblings));
    });
}

#[test]
fn forked_copy_hanging_before_its_function_times_out() {
    static HANG: AtomicBool = AtomicBool::new(false);
    extern "C" fn hang() {
        if HANG.load(Ordering::Relaxed) {
            std::thread::sleep(common::LIFETIME); // sleep: simulates a deadlock
        }
    }
    alone(|()| {
        // SAFETY: the function lives as long as the program.
        unsafe { libc::pthread_atfork(None, None, Some(hang)) };
        let short = || forked(1).handshake_timeout(Duration::from_millis(200));
        start_processes(|_: usize, (): ()| {}, (), forked(1)).unwrap().join().unwrap();
        HANG.store(true, Ordering::Relaxed);
        let copy = start_processes(|_: usize, (): ()| {}, (), short()).unwrap();
        let error = failure(&copy);
        assert!(matches!(error, SpawnError::Timeout { .. }), "{error:?}");
        assert!(children().is_empty());
    });
}

#[test]
fn forked_copies_are_made_while_threads_are_busy() {
    alone(|()| {
        static STOP: AtomicBool = AtomicBool::new(false);
        let threads: Vec<_> = (0..3)
            .map(|i| {
                std::thread::spawn(move || {
                    let mut made = 0;
                    while !STOP.load(Ordering::Relaxed) {
                        // Uses the allocators, including this library's, and its locks.
                        let tensor = mp_tensor::Tensor::<u8>::zeros([1 << (i * 6)]).unwrap();
                        let text = format!("{tensor:?}").repeat(3);
                        made += usize::from(!text.is_empty()) + usize::from(!active_children().is_empty());
                        _ = get_start_method();
                    }
                    made
                })
            })
            .collect();
        let work = |rank: usize, n: u64| {
            let tensor = mp_tensor::Tensor::<u64>::full([100], n).map_err(|e| e.to_string())?;
            println!("{rank}");
            std::io::stdout().flush().map_err(|e| e.to_string())?;
            Ok::<_, String>(tensor.iter().sum::<u64>())
        };
        for n in 0..60 {
            let context = start_processes(work, n, forked(2).stdout(Stdio::Null)).unwrap();
            join_all(&context);
            assert_eq!(context.join().unwrap(), [100 * n; 2]);
        }
        STOP.store(true, Ordering::Relaxed);
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() > 0));
        assert!(children().is_empty());
    });

    fn join_all<T: mp_core::Message>(context: &mp_spawn::ProcessContext<T>) {
        assert!(context.join_timeout(DEADLINE).unwrap(), "{context:?}");
    }
}

#[test]
fn stopped_or_killed_forks_end_with_their_group() {
    alone(|()| {
        let wait = |rank: usize, (): ()| if rank < 2 { wait_for_the_end() } else { Ok(()) };
        let copies = start_processes(wait, (), forked(4)).unwrap();
        let pids = copies.pids();
        signal(pids[0], libc::SIGSTOP);
        signal(pids[1], libc::SIGKILL);
        let error = failure(&copies);
        // The copy may have been killed before it sent its hello.
        assert!(
            matches!(&error, SpawnError::ProcessExited(exited) if exited.who.rank == Some(1)),
            "{error:?}"
        );
        eventually("all copies have ended", || !pids.iter().any(|pid| alive(*pid)));
        let again = start_processes(|_: usize, (): ()| {}, (), forked(1)).unwrap();
        join(&again).unwrap();
    });
}
