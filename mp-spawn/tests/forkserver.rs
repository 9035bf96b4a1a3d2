//! Processes that a fork server makes, and the effects of its death. Each test runs in a separate process,
//! because a process has one fork server.

mod common;

use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{
    Folder, Meeting, Outcome, alive, alone, children, eventually, failure, join, next_worker, say, server,
    signal, wait_for_the_end,
};
use mp_spawn::{
    ExitDetail, ExitStatus, Process, ProcessOptions, ProcessStatus, Signal, SpawnError, SpawnOptions,
    StartMethod, Stdio, get_context, get_start_method, rank, set_start_method, start_processes, thread_name,
};

fn served(nprocs: usize) -> SpawnOptions {
    SpawnOptions::nprocs(nprocs).start_method(StartMethod::ForkServer)
}

#[test]
fn fork_server_processes_are_children_of_the_caller() {
    alone(|()| {
        let who = |rank: usize, base: usize| Ok::<_, String>((base + rank, std::process::id(), parent_id()));
        let context = start_processes(who, 10, served(5)).unwrap();
        let pids = context.pids();
        let all = context.join().unwrap();
        for (rank, &(sum, pid, parent)) in all.iter().enumerate() {
            assert_eq!((sum, pid, parent), (10 + rank, pids[rank], std::process::id()));
        }
        let waiting = [server(), next_worker()];
        assert_eq!(children(), waiting, "all other children were reaped");
    });
}

#[test]
fn each_end_of_a_fork_server_process_is_reported() {
    alone(|()| {
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
        let quiet = served(5).stderr(Stdio::Null);
        let results = start_processes(fail, (), quiet).unwrap().results().unwrap();
        let texts: Vec<_> = results.iter().map(|result| result.as_ref().unwrap_err().to_string()).collect();
        assert!(texts[0].contains("failed: an error"), "{texts:?}");
        assert!(texts[1].contains("panicked: a panic\n  at mp-spawn/tests/forkserver.rs:"), "{texts:?}");
        assert!(texts[2].contains("exited with code 7"), "{texts:?}");
        assert!(texts[3].contains("SIGABRT"), "{texts:?}");
        let Err(SpawnError::ProcessExited(exited)) = &results[4] else { panic!("{results:?}") };
        assert!(matches!(exited.detail, Some(ExitDetail::StackOverflow { .. })), "{exited:?}");
    });
}

#[test]
fn each_fork_server_rank_has_its_own_environment() {
    alone(|()| {
        let folder = Folder::new("forkserver-surroundings");
        fn look(
            rank: usize,
            (): (),
        ) -> Result<(Option<String>, Option<String>, PathBuf, String), std::io::Error> {
            println!("out of {rank}");
            eprintln!("err of {rank}");
            let variable = |name| std::env::var(name).ok();
            Ok((variable("RANK_IS"), variable("PATH"), std::env::current_dir()?, thread_name()))
        }
        let there = folder.0.clone();
        let change = move |rank: usize, setup: ProcessOptions| {
            setup.env("RANK_IS", rank.to_string()).env_remove("PATH").current_dir(&there)
        };
        let options = served(2).per_rank(change).stdout(Stdio::Capture).stderr(Stdio::Capture).name("look");
        let context = start_processes(look, (), options).unwrap();
        context.wait().unwrap();
        for rank in 0..2 {
            assert_eq!(context.stdout(rank).unwrap().text(), format!("out of {rank}\n"));
            assert_eq!(context.stderr(rank).unwrap().text(), format!("err of {rank}\n"));
        }
        for (rank, (name, path, directory, thread)) in context.join().unwrap().into_iter().enumerate() {
            assert_eq!((name, path), (Some(rank.to_string()), None));
            assert_eq!(directory, folder.0.canonicalize().unwrap());
            assert_eq!(thread, format!("look-{rank}"));
        }
        // Changes that exceed the size of a message are refused, without any loss.
        let long = served(1).env("LONG", "x".repeat(2 << 20));
        let error = start_processes(look, (), long).unwrap_err();
        assert!(error.to_string().contains("the setting of environment variables"), "{error}");
        // The server does not keep these settings.
        let plain = start_processes(look, (), served(1)).unwrap().join().unwrap();
        assert!(plain[0].0.is_none() && plain[0].1.is_some(), "{plain:?}");
    });
}

