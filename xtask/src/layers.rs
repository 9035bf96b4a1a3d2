//! Step `layers`: checks the structure of our crates. Dependencies between crates run downwards only, and
//! imports inside each folder of a crate have no cycle. Type names are nouns, and each is defined by one
//! crate. The numbers of methods and files of `Arena` are limited.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::session::{Outcome, Session};
use crate::tidy::{self, Finding, Tree, mask};
use crate::{folder_cycles, types};

/// Each library crate with our crates that it may depend on. `*` means all crates of this table.
pub(crate) const LAYERS: &[(&str, &[&str])] = &[
    ("mp-core", &[]),
    ("mp-tensor", &["mp-core"]),
    ("mp-macros", &[]),
    ("mp-reduce", &["mp-core", "mp-macros"]),
    ("mp-spawn", &["mp-core", "mp-reduce"]),
    ("mp-queue", &["mp-core", "mp-reduce"]),
    ("mp-sync", &["mp-core"]),
    ("mp-pool", &["mp-core", "mp-reduce", "mp-spawn", "mp-queue", "mp-net"]),
    ("mp-manager", &["mp-core", "mp-reduce", "mp-spawn", "mp-queue", "mp-sync", "mp-pool", "mp-net"]),
    (
        "mp-data",
        &["mp-core", "mp-macros", "mp-tensor", "mp-reduce", "mp-spawn", "mp-queue", "mp-pool", "mp-net"],
    ),
    ("mp-cuda", &["mp-core", "mp-tensor", "mp-reduce"]),
    ("mp-net", &["mp-core", "mp-reduce", "mp-spawn", "mp-queue", "mp-sync"]),
    ("multiproc-cli", &["mp-core", "mp-queue"]),
    (FACADE, &["*"]),
];

/// The root package.
pub(crate) const FACADE: &str = "multiproc";

/// Crates that may depend on any of our crates. No library crate may depend on them.
const FREE: &[&str] = &[
    "mp-compile-fail",
    "mp-cuda-sim",
    "mp-harness",
    "mp-models",
    "mp-net-node",
    "mp-renamed",
    "mp-tests",
    "mp-torture",
    "xtask",
];

/// Crates that only `benches/`, a separate workspace, may depend on. A name also matches `name-*`.
const PEERS: &[&str] = &["ipc-channel", "iceoryx2"];

pub(crate) fn run(session: &mut Session) -> Outcome {
    match check() {
        Ok(problems) => problems.into_iter().for_each(|problem| session.fail(problem)),
        Err(message) => session.fail(message),
    }
    match Tree::load() {
        Ok(tree) => tidy::outcome(&violations(&tree), session),
        Err(message) => Outcome::Failed(message),
    }
}

fn violations(tree: &Tree) -> Vec<Finding> {
    let tests: Vec<String> =
        tree.rust().flat_map(|file| mask::modules_of_tests(&file.path, file.lines())).collect();
    let is_test = |path: &str| {
        let is_in = |module: &String| {
            path.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']))
        };
        tests.iter().any(is_in)
    };
    let sources = |folder: &str| {
        tree.rust().filter(|file| file.path.starts_with(folder) && !is_test(&file.path)).collect::<Vec<_>>()
    };
    let sources_of = |name: &'static str| match name {
        FACADE => ("src", sources("src/")),
        name => (name, sources(&format!("{name}/src/"))),
    };
    let crates: Vec<_> = LAYERS.iter().map(|(name, _)| sources_of(name)).collect();
    let mut found = Vec::new();
    for (name, files) in &crates {
        found.extend(folder_cycles::cycles(files));
        if *name == "mp-core" {
            found.extend(types::arena_files(files));
            found.extend(types::arena_methods(files));
        }
    }
    found.extend(types::shared(&crates));
    found.extend(tree.rust().filter(|file| !is_test(&file.path)).flat_map(types::words));
    found
}

fn check() -> Result<Vec<String>, String> {
    let packages = packages(None)?;
    let mut problems = arrows(&packages);
    let lock = fs::read_to_string("Cargo.lock").map_err(|e| format!("Cargo.lock: {e}"))?;
    problems.extend(peers(&lock));
    if Path::new("benches/Cargo.toml").exists() {
        if packages.iter().any(|package| package.folder == "benches") {
            problems.push("benches is a member of the main workspace: exclude it there".to_owned());
        }
        let root = metadata(Some("benches/Cargo.toml"))?["workspace_root"].clone();
        if !root.as_str().unwrap_or_default().ends_with("/benches") {
            problems.push("benches/Cargo.toml has no [workspace] of its own".to_owned());
        }
    }
    Ok(problems)
}

/// Metadata of a package of the workspace, as far as the steps need it.
#[derive(Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Path from the repository's root. Empty for the root package.
    pub(crate) folder: String,
    pub(crate) features: Vec<String>,
    /// Features that the package's feature `default` enables.
    pub(crate) default: Vec<String>,
    /// Names of the package's integration tests.
    pub(crate) tests: Vec<String>,
    /// Names of the package's dependencies inside the repository, with their kind: `normal`, `build` or
    /// `dev`.
    pub(crate) dependencies: Vec<(String, String)>,
}

