//! Commands of the steps. A session runs them, prints their output and counts the tests in it.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::leaks::{RAN, RUN_AGAIN};
use crate::libtest::{Counter, Tally};

/// Time for which the output of a finished command may stay open. A process that holds it open for longer
/// counts as leaked.
const DRAIN: Duration = Duration::from_secs(10);

/// Error of a command with such a process.
const HELD: &str = "it ended, but a process that it left behind still holds its output";

/// Outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Failed(String),
    /// The step could not run here, for this reason.
    Skipped(String),
}

/// State shared by the commands of one step.
pub(crate) struct Session {
    pub(crate) tally: Tally,
    failures: Vec<String>,
    pub(crate) colours: bool,
    /// `true` if incremental builds are off, because this is the only build.
    builds_once: bool,
    /// `true` if programs are built without the line numbers of stack frames.
    strips_lines: bool,
    /// `true` if failed tests are run again by themselves.
    again: bool,
    /// `true` if a step that can't run here is a failure.
    pub(crate) is_strict: bool,
    /// File to which test programs append the names of their tests.
    ran: Option<PathBuf>,
}

/// Result of one command.
pub(crate) struct CommandResult {
    pub(crate) ok: bool,
    pub(crate) tally: Tally,
    pub(crate) last_line: String,
}

/// Cargo setting that starts each test program through a script that detects leaks. Plain `cargo test` starts
/// the programs directly.
const RUNNER: &str = r#"target.'cfg(target_os = "linux")'.runner="xtask/run-program""#;

/// Returns the path of this program, also if cargo has replaced the file since the program started. (In this
/// case the kernel appends ` (deleted)` to the path.)
pub(crate) fn own_path() -> Result<PathBuf, String> {
    let path = std::env::current_exe().map_err(|e| format!("the path of this program: {e}"))?;
    let bytes = path.as_os_str().as_bytes();
    Ok(OsStr::from_bytes(bytes.strip_suffix(b" (deleted)").unwrap_or(bytes)).into())
}

impl Session {
    pub(crate) fn new() -> Self {
        let wanted = std::env::var_os("CI").is_none() && std::env::var_os("NO_COLOR").is_none();
        Self {
            tally: Tally::default(),
            failures: Vec::new(),
            colours: wanted && std::io::stdout().is_terminal(),
            builds_once: false,
            strips_lines: false,
            again: false,
            is_strict: false,
            ran: None,
        }
    }

    /// Creates the session of a step of `ci`. Incremental builds are off, which saves a quarter of the
    /// compile time, unless the caller sets `CARGO_INCREMENTAL`. Where `CI` is set, debug information is off
    /// as well. Failed tests are run again unless `strict`.
    pub(crate) fn of_all(strict: bool, ran: &Path) -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some();
        let builds_once = !is_set("CARGO_INCREMENTAL");
        let strips_lines = is_set("CI") && !is_set("CARGO_PROFILE_DEV_DEBUG");
        Self {
            builds_once,
            strips_lines,
            again: !strict,
            is_strict: strict,
            ran: Some(ran.to_owned()),
            ..Self::new()
        }
    }

    /// Returns a cargo command that has not been started. Test programs of `cargo test` are checked for
    /// leaks.
    pub(crate) fn cargo(&self, words: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        if words.first() == Some(&"test") {
            command.args(["--config", RUNNER]);
        }
        command.args(words);
        // Cargo has set these variables for this crate, whose program it runs. Build scripts of other
        // packages read them, and would run again in each build if the values differed.
        let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
            command.env_remove(name);
        }
        command.env("CARGO_TERM_COLOR", if self.colours { "always" } else { "never" });
        // If cargo has another target folder, the script can't find this program.
        if let Ok(xtask) = own_path() {
            command.env("MP_XTASK", xtask);
        }
        if self.builds_once {
            command.env("CARGO_INCREMENTAL", "0");
        }
        if self.strips_lines {
            command.env("CARGO_PROFILE_DEV_DEBUG", "false");
        }
        self.tell_tests(&mut command);
        command
    }

    /// Sets environment variables of a command that runs tests. They name the file for the names of the
    /// tests, and state whether failed tests run again.
    pub(crate) fn tell_tests(&self, command: &mut Command) {
        if self.again {
            command.env(RUN_AGAIN, "1");
        }
        if let Some(ran) = &self.ran {
            command.env(RAN, ran);
        }
    }

    /// Runs a command to its end and records a failure.
    pub(crate) fn run(&mut self, command: &mut Command) -> CommandResult {
        let shown = shown(command);
        println!("$ {shown}");
        match self.stream(command) {
            Ok(ran) => {
                if !ran.ok {
                    self.fail(format!("`{shown}` failed"));
                }
                ran
            }
            Err(message) => {
                self.fail(format!("`{shown}`: {message}"));
                CommandResult { ok: false, tally: Tally::default(), last_line: String::new() }
            }
        }
    }

    /// Runs commands one after the other while `others` runs, and prints their output afterwards. Returns
    /// their total time.
    pub(crate) fn run_in_parallel(
        &mut self,
        commands: &mut [Command],
        others: impl FnOnce(&mut Self),
    ) -> Duration {
        let shown: Vec<String> = commands.iter().map(shown).collect();
        let started = Instant::now();
        let printed = |command: &mut Command| {
            let (mut output, both) = io::pipe()?;
            let mut child = command.stdin(Stdio::null()).stdout(both.try_clone()?).stderr(both).spawn()?;
            // The command also holds the writing ends of the pipe. They are closed here.
            *command = Command::new(command.get_program());
            let (report, printed) = mpsc::channel();
            thread::spawn(move || {
                let mut printed = Vec::new();
                report.send(output.read_to_end(&mut printed).map(|_| printed))
            });
            let status = child.wait()?;
            let printed = printed.recv_timeout(DRAIN).map_err(|_| io::Error::other(HELD))??;
            Ok::<_, io::Error>((status, printed))
        };
        let printed = thread::scope(|scope| {
            let printed = scope.spawn(move || {
                let printed: Vec<_> = commands.iter_mut().map(printed).collect();
                (printed, started.elapsed())
            });
            others(self);
            printed.join()
        });
        let Ok((printed, took)) = printed else {
            self.fail(format!("`{}` were not waited for", shown.join("`, `")));
            return started.elapsed();
        };
        for (shown, printed) in shown.iter().zip(printed) {
            println!("$ {shown}");
            match printed {
                Ok((status, printed)) => {
                    let seen = Mutex::new(OutputSummary::default());
                    copy(printed.as_slice(), &seen);
                    if let Ok(seen) = seen.into_inner() {
                        self.tally.add(seen.counter.finish());
                    }
                    if !status.success() {
                        self.fail(format!("`{shown}` failed: {status}"));
                    }
                }
                Err(error) => self.fail(format!("`{shown}`: {error}")),
            }
        }
        took
    }

    /// Records a failure that is not the failure of a command.
    pub(crate) fn fail(&mut self, reason: String) {
        println!("{reason}");
        self.failures.push(reason);
    }

    /// Returns the outcome of all commands: the first failure and the number of further ones.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.failures.as_slice() {
            [] => Outcome::Ok,
            [only] => Outcome::Failed(only.clone()),
            [first, more @ ..] => Outcome::Failed(format!("{first}, and {} more", more.len())),
        }
    }

    fn stream(&mut self, command: &mut Command) -> Result<CommandResult, String> {
        let _ = std::io::stdout().flush();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("could not start: {e}"))?;
        let output = child.stdout.take().ok_or("its output is missing")?;
        let seen = Arc::new(Mutex::new(OutputSummary::default()));
        let (report, drained) = mpsc::channel();
        let copied = Arc::clone(&seen);
        thread::spawn(move || {
            copy(BufReader::new(output), &copied);
            report.send(())
        });
        let status = child.wait().map_err(|e| format!("could not wait: {e}"))?;
        let drained = drained.recv_timeout(DRAIN);
        let OutputSummary { counter, last_line } =
            std::mem::take(&mut *seen.lock().map_err(|e| e.to_string())?);
        let tally = counter.finish();
        self.tally.add(tally.clone());
        if drained.is_err() {
            return Err(HELD.to_owned());
        }
        if !status.success() && status.code().is_none() {
            return Err(format!("{status}"));
        }
        Ok(CommandResult { ok: status.success(), tally, last_line })
    }
}

