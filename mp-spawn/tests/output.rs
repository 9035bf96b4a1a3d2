//! Destinations of the output of workers.

mod common;

use std::ffi::OsStr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{DEADLINE, Folder, Meeting, Outcome, failure, join, say, wait_for_the_end};
use mp_spawn::{OnFailure, Process, ProcessStatus, SpawnError, SpawnOptions, Stdio, start_processes};
use rustix::event::{PollFd, PollFlags, Timespec};

fn talk(rank: usize, lines: usize) -> Outcome {
    for line in 0..lines {
        println!("{rank} says {line}");
        eprintln!("{rank} warns of {line}");
    }
    Ok(())
}

#[test]
fn output_is_captured_per_rank() {
    let options = SpawnOptions::nprocs(2).stdout(Stdio::Capture).stderr(Stdio::Capture);
    let context = start_processes(talk, 2, options).unwrap();
    join(&context).unwrap();
    assert_eq!(context.stdout(1).unwrap().text(), "1 says 0\n1 says 1\n");
    assert_eq!(context.stderr(0).unwrap().text(), "0 warns of 0\n0 warns of 1\n");
    assert!(matches!(context.stdout(2), Err(SpawnError::NoSuchRank { rank: 2, nprocs: 2 })));
}

#[test]
fn output_goes_to_a_file_per_rank_or_nowhere() {
    let folder = Folder::new("logs");
    let path = folder.0.join("{name}.{rank}.log");
    std::fs::write(folder.0.join("talker-1.1.log"), "from before").unwrap();
    let options = SpawnOptions::nprocs(2).name("talker").stdout(Stdio::file(&path)).stderr(Stdio::Null);
    join(&start_processes(talk, 1, options).unwrap()).unwrap();
    let text =
        |rank: usize| std::fs::read_to_string(folder.0.join(format!("talker-{rank}.{rank}.log"))).unwrap();
    assert_eq!((text(0).as_str(), text(1).as_str()), ("0 says 0\n", "1 says 0\n"));
    let nowhere = SpawnOptions::nprocs(1).stdout(Stdio::file("/no/such/place/log"));
    let error = start_processes(talk, 1, nowhere).unwrap_err();
    assert!(
        error.to_string().contains("making the file for its output of /no/such/place/log failed"),
        "{error}"
    );
}

#[test]
fn only_the_file_name_of_an_output_path_is_expanded() {
    let folder = Folder::new("odd");
    let directory = folder.0.join(OsStr::from_bytes(b"{rank}-\xff"));
    std::fs::create_dir(&directory).unwrap();
    let options =
        SpawnOptions::nprocs(2).stdout(Stdio::file(directory.join("{rank}.txt"))).stderr(Stdio::Null);
    join(&start_processes(talk, 1, options).unwrap()).unwrap();
    for rank in 0..2 {
        let text = std::fs::read_to_string(directory.join(format!("{rank}.txt"))).unwrap();
        assert_eq!(text, format!("{rank} says 0\n"));
    }
}

#[test]
fn output_file_with_an_unknown_pattern_is_an_error() {
    let folder = Folder::new("unknown");
    let options = SpawnOptions::nprocs(1).stdout(Stdio::file(folder.0.join("{ranks}.txt")));
    let error = start_processes(talk, 1, options).unwrap_err().to_string();
    assert!(error.contains("the unknown pattern `{ranks}`") && error.contains("{ranks}.txt"), "{error}");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn appended_output_file_keeps_its_contents() {
    let folder = Folder::new("appended");
    let path = folder.0.join("log");
    let run = |output: &Stdio, line: usize| {
        let say = |line: usize| {
            println!("{line}");
            eprintln!("and {line}");
        };
        let builder = Process::builder().stdout(output.clone()).stderr(output.clone());
        let process = builder.spawn(say, line).unwrap();
        assert!(process.wait_timeout(DEADLINE));
        process.join().unwrap();
    };
    run(&Stdio::Append(path.clone()), 1);
    run(&Stdio::Append(path.clone()), 2);
    // Both streams of each process are complete: neither overwrites the other.
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\nand 1\n2\nand 2\n");
    run(&Stdio::file(&path), 3);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "3\nand 3\n");
}

