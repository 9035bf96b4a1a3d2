//! Rules for text, names of tests and subjects of commits.
//!
//! | rule | violation |
//! |---|---|
//! | `width` | a line of a `.rs` or `.md` file with more columns than `rustfmt.toml` allows; tables and targets of links don't count |
//! | `opening` | documentation of an item that begins with a word of [`OPENINGS`] instead of a verb or a noun |
//! | `test-name` | a test's name with more than [`NAME`] characters |
//! | `subject` | a commit's subject that is not `area: imperative`, or has more than [`SUBJECT`] characters |

use std::process::Command;

use super::{File, Finding, Tree};

/// Words with which documentation must not begin.
const OPENINGS: [&str; 16] = [
    "What", "How", "Whether", "As", "Where", "Of", "It", "Its", "One", "Those", "Which", "Why", "That",
    "They", "Their", "These",
];
/// Maximum number of characters in a test's name.
const NAME: usize = 50;
/// Maximum number of characters in a commit's subject.
const SUBJECT: usize = 72;
/// File that was added by the same commit as the rule about subjects. Subjects of older commits are not
/// checked. The path is the file's path at that commit.
const FIRST: &str = "xtask/ratchet.tsv";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = violations(tree);
    findings.extend(subjects());
    findings
}

fn violations(tree: &Tree) -> Vec<Finding> {
    let width = tree.text("rustfmt.toml").and_then(width).unwrap_or(usize::MAX);
    let mut all = Vec::new();
    for file in &tree.files {
        let mut add = |rule, lines: Vec<usize>| {
            let violates = |line| Finding::new(&file.path, line, format!("violates `{rule}`"));
            all.extend(lines.into_iter().map(violates));
        };
        let is_rust = file.path.ends_with(".rs");
        if is_rust || file.path.ends_with(".md") {
            add("width", wide(&file.text, width));
        }
        if is_rust {
            add("opening", openings(&file.text));
            add("test-name", long_names(file));
        }
    }
    all
}

fn width(settings: &str) -> Option<usize> {
    settings.lines().find_map(|line| line.strip_prefix("max_width = "))?.trim().parse().ok()
}

fn wide(text: &str, width: usize) -> Vec<usize> {
    let is_wide = |line: &str| {
        let words = line.trim_start().trim_start_matches('/').trim_start_matches('!').trim_start();
        line.chars().count() > width && !words.starts_with('|') && without_targets(line) > width
    };
    numbers(text, is_wide)
}

/// Returns the number of columns of a line without the targets of its links.
fn without_targets(line: &str) -> usize {
    let mut parts = line.split("](");
    let first = parts.next().unwrap_or_default().chars().count();
    first
        + parts.map(|part| part.split_once(')').map_or(part, |(_, rest)| rest).chars().count()).sum::<usize>()
}

fn numbers(text: &str, is: impl Fn(&str) -> bool) -> Vec<usize> {
    (1..).zip(text.lines()).filter(|(_, line)| is(line)).map(|(number, _)| number).collect()
}

/// Returns the first lines of documentation that begins with a word of [`OPENINGS`].
fn openings(text: &str) -> Vec<usize> {
    let doc = |line: &str| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::to_owned)
    };
    let (mut found, mut inside) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let words = doc(line);
        if let (Some(words), false) = (&words, inside) {
            let first = words.split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty());
            if first.is_some_and(|first| OPENINGS.contains(&first)) {
                found.push(number);
            }
        }
        inside = words.is_some();
    }
    found
}

fn long_names(file: &File) -> Vec<usize> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for (number, line) in (1..).zip(file.lines()) {
        let code = line.code.trim();
        if code.starts_with("#[test]") || code.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(at) = code.find("fn ").filter(|_| is_test) {
            let name = code[at + 3..].chars().take_while(|c| super::mask::is_word(*c)).count();
            if name > NAME {
                found.push(number);
            }
            is_test = false;
        }
    }
    found
}

fn subjects() -> Vec<Finding> {
    let first = git(&["log", "--diff-filter=A", "--format=%H", "--", FIRST]);
    let Some(first) = first.as_deref().and_then(|text| text.lines().last()) else { return Vec::new() };
    let log = git(&["log", "--no-merges", "--format=%h %s", &format!("{first}..HEAD")]).unwrap_or_default();
    let subjects = log.lines().filter_map(|line| line.split_once(' '));
    let complain = |(commit, subject): (&str, &str)| {
        let why = complaint(subject)?;
        Some(Finding::new("CONTRIBUTING.md", 1, format!("commit {commit}, `{subject}`: {why}")))
    };
    subjects.filter_map(complain).collect()
}

fn complaint(subject: &str) -> Option<&'static str> {
    let is_area = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-/,. ".contains(c);
    match subject.split_once(": ") {
        _ if subject.chars().count() > SUBJECT => Some("more than 72 characters"),
        Some((area, what)) if area.chars().all(is_area) && !what.is_empty() => None,
        _ => Some("write `area: imperative`"),
    }
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: (&str, &str) = ("rustfmt.toml", "max_width = 40\n");

    fn found(path: &str, text: &str, rule: &str) -> Vec<usize> {
        let mut all = violations(&Tree::of(&[SETTINGS, (path, text)]));
        all.retain(|finding| finding.message.contains(rule));
        all.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn wide_lines_are_reported_except_tables_and_links() {
        let wide = "word ".repeat(9);
        let found = |path, text: String| found(path, &text, "width");
        assert_eq!(found("a.md", format!("{wide}\n| {wide} |\nshort\n")), [1]);
        assert_eq!(found("mp-x/src/a.rs", format!("//! {wide}\n/// | {wide}\n")), [1]);
        assert!(found("a.md", format!("[a](docs/{}) and b\n", "x".repeat(50))).is_empty());
        assert!(found("a.txt", wide).is_empty());
    }

    #[test]
    fn wrong_openings_of_documentation_are_reported() {
        let text = "//! What it is.\n\n/// Returns it.\n/// What follows.\nfn a() {}\n    /// Whether so.\n\
                    // As ever.\n";
        assert_eq!(found("a.rs", text, "opening"), [1, 6]);
    }

    #[test]
    fn long_test_names_are_reported() {
        let long = "x".repeat(NAME + 1);
        let text =
            format!("#[test]\n#[ignore]\nfn {long}() {{}}\nfn {long}() {{}}\n#[test]\nfn short() {{}}\n");
        assert_eq!(found("mp-x/tests/a.rs", &text, "test-name"), [3]);
    }

    #[test]
    fn commit_subject_must_name_area_and_change() {
        for good in ["queue: return the value", "core, tensor: check views", "cuda-sim: count events"] {
            assert_eq!(complaint(good), None);
        }
        for bad in
            ["Wording", "What a host has seen: at rest", "queue:", &format!("queue: {}", "x".repeat(70))]
        {
            assert!(complaint(bad).is_some(), "{bad}");
        }
    }
}