#[test]
fn dead_idle_fork_server_is_replaced() {
    alone(|()| {
        let waiting = start_processes(|_: usize, (): ()| wait_for_the_end(), (), served(1)).unwrap();
        let old = server();
        signal(old, libc::SIGKILL);
        // The server is reaped without a call.
        eventually("the server is reaped", || !children().contains(&old));
        join(&start_processes(|_: usize, (): ()| {}, (), served(2)).unwrap()).unwrap();
        assert_ne!(server(), old);
        // Processes of the old server continue.
        assert!(matches!(waiting.status(0), Ok(ProcessStatus::Running)), "{waiting:?}");
        waiting.kill(0).unwrap();
        let error = failure(&waiting);
        assert!(matches!(&error, SpawnError::ProcessExited(exited)
            if matches!(exited.exit, ExitStatus::Signal { signal: Signal::KILL, .. })));
    });
}

#[test]
fn killed_fork_server_loses_no_start_leaks_no_process() {
    alone(|()| {
        for round in 0..150 {
            start_processes(|_: usize, (): ()| {}, (), served(1)).unwrap().join().unwrap();
            let victim = server();
            let (go, reported) = channel();
            let killer = std::thread::spawn(move || {
                reported.recv().unwrap();
                // Longer in total than most of these starts take.
                let until = Instant::now() + Duration::from_micros(3 * round);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                signal(victim, libc::SIGKILL);
            });
            go.send(()).unwrap();
            // The first process was made in advance. The others must be made while the server is killed.
            join(&start_processes(|_: usize, (): ()| {}, (), served(3)).unwrap()).unwrap();
            killer.join().unwrap();
            eventually("the server is reaped", || !children().contains(&victim));
        }
        eventually("only a server and the next process are left", || children().len() <= 2);
    });
}

#[test]
fn start_by_a_stopped_fork_server_times_out() {
    alone(|()| {
        join(&start_processes(|_: usize, (): ()| {}, (), served(1)).unwrap()).unwrap();
        let old = server();
        next_worker();
        signal(old, libc::SIGSTOP);
        // This start uses the process that was made in advance.
        join(&start_processes(|_: usize, (): ()| {}, (), served(1)).unwrap()).unwrap();
        let impatient = served(1).handshake_timeout(Duration::from_millis(200));
        let error = start_processes(|_: usize, (): ()| {}, (), impatient).unwrap_err();
        assert!(error.to_string().contains("did not report in time"), "{error}");
        join(&start_processes(|_: usize, (): ()| {}, (), served(1)).unwrap()).unwrap();
        let waiting = [server(), next_worker()];
        assert_eq!(children(), waiting);
    });
}

#[test]
fn dead_prepared_process_of_fork_server_is_replaced() {
    alone(|()| {
        let (mut before, mut killed) = (None, 0);
        for round in 0..20 {
            let results =
                start_processes(|_: usize, (): ()| Ok::<_, String>(std::process::id()), (), served(1))
                    .unwrap()
                    .join()
                    .unwrap();
            assert!(before.is_none_or(|before| results != [before]), "{round}: {before:?}");
            let next = next_worker();
            before = Some(next);
            // Every second one, because some processes that were made in advance must be used.
            if round % 2 == 0 {
                signal(next, libc::SIGKILL);
                eventually("the prepared process is dead", || !alive(next));
                killed += 1;
            } else {
                let used = start_processes(|_: usize, (): ()| {}, (), served(1)).unwrap();
                assert_eq!(used.pids(), [next]);
                join(&used).unwrap();
            }
        }
        assert_eq!(killed, 10);
        join(&start_processes(|_: usize, (): ()| {}, (), served(3)).unwrap()).unwrap();
        let waiting = [server(), next_worker()];
        assert_eq!(children(), waiting, "crashed processes were reaped");
    });
}

