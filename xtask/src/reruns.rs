//! Ledger of tests that failed in a run of `ci` and passed when they ran again by themselves:
//! `xtask/reruns.tsv`.
//!
//! `ci` excuses one such test in each run, and adds it to the ledger without a cause. `tidy` fails until the
//! ledger has the cause. If a test of the ledger fails again, it is not excused: the recorded cause was
//! wrong.

use std::fs;
use std::process::Command;

use crate::libtest::Failure;
use crate::tidy::{Finding, Tree};

const PAGE: &str = "xtask/reruns.tsv";
const HEAD: &str = "date\ttest\tcause";
/// Text in the ledger's column of causes if `ci` has added the row.
const UNKNOWN: &str = "unknown";

/// Decides about tests that passed when they ran again. Adds an excused test to the ledger. Otherwise returns
/// the reason as an error.
pub(crate) fn judge(failures: &[Failure]) -> Result<(), String> {
    let page = fs::read_to_string(PAGE).map_err(|e| format!("{PAGE}: {e}"))?;
    let date = Command::new("date").args(["-u", "+%F"]).output().map_err(|e| format!("date: {e}"))?;
    match verdict(&page, failures)? {
        None => Ok(()),
        Some(name) => {
            let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
            println!("`{name}` is excused, and added to {PAGE}: find its cause");
            fs::write(PAGE, format!("{page}{date}\t{name}\t{UNKNOWN}\n")).map_err(|e| format!("{PAGE}: {e}"))
        }
    }
}

/// Returns the excused test, if there is one.
fn verdict<'f>(page: &str, failures: &'f [Failure]) -> Result<Option<&'f str>, String> {
    let again: Vec<&str> =
        failures.iter().filter(|failure| failure.passed_again).map(|failure| failure.name.as_str()).collect();
    let row = |name: &str| page.lines().find(|line| line.split('\t').nth(1) == Some(name));
    match again[..] {
        [] => Ok(None),
        [name] => match row(name) {
            None => Ok(Some(name)),
            Some(row) => Err(format!("`{name}` failed before, and its cause was not found ({PAGE}: {row})")),
        },
        [..] => Err(format!("{} tests passed only when they ran again: one is excused", again.len())),
    }
}

/// Checks the ledger's rows.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.text(PAGE) else { return Vec::new() };
    let mut findings = Vec::new();
    for (number, line) in page.lines().enumerate() {
        let cells: Vec<&str> = line.split('\t').collect();
        let complaint = match cells[..] {
            _ if number == 0 && line == HEAD => continue,
            _ if number == 0 => format!("the first line is `{HEAD}`, with tabs"),
            [_, test, UNKNOWN | ""] => format!("find out why `{test}` failed, mend it, and name the cause"),
            [_, _, _] => continue,
            _ => "a row is date, test and cause, with tabs".to_owned(),
        };
        findings.push(Finding::new(PAGE, number + 1, complaint));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(name: &str, passed_again: bool) -> Failure {
        Failure { name: name.to_owned(), passed_again, output: Vec::new() }
    }

    #[test]
    fn rerun_list_excuses_each_test_only_once() {
        let page = format!("{HEAD}\n2026-01-31\ta::old\tno deadline\n");
        let verdict = |failures: &[Failure]| verdict(&page, failures).map(|name| name.map(str::to_owned));
        assert_eq!(verdict(&[failed("a::other", false)]), Ok(None));
        assert_eq!(verdict(&[failed("a::new", true), failed("b", false)]), Ok(Some("a::new".to_owned())));
        assert!(verdict(&[failed("a::old", true)]).unwrap_err().contains("no deadline"));
        assert!(verdict(&[failed("a::new", true), failed("b", true)]).unwrap_err().starts_with("2 tests"));
    }

    #[test]
    fn rerun_rows_without_a_cause_are_reported() {
        let lines = |page: &str| {
            check(&Tree::of(&[(PAGE, page)])).into_iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert!(lines(&format!("{HEAD}\n2026-01-31\ta::old\tno deadline\n")).is_empty());
        assert_eq!(
            lines(&format!("{HEAD}\n2026-01-31\ta\tunknown\n2026-01-31\ta\t\n2026-01-31\ta\n")),
            [2, 3, 4]
        );
        assert_eq!(lines("date\n"), [1]);
    }
}
