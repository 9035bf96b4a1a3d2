//! Counts tests in the output of libtest, and stores the output of failed tests.

use std::fmt;

use crate::timings::Timing;

/// Number of stored lines of a failed test. The panic is among the first lines.
const KEPT_LINES: usize = 30;

/// Prefix of a line that names a test which failed when all tests ran, and passed when it ran again by
/// itself.
pub(crate) const PASSED_AGAIN: &str = "passed when run again by itself: ";

/// Prefix of a line with the source location and the reason of a test that could not run on this machine.
pub(crate) const SKIPPED: &str = "skipped test: ";

/// Tests counted so far.
#[derive(Clone, Default, Debug, PartialEq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    /// Number of tests that failed when all tests of their program ran, and passed when they ran again by
    /// themselves. They count as neither passed nor failed.
    pub(crate) passed_again: u64,
    /// Source location and reason of each test that could not run here. libtest counts such a test as passed.
    /// This tally doesn't.
    pub(crate) skipped: Vec<String>,
    /// Number of skipped tests that `--strict` allows.
    pub(crate) allowed: usize,
    /// Number of test programs that ran to their end.
    pub(crate) programs: u64,
    pub(crate) failures: Vec<Failure>,
    /// Run times of test programs.
    pub(crate) took: Vec<Timing>,
}

/// A failed test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) name: String,
    /// `true` if the test passed when it was run again by itself.
    pub(crate) passed_again: bool,
    /// First lines of the test's captured output.
    pub(crate) output: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = if self.passed_again { ", and passed when run again by itself" } else { "" };
        writeln!(f, "failed{again}: {}", self.name)?;
        self.output.iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.passed_again += other.passed_again;
        self.skipped.extend(other.skipped);
        self.allowed += other.allowed;
        self.programs += other.programs;
        self.failures.extend(other.failures);
        self.took.extend(other.took);
    }

    /// Returns the number of skipped tests that `--strict` doesn't allow.
    pub(crate) fn disallowed(&self) -> usize {
        self.skipped.len() - self.allowed
    }
}

/// Reads the output of one command, line by line.
#[derive(Default)]
pub(crate) struct Counter {
    tally: Tally,
    /// Number of programs whose result is still missing. A test may run another program.
    unfinished: u64,
    /// Index of the failed test whose output is being read.
    open_failure: Option<usize>,
}

impl Counter {
    pub(crate) fn line(&mut self, line: &str) {
        let line = strip_colours(line);
        let mut words = line.split_whitespace();
        if words.next() == Some("running") && matches!(words.nth(1), Some("test" | "tests")) {
            self.open_failure = None;
            self.unfinished += 1;
        } else if let Some(name) = failed_test(&line) {
            self.tally.failures.push(Failure {
                name: name.to_owned(),
                passed_again: false,
                output: Vec::new(),
            });
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.trim_end().strip_suffix(" stdout ----"))
        {
            self.open_failure = self.tally.failures.iter().rposition(|failure| failure.name == name);
        } else if let Some(name) = line.trim_end().strip_prefix(PASSED_AGAIN) {
            if let Some(failure) = self.tally.failures.iter_mut().rfind(|failure| failure.name == name) {
                failure.passed_again = true;
                self.tally.failed = self.tally.failed.saturating_sub(1);
                self.tally.passed_again += 1;
            }
        } else if let Some(skipped) = line.trim_end().strip_prefix(SKIPPED) {
            self.tally.skipped.push(skipped.to_owned());
            self.tally.passed = self.tally.passed.saturating_sub(1);
        } else if let Some(took) = Timing::read(&line) {
            self.tally.took.push(took);
        } else if line.trim_end() == "failures:" {
            self.open_failure = None;
        } else if let Some((_, counts)) = line.split_once("test result: ") {
            self.tally.passed += number_before(counts, " passed");
            self.tally.failed += number_before(counts, " failed");
            self.tally.ignored += number_before(counts, " ignored");
            self.tally.programs += 1;
            self.unfinished = self.unfinished.saturating_sub(1);
            self.open_failure = None;
        } else if let Some(failure) = self.open_failure.and_then(|at| self.tally.failures.get_mut(at))
            && failure.output.len() < KEPT_LINES
            && !line.trim().is_empty()
        {
            failure.output.push(line.trim_end().to_owned());
        }
    }

    /// Returns the counts. A test program without a result, for instance a killed one, counts as a failure.
    pub(crate) fn finish(mut self) -> Tally {
        self.tally.failed += self.unfinished;
        self.tally
    }
}

