//! Where the output of workers goes.

mod common;

use std::sync::mpsc::channel;

use common::{DEADLINE, Folder, Meeting, Outcome, failure, join, say, wait_for_the_end};
use mp_spawn::{Options, Output, Process, SpawnError, start_processes};

fn talk(rank: usize, lines: usize) -> Outcome {
    for line in 0..lines {
        println!("{rank} says {line}");
        eprintln!("{rank} warns of {line}");
    }
    Ok(())
}

#[test]
fn captured() {
    let options = Options::nprocs(2).stdout(Output::Capture).stderr(Output::Capture);
    let context = start_processes(talk, 2, options).unwrap();
    join(&context).unwrap();
    assert_eq!(context.stdout(1).unwrap().text(), "1 says 0\n1 says 1\n");
    assert_eq!(context.stderr(0).unwrap().text(), "0 warns of 0\n0 warns of 1\n");
    assert!(matches!(context.stdout(2), Err(SpawnError::NoSuchRank { rank: 2, nprocs: 2 })));
}

#[test]
fn a_file_for_each_rank_or_nothing() {
    let folder = Folder::new("logs");
    let path = folder.0.join("{name}.{rank}.log");
    std::fs::write(folder.0.join("talker-1.1.log"), "from before").unwrap();
    let options = Options::nprocs(2).name("talker").stdout(Output::file(&path)).stderr(Output::Null);
    join(&start_processes(talk, 1, options).unwrap()).unwrap();
    let text =
        |rank: usize| std::fs::read_to_string(folder.0.join(format!("talker-{rank}.{rank}.log"))).unwrap();
    assert_eq!((text(0).as_str(), text(1).as_str()), ("0 says 0\n", "1 says 0\n"));
    let nowhere = Options::nprocs(1).stdout(Output::file("/no/such/place/log"));
    let error = start_processes(talk, 1, nowhere).unwrap_err();
    assert!(
        error.to_string().contains("making the file for its output of /no/such/place/log failed"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_appended_to_keeps_what_is_in_it() {
    let folder = Folder::new("appended");
    let path = folder.0.join("log");
    let run = |output: &Output, line: usize| {
        let say = |line: usize| {
            println!("{line}");
            eprintln!("and {line}");
        };
        let builder = Process::builder().stdout(output.clone()).stderr(output.clone());
        let process = builder.spawn(say, line).unwrap();
        assert!(process.wait_timeout(DEADLINE));
        process.join().unwrap();
    };
    run(&Output::Append(path.clone()), 1);
    run(&Output::Append(path.clone()), 2);
    // Both streams of each: neither writes over the other.
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\nand 1\n2\nand 2\n");
    run(&Output::file(&path), 3);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "3\nand 3\n");
}

#[test]
fn teed_lines_are_whole_and_say_whose_they_are() {
    // Its own standard output is what its workers' lines go to.
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
        join(&start_processes(shouter, (), Options::nprocs(2).stdout(Output::Tee))?)?;
        Ok(())
    };
    let process = Process::builder().stdout(Output::Capture).spawn(middle, ()).unwrap();
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
fn processes_with_handles_of_their_own_are_told_apart() {
    let folder = Folder::new("numbered");
    let path = folder.0.join("{rank}.log");
    // Its own standard output is what theirs goes to.
    let middle = |path: std::path::PathBuf| -> Outcome {
        let say = |number: usize| {
            println!("I am {number}");
            eprintln!("and so is this of {number}");
        };
        let builder = || Process::builder().stdout(Output::Tee).stderr(Output::file(&path));
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
    let process = Process::builder().stdout(Output::Capture).spawn(middle, path).unwrap();
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
fn a_crash_shows_the_last_that_was_written() {
    let worker = |_: usize, (): ()| {
        for line in 0..100 {
            eprintln!("about to fail {line}");
        }
        std::process::exit(7);
    };
    let context = start_processes(worker, (), Options::nprocs(1).stderr(Output::Capture)).unwrap();
    let error = failure(&context);
    let SpawnError::ProcessExited(exited) = &error else { panic!("unexpected: {error:?}") };
    let last = exited.stderr.as_deref().unwrap();
    assert!(last.starts_with("about to fail 88\n") && last.ends_with("about to fail 99"), "{last}");
    assert!(error.to_string().ends_with("\n    about to fail 99"), "{error}");
}

#[test]
fn memory_is_bounded_whatever_is_written() {
    let worker = |_: usize, (): ()| -> Outcome {
        let block = [b'x'; 1 << 16];
        for _ in 0..1024 {
            std::io::Write::write_all(&mut std::io::stdout(), &block)?;
        }
        Ok(())
    };
    let context = start_processes(worker, (), Options::nprocs(1).stdout(Output::Capture)).unwrap();
    join(&context).unwrap();
    let captured = context.stdout(0).unwrap();
    assert_eq!(captured.bytes.len() as u64 + captured.lost, 64 << 20);
    assert_eq!(captured.bytes.len(), 1 << 20);
}

#[test]
fn a_grandchild_that_keeps_the_pipe_delays_nobody() {
    fn middle(meeting: String) -> Outcome {
        let sleeper = std::process::Command::new("/bin/sleep").arg("60").spawn()?;
        say(&meeting, &sleeper.id().to_string())?;
        println!("done");
        Ok(())
    }
    let meeting = Meeting::new("keeper");
    let process = Process::builder().stdout(Output::Capture).spawn(middle, meeting.name.clone()).unwrap();
    let sleeper: i32 = meeting.hear().parse().unwrap();
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
    let context = start_processes(worker, (), Options::nprocs(1).stdout(Output::Capture)).unwrap();
    common::eventually("it said so", || context.stdout(0).unwrap().text() == "here\n");
    context.kill(0).unwrap();
    assert!(failure(&context).to_string().contains("SIGKILL"));
}

#[test]
fn whoever_holds_standard_output_can_wait_for_who_writes_there() {
    let (tell, told) = channel();
    let held = std::io::stdout().lock();
    // Another thread, so that the test has an end if this one waits for ever.
    let waiter = std::thread::spawn(move || {
        let options = Options::nprocs(2).stdout(Output::Tee).stderr(Output::Null);
        let context = start_processes(talk, 100, options).unwrap();
        join(&context).unwrap();
        _ = tell.send([0, 1].map(|rank| context.stdout(rank).unwrap().text()));
    });
    let texts = told.recv_timeout(DEADLINE);
    drop(held);
    for text in texts.expect("its output is read, and its end is seen") {
        assert_eq!(text.lines().count(), 100);
    }
    waiter.join().unwrap();
}
