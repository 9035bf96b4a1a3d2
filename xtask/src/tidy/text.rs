//! Rules about any text: sizes, blanks, leftovers, machine-specific folders.

use super::mask::{has_word, is_word};
use super::{File, Finding, Tree};

/// Numbers of lines from which a file should be split, and must be split.
const LONG: usize = 400;
const TOO_LONG: usize = 600;

/// Files that are not read or written by hand.
const DATA: &[&str] = &[".csv", ".json", ".lock", ".stderr", ".svg", ".tsv", ".txt.gz"];

/// Marks of unfinished work, split so that this file does not contain them.
const MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("X", "XX")];

/// Machine-specific folders, split so that this file does not contain them.
const FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        folders(file, &mut findings);
        let generated = file.text.lines().take(5).any(|line| line.contains(concat!("@gen", "erated")));
        if generated || DATA.iter().any(|end| file.path.ends_with(end)) {
            continue;
        }
        size(file, &mut findings);
        blanks(file, &mut findings);
        marks(file, &mut findings);
    }
    findings
}

fn folders(file: &File, findings: &mut Vec<Finding>) {
    let names = |line: &str, folder: &str| {
        line.match_indices(folder)
            .any(|(at, _)| !line[..at].ends_with(|c| is_word(c) || matches!(c, '.' | '-')))
    };
    for (number, line) in file.text.lines().enumerate() {
        for folder in FOLDERS.iter().filter(|folder| names(line, folder)) {
            let message =
                format!("`{folder}` exists on one machine only: name the place from the repository's root");
            findings.push(Finding::new(&file.path, number + 1, message));
        }
    }
}

fn size(file: &File, findings: &mut Vec<Finding>) {
    let lines = file.text.lines().count();
    // Pages are navigated by their headings, so they may be longer.
    if lines > LONG && ![".md", ".diff"].iter().any(|end| file.path.ends_with(end)) {
        let message = format!("{lines} lines: split it (more than {TOO_LONG} is an error)");
        let warning = lines <= TOO_LONG;
        findings.push(Finding { warning, ..Finding::new(&file.path, lines, message) });
    }
}

fn blanks(file: &File, findings: &mut Vec<Finding>) {
    let rust = file.path.ends_with(".rs");
    for (number, line) in file.text.split('\n').enumerate() {
        let mut found = |message: &str| findings.push(Finding::new(&file.path, number + 1, message));
        if line.ends_with(char::is_whitespace) {
            found("blanks at the end of the line: take them out");
        }
        if rust && line.contains('\t') {
            found("a tab: indent with blanks, and write \\t in strings");
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        let last = file.text.lines().count();
        findings.push(Finding::new(&file.path, last, "the last line has no end: add a newline"));
    }
}

fn marks(file: &File, findings: &mut Vec<Finding>) {
    let masked = |(line, masked): (&str, &super::Line)| {
        let literal = line.chars().count() == masked.code.chars().count();
        if literal { format!("{} {}", masked.code, masked.comment) } else { line.to_owned() }
    };
    let lines: Vec<String> = match file.path.ends_with(".rs") {
        true => file.text.lines().zip(file.lines()).map(masked).collect(),
        false => file.text.lines().map(str::to_owned).collect(),
    };
    for (number, line) in lines.iter().enumerate() {
        for mark in MARKS.iter().filter(|mark| has_word(line, mark)) {
            let message = format!("`{mark}` is left over: finish it, or write it down as an issue");
            findings.push(Finding::new(&file.path, number + 1, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, bool)> {
        check(&Tree::of(&[(path, text)])).iter().map(|f| (f.line, f.warning)).collect()
    }

    #[test]
    fn long_files_warn_and_longer_ones_fail() {
        assert!(found("a.rs", &"\n".repeat(400)).is_empty());
        assert_eq!(found("a.rs", &"\n".repeat(401)), [(401, true)]);
        assert_eq!(found("a.rs", &"\n".repeat(601)), [(601, false)]);
        assert!(found("Cargo.lock", &"\n".repeat(601)).is_empty());
        assert!(found("a.md", &"\n".repeat(601)).is_empty());
        let generated = format!("// {}\n{}", concat!("@gen", "erated"), "\n".repeat(700));
        assert!(found("a.rs", &generated).is_empty());
    }

    #[test]
    fn blanks_at_line_ends_are_reported() {
        assert_eq!(found("a.md", "a \nb\n"), [(1, false)]);
        assert_eq!(found("a.rs", "a\r\n\tb\n"), [(1, false), (2, false)]);
        assert!(found("a.sh", "\tb\n").is_empty());
        assert_eq!(found("a.rs", "a\nb"), [(2, false)]);
        assert!(found("a.rs", "").is_empty());
    }

    #[test]
    fn marks_of_unfinished_work_are_reported() {
        let mark = MARKS[0];
        assert_eq!(found("a.rs", &format!("// {mark}: later\n")).len(), 1);
        assert_eq!(found("a.md", &format!("{mark}\n{}\n", MARKS[1])).len(), 2);
        assert!(found("a.rs", &format!("let a = \"{mark}\";\n")).is_empty());
        assert!(found("a.sh", "mktemp aXXXXXX\n").is_empty());
    }

    #[test]
    fn folders_of_one_machine_are_reported() {
        let folder = FOLDERS[0];
        assert_eq!(found("a.md", &format!("see {folder}x\n")).len(), 1);
        assert_eq!(found("a.csv", &format!("{folder}x\n")).len(), 1);
        assert!(found("a.md", &format!("see home{folder}x\n")).is_empty());
    }
}
