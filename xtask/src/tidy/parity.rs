//! Rules about pages whose rows need tests as proofs. `docs/proofs.tsv` lists the proofs of each row, one per
//! line. Each row must have a proof, and each proof a row. A proof that is the name of a test or a file must
//! exist. `not yet`, `not here` and commands are proofs without a test.

use std::collections::HashSet;

use super::{Finding, Tree};

const PROOFS: &str = "docs/proofs.tsv";

/// Name of each page in the list of proofs, and its path.
const PAGES: [(&str, &str); 3] = [
    ("mistakes", "docs/guide/mistakes.md"),
    ("parity", "docs/parity.md"),
    ("user-code", "docs/reference/user-code.md"),
];

/// Line of the list of proofs.
struct Proof<'a> {
    line: usize,
    page: &'a str,
    row: &'a str,
    name: &'a str,
}

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(list) = tree.text(PROOFS) else { return Vec::new() };
    let (proofs, mut findings, mut found) = (proofs(list), Vec::new(), HashSet::new());
    let proved: HashSet<(&str, &str)> = proofs.iter().map(|proof| (proof.page, proof.row)).collect();
    for (page, path) in PAGES {
        let Some(text) = tree.text(path) else { continue };
        let rows = rows(text);
        if rows.is_empty() {
            findings.push(Finding::new(path, 1, "no table begins with a column `#`: add it"));
        }
        for (line, row) in rows {
            if !found.insert((page, row)) {
                findings.push(Finding::new(path, line, format!("a row above has the number `{row}`, too")));
            } else if !proved.contains(&(page, row)) {
                let message =
                    format!("nothing proves row `{row}`: name a test in {PROOFS}, or write `not yet`");
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    for Proof { line, page, row, name } in proofs {
        if !found.contains(&(page, row)) {
            findings.push(Finding::new(PROOFS, line, format!("no page `{page}` has a row `{row}`")));
        }
        findings.extend(missing(tree, name).map(|message| Finding::new(PROOFS, line, message)));
    }
    findings
}

/// Returns a complaint for each proof whose test did not run. `ran` has the names of tests and of their
/// modules.
pub(crate) fn not_run(tree: &Tree, ran: &HashSet<String>) -> Vec<String> {
    let is_missing = |proof: &Proof<'_>| {
        let test = split(proof.name).and_then(|(_, test)| test.rsplit("::").next());
        test.is_some_and(|test| !test.is_empty() && !ran.contains(test))
    };
    let proofs = tree.text(PROOFS).map(proofs).unwrap_or_default();
    let missing = proofs.into_iter().filter(is_missing);
    missing
        .map(|Proof { line, name, .. }| format!("{PROOFS}:{line}: the test `{name}` did not run"))
        .collect()
}

/// Returns the proofs after the line of headings.
fn proofs(list: &str) -> Vec<Proof<'_>> {
    let mut proofs = Vec::new();
    for (line, text) in (1..).zip(list.lines()).skip(1) {
        let mut cells = text.split('\t');
        let [page, row, name] = [(); 3].map(|()| cells.next().unwrap_or_default());
        proofs.push(Proof { line, page, row, name });
    }
    proofs
}

/// Returns the line and the number of each row in tables whose first column is `#`.
fn rows(page: &str) -> Vec<(usize, &str)> {
    let (mut rows, mut is_numbered) = (Vec::new(), None);
    for (line, text) in (1..).zip(page.lines()) {
        let Some(cells) = text.strip_prefix('|') else {
            is_numbered = None;
            continue;
        };
        let first = cells.split('|').next().unwrap_or_default().trim();
        let is_rule = !first.is_empty() && first.chars().all(|c| matches!(c, '-' | ':'));
        match is_numbered {
            None => is_numbered = Some(first == "#"),
            Some(true) if !is_rule => rows.push((line, first)),
            Some(_) => {}
        }
    }
    rows
}

/// Splits the name of a test into path and name: `path.rs::name`, `path.rs`, `module::name` or `name`.
/// Returns `None` for other words, such as commands.
fn split(name: &str) -> Option<(Option<&str>, &str)> {
    let (path, test) = match name.find(".rs") {
        Some(at) => (Some(&name[..at + 3]), name[at + 3..].trim_start_matches("::")),
        None => (None, name),
    };
    let simple = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
    test.chars().all(simple).then_some((path, test))
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

    const PAGE: &str = "# Parity\n| # | torch | mp |\n|---|:-:|---|\n| 1 | a | b |\n| 2 | c | d |\n";

    /// Returns the lines with findings: of the page, and of the list.
    fn found(page: &str, list: &str) -> (Vec<usize>, Vec<usize>) {
        let list = format!("page\trow\tproof\n{list}");
        let test = "#[test]\nfn it_holds() {}\n// fn it_held() {}\n";
        let (_, path) = PAGES[1];
        let findings = check(&Tree::of(&[(path, page), (PROOFS, &list), ("tests/tests/a.rs", test)]));
        let lines = |of: &str| findings.iter().filter(|f| f.path == of).map(|f| f.line).collect();
        (lines(path), lines(PROOFS))
    }

    #[test]
    fn parity_check_accepts_existing_tests() {
        let list =
            "parity\t1\ttests/tests/a.rs::it_holds\nparity\t1\ta::it_holds\nparity\t1\ttests/tests/a.rs\n";
        for proof in ["it_holds", "not yet", "cargo xtask bench"] {
            assert_eq!(found(PAGE, &format!("{list}parity\t2\t{proof}\n")), (vec![], vec![]));
        }
    }

    #[test]
    fn parity_check_reports_missing_tests() {
        for proof in ["it_held", "tests/tests/b.rs::it_holds", "tests/tests/a.rs::it_hold", ""] {
            let list = format!("parity\t1\tit_holds\nparity\t2\t{proof}\n");
            assert_eq!(found(PAGE, &list), (vec![], vec![3]));
        }
    }

    #[test]
    fn parity_check_reports_unmatched_rows_and_proofs() {
        let list = "parity\t1\tit_holds\nparity\t3\tit_holds\nelsewhere\t2\tit_holds\n";
        assert_eq!(found(PAGE, list), (vec![5], vec![3, 4]));
        let twice = format!("{PAGE}| 1 | e | f |\n\n| # | g |\n|---|---|\n| | h |\n");
        assert_eq!(found(&twice, "parity\t1\tit_holds\nparity\t2\tit_holds\n"), (vec![6, 10], vec![]));
    }

    #[test]
    fn parity_check_reports_tests_that_did_not_run() {
        let list = "page\trow\tproof\nparity\t1\tx.rs::ran\nparity\t2\tm::other\nparity\t2\tcargo x\n";
        let found = not_run(&Tree::of(&[(PROOFS, list)]), &HashSet::from(["ran".to_owned()]));
        assert_eq!(found, ["docs/proofs.tsv:3: the test `m::other` did not run"]);
    }

    #[test]
    fn missing_proof_list_is_accepted_missing_row_is_not() {
        assert!(check(&Tree::of(&[])).is_empty());
        assert_eq!(found("| a | b |\n|---|---|\n| 1 | c |\n", ""), (vec![1], vec![]));
    }
}