#[test]
fn teed_lines_are_whole_and_name_their_rank() {
    // The process's own standard output receives the lines of its workers.
    let middle = |(): ()| -> Outcome {
        let shouter = |rank: usize, (): ()| -> Outcome {
            for _ in 0..500 {
                // In pieces, so that lines would mix.
                for piece in ["one ", "whole ", "line of "] {
                    print!("{piece}");
                    std::io::Write::flush(&mut std::io::stdout())?;
                }
                println!("{rank}");
            }
            print!("no end");
            Ok(())
        };
        join(&start_processes(shouter, (), SpawnOptions::nprocs(2).stdout(Stdio::Tee))?)?;
        Ok(())
    };
    let process = Process::builder().stdout(Stdio::Capture).spawn(middle, ()).unwrap();
    assert!(process.wait_timeout(DEADLINE));
    let text = process.stdout().text();
    process.join().unwrap();
    for rank in 0..2 {
        let line = format!("[rank {rank}] one whole line of {rank}");
        assert_eq!(text.lines().filter(|found| **found == line).count(), 500, "{text}");
        assert!(text.contains(&format!("[rank {rank}] no end\n")), "{text}");
    }
    assert_eq!(text.lines().count(), 1002);
}

#[test]
#[allow(unsafe_code)]
fn join_ends_after_all_output_was_read() {
    let middle = |(): ()| -> Outcome {
        for _ in 0..20 {
            let context =
                start_processes(talk, 100, SpawnOptions::nprocs(4).stdout(Stdio::Tee).stderr(Stdio::Null))?;
            join(&context)?;
            println!("joined");
        }
        // Exits without waiting for the children.
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    };
    let process = Process::builder().stdout(Stdio::Capture).spawn(middle, ()).unwrap();
    assert!(process.wait_timeout(DEADLINE));
    let text = process.stdout().text();
    process.join().unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 20 * 401);
    for round in lines.chunks(401) {
        assert_eq!(round.last(), Some(&"joined"));
    }
}

#[test]
fn output_of_processes_without_ranks_is_numbered() {
    let folder = Folder::new("numbered");
    let path = folder.0.join("{rank}.log");
    // The process's own standard output receives the lines of its workers.
    let middle = |path: std::path::PathBuf| -> Outcome {
        let say = |number: usize| {
            println!("I am {number}");
            eprintln!("and so is this of {number}");
        };
        let builder = || Process::builder().stdout(Stdio::Tee).stderr(Stdio::file(&path));
        let started = [
            builder().spawn(say, 1)?,
            builder().name("reader").spawn(say, 2)?,
            builder().number(7).spawn(say, 7)?,
            builder().spawn(say, 3)?,
        ];
        for process in started {
            assert!(process.wait_timeout(DEADLINE));
            process.join()?;
        }
        Ok(())
    };
    let process = Process::builder().stdout(Stdio::Capture).spawn(middle, path).unwrap();
    assert!(process.wait_timeout(DEADLINE));
    let text = process.stdout().text();
    process.join().unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let expected = ["[process-1] I am 1", "[process-3] I am 3", "[process-7] I am 7", "[reader] I am 2"];
    assert_eq!(lines, expected);
    for number in [1, 2, 3, 7] {
        let file = std::fs::read_to_string(folder.0.join(format!("{number}.log"))).unwrap();
        assert_eq!(file, format!("and so is this of {number}\n"));
    }
}

