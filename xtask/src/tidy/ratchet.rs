//! Rules that older text breaks. Violations are counted for each crate, and the counts only fall
//! (`xtask/ratchet.tsv`). The step `layers` has further rules in the same list.
//!
//! | rule | violation |
//! |---|---|
//! | `width` | a line of a `.rs` or `.md` file with more columns than `rustfmt.toml` allows; tables and targets of links don't count |
//! | `opening` | documentation of an item that begins with a word of [`OPENINGS`] instead of a verb or a noun |
//! | `test-name` | a test's name with more than [`NAME`] characters |
//!
//! Subjects of commits after the commit that added the file are checked as well: `area: imperative`, at most
//! [`SUBJECT`] characters.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use super::{File, Finding, Tree};
use crate::layers;

const PAGE: &str = "xtask/ratchet.tsv";
const HEAD: &str = "crate\trule\tviolations";

/// Words with which documentation must not begin.
const OPENINGS: [&str; 16] = [
    "What", "How", "Whether", "As", "Where", "Of", "It", "Its", "One", "Those", "Which", "Why", "That",
    "They", "Their", "These",
];
/// Maximum number of characters in a test's name.
const NAME: usize = 50;
/// Maximum number of characters in a commit's subject.
const SUBJECT: usize = 72;
/// Maximum number of places listed for a finding.
const SHOWN: usize = 10;

/// Violations by crate and rule.
pub(crate) type Violations = BTreeMap<(String, &'static str), Vec<Finding>>;

/// Checks that the counts of the rules for text equal the list.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = compare(tree, &violations(tree), |rule| !layers::RULES.contains(&rule));
    findings.extend(subjects());
    findings
}

/// Returns differences between violations and the list, for the rules that `is_checked` selects.
pub(crate) fn compare(tree: &Tree, found: &Violations, is_checked: impl Fn(&str) -> bool) -> Vec<Finding> {
    let Some(page) = tree.text(PAGE) else { return Vec::new() };
    let mut findings = Vec::new();
    let mut compare = |area: &str, rule: &str, places: &[Finding], allowed: usize| {
        let count = places.len();
        if count > allowed {
            let message = format!("{count} violations of `{rule}` in {area}, and {allowed} are allowed");
            findings.push(Finding::new(PAGE, 1, message));
            findings.extend(recent(places).take(SHOWN).cloned());
        } else if count < allowed {
            let message = format!("{count} violations of `{rule}` are left in {area}: cargo xtask ratchet");
            findings.push(Finding::new(PAGE, 1, message));
        }
    };
    let mut listed = counts(page);
    listed.retain(|(_, rule), _| is_checked(rule));
    for ((area, rule), places) in found {
        compare(area, rule, places, listed.remove(&(area.clone(), (*rule).to_owned())).unwrap_or(0));
    }
    for ((area, rule), allowed) in &listed {
        compare(area, rule, &[], *allowed);
    }
    findings
}

/// Prints each violation of the rules whose names begin with one of these words.
pub(crate) fn list(rules: &[String]) -> Result<bool, String> {
    let tree = Tree::load()?;
    let mut found = violations(&tree);
    found.append(&mut layers::violations(&tree));
    found.retain(|(_, rule), _| rules.iter().any(|name| rule.starts_with(name.as_str())));
    found.into_values().flatten().for_each(|finding| println!("{finding}"));
    Ok(true)
}

/// Writes the list. Returns an error if a count has grown. A rule without any row is new: its counts are
/// accepted.
pub(crate) fn write() -> Result<bool, String> {
    let tree = Tree::load()?;
    let old = tree.text(PAGE).map(counts).unwrap_or_default();
    let mut found = violations(&tree);
    found.append(&mut layers::violations(&tree));
    let mut text = format!("{HEAD}\n");
    for ((area, rule), places) in found {
        let is_new = !old.keys().any(|(_, listed)| listed == rule);
        let allowed = old.get(&(area.clone(), rule.to_owned())).copied().unwrap_or(0);
        if places.len() > allowed && !is_new {
            return Err(format!("violations of `{rule}` in {area} have grown: mend them"));
        }
        text += &format!("{area}\t{rule}\t{}\n", places.len());
    }
    fs::write(PAGE, text).map_err(|e| format!("{PAGE}: {e}"))?;
    Ok(true)
}

