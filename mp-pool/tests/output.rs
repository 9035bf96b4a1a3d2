//! Output of workers: its origin, its destination, and what is preserved when they die.

mod common;

use common::{DEADLINE, Gate, got, join, kill, lost, stop_at};
use mp_pool::{Pool, TaskError, current_worker};
use mp_spawn::{ExitDetail, Process, Stdio};

/// Folder that is removed with its test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("mp-pool-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn read(&self, file: &str) -> String {
        let path = self.0.join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Prints the worker that runs this task, waits at the gate, and returns the number of the worker.
fn present((gate, number): (Gate, u32)) -> usize {
    let worker = current_worker().expect("it runs in a worker");
    println!("worker {worker} is at task {number}");
    gate.pass(number);
    worker
}

/// Makes each of two workers write a line.
fn both_write(pool: &Pool) {
    let gate = Gate::new();
    let results = pool.map_async(present, (0..2).map(|number| (gate.clone(), number)));
    // Each task waits, so the two run in different workers.
    let processes = [gate.arrived().1, gate.arrived().1];
    assert_ne!(processes[0], processes[1]);
    gate.open(2);
    let mut workers = got(results).unwrap();
    workers.sort_unstable();
    assert_eq!(workers, [0, 1]);
}

#[test]
fn teed_lines_name_their_worker() {
    // The workers' lines go to the stdout of the process that has the pool.
    let middle = |(): ()| {
        let pool = Pool::builder().processes(2).name("reader").stdout(Stdio::Tee).build().unwrap();
        both_write(&pool);
        join(&pool);
    };
    let process = Process::builder().stdout(Stdio::Capture).spawn(middle, ()).unwrap();
    assert!(process.wait_timeout(DEADLINE));
    let text = process.stdout().text();
    process.join().unwrap();
    let mut lines: Vec<&str> = text.lines().map(|line| line.split(" is at").next().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[reader-0] worker 0", "[reader-1] worker 1"], "{text}");
}

#[test]
fn each_worker_writes_to_its_numbered_file() {
    let folder = Folder::new("numbers");
    std::fs::write(folder.0.join("1.txt"), "from another pool\n").unwrap();
    let to = Stdio::file(folder.0.join("{rank}.txt"));
    let pool = Pool::builder().processes(2).stdout(to).build().unwrap();
    both_write(&pool);
    join(&pool);
    for worker in 0..2 {
        let text = folder.read(&format!("{worker}.txt"));
        assert!(text.starts_with(&format!("worker {worker} is at")) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn replacement_appends_to_the_output_file() {
    let folder = Folder::new("places");
    let to = Stdio::file(folder.0.join("{rank}.txt"));
    let pool = Pool::builder().processes(2).stdout(to).build().unwrap();
    both_write(&pool);
    let gate = Gate::new();
    let result = pool.apply_async(stop_at, (gate.clone(), 0));
    let (_, victim) = gate.arrived();
    let victim_is = pool.pids().iter().position(|pid| *pid == victim).unwrap();
    kill(victim);
    lost(got(result));
    both_write(&pool);
    join(&pool);
    for worker in 0..2 {
        let text = folder.read(&format!("{worker}.txt"));
        let lines = text.lines().filter(|line| line.starts_with(&format!("worker {worker} is at"))).count();
        assert_eq!((lines, text.lines().count()), (2, 2), "worker {victim_is} was killed; {worker}: {text}");
    }
}

/// Task that writes a line, and then ends its process in the way `how`, or returns.
fn write_and_end(how: u32) {
    eprintln!("about to end by {how}");
    match how {
        0 => std::process::abort(),
        1 => std::process::exit(3),
        2 => std::process::exit(0),
        _ => eprintln!("but not yet"),
    }
}

#[test]
fn lost_worker_error_includes_its_last_output() {
    let pool = Pool::builder().processes(1).stderr(Stdio::Capture).build().unwrap();
    for (how, what) in
        ["was killed by SIGABRT", "exited with code 3", "exited with code 0"].iter().enumerate()
    {
        let lost = lost(got(pool.apply_async(write_and_end, how as u32)));
        let line = format!("about to end by {how}");
        assert_eq!(lost.stderr.as_deref(), Some(line.as_str()));
        let text = lost.to_string();
        assert!(text.contains(&format!("had this task when it {what}")), "{text}");
        assert!(text.ends_with(&format!("\n  the last lines of its stderr:\n    {line}")), "{text}");
    }
    // The output of the next worker contains none of these lines. Captured output is in the order of writing.
    got(pool.apply_async(write_and_end, 7)).unwrap();
    assert_eq!(
        lost(got(pool.task(write_and_end).retries(1).apply_async(0))).stderr.as_deref(),
        Some("about to end by 0"),
        "the output of the last attempt"
    );
}

#[test]
fn lost_worker_error_names_the_killer() {
    let pool = Pool::builder().processes(1).stderr(Stdio::Capture).build().unwrap();
    let gate = Gate::new();
    let result = pool.apply_async(stop_at, (gate.clone(), 0));
    kill(gate.arrived().1);
    let lost = lost(got(result));
    assert_eq!((&lost.detail, &lost.stderr), (&None::<ExitDetail>, &None));
    assert!(
        lost.to_string()
            .contains("SIGKILL (signal 9), which mp did not send: a user, another process or the kernel"),
        "{lost}"
    );
}

#[test]
fn broken_pool_error_contains_stderr() {
    let initializer = |(): ()| -> () {
        eprintln!("the licence has run out");
        std::process::abort()
    };
    let pool =
        Pool::builder().processes(2).stderr(Stdio::Capture).initializer(initializer, ()).build().unwrap();
    let Err(TaskError::Broken(why)) = got(pool.apply_async(|x: u32| x, 1)) else { panic!("it can't work") };
    assert!(why.why.ends_with("    the licence has run out"), "{why}");
    let whose = |worker: usize| why.why.starts_with(&format!("worker {worker} (pid "));
    assert!(whose(0) || whose(1), "{why}");
}
