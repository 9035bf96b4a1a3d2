//! `cargo xtask ci`: runs the steps in order and prints a summary.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::leaks::RAN;
use crate::libtest::Tally;
use crate::reruns;
use crate::session::{Outcome, Session, own_path};
use crate::steps::{self, Step};
use crate::text_table;
use crate::tidy::{Tree, parity};
use crate::timings;

/// Step that a second process of this program runs in parallel, on processor time that the other steps don't
/// use. The step doesn't wait for other processes, and has its own build folder.
const PARALLEL_STEP: &str = "loom";

struct Line {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
    tally: Tally,
}

pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let (only, skip) = (args.list("--only")?, args.list("--skip")?);
    let (strict, long, quick) = (args.flag("--strict"), args.flag("--long"), args.flag("--quick"));
    args.finish()?;
    if long && quick {
        return Err("--quick and --long exclude each other".to_owned());
    }
    let all = || {
        let usual = steps::ALL.iter().filter(|step| !quick || steps::QUICK.contains(&step.name));
        let more = if long || !only.is_empty() { steps::LONG } else { &[] };
        usual.chain(more).chain(quick.then_some(&steps::UNIT))
    };
    for name in only.iter().chain(&skip) {
        if !all().any(|step| step.name == name) {
            return Err(format!("no step `{name}`; `cargo xtask help` lists them"));
        }
    }
    let is_whole = only.is_empty() && skip.is_empty() && !quick;
    let wanted = |step: &&Step| {
        (only.is_empty() || only.iter().any(|n| n == step.name)) && !skip.iter().any(|n| n == step.name)
    };
    let (mut lines, steps): (Vec<Line>, Vec<&Step>) = (Vec::new(), all().filter(wanted).collect());
    let is_aside = |step: &&&Step| steps.len() > 1 && step.name == PARALLEL_STEP;
    let records = Records::new()?;
    let mut run = |step: &&Step| lines.push(perform(step, Session::of_all(strict, &records.path)));
    match steps.iter().find(is_aside) {
        None => steps.iter().for_each(run),
        Some(_) => {
            let mut session = Session::of_all(strict, &records.path);
            let others = |_: &mut Session| steps.iter().filter(|step| !is_aside(step)).for_each(&mut run);
            let took = session.run_in_parallel(&mut [parallel_command(strict, &records.path)?], others);
            lines.push(Line { name: PARALLEL_STEP, outcome: session.outcome(), took, tally: session.tally });
        }
    }

    println!("\n{}", summary(&lines));
    let mut total = Tally::default();
    lines.iter().for_each(|line| total.add(line.tally.clone()));
    if !total.took.is_empty() {
        println!("{}", timings::table(&total.took));
    }
    // Printed last: the end of a long log is read first, and may be all that is stored.
    total.failures.iter().for_each(|failure| print!("{failure}"));
    total.skipped.iter().for_each(|skipped| println!("skipped: {skipped}"));
    let complaints =
        if records.is_ours { complaints(&total, strict, &records.tests(), is_whole) } else { Vec::new() };
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped.len());
    Ok(lines.iter().all(|line| passed(&line.outcome)) && complaints.is_empty())
}

/// Returns the reasons for which a run fails even if each step has passed.
fn complaints(total: &Tally, strict: bool, ran: &HashSet<String>, is_whole: bool) -> Vec<String> {
    let mut complaints: Vec<String> = reruns::judge(&total.failures).err().into_iter().collect();
    if strict && total.disallowed() > 0 {
        complaints.push(format!("--strict: {} tests can't run on this machine", total.disallowed()));
    }
    if is_whole {
        match Tree::load() {
            Ok(tree) => complaints.extend(parity::not_run(&tree, ran)),
            Err(message) => complaints.push(message),
        }
    }
    complaints
}

/// File in which all test programs of a run record the names of their tests. A nested run uses the file of
/// the outer run.
struct Records {
    path: PathBuf,
    is_ours: bool,
}