fn counts(page: &str) -> BTreeMap<(String, String), usize> {
    let row = |line: &str| {
        let mut cells = line.split('\t');
        let key = (cells.next()?.to_owned(), cells.next()?.to_owned());
        Some((key, cells.next()?.parse().ok()?))
    };
    page.lines().filter_map(row).collect()
}

fn violations(tree: &Tree) -> Violations {
    let width = tree.text("rustfmt.toml").and_then(width).unwrap_or(usize::MAX);
    let mut all = Violations::new();
    for file in &tree.files {
        let mut add = |rule, lines: Vec<usize>| {
            let violates = |line| Finding::warning(&file.path, line, format!("violates `{rule}`"));
            if !lines.is_empty() {
                all.entry((area(&file.path), rule)).or_default().extend(lines.into_iter().map(violates));
            }
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

/// Returns the name of the crate, or of the folder, under which a file's violations are counted.
pub(crate) fn area(path: &str) -> String {
    let path = path.strip_prefix("tools/").unwrap_or(path);
    path.split_once('/').map_or("root", |(area, _)| area).to_owned()
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

/// Returns places in files that the working tree or the last commit has changed, or all places if no such
/// file has a place.
fn recent(places: &[Finding]) -> impl Iterator<Item = &Finding> {
    let changed = git(&["diff", "--name-only", "HEAD~1"]).unwrap_or_default();
    let is_recent = move |path: &str| changed.lines().any(|line| line == path);
    let any = places.iter().any(|place| is_recent(&place.path));
    places.iter().filter(move |place| !any || is_recent(&place.path))
}

fn subjects() -> Vec<Finding> {
    let first = git(&["log", "--diff-filter=A", "--format=%H", "--", PAGE]);
    let Some(first) = first.as_deref().and_then(|text| text.lines().last()) else { return Vec::new() };
    let log = git(&["log", "--no-merges", "--format=%h %s", &format!("{first}..HEAD")]).unwrap_or_default();
    let subjects = log.lines().filter_map(|line| line.split_once(' '));
    let complain = |(commit, subject): (&str, &str)| {
        let why = complaint(subject)?;
        Some(Finding::new(PAGE, 1, format!("commit {commit}, `{subject}`: {why}")))
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

    fn found(path: &str, text: &str) -> Vec<(&'static str, Vec<usize>)> {
        let all = violations(&Tree::of(&[SETTINGS, (path, text)]));
        let lines = |places: Vec<Finding>| places.into_iter().map(|place| place.line).collect();
        all.into_iter().map(|((_, rule), places)| (rule, lines(places))).collect()
    }

    #[test]
    fn wide_lines_are_counted_except_tables_and_links() {
        let wide = "word ".repeat(9);
        assert_eq!(found("a.md", &format!("{wide}\n| {wide} |\nshort\n")), [("width", vec![1])]);
        assert_eq!(found("mp-x/src/a.rs", &format!("//! {wide}\n/// | {wide}\n")), [("width", vec![1])]);
        assert!(found("a.md", &format!("[a](docs/{}) and b\n", "x".repeat(50))).is_empty());
        assert!(found("a.txt", &wide).is_empty());
    }

    #[test]
    fn openings_of_documentation_are_counted() {
        let text = "//! What it is.\n\n/// Returns it.\n/// What follows.\nfn a() {}\n    /// Whether so.\n\
                    // As ever.\n";
        assert_eq!(found("a.rs", text), [("opening", vec![1, 6])]);
    }

    #[test]
    fn long_test_names_are_counted() {
        let long = "x".repeat(NAME + 1);
        let text =
            format!("#[test]\n#[ignore]\nfn {long}() {{}}\nfn {long}() {{}}\n#[test]\nfn short() {{}}\n");
        let found = found("mp-x/tests/a.rs", &text);
        assert_eq!(found.into_iter().find(|(rule, _)| *rule == "test-name"), Some(("test-name", vec![3])));
    }

    #[test]
    fn rising_counts_are_reported() {
        let findings = |listed: usize| {
            let page = format!("{HEAD}\nmp-x\topening\t{listed}\n");
            let tree = Tree::of(&[SETTINGS, (PAGE, &page), ("mp-x/a.rs", "/// What.\n\n/// How.\n")]);
            check(&tree).into_iter().filter(|f| !f.warning && f.message.contains("opening")).count()
        };
        assert_eq!([1, 2, 3].map(findings), [1, 0, 1]);
    }

    #[test]
    fn subject_must_name_area_and_change() {
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
