//! Step `tidy`: rules about the text of the repository that no compiler checks.

mod code;
mod crates;
mod glossary;
pub(crate) mod links;
pub(crate) mod mask;
pub(crate) mod parity;
mod statics;
mod style;
mod text;
pub(crate) mod uses;

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::process::Command;
use std::sync::OnceLock;

pub(crate) use mask::Line;

use crate::session::{Outcome, Session};

/// Violation of a rule at a place. The message states how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Number of the line, from 1.
    pub(crate) line: usize,
    pub(crate) message: String,
    /// `true` if the finding is printed but does not fail the step.
    pub(crate) warning: bool,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into(), warning: false }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, message, warning } = self;
        write!(f, "{path}:{line}: {}{message}", if *warning { "warning: " } else { "" })
    }
}

/// A text file of the repository.
pub(crate) struct File {
    /// Path from the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    lines: OnceLock<Vec<Line>>,
    functions: OnceLock<HashSet<String>>,
}

impl File {
    /// Returns the lines of a Rust file with code and comments separated.
    pub(crate) fn lines(&self) -> &[Line] {
        self.lines.get_or_init(|| mask::lines(&self.text))
    }

    /// Creates a file that has not been parsed.
    pub(crate) fn new(path: String, text: String) -> Self {
        Self { path, text, lines: OnceLock::new(), functions: OnceLock::new() }
    }

    /// Returns `true` if a function of a Rust file has this name.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        let named = |line: &Line| {
            let starts =
                line.code.match_indices("fn ").filter(|(at, _)| !line.code[..*at].ends_with(mask::is_word));
            let names = starts
                .map(|(at, begin)| line.code[at + begin.len()..].chars().take_while(|c| mask::is_word(*c)));
            names.map(String::from_iter).collect::<Vec<String>>()
        };
        self.functions.get_or_init(|| self.lines().iter().flat_map(named).collect()).contains(name)
    }

    /// Returns `true` if the file lies in the root folder `name`, or in a folder `name` of a crate.
    fn under(&self, name: &str) -> bool {
        let mut folders = self.path.split('/').rev().skip(1);
        folders.any(|folder| folder == name)
    }
}

/// All text files of the repository that git does not ignore.
pub(crate) struct Tree {
    files: Vec<File>,
}

impl Tree {
    pub(crate) fn load() -> Result<Self, String> {
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .map_err(|e| format!("git ls-files: {e}"))?;
        if !output.status.success() {
            return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let mut tree = Self { files: Vec::new() };
        for path in output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
            let path = String::from_utf8_lossy(path).into_owned();
            // Deleted files, folders and binary data have no text to check.
            if let Ok(text) = fs::read_to_string(&path) {
                tree.files.push(File::new(path, text));
            }
        }
        Ok(tree)
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File::new((*path).to_owned(), (*text).to_owned());
        Self { files: files.iter().map(file).collect() }
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// Returns the paths of all text files, as git lists them.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.path.as_str())
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.get(path).map(|file| file.text.as_str())
    }

    /// Returns `true` if any file has a function of this name.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.rust().any(|file| file.has_function(name))
    }

    /// Returns the names of all modules: of files, folders, and modules inside of files.
    pub(crate) fn modules(&self) -> HashSet<&str> {
        let inline = |line| str::trim(line).strip_suffix(" {")?.rsplit_once("mod ").map(|(_, name)| name);
        let mut names = HashSet::new();
        for file in self.rust() {
            names.extend(file.path.trim_end_matches(".rs").split('/'));
            names.extend(file.text.lines().filter_map(inline));
        }
        names
    }

    fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

pub(crate) fn run(session: &mut Session) -> Outcome {
    let tree = match Tree::load() {
        Ok(tree) => tree,
        Err(message) => return Outcome::Failed(message),
    };
    let findings = check(&tree);
    outcome(&findings, session)
}

/// Prints findings. Fails if one of them is not a warning.
pub(crate) fn outcome(findings: &[Finding], session: &Session) -> Outcome {
    findings.iter().for_each(|finding| println!("{finding}"));
    match findings.iter().filter(|finding| !finding.warning).count() {
        0 => session.outcome(),
        broken => Outcome::Failed(format!("{broken} of {} findings must be fixed", findings.len())),
    }
}

/// Returns all findings, sorted by path and line, without duplicates.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = code::check(tree);
    findings.extend(statics::check(tree));
    findings.extend(text::check(tree));
    findings.extend(glossary::check(tree));
    findings.extend(links::check(tree));
    findings.extend(crates::check(tree));
    findings.extend(parity::check(tree));
    findings.extend(crate::reruns::check(tree));
    findings.extend(style::check(tree));
    findings.extend(crate::mutate::check(tree));
    findings.sort();
    findings.dedup();
    findings
}