impl Package {
    /// Returns the arguments that select the package with its default features, but not the feature `default`
    /// itself. Crates that depend on the package don't enable `default`. If it were enabled, cargo would
    /// build the package twice.
    pub(crate) fn by_default(&self) -> Vec<String> {
        let mut words = vec!["-p".to_owned(), self.name.clone()];
        if !self.default.is_empty() {
            words.extend(["--no-default-features", "--features"].map(str::to_owned));
            words.push(self.default.join(","));
        }
        words
    }
}

/// Returns the packages of the workspace that `manifest` belongs to.
pub(crate) fn packages(manifest: Option<&str>) -> Result<Vec<Package>, String> {
    let data = metadata(manifest)?;
    let root = data["workspace_root"].as_str().ok_or("cargo metadata names no workspace_root")?;
    let packages = data["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    Ok(packages.iter().map(|package| read(package, root)).collect())
}

pub(crate) fn metadata(manifest: Option<&str>) -> Result<Value, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["metadata", "--format-version", "1", "--no-deps"]);
    if let Some(manifest) = manifest {
        command.args(["--manifest-path", manifest]);
    }
    let output = command.output().map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn read(package: &Value, root: &str) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let manifest = text(&package["manifest_path"]);
    let folder = manifest.strip_prefix(root).unwrap_or(&manifest).trim_end_matches("Cargo.toml");
    let is_test = |target: &&Value| target["kind"][0] == "test";
    let ours = |dependency: &&Value| dependency["path"].is_string();
    let kind = |dependency: &Value| dependency["kind"].as_str().unwrap_or("normal").to_owned();
    Package {
        name: text(&package["name"]),
        folder: folder.trim_matches('/').to_owned(),
        default: list(&package["features"]["default"]).iter().map(text).collect(),
        features: package["features"].as_object().map(|f| f.keys().cloned().collect()).unwrap_or_default(),
        tests: list(&package["targets"]).iter().filter(is_test).map(|t| text(&t["name"])).collect(),
        dependencies: list(&package["dependencies"])
            .iter()
            .filter(ours)
            .map(|d| (text(&d["name"]), kind(d)))
            .collect(),
    }
}

fn arrows(packages: &[Package]) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        let manifest = Path::new(&package.folder).join("Cargo.toml");
        let mut problem = |text: String| problems.push(format!("{}: {text}", manifest.display()));
        if FREE.contains(&package.name.as_str()) {
            continue;
        }
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == package.name) else {
            problem(format!("`{}` has no layer yet: give it one in xtask/src/layers.rs", package.name));
            continue;
        };
        for (to, kind) in &package.dependencies {
            let downwards = match allowed {
                ["*"] => LAYERS.iter().any(|(name, _)| name == to),
                names => names.contains(&to.as_str()),
            };
            // `mp-core` may use the test harness, which uses none of our crates.
            if downwards || (kind == "dev" && (package.name != "mp-core" || to == "mp-harness")) {
                continue;
            }
            let allowed =
                if allowed.is_empty() { "none of our crates".to_owned() } else { allowed.join(", ") };
            problem(format!(
                "{} must not have the {kind} dependency `{to}`: it may depend on {allowed}; \
                 move what it needs down a layer",
                package.name
            ));
        }
    }
    problems
}

fn peers(lock: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in lock.lines().enumerate() {
        let Some(name) = line.strip_prefix("name = \"").and_then(|rest| rest.strip_suffix('"')) else {
            continue;
        };
        let is = |peer: &&&str| {
            name.strip_prefix(**peer).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        if PEERS.iter().find(is).is_some() {
            problems.push(format!("Cargo.lock:{}: `{name}` is a peer: only benches/ may use it", number + 1));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrow(from: &str, to: &str, kind: &str) -> usize {
        let dependencies = vec![(to.to_owned(), kind.to_owned())];
        arrows(&[Package { name: from.to_owned(), dependencies, ..Package::default() }]).len()
    }

    #[test]
    fn upward_dependencies_between_layers_are_refused() {
        assert_eq!(arrow("mp-queue", "mp-core", "normal"), 0);
        assert_eq!(arrow("mp-core", "mp-queue", "normal"), 1);
        assert_eq!(arrow("mp-queue", "mp-spawn", "build"), 1);
        assert_eq!(arrow("mp-macros", "mp-core", "normal"), 1);
        assert_eq!(arrow("multiproc", "mp-cuda", "normal"), 0);
    }

    #[test]
    fn no_crate_depends_on_tests_or_xtask() {
        assert_eq!(arrow("multiproc", "xtask", "normal"), 1);
        assert_eq!(arrow("mp-spawn", "mp-tests", "build"), 1);
        assert_eq!(arrow("mp-tests", "xtask", "normal"), 0);
    }

    #[test]
    fn dev_dependencies_above_the_base_are_exempt() {
        assert_eq!(arrow("mp-queue", "mp-spawn", "dev"), 0);
        assert_eq!(arrow("mp-core", "mp-queue", "dev"), 1);
    }

    #[test]
    fn new_crate_without_a_layer_is_refused() {
        assert_eq!(arrow("mp-new", "mp-core", "normal"), 1);
    }

    #[test]
    fn peers_outside_of_benches_are_refused() {
        let lock = "[[package]]\nname = \"iceoryx2-bb-posix\"\n[[package]]\nname = \"ipc-channels\"\n";
        assert_eq!(peers(lock), ["Cargo.lock:2: `iceoryx2-bb-posix` is a peer: only benches/ may use it"]);
    }
}
