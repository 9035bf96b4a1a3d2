//! The steps of `cargo xtask ci`.

mod alone;
mod clippy;
mod deny;
pub(crate) mod doc;
mod example;
mod loom;
mod package;
mod static_linking;
pub(crate) mod wheel;

use std::path::PathBuf;
use std::process::Command;

use crate::session::{Outcome, Session};
use crate::{layers, tidy};

/// Step of `ci`, which is also a task.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&mut Session) -> Outcome,
}

/// All steps in the order of `ci`, quick steps first.
pub(crate) const ALL: &[Step] = &[
    Step { name: "fmt", what: "the code is formatted", run: fmt },
    Step { name: "tidy", what: "what no compiler checks: unsafe, atomics, sizes, leftovers", run: tidy::run },
    Step { name: "layers", what: "no cycles of crates and imports; names of types", run: layers::run },
    Step { name: "deny", what: "licences, sources and duplicates of dependencies", run: deny::run },
    Step { name: "clippy", what: "lints, with all features", run: clippy::run },
    Step { name: "alone", what: "each crate by itself, and the main sets of features", run: alone::run },
    Step { name: "test", what: "all tests but doc tests", run: test },
    Step { name: "doctest", what: "the examples in the documentation", run: doctest },
    Step { name: "doc", what: "manual and book build without a warning; public paths", run: doc::run },
    Step { name: "loom", what: "models of the concurrent parts, every interleaving", run: loom::run },
    Step { name: "torture", what: "15 seconds of random kills and stops", run: crate::torture::short },
    Step { name: "example", what: "the examples run", run: example::run },
    Step { name: "wheel", what: "the Python package is built, installed and tested", run: wheel::run },
];

/// Additional steps of `ci --long`.
pub(crate) const LONG: &[Step] = &[
    Step { name: "clippy-tools", what: "lints of benchmarks and fuzz targets", run: clippy::tools },
    Step {
        name: "package",
        what: "what would be published builds by itself; public paths",
        run: package::run,
    },
    Step {
        name: "static",
        what: "processes in programs that are linked statically",
        run: static_linking::run,
    },
    Step { name: "every", what: "deaths at every access, and the longest models", run: every },
    Step {
        name: "one-strategy",
        what: "tests built with one sharing strategy alone; more sets of features",
        run: alone::long,
    },
    Step {
        name: "mutate",
        what: "mistakes in the protocol code are found by tests",
        run: crate::mutate::step,
    },
    Step { name: "net", what: "faults between hosts, in namespaces", run: crate::net::step },
    Step { name: "fuzz", what: "20 seconds of hostile bytes for every parser", run: crate::fuzz::step },
    Step { name: "long-torture", what: "300 seconds of random kills and stops", run: crate::torture::long },
];

/// Steps of `ci --quick`, for the edit loop: a few minutes from a warm `target`.
pub(crate) const QUICK: &[&str] = &["fmt", "tidy", "layers", "clippy"];

/// Last step of `ci --quick`.
pub(crate) const UNIT: Step = Step { name: "unit", what: "the unit tests of all crates", run: unit };

fn unit(session: &mut Session) -> Outcome {
    session.run(&mut session.cargo(&["test", "--workspace", "--lib", "--bins", "--no-fail-fast"]));
    session.outcome()
}

fn fmt(session: &mut Session) -> Outcome {
    if let Some(reason) = missing("fmt", "rustup component add rustfmt") {
        return Outcome::Skipped(reason);
    }
    session.run(&mut session.cargo(&["fmt", "--all", "--check"]));
    for manifest in ["benches/Cargo.toml", "mp-python/Cargo.toml", "tools/fuzz/Cargo.toml"] {
        if std::path::Path::new(manifest).exists() {
            session.run(&mut session.cargo(&["fmt", "--manifest-path", manifest, "--check"]));
        }
    }
    session.outcome()
}

/// Test programs of the first two of three parallel streams of the step `test`. The programs of the first
/// stream compute. The programs of the second one mostly wait for hundreds of processes, one by one. After
/// that, both streams run programs of the third stream that have not been started.
const STREAMS: [&[&str]; 2] = [&["models", "compile_fail"], &["killed", "killed_pool", "programs"]];

/// Value n of `MP_EVERY` in the step `test`: tests kill a process at each n-th access only. The first access
/// depends on the commit, so that a few commits cover all accesses. `ci --long` kills at each access.
const EVERY: u32 = 8;

/// Returns the value of `MP_EVERY` for the current commit, such as `8+3`.
fn some_accesses() -> String {
    let head = Command::new("git").args(["rev-parse", "--short=7", "HEAD"]).output();
    let head =
        head.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    format!("{EVERY}+{}", u32::from_str_radix(&head, 16).unwrap_or(0) % EVERY)
}

