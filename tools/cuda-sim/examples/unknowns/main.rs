//! Measures behaviour of the driver `libcuda.so.1` that NVIDIA's manual leaves open: for one run on a machine
//! with a GPU. Each question runs in a process group of its own, with a deadline. The run ends within 75
//! seconds.
//!
//! ```text
//! cargo build --release -p mp-cuda-sim --example unknowns && target/release/examples/unknowns [NAME…]
//! ```

mod barrier_calls;
mod barriers;
mod costs;
mod ends;
mod gpu;
mod helper;
mod hop;
mod host;
mod late;
mod locker;
mod locks;
mod memory;
mod register;
mod small_handles;
mod waits;
mod words;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use gpu::{Gpu, Outcome, ProbeError};

/// Time limit of the whole run.
const LIMIT: Duration = Duration::from_secs(73);

type Question = fn() -> Outcome;
type Role = fn(&[String]) -> Outcome;

/// Name, seconds, and function of each question.
const QUESTIONS: [(&str, u64, Question); 13] = [
    ("barriers", 18, barriers::ask),
    ("locks", 10, locks::ask),
    ("store", 8, words::store),
    ("slices", 10, words::slices),
    ("late", 13, late::ask),
    ("register", 8, register::ask),
    ("many_waits", 13, waits::ask),
    ("hop", 10, hop::ask),
    ("locker", 8, locker::ask),
    ("costs", 10, costs::ask),
    ("exit", 9, ends::exit),
    ("stopped", 8, ends::stopped),
    ("small_handles", 8, small_handles::ask),
];

const ROLES: [(&str, Role); 11] = [
    ("barriers", barriers::help),
    ("spinner", words::help),
    ("late", late::help),
    ("register", register::help),
    ("writes", waits::writes),
    ("waits", waits::waits),
    ("hop", hop::help),
    ("locker", locker::help),
    ("costs", costs::help),
    ("ends", ends::help),
    ("small_handles", small_handles::help),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, [name, ..])) if first == "question" => question(name),
        Some((first, [role, rest @ ..])) if first == "helper" => {
            let outcome = ROLES.iter().find(|(name, _)| name == role).map(|(_, run)| run(rest));
            if let Some(Err(ProbeError(why))) = outcome {
                _ = helper::tell(&format!("failed: {why}"));
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        _ => all(&arguments),
    }
}

/// Runs one question in its own process.
fn question(name: &str) -> ExitCode {
    let Some((_, _, ask)) = QUESTIONS.iter().find(|(other, _, _)| *other == name) else {
        println!("there is no such question");
        return ExitCode::FAILURE;
    };
    if let Err(ProbeError(why)) = ask() {
        println!("{why}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn all(names: &[String]) -> ExitCode {
    let begin = Instant::now();
    let held = hold();
    println!("{} devices are held open, so that none is initialised anew for each question", held.len());
    match device() {
        Ok(text) => println!("{text}"),
        Err(ProbeError(why)) => println!("{why}"),
    }
    let is_asked = |name: &str| names.is_empty() || names.iter().any(|one| one == name);
    for (name, seconds, _) in QUESTIONS.iter().filter(|(name, _, _)| is_asked(name)) {
        println!("\n## {name}");
        let left = LIMIT.saturating_sub(begin.elapsed());
        if left < Duration::from_secs(1) {
            println!("NOT ASKED: no time is left");
            continue;
        }
        let asked = Instant::now();
        if let Err(ProbeError(why)) = child(name, left.min(Duration::from_secs(*seconds))) {
            println!("{why}");
        }
        println!("({:.1} s)", asked.elapsed().as_secs_f64());
    }
    _ = std::fs::remove_dir_all(cache());
    println!("\nall: {:.1} s", begin.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// Describes the device without a context, so that this process does not affect the measurements.
fn device() -> Outcome<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let text = text.lines().next().unwrap_or("no kernel module of NVIDIA");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let user = rustix::process::getuid().as_raw();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    Gpu::load()?;
    Ok(format!("{text}\n{cores} cores, user {user}, RLIMIT_MEMLOCK {limit:?}"))
}

/// Opens the devices' files: a device that no process has open may be shut down between two questions.
fn hold() -> Vec<std::fs::File> {
    let files = std::fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_device = |path: &PathBuf| {
        let number = path.to_str().and_then(|path| path.strip_prefix("/dev/nvidia"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let open = |path| std::fs::OpenOptions::new().read(true).write(true).open(path).ok();
    files.filter(is_device).filter_map(open).collect()
}

/// Returns the folder in which the driver stores compiled kernels for the other processes of this run.
fn cache() -> PathBuf {
    PathBuf::from(format!("/tmp/unknowns-cache-{}", std::process::id()))
}

/// Runs one question, and ends all its processes.
fn child(name: &str, limit: Duration) -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child =
        command.args(["question", name]).env("CUDA_CACHE_PATH", cache()).process_group(0).spawn()?;
    let pid = Pid::from_child(&child);
    let begin = Instant::now();
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let is_over = || rustix::process::waitid(WaitId::Pid(pid), options).is_ok_and(|status| status.is_some());
    while !is_over() && begin.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(3));
    }
    if !is_over() {
        println!("TIMED OUT after {:.1} s", limit.as_secs_f64());
    }
    // The first process has not been reaped, so the group's number can't have been reused.
    _ = rustix::process::kill_process_group(pid, Signal::KILL);
    let killed = Instant::now();
    while !is_over() && killed.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(3));
    }
    if is_over() {
        child.wait()?;
    } else {
        println!("it doesn't end: it is left");
    }
    Ok(())
}
