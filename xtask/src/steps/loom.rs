//! Step `loom`: runs every loom model, built with `--cfg mp_loom` into a target folder of its own.
//!
//! A model is a test in a file `loom*.rs` under a crate's `tests/`, or a unit test whose path has a part
//! that starts with `loom_`.

use std::path::PathBuf;

use crate::layers::{self, Package};
use crate::session::{Outcome, Session};
use crate::tidy::{self, Tree};

pub(crate) fn run(session: &mut Session) -> Outcome {
    let found = layers::packages(None).and_then(|packages| Ok(models(&packages, &Tree::load()?)));
    let models = match found {
        Ok(models) => models,
        Err(message) => return Outcome::Failed(message),
    };
    if models.runs.is_empty() {
        return Outcome::Skipped("there are no loom models yet".to_owned());
    }
    let flags = format!("{} --cfg mp_loom", std::env::var("RUSTFLAGS").unwrap_or_default());
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let run = |session: &mut Session, words: &[String]| {
        let mut command = session.cargo(&["test", "--profile", "loom", "--no-fail-fast"]);
        command.args(&models.packages).args(words);
        session.run(command.env("RUSTFLAGS", flags.trim()).env("CARGO_TARGET_DIR", target.join("loom")))
    };
    // Compiles all test files at once, on all processors.
    let files = models.runs.iter().filter(|words| words[0] == "--test").flatten().cloned();
    run(session, &files.chain(["--no-run".to_owned()]).collect::<Vec<_>>());
    for words in &models.runs {
        let ran = run(session, words);
        if ran.ok && ran.tally.passed == 0 {
            session.fail(format!("no model ran in {}: is it compiled with --cfg mp_loom?", words.join(" ")));
        }
    }
    session.outcome()
}

struct Models {
    /// Arguments that select all packages with models. They are the same in each run: selecting one package
    /// would change the features of its dependencies, which would be compiled again.
    packages: Vec<String>,
    /// Other arguments of each `cargo test`: one element for each package's unit tests, and for each test
    /// file with models.
    runs: Vec<Vec<String>>,
}

fn models(packages: &[Package], tree: &Tree) -> Models {
    let (mut chosen, mut features, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    for package in packages.iter().filter(|package| package.name != "xtask") {
        let before = runs.len();
        let words = |rest: &[&str]| rest.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let sources =
            if package.folder.is_empty() { "src/".to_owned() } else { format!("{}/src/", package.folder) };
        let has_model = |file: &&tidy::File| {
            file.path.starts_with(&sources)
                && file.lines().iter().any(|l| l.code.contains("fn loom_") || l.code.contains("mod loom_"))
        };
        if tree.rust().any(|file| has_model(&file)) {
            runs.push(words(&["--lib", "loom_"]));
        }
        for test in package.tests.iter().filter(|name| name.starts_with("loom")) {
            runs.push(words(&["--test", test]));
        }
        if runs.len() > before {
            chosen.extend(["-p".to_owned(), package.name.clone()]);
            features.extend(package.default.iter().map(|feature| format!("{}/{feature}", package.name)));
        }
    }
    if !features.is_empty() {
        chosen.extend(["--no-default-features", "--features"].map(str::to_owned));
        chosen.push(features.join(","));
    }
    Models { packages: chosen, runs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loom_models_are_found_in_sources_and_tests() {
        let package = |name: &str, tests: &[&str]| Package {
            name: name.to_owned(),
            folder: name.to_owned(),
            tests: tests.iter().map(|t| (*t).to_owned()).collect(),
            default: vec!["x".to_owned()],
            ..Package::default()
        };
        let tree = Tree::of(&[("a/src/x/y.rs", "mod loom_ring {}\n"), ("b/src/lib.rs", "// fn loom_x()\n")]);
        let packages = [package("a", &["other"]), package("b", &["loom_seats"]), package("c", &[])];
        let models = models(&packages, &tree);
        assert_eq!(models.runs, [["--lib", "loom_"], ["--test", "loom_seats"]]);
        let chosen = ["-p", "a", "-p", "b", "--no-default-features", "--features", "a/x,b/x"];
        assert_eq!(models.packages, chosen);
    }
}