/// Relevant parts of a command's output.
#[derive(Default)]
struct OutputSummary {
    counter: Counter,
    /// The last line that is not blank.
    last_line: String,
}

/// Copies lines to stdout and records the relevant ones.
fn copy(mut output: impl BufRead, seen: &Mutex<OutputSummary>) {
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        let _ = std::io::stdout().flush();
        if let Ok(mut seen) = seen.lock() {
            seen.counter.line(&text);
            if !text.trim().is_empty() {
                seen.last_line = text.trim_end().to_owned();
            }
        }
        line.clear();
    }
}

/// Formats the command as a shell line.
fn shown(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value.filter(|_| {
            name != "MP_XTASK"
                && name != RUN_AGAIN
                && name != RAN
                && name != "CARGO_TERM_COLOR"
                && name != "CARGO_TARGET_DIR"
        }) {
            words.push(format!("{}={:?}", name.display(), value));
        }
    }
    let program = std::path::Path::new(command.get_program());
    words.push(program.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let own = |word: &String| word == "--config" || word == RUNNER;
    words
        .extend(command.get_args().map(|word| word.to_string_lossy().into_owned()).filter(|word| !own(word)));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (Session, CommandResult) {
        let mut session = Session::new();
        let ran = session.run(Command::new("sh").args(["-c", script]));
        (session, ran)
    }

    #[test]
    fn session_counts_results_and_keeps_the_last_line() {
        let (session, ran) = shell("echo 'test result: ok. 3 passed; 0 failed;'; echo last; echo");
        assert!(ran.ok);
        assert_eq!((session.tally.passed, ran.last_line.as_str()), (3, "last"));
        assert_eq!(session.outcome(), Outcome::Ok);
    }

    #[test]
    fn session_counts_results_of_parallel_programs() {
        let mut session = Session::new();
        let script = |n: u8| format!("echo 'test result: ok. {n} passed; 0 failed;' >&{}", n % 2 + 1);
        let run_both = |session: &mut Session, script: String| {
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            session.run_in_parallel(&mut [command], |session| {
                session.run(Command::new("sh").args(["-c", "echo 'test result: ok. 3 passed; 0 failed;'"]));
            });
        };
        run_both(&mut session, script(1));
        run_both(&mut session, script(2));
        assert_eq!((session.tally.passed, session.outcome()), (9, Outcome::Ok));
        run_both(&mut session, "exit 3".to_owned());
        assert!(matches!(session.outcome(), Outcome::Failed(_)));
    }

    #[test]
    fn session_records_failures_and_signals() {
        assert!(matches!(shell("exit 3").0.outcome(), Outcome::Failed(_)));
        let Outcome::Failed(reason) = shell("kill -9 $$").0.outcome() else {
            panic!("a killed command passed")
        };
        assert!(reason.contains("signal: 9"), "{reason}");
    }
}
