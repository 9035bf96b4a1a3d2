//! Step `example`: the job at the beginning of the README, made short, and all other examples.

use std::path::Path;

use crate::session::{Outcome, Session};

/// Arguments with which an example is short, and words that its last line has to have. The others run without
/// arguments.
const SHORT: [(&str, &[&str], &str); 5] = [
    ("ctrl_c", &["--press"], "nothing lost"),
    ("hogwild", &["--workers", "2", "--epochs", "3"], "test accuracy"),
    ("invited", &[], "328350"),
    ("million_tensors", &["20000"], ""),
    ("supervised", &[], "13 is set aside"),
];

/// The packages with examples, and what builds and runs them; the first one is the root package.
const PACKAGES: [(&str, &[&str]); 2] =
    [("examples", &["--features", "indicatif"]), ("mp-queue/examples", &["-p", "mp-queue"])];

pub(crate) fn run(session: &mut Session) -> Outcome {
    for (folder, package) in PACKAGES {
        let names = match names(Path::new(folder)) {
            Ok(names) if !names.is_empty() => names,
            Ok(_) => return Outcome::Failed(format!("there is no example in {folder}")),
            Err(e) => return Outcome::Failed(format!("{folder}: {e}")),
        };
        // All at once, on all processors.
        session.run(session.cargo(&["build", "--quiet", "--release", "--examples"]).args(package));
        for name in &names {
            let (_, args, words) = SHORT.into_iter().find(|(n, ..)| n == name).unwrap_or(("", &[], ""));
            let mut command = session.cargo(&["run", "--quiet", "--release", "--example", name]);
            let ran = session.run(command.args(package).arg("--").args(args));
            if ran.ok && !ran.last_line.contains(words) {
                session
                    .fail(format!("the last line of {name} must say `{words}`; it says `{}`", ran.last_line));
            }
        }
    }
    session.outcome()
}

/// The examples of a folder: files, and folders with a `main.rs`.
fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists() {
            names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    names.sort();
    Ok(names)
}
