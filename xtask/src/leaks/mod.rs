//! `cargo xtask leaks PROGRAM ARGUMENTS…`: runs a test program and finds leaked resources. Cargo starts test
//! programs through it (`xtask/run-program`).
//!
//! | leak | found by | attributed to the program because |
//! |---|---|---|
//! | processes | this process, which adopts orphans (`PR_SET_CHILD_SUBREAPER`) | they are its descendants |
//! | temporary files | this process | `TMPDIR` is a directory of this run |
//! | files in `/dev/shm` and in its subdirectories `mp-<uid>` | this process, which compares the listings before and after the run | their names contain the program's process id; otherwise, one test is run three times by itself, and leaves files of the same kind each time |
//! | descriptors, blocks, messages | the program itself at its exit, by `mp-core`'s module `leaks`, which this process enables by `MP_LEAKS` | the program reads its own memory and its own table of files |
//!
//! Leaks that disappear within a deadline are ignored. The others are reported, and then each test is run
//! again by itself to find the test that leaks. So a clean run has no extra cost.
//!
//! If [`RUN_AGAIN`] is set in the environment, as by `cargo xtask ci` without `--strict`, a few failed tests
//! are run again, each by itself: see [`again`].

mod again;
mod files;
mod processes;

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

pub(crate) use again::RUN_AGAIN;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid, set_child_subreaper, wait};

use crate::libtest::SKIPPED;
use crate::timings::Timing;

/// Time limit for running tests again.
const BLAME: Duration = Duration::from_secs(300);

/// Number of runs that must all leak before an ambiguous leak is attributed to the test.
const AGAIN: usize = 3;

/// Variable with the path of a file to which all test programs append the names of their tests.
pub(crate) const RAN: &str = "MP_TESTS_RAN";

/// Variable with the path of a file to which `mp_harness::skip` appends the source location and the reason of
/// each skipped test.
const SKIPS: &str = "MP_SKIPS";

/// A leaked resource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leak {
    what: String,
    /// `true` if the leak can't belong to another program.
    certain: bool,
}

impl Leak {
    fn certain(what: String) -> Self {
        Self { what, certain: true }
    }

    /// Returns the part of the path before the first mark in the file name, for example `/dev/shm/mp_`.
    /// Leaked files of the same kind have the same part.
    fn kind(&self) -> &str {
        let name = self.what.rfind('/').map_or(0, |at| at + 1);
        let mark = self.what[name..].find(|c: char| !c.is_ascii_alphabetic());
        mark.map_or(&self.what, |at| &self.what[..=name + at])
    }
}

/// Result of one complete run.
struct Run {
    status: WaitStatus,
    leaks: Vec<Leak>,
    /// Source location and reason of each test that could not run on this machine.
    skips: Vec<String>,
}

impl Run {
    fn passed(&self) -> bool {
        self.status.exit_status() == Some(0)
    }
}

pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    let Some((program, args)) = words.split_first() else {
        eprintln!("xtask: leaks needs a program");
        return ExitCode::from(2);
    };
    // `run-program` checks whether this program exists.
    if program == "--is-there" {
        return ExitCode::SUCCESS;
    }
    let mut command = Command::new(program);
    command.args(args);
    let started = Instant::now();
    let (run, failed) = match std::env::var_os(RUN_AGAIN) {
        Some(_) => again::run_and_read(command),
        None => (watched(&mut command), Vec::new()),
    };
    // A step that collects times sets this variable.
    if std::env::var_os("MP_XTASK").is_some() {
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
        println!("{}", Timing::by_children(&name, started.elapsed()));
    }
    if let Some(path) = std::env::var_os(RAN) {
        record(Path::new(&path), &tests(program, args));
    }
    match run {
        Ok(run) => {
            run.skips.iter().for_each(|skip| println!("{SKIPPED}{skip}"));
            let passed = run.passed() || again::all_pass(program, &failed);
            // If the failed tests pass by themselves, the failure is excused. Leaks are not.
            let leaked = !run.leaks.is_empty() && report(program, args, &run, passed);
            match (passed, leaked) {
                (true, false) => ExitCode::SUCCESS,
                (true, true) => ExitCode::FAILURE,
                (false, _) => code(run.status),
            }
        }
        Err(message) => {
            eprintln!("xtask: {}: {message}", program.display());
            ExitCode::from(2)
        }
    }
}