impl Records {
    fn new() -> Result<Self, String> {
        if let Some(path) = std::env::var_os(RAN) {
            return Ok(Self { path: path.into(), is_ours: false });
        }
        let path = std::env::temp_dir().join(format!("mp-tests-ran-{}", std::process::id()));
        std::fs::write(&path, "").map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self { path, is_ours: true })
    }

    /// Returns the names of tests and of their modules. If a test has several variants, a macro makes a
    /// module of it.
    fn tests(&self) -> HashSet<String> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().flat_map(|line| line.split("::")).map(str::to_owned).collect()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if self.is_ours {
            _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the command that runs `PARALLEL_STEP` in another process of this program.
fn parallel_command(strict: bool, ran: &Path) -> Result<Command, String> {
    let mut command = Command::new("nice");
    command
        .args(["-n", "10"])
        .arg(own_path()?)
        .args(["ci", "--only", PARALLEL_STEP])
        .args(strict.then_some("--strict"));
    command.env(RAN, ran);
    Ok(command)
}

/// Runs one step as a task.
pub(crate) fn run_one(step: &Step, args: &mut Args) -> Result<bool, String> {
    let mut session = Session::new();
    session.is_strict = args.flag("--strict");
    args.finish()?;
    let line = perform(step, session);
    print!("{}", summary(std::slice::from_ref(&line)));
    Ok(passed(&line.outcome))
}

fn perform(step: &Step, mut session: Session) -> Line {
    let (on, off) = if session.colours { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    println!("\n{on}==== {}: {} ===={off}", step.name, step.what);
    let started = Instant::now();
    let mut outcome = (step.run)(&mut session);
    if let (true, Outcome::Skipped(reason)) = (session.is_strict, &outcome) {
        outcome = Outcome::Failed(format!("--strict: {reason}"));
    }
    Line { name: step.name, outcome, took: started.elapsed(), tally: session.tally }
}

fn passed(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Failed(_))
}

fn summary(lines: &[Line]) -> String {
    let mut rows = vec![["step", "result", "seconds", "tests", ""].map(str::to_owned).to_vec()];
    rows.extend(lines.iter().map(|line| {
        let (result, reason) = match &line.outcome {
            Outcome::Ok => ("ok", ""),
            Outcome::Failed(reason) => ("FAILED", reason.as_str()),
            Outcome::Skipped(reason) => ("SKIPPED", reason.as_str()),
        };
        // A reason of several lines was printed completely when it occurred.
        let reason = reason.lines().next().unwrap_or_default();
        let seconds = format!("{:.1}", line.took.as_secs_f64());
        vec![line.name.to_owned(), result.to_owned(), seconds, tests(&line.tally), reason.to_owned()]
    }));
    text_table::table(&rows, &[2])
}

fn tests(tally: &Tally) -> String {
    let parts = [
        (tally.passed, "passed"),
        (tally.failed, "failed"),
        (tally.passed_again, "passed again"),
        (tally.skipped.len() as u64, "skipped"),
        (tally.ignored, "ignored"),
    ];
    let parts = parts.iter().filter(|(n, word)| *n > 0 || (*word == "passed" && tally.programs > 0));
    parts.map(|(n, word)| format!("{n} {word}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_summary_names_reasons_of_skips_and_failures() {
        let line = |name, outcome, passed| {
            let tally = Tally { passed, programs: u64::from(passed > 0), ..Tally::default() };
            Line { name, outcome, took: Duration::from_millis(1250), tally }
        };
        let text = summary(&[
            line("test", Outcome::Ok, 7),
            line("loom", Outcome::Skipped("no models".to_owned()), 0),
            line("doc", Outcome::Failed("`cargo doc` failed".to_owned()), 0),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "test  ok           1.2  7 passed");
        assert_eq!(lines[2], "loom  SKIPPED      1.2            no models");
        assert_eq!(lines[3], "doc   FAILED       1.2            `cargo doc` failed");
    }
}