#[test]
fn crash_error_includes_the_last_output() {
    let worker = |_: usize, (): ()| {
        for line in 0..100 {
            eprintln!("about to fail {line}");
        }
        std::process::exit(7);
    };
    let context = start_processes(worker, (), SpawnOptions::nprocs(1).stderr(Stdio::Capture)).unwrap();
    let error = failure(&context);
    let SpawnError::ProcessExited(exited) = &error else { panic!("unexpected: {error:?}") };
    let last = exited.stderr.as_deref().unwrap();
    assert!(last.starts_with("about to fail 88\n") && last.ends_with("about to fail 99"), "{last}");
    assert!(error.to_string().ends_with("\n    about to fail 99"), "{error}");
}

#[test]
fn captured_output_of_a_worker_is_bounded() {
    let worker = |_: usize, (): ()| -> Outcome {
        let block = [b'x'; 1 << 16];
        for _ in 0..1024 {
            std::io::Write::write_all(&mut std::io::stdout(), &block)?;
        }
        Ok(())
    };
    let context = start_processes(worker, (), SpawnOptions::nprocs(1).stdout(Stdio::Capture)).unwrap();
    join(&context).unwrap();
    let captured = context.stdout(0).unwrap();
    assert_eq!(captured.bytes.len() as u64 + captured.lost, 64 << 20);
    assert_eq!(captured.bytes.len(), 1 << 20);
}

#[test]
fn grandchild_with_the_output_pipe_delays_no_process() {
    fn middle(meeting: String) -> Outcome {
        let sleeper = std::process::Command::new("/bin/sleep").arg("60").spawn()?;
        say(&meeting, &sleeper.id().to_string())?;
        println!("done");
        Ok(())
    }
    let meeting = Meeting::new("keeper");
    let process = Process::builder().stdout(Stdio::Capture).spawn(middle, meeting.name.clone()).unwrap();
    let sleeper: i32 = meeting.recv().parse().unwrap();
    assert!(process.wait_timeout(DEADLINE));
    assert_eq!(process.stdout().text(), "done\n");
    process.join().unwrap();
    let sleeper = rustix::process::Pid::from_raw(sleeper).unwrap();
    rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn output_can_be_read_while_the_worker_runs() {
    let worker = |_: usize, (): ()| -> Outcome {
        println!("here");
        wait_for_the_end()
    };
    let context = start_processes(worker, (), SpawnOptions::nprocs(1).stdout(Stdio::Capture)).unwrap();
    common::eventually("the line is captured", || context.stdout(0).unwrap().text() == "here\n");
    context.kill(0).unwrap();
    assert!(failure(&context).to_string().contains("SIGKILL"));
}

/// Starts processes with a new terminal as the standard output, and returns the terminal's contents.
#[allow(unsafe_code)]
fn on_a_terminal(nprocs: usize) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut screen, mut line) = (0, 0);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: the first two are valid for writes, the others are not needed.
    if unsafe { libc::openpty(&raw mut screen, &raw mut line, name, settings, size) } != 0 {
        return Ok(None);
    }
    // SAFETY: it is new, and has no other owner.
    let screen = unsafe { OwnedFd::from_raw_fd(screen) };
    // SAFETY: as above.
    let line = unsafe { OwnedFd::from_raw_fd(line) };
    rustix::stdio::dup2_stdout(&line)?;
    join(&start_processes(talk, 1, SpawnOptions::nprocs(nprocs).stdout(Stdio::Tee).stderr(Stdio::Null))?)?;
    let mut shown = Vec::new();
    while shown.iter().filter(|byte| **byte == b'\n').count() < nprocs {
        let mut ready = [PollFd::new(&screen, PollFlags::IN)];
        let time = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
        if rustix::event::poll(&mut ready, Some(&time))? == 0 {
            return Err(format!("only this is shown: {}", String::from_utf8_lossy(&shown)).into());
        }
        let mut chunk = [0; 4096];
        let count = rustix::io::read(&screen, &mut chunk)?;
        shown.extend_from_slice(&chunk[..count]);
    }
    Ok(Some(String::from_utf8(shown)?))
}

