//! Step `example`: the job at the beginning of the README, made short, and all other examples.

use std::path::Path;

use crate::session::{Outcome, Session};

/// Arguments with which an example is short, and words that its last line has to have. The others run without
/// arguments.
const SHORT: [(&str, &[&str], &str); 3] = [
    ("ctrl_c", &["--press"], "nothing lost"),
    ("hogwild", &["--workers", "2", "--epochs", "3"], "test accuracy"),
    ("million_tensors", &["20000"], ""),
];

pub(crate) fn run(session: &mut Session) -> Outcome {
    let names = match names(Path::new("examples")) {
        Ok(names) if names.iter().any(|name| name == "hogwild") => names,
        Ok(_) => return Outcome::Failed("there is no example hogwild".to_owned()),
        Err(e) => return Outcome::Failed(format!("examples: {e}")),
    };
    // All at once, on all processors.
    session.run(&mut session.cargo(&[
        "build",
        "--quiet",
        "--release",
        "--features",
        "indicatif",
        "--examples",
    ]));
    for name in &names {
        let (_, args, words) = SHORT.into_iter().find(|(n, ..)| n == name).unwrap_or(("", &[], ""));
        let mut command = session.cargo(&[
            "run",
            "--quiet",
            "--release",
            "--features",
            "indicatif",
            "--example",
            name,
            "--",
        ]);
        let ran = session.run(command.args(args));
        if ran.ok && !ran.last_line.contains(words) {
            session.fail(format!("the last line of {name} must say `{words}`; it says `{}`", ran.last_line));
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
