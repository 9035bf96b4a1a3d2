//! Test programs. They are built once, located by cargo's messages, and run without cargo.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::session::Session;

/// Name of a test program: `package/target`. The target `lib` means the package's unit tests, and targets
/// `loom_…` are built for loom.
pub(super) type Suite = String;

/// Selection of tests of a suite. With `exact`, the selection is the test that `filter` names, otherwise all
/// tests whose names contain `filter`. A filter that ends with `::` selects all tests of that module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Run {
    pub(super) suite: Suite,
    pub(super) filter: String,
    pub(super) exact: bool,
}

impl Run {
    pub(super) fn new(suite: &str, filter: &str) -> Self {
        Self { suite: suite.to_owned(), filter: filter.to_owned(), exact: false }
    }

    /// Returns the run of one test of the same suite.
    pub(super) fn of(&self, test: String) -> Self {
        Self { suite: self.suite.clone(), filter: test, exact: true }
    }

    /// Returns `true` if the filter selects a test with this name.
    fn includes(&self, name: &str) -> bool {
        if self.filter.ends_with("::") { name.starts_with(&self.filter) } else { name.contains(&self.filter) }
    }

    /// Returns `true` if the suite is a program without libtest. In that case, `filter` has the arguments of
    /// the program.
    pub(super) fn is_program(&self) -> bool {
        self.suite == "mp-torture/mp-torture"
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` `{}`", self.suite, self.filter)
    }
}

fn is_loom(suite: &str) -> bool {
    suite.split('/').nth(1).is_some_and(|target| target.starts_with("loom_"))
}

/// Program and folder of its package, by suite.
pub(super) struct Programs(HashMap<Suite, (PathBuf, PathBuf)>);

impl Programs {
    /// Builds the test programs of these suites in `folder`, and finds their paths.
    pub(super) fn build(session: &Session, folder: &Path, suites: BTreeSet<Suite>) -> Result<Self, String> {
        let (loom, usual): (Vec<_>, Vec<_>) = suites.iter().partition(|suite| is_loom(suite));
        let mut programs = HashMap::new();
        // The whole workspace is built, also for a few suites, so that the features of the libraries are the
        // same in each call.
        let mut words = vec!["--workspace".to_owned()];
        for target in usual.iter().filter_map(|suite| suite.split_once('/')).map(|(_, target)| target) {
            let of_target = match target {
                "lib" => vec!["--lib".to_owned()],
                // Building the program's test also builds the program. `--bin` alone would build only its
                // unit tests.
                "mp-torture" => vec!["--test".to_owned(), "planted".to_owned()],
                target => vec!["--test".to_owned(), target.to_owned()],
            };
            if !words.windows(of_target.len()).any(|there| there == of_target) {
                words.extend(of_target);
            }
        }
        if !usual.is_empty() {
            let mut command = session.cargo(&["test", "--no-run"]);
            command.args(&words).current_dir(folder).env_remove("CARGO_TARGET_DIR");
            build(&mut command, &mut programs)?;
        }
        if !loom.is_empty() {
            let mut words = Vec::new();
            for (package, target) in loom.iter().filter_map(|suite| suite.split_once('/')) {
                words.extend(["-p".to_owned(), package.to_owned(), "--test".to_owned(), target.to_owned()]);
            }
            let flags = format!("{} --cfg mp_loom", std::env::var("RUSTFLAGS").unwrap_or_default());
            let mut command = session.cargo(&["test", "--profile", "loom", "--no-run"]);
            command.args(&words).current_dir(folder).env("RUSTFLAGS", flags.trim());
            build(command.env("CARGO_TARGET_DIR", "target/loom"), &mut programs)?;
        }
        match suites.iter().find(|suite| !programs.contains_key(*suite)) {
            Some(suite) => Err(format!("cargo has built no test program `{suite}`")),
            None => Ok(Self(programs)),
        }
    }

    /// Returns the command of a run.
    pub(super) fn command(&self, run: &Run) -> Result<Command, String> {
        let (program, folder) =
            self.0.get(&run.suite).ok_or_else(|| format!("no program `{}`", run.suite))?;
        let mut command = Command::new(program);
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        if run.is_program() {
            command.args(run.filter.split_whitespace());
            return Ok(command);
        }
        command.args([run.filter.as_str(), "--exact"]);
        Ok(command)
    }

    /// Returns the single tests of a run. Each is a separate process, so that its leaks don't disturb the
    /// next test.
    pub(super) fn tests(&self, run: &Run) -> Result<Vec<Run>, String> {
        if run.exact || run.is_program() {
            return Ok(vec![run.clone()]);
        }
        let (program, folder) =
            self.0.get(&run.suite).ok_or_else(|| format!("no program `{}`", run.suite))?;
        let list = Command::new(program).current_dir(folder).args(["--list", "--format", "terse"]).output();
        let list = String::from_utf8(list.map_err(|e| format!("{run}: {e}"))?.stdout).unwrap_or_default();
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        // The tests with this name take longest and find least.
        let wanted = |name: &&str| run.includes(name) && !name.contains("in_long_random_schedules");
        Ok(names.filter(wanted).map(|name| run.of(name.to_owned())).collect())
    }
}

/// Runs cargo and collects the programs that it names.
fn build(command: &mut Command, programs: &mut HashMap<Suite, (PathBuf, PathBuf)>) -> Result<(), String> {
    println!("building the tests");
    let output = command
        .args(["--message-format", "json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo test: {e}"))?;
    if !output.status.success() {
        return Err("the tests can't be built".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    for artifact in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some((suite, program, folder)) = program_of(&artifact) {
            programs.insert(suite, (program, folder));
        }
    }
    Ok(())
}

/// Returns suite, program and folder of the package that one of cargo's messages describes.
fn program_of(artifact: &Value) -> Option<(Suite, PathBuf, PathBuf)> {
    let program = artifact["executable"].as_str()?;
    let folder = Path::new(artifact["manifest_path"].as_str()?).parent()?;
    let id = artifact["package_id"].as_str()?;
    let (place, version) = id.rsplit_once('#')?;
    let package = version.split_once('@').map_or_else(|| place.rsplit('/').next(), |(name, _)| Some(name))?;
    let target = &artifact["target"];
    let name = target["name"].as_str()?;
    let is_test = artifact["profile"]["test"] == true;
    let name = match target["kind"][0].as_str()? {
        "test" => name,
        "bin" if !is_test => name,
        "lib" if is_test => "lib",
        _ => return None,
    };
    Some((format!("{package}/{name}"), program.into(), folder.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_filter_matches_modules_or_parts_of_names() {
        let includes = |filter: &str, name: &str| Run::new("mp-models/models", filter).includes(name);
        assert!(includes("lock::", "lock::two_processes_survive_one_kill"));
        assert!(!includes("lock::", "rlock::two_processes_survive_one_kill"));
        assert!(includes("", "a") && includes("two", "lock::two_processes_survive_one_kill"));
    }

    #[test]
    fn test_programs_have_package_and_target_as_identity() {
        let artifact = |id: &str, kind: &str, name: &str, test: bool| {
            let text = format!(
                r#"{{"package_id":"{id}","manifest_path":"/r/p/Cargo.toml","executable":"/r/x",
                    "target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}}}}"#
            );
            program_of(&serde_json::from_str(&text).unwrap()).map(|(suite, ..)| suite)
        };
        let suite = |text: &str| Some(text.to_owned());
        assert_eq!(artifact("path+file:///r/mp-core#0.1.0", "lib", "mp_core", true), suite("mp-core/lib"));
        assert_eq!(
            artifact("path+file:///r/models#mp-models@0.1.0", "test", "models", true),
            suite("mp-models/models")
        );
        assert_eq!(
            artifact("path+file:///r/torture#mp-torture@0.1.0", "bin", "mp-torture", false),
            suite("mp-torture/mp-torture")
        );
        assert_eq!(artifact("path+file:///r/torture#mp-torture@0.1.0", "bin", "mp-torture", true), None);
    }
}