/// Converts a status to an exit code as a shell does, because a process can't reproduce a death by a signal.
fn code(status: WaitStatus) -> ExitCode {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Runs a program and collects its leaks.
fn watched(command: &mut Command) -> Result<Run, String> {
    set_child_subreaper(Some(getpid())).map_err(|e| format!("can't adopt orphans (prctl): {e}"))?;
    let scratch = Scratch::new()?;
    let (temporary, report) = (scratch.0.join("tmp"), scratch.0.join("report"));
    fs::create_dir(&temporary).map_err(|e| format!("{}: {e}", temporary.display()))?;
    let before = files::Shared::now();
    let inherited: Vec<String> = processes::inherited().iter().map(ToString::to_string).collect();
    let wanted = format!("{} {} {}", std::process::id(), inherited.join(","), report.display());
    let skips = scratch.0.join("skips");
    let child = command.env("TMPDIR", &temporary).env("MP_LEAKS", wanted).env(SKIPS, &skips).spawn();
    let pid = child.map_err(|e| format!("could not start: {e}"))?.id();
    let status = wait_for(pid)?;
    let mut leaks = processes::left();
    leaks.extend(files::temporary(&temporary));
    leaks.extend(before.left_by(pid));
    // A program without the leak check, or a killed program, reports nothing. Its orphans may report leaks,
    // too.
    let reported = fs::read_to_string(scratch.0.join(format!("report-{pid}"))).unwrap_or_default();
    leaks.extend(reported.lines().skip(1).map(|line| Leak::certain(line.to_owned())));
    let skips = fs::read_to_string(skips).unwrap_or_default();
    let mut skips: Vec<String> = skips.lines().map(str::to_owned).collect();
    skips.sort();
    skips.dedup();
    Ok(Run { status, leaks, skips })
}

/// Waits for one process, and reaps all orphans that end meanwhile: an orphan that is not reaped still
/// exists.
fn wait_for(pid: u32) -> Result<WaitStatus, String> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended.as_raw_nonzero().get().cast_unsigned() == pid => {
                return Ok(status);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(format!("could not wait: {e}")),
        }
    }
}

/// Prints leaks and the tests that cause them. Returns `false` if some leak certainly belongs to the program.
fn report(program: &OsString, args: &[OsString], run: &Run, passed: bool) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default().display();
    let mut text = format!("\nLEAK: when `{name}` had ended, these were left:\n");
    run.leaks.iter().for_each(|leak| text += &format!("  {}\n", leak.what));
    eprint!("{text}");
    if !passed {
        eprintln!("It failed, too: see to that first.");
        return true;
    }
    let tests = tests(program, args);
    let until = Instant::now() + BLAME;
    let (mut blamed, mut missed) = (0, 0);
    for test in &tests {
        if Instant::now() > until {
            missed += 1;
            continue;
        }
        let leaks = left_again(program, test, &run.leaks);
        if !leaks.is_empty() {
            blamed += 1;
            leaks.iter().for_each(|leak| eprintln!("LEAK in test `{test}`: {}", leak.what));
        }
    }
    let certain = run.leaks.iter().any(|leak| leak.certain);
    match (blamed > 0, certain) {
        (true, _) => {}
        (false, true) => {
            eprintln!("LEAK: none of its {} tests leaves anything when it runs by itself", tests.len())
        }
        (false, false) => {
            eprintln!(
                "None of its {} tests leaves anything when it runs by itself, and the files may be another \
                 program's: no error",
                tests.len()
            );
        }
    }
    if missed > 0 {
        eprintln!("({missed} tests were not run again: that takes too long)");
    }
    blamed > 0 || certain || missed > 0
}

/// Runs a test again by itself and returns its leaks. An ambiguous leak counts only if it occurs in each run,
/// and occurred in the first run of all tests.
fn left_again(program: &OsString, test: &str, at_first: &[Leak]) -> Vec<Leak> {
    let again = || {
        let mut command = Command::new(program);
        command.args([test, "--exact"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // A failure of the test doesn't matter here.
        watched(&mut command).map(|run| run.leaks).unwrap_or_default()
    };
    let mut runs = vec![again()];
    while runs.len() < AGAIN && runs.last().is_some_and(|leaks| leaks.iter().any(|leak| !leak.certain)) {
        runs.push(again());
    }
    let each_time = |leak: &Leak| {
        let such = |run: &[Leak]| run.iter().any(|other| !other.certain && other.kind() == leak.kind());
        such(at_first) && runs.len() == AGAIN && runs.iter().all(|run| such(run))
    };
    let known = runs.iter().enumerate().flat_map(|(time, run)| {
        run.iter().filter(move |leak| if leak.certain { time == 0 } else { each_time(leak) })
    });
    known.cloned().collect()
}

/// Returns the tests that the program has run, or an empty list if it can't list its tests.
fn tests(program: &OsString, args: &[OsString]) -> Vec<String> {
    let list =
        Command::new(program).args(args).args(["--list", "--format", "terse"]).stdin(Stdio::null()).output();
    let list = list.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Appends the names of tests to a file that several programs write.
fn record(path: &Path, tests: &[String]) {
    let text: String = tests.iter().map(|test| format!("{test}\n")).collect();
    let file = fs::OpenOptions::new().append(true).create(true).open(path);
    if let Err(e) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
        eprintln!("xtask: {}: {e}", path.display());
    }
}

/// Temporary directory of this run.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        // The path is short, since addresses of sockets are limited to 107 bytes.
        let folder = std::env::temp_dir();
        for number in 0..1000 {
            let path = folder.join(format!("mp-leaks-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                // An earlier process with this id was killed.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(format!("{}: {e}", path.display())),
            }
        }
        Err(format!("{} is full of directories of earlier runs: remove mp-leaks-*", folder.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Converts a process id to a [`Pid`].
fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(number.cast_signed())
}