/// Exhaustive models that take the longest, together more than half of the time of all models. Only
/// `ci --long` runs them.
const LONG_MODELS: [&str; 14] = [
    "chain::close_with_two_producers_strands_no_message",
    "chain::random_schedules_find_missing_segment_links",
    "chain::two_producers_opening_a_segment_lose_no_message",
    "deadlock::writer_in_a_lock_cycle_waits_for_each_reader",
    "join::stopped_consumer_delays_only_joins_of_its_task",
    "join::task_of_a_killed_consumer_is_counted_as_lost",
    "retained::every_message_is_read_or_counted_as_missed",
    "retained::ring_retains_one_message_after_two_readers",
    "lost_handles::handle_in_message_of_dead_process_is_recorded",
    "ring::concurrent_ring_batches_stay_ordered",
    "ring::mixed_messages_of_two_producers_stay_in_order",
    "ring::small_messages_need_no_envelope",
    "update::updates_of_three_processes_survive_one_kill",
    "update::updates_continue_while_one_of_three_is_stopped",
];

/// Test of leaks after a hundred thousand tensors of a device. `ci --long` runs it.
const MANY: &str = "many::hundred_thousand_tensors_leak_nothing";

/// Runs `cargo test` with these arguments. Fails if a test program leaks.
pub(crate) fn test_some(words: &[String]) -> Result<bool, String> {
    let mut session = Session::new();
    let mut command = session.cargo(&["test"]);
    Ok(session.run(command.args(words)).ok)
}

fn test(session: &mut Session) -> Outcome {
    // All targets except the examples, which the step `example` builds. Tests start the example `hangs`, of
    // which `cargo test --example` would build unit tests.
    let all = ["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"];
    let hangs = ["build", "--quiet", "--workspace", "--example", "hangs"];
    if !session.run(&mut session.cargo(&hangs)).ok || !session.run(session.cargo(&all).arg("--no-run")).ok {
        return session.outcome();
    }
    let [mut computing, mut waiting] = STREAMS.map(|programs| {
        let mut stream = session.cargo(&["test", "--workspace", "--no-fail-fast"]);
        programs.iter().for_each(|name| _ = stream.args(["--test", name]));
        stream.args(["--", "--test-threads", "1"]);
        stream
    });
    computing.args(LONG_MODELS.iter().flat_map(|name| ["--skip", name]));
    waiting.env("MP_EVERY", some_accesses());
    // Some tests also run with the second sharing strategy alone.
    let second = alone::second_strategy(session);
    let claims = match Claims::new() {
        Ok(claims) => claims,
        Err(message) => return Outcome::Failed(message),
    };
    // `run-program` skips programs that another stream starts or has started.
    let [mut others, after_computing, after_waiting] = [(); 3].map(|()| {
        let mut others = session.cargo(&all);
        others.env("MP_BESIDE", STREAMS.concat().join(" ")).env("MP_CLAIMS", &claims.0);
        others
    });
    session.run_in_parallel(&mut [computing, after_computing], |session| {
        session
            .run_in_parallel(&mut [waiting, second, after_waiting], |session| _ = session.run(&mut others));
    });
    session.outcome()
}

/// Folder in which parallel runs of the same tests claim programs or files, so that each runs once.
struct Claims(PathBuf);

impl Claims {
    fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("mp-ci-{}", std::process::id()));
        match std::fs::create_dir(&folder) {
            Ok(()) => Ok(Self(folder)),
            Err(e) => Err(format!("{}: {e}", folder.display())),
        }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the command that builds all programs, libraries (including the simulated driver) and examples at
/// once, on all processors. It builds the whole workspace, as the step `test` does: with `-p`, or without the
/// examples, libraries would have fewer features and be compiled again.
pub(crate) fn programs(session: &Session) -> Command {
    session.cargo(&["build", "--quiet", "--workspace", "--lib", "--bins", "--examples"])
}

/// Step of `ci --long` that runs the tests which the step `test` leaves out.
fn every(session: &mut Session) -> Outcome {
    let mut models = session.cargo(&["test", "-p", "mp-models", "--test", "models", "--", "--exact"]);
    let ran = session.run(models.args(LONG_MODELS));
    if ran.ok && ran.tally.passed != LONG_MODELS.len() as u64 {
        session.fail(format!(
            "{} of {} long models ran: was one renamed?",
            ran.tally.passed,
            LONG_MODELS.len()
        ));
    }
    session.run(&mut session.cargo(&["test", "-p", "mp-tests", "--test", "killed", "--test", "killed_pool"]));
    let mut many = session.cargo(&["test", "-p", "mp-cuda-sim", "--test", "processes", "--", "--ignored"]);
    let ran = session.run(many.args(["--exact", MANY]));
    if ran.ok && ran.tally.passed != 1 {
        session.fail(format!("`{MANY}` did not run: was it renamed?"));
    }
    session.outcome()
}

fn doctest(session: &mut Session) -> Outcome {
    session.run(&mut session.cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]));
    session.outcome()
}

/// Returns the reason why a cargo subcommand can't run, with the command that installs it.
fn missing(subcommand: &str, install: &str) -> Option<String> {
    let output = Session::new().cargo(&[subcommand, "--version"]).output();
    match output.is_ok_and(|output| output.status.success()) {
        true => None,
        false => Some(format!("no cargo {subcommand} here: {install}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_long_models_exist() {
        for model in LONG_MODELS {
            let (module, name) = model.split_once("::").unwrap();
            let text = ["", "/mod"]
                .map(|end| std::fs::read_to_string(format!("../tools/models/tests/models/{module}{end}.rs")));
            let declares = |text: &String| text.contains(&format!("fn {name}()"));
            assert!(text.iter().flatten().any(declares), "no {name} in the module {module}");
        }
    }
}