/// Parses `test name ... FAILED`. Output of other processes may precede it.
fn failed_test(line: &str) -> Option<&str> {
    let (before, _) = line.trim_end().rsplit_once(" ... FAILED")?;
    let name = before.rsplit_once("test ").map(|(_, name)| name)?;
    (!name.is_empty()).then(|| name.trim_end_matches(" - should panic"))
}

fn number_before(text: &str, word: &str) -> u64 {
    let Some(end) = text.find(word) else { return 0 };
    text[..end].rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn strip_colours(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest)));
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(lines: &[&str]) -> Tally {
        let mut counter = Counter::default();
        lines.iter().for_each(|line| counter.line(line));
        counter.finish()
    }

    #[test]
    fn test_results_are_summed_over_programs() {
        let tally = count(&[
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "running 12 tests",
            "took some 1.5 s, of processors 3.0 s",
            "test result: \x1b[31mFAILED\x1b[0m. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ]);
        let took = vec![Timing { program: "some".to_owned(), wall: 1.5, processors: 3.0 }];
        assert_eq!(tally, Tally { passed: 12, failed: 2, ignored: 1, programs: 2, took, ..Tally::default() });
    }

    #[test]
    fn failed_tests_are_listed_with_their_output() {
        let tally = count(&[
            "running 3 tests",
            "test a ... ok",
            "noise of a child test b::c ... \x1b[31mFAILED\x1b[0m",
            "test d - should panic ... FAILED",
            "",
            "failures:",
            "",
            "---- b::c stdout ----",
            "",
            "thread 'b::c' panicked at tests/b.rs:3:5:",
            "too late",
            "",
            "---- d stdout ----",
            "note: no panic",
            "",
            "failures:",
            "    b::c",
            "    d",
            "",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored;",
            "other lines",
        ]);
        let shown: String = tally.failures.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            "failed: b::c\n    thread 'b::c' panicked at tests/b.rs:3:5:\n    too late\n\
             failed: d\n    note: no panic\n"
        );
    }

    #[test]
    fn test_passing_on_rerun_is_reported_separately() {
        let tally = count(&[
            "running 2 tests",
            "test a ... FAILED",
            "test b ... FAILED",
            "test result: FAILED. 0 passed; 2 failed; 0 ignored;",
            "passed when run again by itself: b",
            "passed when run again by itself: unknown",
        ]);
        assert_eq!((tally.passed, tally.failed, tally.passed_again), (0, 1, 1));
        let shown: String = tally.failures.iter().map(ToString::to_string).collect();
        assert_eq!(shown, "failed: a\nfailed, and passed when run again by itself: b\n");
    }

    #[test]
    fn skipped_tests_are_subtracted_from_passed() {
        let tally = count(&[
            "running 2 tests",
            "test result: ok. 2 passed; 0 failed; 0 ignored;",
            "skipped test: tests/a.rs:3: no terminals here",
        ]);
        assert_eq!((tally.passed, tally.failed), (1, 0));
        assert_eq!(tally.skipped, ["tests/a.rs:3: no terminals here"]);
    }

    #[test]
    fn strict_test_run_accepts_allowed_skips() {
        let one_of = |number| Tally { skipped: vec![String::new(); number], allowed: 1, ..Tally::default() };
        let mut total = one_of(1);
        assert_eq!(total.disallowed(), 0);
        total.add(one_of(2));
        assert_eq!((total.skipped.len(), total.disallowed()), (3, 1));
    }

    #[test]
    fn program_without_a_result_counts_as_failed() {
        assert_eq!(count(&["running 1 test", "test a ... "]).failed, 1);
        let tally = count(&["running 1 test", "running 1 test", "test result: ok. 1 passed; 0 failed;"]);
        assert_eq!(tally, Tally { passed: 1, failed: 1, programs: 1, ..Tally::default() });
    }

    #[test]
    fn program_run_by_a_test_is_no_failure() {
        let result = "test result: ok. 1 passed; 0 failed;";
        let tally = count(&["running 1 test", "running 1 test", result, result]);
        assert_eq!(tally, Tally { passed: 2, programs: 2, ..Tally::default() });
    }

    #[test]
    fn result_after_child_output_is_counted() {
        let tally =
            count(&["running 2 tests", "mp: worker was killed by test result: FAILED. 1 passed; 1 failed;"]);
        assert_eq!(tally, Tally { passed: 1, failed: 1, programs: 1, ..Tally::default() });
    }

    #[test]
    fn output_without_test_results_is_not_counted() {
        assert_eq!(count(&["running late", "10 passed by the window", ""]), Tally::default());
    }
}
