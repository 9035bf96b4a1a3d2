//! Tests of clusters across hosts, in which processes are killed and stopped and links are cut: `cargo xtask
//! net`.
//!
//! `hosts` creates hosts as namespaces, `node` starts processes on them (`tools/net`), `run` checks their
//! events, `faults` and `pools` define the runs, and `figures` measures. The task runs itself in its own
//! namespaces, so that no process or link can remain.

mod faults;
mod figures;
mod hosts;
mod node;
mod pools;
mod run;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::args::Args;
use crate::session::{Outcome, Session, own_path};
use crate::text_table;
use faults::{FAULTS, Fault};
use hosts::Hosts;
use run::Run;

/// Program that runs on the hosts.
pub(crate) const PROGRAM: &str = "mp-net-node";
/// Example that trains on all hosts together.
pub(crate) const EXAMPLE: &str = "cluster_train";
/// Example that trains on each host, and averages the weights.
const AVERAGING: &str = "hogwild_hosts";
/// Commands that the task needs, and the Debian packages that have them.
const TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables"), ("hostname", "hostname")];
/// Arguments of `unshare`: namespaces without privileges, whose processes end with the first one.
const UNSHARE: [&str; 8] =
    ["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs the step of `ci --long`.
pub(crate) fn step(session: &mut Session) -> Outcome {
    let mut options = vec!["--long".to_owned()];
    options.extend(session.is_strict.then(|| "--strict".to_owned()));
    start(session, &options)
}

/// Returns the reason why the task can't run here.
fn missing() -> Option<String> {
    for (tool, package) in TOOLS {
        if !succeeds(Command::new("sh").args(["-c", &format!("command -v {tool}")])) {
            return Some(format!("{tool} is missing: install {package}"));
        }
    }
    let mut probe = Command::new("unshare");
    let refused = !succeeds(probe.args(UNSHARE).args(["ip", "link", "add", "name", "x", "type", "bridge"]));
    refused.then(|| "this system refuses namespaces or bridges to this user".into())
}

/// Builds the program, and runs the faults in namespaces. `options` are the options of the task.
fn start(session: &mut Session, options: &[String]) -> Outcome {
    if let Some(reason) = missing() {
        return Outcome::Skipped(reason);
    }
    let is_release = options.iter().any(|option| option == "--figures");
    let mut build = session.cargo(&["build", "--quiet", "-p", PROGRAM, "--bin", PROGRAM]);
    match is_release {
        true => build.arg("--release"),
        false => build.args(["-p", "multiproc", "--features", "multiproc/net"]).args([
            "--example",
            EXAMPLE,
            "--example",
            AVERAGING,
        ]),
    };
    if !session.run(&mut build).ok {
        return session.outcome();
    }
    let inside = || {
        let own = own_path().map_err(std::io::Error::other)?;
        // If this process ends for any reason, its child reads the end of its input, and ends, too.
        let mut child = Command::new("unshare")
            .args(UNSHARE)
            .arg(own)
            .args(["net", "--inside"])
            .args(options)
            .stdin(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let status = child.wait();
        drop(input);
        status
    };
    match inside() {
        Ok(status) if status.success() => {}
        Ok(status) => session.fail(format!("an outcome or a figure is not the promised one ({status})")),
        Err(error) => session.fail(format!("unshare: {error}")),
    }
    session.outcome()
}

/// Runs the task.
pub(crate) fn task(args: &mut Args) -> Result<bool, String> {
    let is_inside = args.flag("--inside");
    let is_strict = args.flag("--strict");
    let is_long = args.flag("--long");
    let has_figures = args.flag("--figures");
    let only = args.list("--only")?;
    args.finish()?;
    if let Some(name) = only.iter().find(|name| FAULTS.iter().all(|fault| !fault.name.contains(*name))) {
        return Err(format!("no fault has {name:?} in its name"));
    }
    if is_inside {
        end_with_input();
        return if has_figures { inside_figures(is_strict) } else { inside(is_long, is_strict, &only) };
    }
    let mut options = Vec::new();
    options.extend(is_long.then(|| "--long".to_owned()));
    options.extend(is_strict.then(|| "--strict".to_owned()));
    options.extend(has_figures.then(|| "--figures".to_owned()));
    options.extend((!only.is_empty()).then(|| format!("--only={}", only.join(","))));
    Ok(match start(&mut Session::new(), &options) {
        Outcome::Ok => true,
        Outcome::Failed(_) => false,
        Outcome::Skipped(reason) => {
            println!("SKIPPED: {reason}");
            !is_strict
        }
    })
}

/// Ends this process when its input ends.
fn end_with_input() {
    std::thread::spawn(|| {
        _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(130);
    });
}

/// Returns the folder of the built program.
fn programs(profile: &str) -> Result<String, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = target.join(profile).canonicalize().map_err(|e| format!("{}: {e}", target.display()))?;
    folder.into_os_string().into_string().map_err(|_| "the target folder is not UTF-8".into())
}

fn inside_figures(is_strict: bool) -> Result<bool, String> {
    figures::print(&Hosts::new(&programs("release")?)?, is_strict)
}

/// Runs the faults, and prints a table. Returns `true` if each fault had the promised outcome and, with
/// `is_strict`, none was skipped.
fn inside(is_long: bool, is_strict: bool, only: &[String]) -> Result<bool, String> {
    let hosts = Hosts::new(&programs("debug")?)?;
    let is_wanted = |fault: &&Fault| match only {
        [] => is_long || !fault.is_long,
        only => only.iter().any(|name| fault.name.contains(name.as_str())),
    };
    let titles =
        ["fault", "acknowledged", "arrived", "lost", "doubled", "in doubt", "known after", "peak", "s", ""];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    let (mut failed, mut skipped) = (0, 0);
    for fault in FAULTS.iter().filter(is_wanted) {
        println!("{}", fault.name);
        let since = Instant::now();
        let mut run = Run::new(&hosts);
        if let Err(error) = (fault.run)(&mut run) {
            run.violations.push(error);
        }
        run.check_all();
        if let Some(reason) = run.skipped {
            println!("  SKIPPED: {reason}");
            skipped += 1;
        }
        if !run.violations.is_empty() {
            failed += 1;
            run.violations.iter().take(5).for_each(|violation| println!("  VIOLATION: {violation}"));
            print!("{}", run.outputs());
        }
        let known = run.figures.known.map(|known| format!("{known:.1} ms")).unwrap_or_default();
        let peak = run.figures.peak.map(|peak| format!("{peak} MiB")).unwrap_or_default();
        let figures = &run.figures;
        let counts = [figures.acknowledged, figures.arrived, figures.lost, figures.doubled, figures.in_doubt];
        let mut row = vec![fault.name.to_owned()];
        row.extend(counts.map(|count| count.to_string()));
        let result = match run.skipped {
            Some(_) => "SKIPPED",
            None if run.violations.is_empty() => "ok",
            None => "VIOLATED",
        };
        row.extend([known, peak, format!("{:.1}", since.elapsed().as_secs_f64()), result.into()]);
        table.push(row);
    }
    print!("\n{}", text_table::table(&table, &[1, 2, 3, 4, 5, 6, 7, 8]));
    let count = table.len() - 1;
    println!("\n{count} faults, {failed} with another outcome than promised, {skipped} skipped");
    Ok(failed == 0 && (!is_strict || skipped == 0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn network_guide_has_the_lines_that_hosts_change() {
        let read = |path: &str| std::fs::read_to_string(format!("../{path}")).unwrap();
        let [one, many] = ["main.rs", "hosts.rs"].map(|file| read(&format!("examples/hogwild/{file}")));
        let only = |text: &str, other: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with("//!") && !other.contains(line));
            lines.map(str::to_owned).collect()
        };
        let (removed, added) = (only(&one, &many), only(&many, &one));
        assert!(removed.len() <= 10 && added.len() <= 10, "{removed:?} {added:?}");
        let lines = removed.iter().map(|line| format!("-{line}\n"));
        let diff: String = lines.chain(added.iter().map(|line| format!("+{line}\n"))).collect();
        // Lines that occur in both examples, such as a brace, can be in the page's diff, too.
        let page = read("docs/guide/cluster.md");
        let of_page = page.split("```diff\n").nth(1).and_then(|text| text.split("```").next()).unwrap();
        let of_page: String =
            of_page.lines().filter(|line| *line != "+    }").map(|line| format!("{line}\n")).collect();
        assert_eq!(of_page, diff);
    }
}
