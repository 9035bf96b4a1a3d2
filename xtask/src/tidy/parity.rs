//! Rules about `docs/guide/mistakes.md`, `docs/parity.md` and `docs/reference/user-code.md`: a row that
//! claims a proof names an existing test.

use std::collections::HashSet;

use super::{Finding, Tree};

const PAGES: [&str; 3] = ["docs/guide/mistakes.md", "docs/parity.md", "docs/reference/user-code.md"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    PAGES.iter().flat_map(|page| check_page(tree, page)).collect()
}

/// Returns a complaint for each row whose test did not run. `ran` has the names of tests and of their
/// modules.
pub(crate) fn not_run(tree: &Tree, ran: &HashSet<String>) -> Vec<String> {
    let of_page = |path: &'static str| {
        let rows = tree.text(path).map(rows).unwrap_or_default();
        let names = rows.proofs.into_iter().flat_map(|(line, cell)| {
            let names: Vec<_> = cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            names.into_iter().map(move |name| (line, name))
        });
        let missing = names.filter(|(_, name)| {
            let test = split(name).and_then(|(_, test)| test.rsplit("::").next());
            test.is_some_and(|test| !test.is_empty() && !ran.contains(test))
        });
        missing
            .map(|(line, name)| format!("{path}:{line}: the test `{name}` did not run"))
            .collect::<Vec<_>>()
    };
    PAGES.iter().flat_map(|page| of_page(page)).collect()
}

/// Rows of a page's tables.
#[derive(Default)]
struct Rows {
    /// Number of tables with a column for proofs.
    tables: usize,
    /// Line and text of each cell in such a column.
    proofs: Vec<(usize, String)>,
}

fn rows(page: &str) -> Rows {
    let (mut rows, mut column) = (Rows::default(), None);
    for (number, line) in page.lines().enumerate() {
        if !line.trim_start().starts_with('|') {
            column = None;
            continue;
        }
        let mut cells = cells(line);
        if let Some(heading) = cells.iter().position(|cell| cell.to_lowercase().contains("proved by")) {
            column = Some(heading);
            rows.tables += 1;
            continue;
        }
        let Some(at) = column.filter(|column| *column < cells.len()) else { continue };
        let cell = cells.swap_remove(at);
        if cell.is_empty() || !cell.chars().all(|c| matches!(c, '-' | ':')) {
            rows.proofs.push((number + 1, cell));
        }
    }
    rows
}

fn check_page(tree: &Tree, path: &'static str) -> Vec<Finding> {
    let Some(page) = tree.text(path) else { return Vec::new() };
    let (mut findings, rows) = (Vec::new(), rows(page));
    for (line, cell) in rows.proofs {
        let mut found = |message: String| findings.push(Finding::new(path, line, message));
        if cell.is_empty() {
            found("nothing proves this row: name a test, or write `not yet`".to_owned());
        }
        cell.split('`').skip(1).step_by(2).filter_map(|name| missing(tree, name)).for_each(&mut found);
    }
    if rows.tables == 0 {
        findings.push(Finding::new(path, 1, "no table has a column `proved by`: add it"));
    }
    findings
}

/// Returns the cells between the bars. `\|` is not a bar.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().replace("\\|", "\u{1}");
    let line = line.strip_prefix('|').unwrap_or(&line);
    let line = line.strip_suffix('|').unwrap_or(line);
    line.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
}

/// Splits the name of a test into path and name: `path.rs::name`, `path.rs`, `module::name` or `name`. Other
/// words, such as commands, are `None`.
fn split(name: &str) -> Option<(Option<&str>, &str)> {
    let (path, test) = match name.find(".rs") {
        Some(at) => (Some(&name[..at + 3]), name[at + 3..].trim_start_matches("::")),
        None => (None, name),
    };
    let simple = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
    (test.chars().all(simple) && name != "not yet").then_some((path, test))
}

/// Returns the complaint about a name of a test that is not in the tree.
fn missing(tree: &Tree, name: &str) -> Option<String> {
    let (path, test) = split(name)?;
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
    fn tests_that_did_not_run_are_found() {
        let page = "| torch | mp | Proved by |\n|---|---|---|\n| a | b | `x.rs::ran` |\n| a | b | `m::other`, `cargo x` |\n";
        let found = not_run(&Tree::of(&[(PAGES[1], page)]), &HashSet::from(["ran".to_owned()]));
        assert_eq!(found, ["docs/parity.md:4: the test `m::other` did not run"]);
    }

    #[test]
    fn the_page_may_be_missing_but_not_its_column() {
        assert!(check(&Tree::of(&[])).is_empty());
        assert_eq!(check(&Tree::of(&[(PAGES[0], "| a | b |\n")])).len(), 1);
    }
}
