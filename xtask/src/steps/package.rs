//! Step `package`: checks the packages that `cargo publish` would upload.
//!
//! The manifest of each library crate has the fields that crates.io shows. The crate is packaged, unpacked
//! into a workspace that consists of the packages only, and checked there by itself, with its minimum
//! supported compiler if rustup has it. Public paths of the last release still exist, or the version and
//! CHANGELOG.md record their removal.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::layers::{self, FACADE, LAYERS};
use crate::session::{Outcome, Session};

/// Files that each package must contain in addition to its sources.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];
const PAGE: &str = "docs/api.txt";
const LOG: &str = "CHANGELOG.md";
/// Build settings for dependencies, copied from the workspace's manifest. With another profile, all
/// dependencies would be checked again.
const PROFILE: &str =
    "[profile.dev]\ndebug = \"line-tables-only\"\n\n[profile.dev.package.\"*\"]\ndebug = false\n";

pub(crate) fn run(session: &mut Session) -> Outcome {
    match attempt(session) {
        Ok(()) => session.outcome(),
        Err(message) => Outcome::Failed(message),
    }
}

fn attempt(session: &mut Session) -> Result<(), String> {
    let data = layers::metadata(None)?;
    let packages = data["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let published: Vec<&Value> =
        packages.iter().filter(|p| LAYERS.iter().any(|(name, _)| p["name"] == *name)).collect();
    published.iter().flat_map(|package| missing_fields(package)).for_each(|problem| session.fail(problem));
    let version = text(published.first().ok_or("no package is published")?, "version");
    gone_since_release(version)?.into_iter().for_each(|problem| session.fail(problem));

    let mut pack = session.cargo(&["package", "--quiet", "--no-verify", "--allow-dirty"]);
    LAYERS.iter().for_each(|(name, _)| _ = pack.args(["-p", name]));
    if !session.run(&mut pack).ok {
        return Ok(());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let room = target.join("published");
    let folders: Vec<String> = LAYERS.iter().map(|(name, _)| format!("{name}-{version}")).collect();
    unpack(session, &target.join("package"), &room, &folders)?;

    let oldest = text(published[0], "rust_version");
    let toolchain = toolchain(oldest);
    if toolchain.is_none() {
        println!(
            "checked by this compiler, since rustup has no Rust {oldest}: rustup toolchain install {oldest}"
        );
    }
    let manifest = room.join("Cargo.toml");
    let checks = LAYERS.iter().map(|(name, _)| (*name, None)).chain([(FACADE, Some("--all-features"))]);
    for (name, features) in checks {
        let mut check = match &toolchain {
            Some(toolchain) => {
                let mut command = Command::new("rustup");
                command.args(["run", toolchain, "cargo"]);
                // Cargo sets these variables for the compiler that built this program.
                ["CARGO", "RUSTC", "RUSTDOC"].iter().for_each(|name| _ = command.env_remove(name));
                command
            }
            None => session.cargo(&[]),
        };
        check.args(["check", "--quiet", "-p", name]).args(features).arg("--manifest-path").arg(&manifest);
        // The same compiler reuses the folder that already has the dependencies, built with the same profile.
        let folder = if toolchain.is_some() { "published-build" } else { "" };
        session.run(check.env("CARGO_TARGET_DIR", target.join(folder)));
    }
    Ok(())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Returns the fields missing in the manifest that crates.io and docs.rs show.
fn missing_fields(package: &Value) -> Vec<String> {
    let name = text(package, "name");
    let words = |key: &str| package[key].as_array().map_or(0, Vec::len);
    let says = [
        ("description", !text(package, "description").is_empty()),
        ("license", !text(package, "license").is_empty()),
        ("readme", text(package, "readme") == "README.md"),
        ("rust-version", !text(package, "rust_version").is_empty()),
        ("documentation", text(package, "documentation") == format!("https://docs.rs/{name}")),
        ("keywords (one to five)", (1..=5).contains(&words("keywords"))),
        ("categories (one to five)", (1..=5).contains(&words("categories"))),
        ("[package.metadata.docs.rs]", package["metadata"]["docs"]["rs"].is_object()),
    ];
    let missing = says.iter().filter(|(_, said)| !said);
    missing.map(|(what, _)| format!("{name}: its Cargo.toml lacks a valid {what}")).collect()
}

/// Unpacks the packages into a workspace in which they depend on each other.
fn unpack(session: &mut Session, packed: &Path, room: &Path, folders: &[String]) -> Result<(), String> {
    let io = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    if room.exists() {
        fs::remove_dir_all(room).map_err(|e| io(room, e))?;
    }
    fs::create_dir_all(room).map_err(|e| io(room, e))?;
    for folder in folders {
        let package = packed.join(format!("{folder}.crate"));
        // `m`: all files in packages have the same time, so cargo would miss changes.
        session.run(Command::new("tar").arg("-xzmf").arg(&package).arg("-C").arg(room));
        for file in FILES {
            let packed = fs::read(room.join(folder).join(file)).unwrap_or_default();
            // A licence must be complete, not a link's target.
            let is_whole = !file.starts_with("LICENSE") || fs::read(file).is_ok_and(|whole| whole == packed);
            if packed.is_empty() || !is_whole {
                session.fail(format!("the package {folder} has no {file}, or not all of it"));
            }
        }
    }
    let patches =
        LAYERS.iter().zip(folders).map(|((name, _), folder)| format!("{name}.path = \"{folder}\"\n"));
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = {folders:?}\n\n{PROFILE}\n[patch.crates-io]\n{}",
        patches.collect::<String>()
    );
    fs::write(room.join("Cargo.toml"), manifest).map_err(|e| io(room, e))?;
    // Uses the locked versions of other crates.
    fs::copy("Cargo.lock", room.join("Cargo.lock")).map_err(|e| io(room, e))?;
    Ok(())
}

/// Returns rustup's name for a version of the compiler.
fn toolchain(version: &str) -> Option<String> {
    let output = Command::new("rustup").args(["toolchain", "list"]).output().ok()?;
    let list = String::from_utf8(output.stdout).ok()?;
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let is_it = |name: &&str| name.strip_prefix(version).is_some_and(|rest| rest.starts_with(['.', '-']));
    names.into_iter().find(is_it).map(str::to_owned)
}

/// Returns public paths of the last release, by its tag, that were removed without a record.
fn gone_since_release(version: &str) -> Result<Vec<String>, String> {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(tag) = git(&["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]) else {
        println!("no release is tagged yet: no public path is promised");
        return Ok(Vec::new());
    };
    let tag = tag.trim();
    let before =
        git(&["show", &format!("{tag}:{PAGE}")]).ok_or_else(|| format!("the release {tag} has no {PAGE}"))?;
    let read = |path: &str| fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    Ok(breaks(&before, &read(PAGE)?, tag.trim_start_matches('v'), version, &read(LOG)?))
}

/// Returns problems with paths removed between two versions: each requires an incompatible version number,
/// and a line in the unreleased part of the log.
fn breaks(before: &str, now: &str, released: &str, version: &str, log: &str) -> Vec<String> {
    let paths = |page: &str| -> BTreeSet<String> {
        page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    };
    let news = log.split(&format!("## [{released}]")).next().unwrap_or_default();
    let mut problems = Vec::new();
    for path in paths(before).difference(&paths(now)) {
        let name = path.split(' ').next().unwrap_or_default().rsplit("::").next().unwrap_or_default();
        if promise(released) == promise(version) {
            problems.push(format!(
                "`{path}` of {released} is gone: {version} promises to have it (give the workspace another \
                 version)"
            ));
        }
        let is_named =
            |code: &str| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
        if !news.split('`').skip(1).step_by(2).any(is_named) {
            problems.push(format!("`{path}` of {released} is gone: {LOG} doesn't say what to use instead"));
        }
    }
    problems
}

/// Returns the first numbers of a version, which all compatible versions share: `1` of 1.2.3, or `0.1` of
/// 0.1.2.
fn promise(version: &str) -> Vec<&str> {
    let numbers: Vec<&str> = version.split('.').collect();
    let first = numbers.iter().position(|number| *number != "0").unwrap_or(numbers.len());
    numbers.into_iter().take(first + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG_SINCE: &str = "## [Unreleased]\n- `Queue::take` became `get`.\n## [0.1.0]\n- `Lock` is new.\n";

    #[test]
    fn removed_api_path_requires_version_and_log_entry() {
        let (before, now) = ("# page\n\nmp::take fn\nmp::Queue struct\n", "mp::Queue struct\nmp::get fn\n");
        assert!(breaks(before, now, "0.1.0", "0.2.0", LOG_SINCE).is_empty());
        let same_version = breaks(before, now, "0.1.0", "0.1.1", LOG_SINCE);
        assert!(matches!(same_version.as_slice(), [one] if one.contains("promises")), "{same_version:?}");
        let no_line = breaks("mp::Lock struct\n", "", "0.1.0", "0.2.0", LOG_SINCE);
        assert!(matches!(no_line.as_slice(), [one] if one.contains("what to use instead")), "{no_line:?}");
        assert!(breaks(now, &format!("{now}mp::more fn\n"), "0.1.0", "0.1.1", "").is_empty());
    }

    #[test]
    fn only_compatible_versions_promise_compatibility() {
        assert_eq!(promise("0.1.2"), promise("0.1.9"));
        assert_ne!(promise("0.1.2"), promise("0.2.0"));
        assert_eq!(promise("1.4.0"), promise("1.5.3"));
        assert_ne!(promise("0.0.3"), promise("0.0.4"));
    }

    #[test]
    fn missing_manifest_fields_of_a_package_are_named() {
        let whole = serde_json::json!({
            "name": "mp-queue", "description": "Queues.", "license": "MIT", "readme": "README.md",
            "rust_version": "1.88", "documentation": "https://docs.rs/mp-queue",
            "keywords": ["queue"], "categories": ["concurrency"],
            "metadata": {"docs": {"rs": {}}},
        });
        assert!(missing_fields(&whole).is_empty());
        for key in [
            "description",
            "license",
            "readme",
            "rust_version",
            "documentation",
            "keywords",
            "categories",
            "metadata",
        ] {
            let mut less = whole.clone();
            less[key] = Value::Null;
            assert_eq!(missing_fields(&less).len(), 1, "{key}");
        }
    }
}
