//! Rules about `docs/mistakes.md`, `docs/parity.md` and `docs/user-code.md`: a row that claims a proof names a test that exists.

use super::{Finding, Tree};

const PAGES: [&str; 3] = ["docs/mistakes.md", "docs/parity.md", "docs/user-code.md"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    PAGES.iter().flat_map(|page| check_page(tree, page)).collect()
}

fn check_page(tree: &Tree, path: &'static str) -> Vec<Finding> {
    let Some(page) = tree.get(path) else { return Vec::new() };
    let mut findings = Vec::new();
    let mut column = None;
    let mut tables = 0;
    for (number, line) in page.text.lines().enumerate() {
        if !line.trim_start().starts_with('|') {
            column = None;
            continue;
        }
        let cells = cells(line);
        if let Some(heading) = cells.iter().position(|cell| cell.to_lowercase().contains("proved by")) {
            column = Some(heading);
            tables += 1;
            continue;
        }
        let Some(cell) = column.and_then(|column| cells.get(column)) else { continue };
        if cell.chars().all(|c| matches!(c, '-' | ':')) && !cell.is_empty() {
            continue;
        }
        let mut found = |message: String| findings.push(Finding::new(path, number + 1, message));
        if cell.is_empty() {
            found("nothing proves this row: name a test, or write `not yet`".to_owned());
        }
        cell.split('`').skip(1).step_by(2).filter_map(|name| missing(tree, name)).for_each(&mut found);
    }
    if tables == 0 {
        findings.push(Finding::new(path, 1, "no table has a column `proved by`: add it"));
    }
    findings
}

/// The cells between the bars; `\|` is no bar.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().replace("\\|", "\u{1}");
    let line = line.strip_prefix('|').unwrap_or(&line);
    let line = line.strip_suffix('|').unwrap_or(line);
    line.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
}

/// What is wrong with a name of a test: `path.rs::name`, `path.rs`, `module::name` or `name`. Other words,
/// commands for example, are let be.
fn missing(tree: &Tree, name: &str) -> Option<String> {
    let (path, test) = match name.find(".rs") {
        Some(at) => (Some(&name[..at + 3]), name[at + 3..].trim_start_matches("::")),
        None => (None, name),
    };
    let simple = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
    if !test.chars().all(simple) || name == "not yet" {
        return None;
    }
    let file = path.map(|path| tree.get(path));
    if let (Some(path), Some(None)) = (path, &file) {
        return Some(format!("`{path}` is not there: name a file from the repository's root"));
    }
    let test = test.rsplit("::").next().unwrap_or_default();
    let there = match file.flatten() {
        Some(file) => test.is_empty() || file.has_function(test),
        None => tree.has_function(test),
    };
    (!there).then(|| format!("no `fn {test}` {}: name a test that is there", path.unwrap_or("in any file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &str) -> Vec<usize> {
        let page = format!("# Parity\n| torch | mp | Proved by |\n|---|:-:|---|\n{rows}\n");
        let test = "#[test]\nfn it_holds() {}\n// fn it_held() {}\n";
        let found = |path| check(&Tree::of(&[(path, &page), ("tests/tests/a.rs", test)]));
        let [lines, others @ ..] = PAGES.map(|path| found(path).iter().map(|f| f.line).collect::<Vec<_>>());
        assert!(others.iter().all(|other| *other == lines));
        lines
    }

    #[test]
    fn existing_tests_are_fine() {
        assert!(rows("| a | b | `tests/tests/a.rs::it_holds`, `it_holds` |").is_empty());
        assert!(rows("| a \\| c | b | `a::it_holds` |\n| a | b | `tests/tests/a.rs` |").is_empty());
        assert!(rows("| a | b | not yet |\n| a | b | `cargo xtask bench` |").is_empty());
    }

    #[test]
    fn missing_tests_are_found() {
        assert_eq!(
            rows("| a | b | `it_held` |\n| a | b | `tests/tests/b.rs::it_holds` |\n| a | b | |"),
            [4, 5, 6]
        );
        assert_eq!(rows("| a | b | `tests/tests/a.rs::it_hold` |"), [4]);
    }

    #[test]
    fn the_page_may_be_missing_but_not_its_column() {
        assert!(check(&Tree::of(&[])).is_empty());
        assert_eq!(check(&Tree::of(&[(PAGES[0], "| a | b |\n")])).len(), 1);
    }
}
