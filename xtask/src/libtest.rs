//! Counts tests in what libtest prints.

/// Tests counted so far.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    /// Results seen: test programs that ran to their end.
    pub(crate) programs: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.programs += other.programs;
    }
}

/// Reads the output of one command, line by line.
#[derive(Default)]
pub(crate) struct Counter {
    tally: Tally,
    unfinished: bool,
}

impl Counter {
    pub(crate) fn line(&mut self, line: &str) {
        let line = strip_colours(line);
        let mut words = line.split_whitespace();
        if words.next() == Some("running") && matches!(words.nth(1), Some("test" | "tests")) {
            self.close();
            self.unfinished = true;
        } else if let Some(counts) = line.trim_start().strip_prefix("test result: ") {
            self.tally.passed += number_before(counts, " passed");
            self.tally.failed += number_before(counts, " failed");
            self.tally.ignored += number_before(counts, " ignored");
            self.tally.programs += 1;
            self.unfinished = false;
        }
    }

    /// The counts; a test program that started and gave no result (it was killed, say) failed.
    pub(crate) fn finish(mut self) -> Tally {
        self.close();
        self.tally
    }

    fn close(&mut self) {
        self.tally.failed += u64::from(self.unfinished);
        self.unfinished = false;
    }
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
    fn sums_over_programs() {
        let tally = count(&[
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "running 12 tests",
            "test result: \x1b[31mFAILED\x1b[0m. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ]);
        assert_eq!(tally, Tally { passed: 12, failed: 2, ignored: 1, programs: 2 });
    }

    #[test]
    fn a_program_without_a_result_failed() {
        assert_eq!(count(&["running 1 test", "test a ... "]).failed, 1);
        let tally = count(&["running 1 test", "running 1 test", "test result: ok. 1 passed; 0 failed;"]);
        assert_eq!(tally, Tally { passed: 1, failed: 1, ignored: 0, programs: 1 });
    }

    #[test]
    fn other_output_counts_nothing() {
        assert_eq!(count(&["running late", "10 passed by the window", ""]), Tally::default());
    }
}