#[test]
fn teed_lines_of_ranks_have_colours_on_a_terminal() {
    for (no_color, begin, end) in [("", "\x1b[", "\x1b[0m"), ("1", "", "")] {
        let builder = Process::builder().env("NO_COLOR", no_color);
        let process = builder.spawn(on_a_terminal, 7).unwrap();
        assert!(process.wait_timeout(DEADLINE));
        let Some(text) = process.join().unwrap() else {
            mp_harness::skip("there are no terminals here");
            return;
        };
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_by_key(|line| line.split(' ').nth(1).map(str::to_owned));
        let colours = ["36m", "33m", "32m", "35m", "34m", "31m", "36m"];
        let expected: Vec<_> = (0..7)
            .map(|rank| {
                let colour = if no_color.is_empty() { colours[rank] } else { "" };
                format!("{begin}{colour}[rank {rank}]{end} {rank} says 0")
            })
            .collect();
        assert_eq!(lines, expected);
    }
}

/// Number of processes that write to a blocked terminal, each through two streams. Only calls of `join` wait
/// for these writes.
const TEED: usize = 24;
/// Maximum duration of the test: half of the total delay if each process delayed starts and failures by
/// 400 ms.
const HELD_UP: Duration = Duration::from_millis(400 * TEED as u64 / 2);

#[test]
fn blocked_terminal_does_not_delay_starts() {
    fn fails_last(rank: usize, lines: usize) -> Result<(), String> {
        talk(rank, lines).map_err(|error| error.to_string())?;
        if rank == TEED - 1 { Err("the last one fails".to_string()) } else { Ok(()) }
    }
    let (report, reported) = channel();
    let (out, err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let waiter = std::thread::spawn(move || {
        // At most three attempts, because the machine may be busy.
        let took = (0..3).map(|_| {
            let since = Instant::now();
            let options = SpawnOptions::nprocs(TEED).stdout(Stdio::Tee).stderr(Stdio::Tee);
            let context = start_processes(fails_last, 10, options.on_failure(OnFailure::Continue)).unwrap();
            let over = |rank| !matches!(context.status(rank), Ok(ProcessStatus::Running));
            common::eventually("all are known to have ended", || (0..TEED).all(over));
            assert_eq!(context.failures().len(), 1);
            let another = Process::builder()
                .stdout(Stdio::Capture)
                .stderr(Stdio::Null)
                .spawn(|(): ()| println!("here"), ())
                .unwrap();
            assert!(another.wait_timeout(DEADLINE));
            assert_eq!(another.stdout().text(), "here\n");
            another.join().unwrap();
            let took = since.elapsed();
            assert!(failure(&context).to_string().contains("the last one fails"));
            took
        });
        _ = report.send(took.take_while(|took| *took >= HELD_UP).collect::<Vec<_>>());
    });
    let held_up = reported.recv_timeout(3 * DEADLINE);
    drop((out, err));
    waiter.join().unwrap();
    assert!(held_up.as_ref().is_ok_and(|times| times.len() < 3), "{held_up:?}");
}

#[test]
fn holder_of_stdout_can_wait_for_writing_processes() {
    let (report, reported) = channel();
    let held = std::io::stdout().lock();
    // On another thread, so that the test ends if this one waits forever.
    let waiter = std::thread::spawn(move || {
        let options = SpawnOptions::nprocs(2).stdout(Stdio::Tee).stderr(Stdio::Null);
        let context = start_processes(talk, 100, options).unwrap();
        join(&context).unwrap();
        _ = report.send([0, 1].map(|rank| context.stdout(rank).unwrap().text()));
    });
    let texts = reported.recv_timeout(DEADLINE);
    drop(held);
    for text in texts.expect("the output is read, and the ends are detected") {
        assert_eq!(text.lines().count(), 100);
    }
    waiter.join().unwrap();
}