#[test]
fn fork_server_and_processes_end_with_their_parent() {
    let meeting = Meeting::new("forkserver-orphans");
    let parent = |name: String| -> Outcome {
        let workers = start_processes(|_: usize, (): ()| wait_for_the_end(), (), served(3))?;
        let mut pids = workers.pids();
        pids.extend([server(), next_worker()]);
        say(&name, &pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))?;
        wait_for_the_end()
    };
    let parent =
        Process::builder().start_method(StartMethod::Spawn).spawn(parent, meeting.name.clone()).unwrap();
    let pids: Vec<u32> = meeting.recv().split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 5 && pids.iter().all(|pid| alive(*pid)), "{pids:?}");
    parent.kill().unwrap();
    eventually("all processes have ended", || !pids.iter().any(|pid| alive(*pid)));
    assert!(parent.join().is_err());
}

#[test]
fn fork_server_survives_its_starting_thread() {
    alone(|()| {
        let start = || start_processes(|_: usize, (): ()| wait_for_the_end(), (), served(1)).unwrap();
        let first = std::thread::spawn(start).join().unwrap();
        let second = std::thread::spawn(start).join().unwrap();
        for context in [first, second] {
            assert!(matches!(context.status(0), Ok(ProcessStatus::Running)), "{context:?}");
            assert!(!context.join_timeout(Duration::from_millis(50)).unwrap());
        }
    });
}

#[test]
fn executable_without_fork_server_is_refused() {
    alone(|()| {
        let folder = Folder::new("forkserver-programs");
        let (draft, stays) = (folder.0.join("draft"), folder.0.join("stays"));
        std::fs::write(&draft, "#!/bin/sh\nexec sleep 120\n").unwrap();
        // Done by another process: a program that is open for writing can't be executed.
        assert!(
            Command::new("install").args(["-m", "755"]).args([&draft, &stays]).status().unwrap().success()
        );
        let short = Duration::from_millis(200);
        // A missing program, one that exits, and one that continues.
        for (program, expected) in [
            ("/no/such/program", "No such file"),
            ("/bin/true", "it is gone (pid"),
            (stays.to_str().unwrap(), "did not report in time"),
        ] {
            let other = served(1).executable(program).handshake_timeout(short);
            let error = start_processes(|_: usize, (): ()| {}, (), other).unwrap_err();
            assert!(error.to_string().contains(expected), "{program}: {error}");
            assert_eq!(children(), []);
        }
        let same = served(1).executable(std::env::current_exe().unwrap());
        join(&start_processes(|_: usize, (): ()| {}, (), same).unwrap()).unwrap();
    });
}

#[test]
fn default_start_method_is_inherited() {
    alone(|()| {
        assert_eq!(get_start_method(), StartMethod::Spawn);
        set_start_method(StartMethod::ForkServer);
        let inner = |(): ()| {
            let inner = start_processes(
                |_: usize, (): ()| Ok::<_, String>(get_start_method().name().to_string()),
                (),
                SpawnOptions::nprocs(2),
            );
            let names = inner?.join()?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((names, server() != parent_id()))
        };
        let (names, own_server) = Process::spawn(inner, ()).unwrap().join().unwrap();
        assert_eq!(names, ["forkserver", "forkserver"]);
        assert!(own_server);
        let ranks =
            get_context(StartMethod::Spawn).spawn(|_: usize, (): ()| Ok::<_, String>(rank()), (), 1).unwrap();
        assert_eq!(ranks, [Some(0)]);
    });
}
