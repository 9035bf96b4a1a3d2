//! Step `example`: the job at the beginning of the README, made short, and all other examples.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::session::{Outcome, Session};

/// Arguments with which an example is short, and words that its last line has to have. The others run without
/// arguments.
const SHORT: [(&str, &[&str], &str); 7] = [
    ("ctrl_c", &["--press"], "nothing lost"),
    ("hogwild", &["--workers", "2", "--epochs", "3"], "test accuracy"),
    ("invited", &[], "328350"),
    ("million_tensors", &["20000"], ""),
    ("send_socket", &["1000"], "a second"),
    ("streaming", &["--samples", "2000"], "the same after a killed worker and a resume"),
    ("supervised", &[], "13 is set aside"),
];

/// The packages with examples, and the folders that they are in.
const PACKAGES: [(&str, &str); 2] = [("multiproc", "examples"), ("mp-queue", "mp-queue/examples")];
/// Built along: with it, the libraries are those that the step `test` has.
const LIBRARIES: &str = "mp-tests";

pub(crate) fn run(session: &mut Session) -> Outcome {
    // All at once, on all processors.
    let mut build = session.cargo(&["build", "--quiet", "--examples", "-p", LIBRARIES]);
    PACKAGES.iter().for_each(|(package, _)| _ = build.args(["-p", package]));
    session.run(&mut build);
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    for (_, folder) in PACKAGES {
        let names = match names(Path::new(folder)) {
            Ok(names) if !names.is_empty() => names,
            Ok(_) => return Outcome::Failed(format!("there is no example in {folder}")),
            Err(e) => return Outcome::Failed(format!("{folder}: {e}")),
        };
        for name in &names {
            let (_, args, words) = SHORT.into_iter().find(|(n, ..)| n == name).unwrap_or(("", &[], ""));
            let ran = session.run(Command::new(target.join("debug/examples").join(name)).args(args));
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
