//! Run times of test programs. `leaks` reports them, the steps collect them, and `ci` prints the slowest at
//! its end.

use std::fmt;
use std::fs;
use std::time::Duration;

use crate::text_table;

/// Prefix of a line with a time.
const PREFIX: &str = "took ";

/// Number of programs in the table.
const SHOWN: usize = 12;

/// Clock ticks of the kernel in a second (`proc_pid_stat(5)`): 100 on all machines with Linux.
const TICKS: f64 = 100.0;

/// The time of a test program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Timing {
    pub(crate) program: String,
    /// Wall time in seconds.
    pub(crate) wall: f64,
    /// Processor time of the program and of its child processes, in seconds.
    pub(crate) processors: f64,
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{} {:.1} s, of processors {:.1} s", self.program, self.wall, self.processors)
    }
}

impl Timing {
    /// Measures the children of this process, all of which have ended. Cargo's hash in the program's name is
    /// removed.
    pub(crate) fn by_children(program: &str, wall: Duration) -> Self {
        let name = program.rsplit_once('-').map_or(program, |(name, _)| name);
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self { program: name.to_owned(), wall: wall.as_secs_f64(), processors: of_children(&stat) }
    }

    /// Parses a line that `Display` has written.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let (program, times) = line.trim_end().strip_prefix(PREFIX)?.split_once(' ')?;
        let (wall, processors) = times.strip_suffix(" s")?.split_once(" s, of processors ")?;
        Some(Self {
            program: program.to_owned(),
            wall: wall.parse().ok()?,
            processors: processors.parse().ok()?,
        })
    }
}

/// Returns the processor time of awaited children in seconds: fields 16 and 17 of `/proc/PID/stat`. The name
/// in parentheses before them may contain any character.
fn of_children(stat: &str) -> f64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// Formats the slowest programs. Several runs of one program are summed.
pub(crate) fn table(all: &[Timing]) -> String {
    let mut sums: Vec<Timing> = Vec::new();
    for took in all {
        match sums.iter_mut().find(|sum| sum.program == took.program) {
            Some(sum) => {
                sum.wall += took.wall;
                sum.processors += took.processors;
            }
            None => sums.push(took.clone()),
        }
    }
    sums.sort_by(|a, b| b.wall.total_cmp(&a.wall));
    let rest = sums.split_off(sums.len().min(SHOWN));
    if !rest.is_empty() {
        sums.push(Timing {
            program: format!("{} others", rest.len()),
            wall: rest.iter().map(|took| took.wall).sum(),
            processors: rest.iter().map(|took| took.processors).sum(),
        });
    }
    let mut rows = vec![["test program", "seconds", "of processors"].map(str::to_owned).to_vec()];
    rows.extend(
        sums.into_iter()
            .map(|took| vec![took.program, format!("{:.1}", took.wall), format!("{:.1}", took.processors)]),
    );
    text_table::table(&rows, &[1, 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(program: &str, wall: f64) -> Timing {
        Timing { program: program.to_owned(), wall, processors: 2.0 * wall }
    }

    #[test]
    fn timing_lines_round_trip() {
        let line = took("killed_pool", 12.5).to_string();
        assert_eq!(line, "took killed_pool 12.5 s, of processors 25.0 s");
        assert_eq!(Timing::read(&line), Some(took("killed_pool", 12.5)));
        assert_eq!(Timing::read("took two looks s"), None);
    }

    #[test]
    fn times_of_child_tests_are_parsed_after_any_name() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 150 50 20 0";
        assert!((of_children(stat) - 2.0).abs() < 1e-9);
        assert!(of_children("").abs() < 1e-9);
    }

    #[test]
    fn longest_programs_come_first_and_the_rest_is_summed() {
        let mut all: Vec<Timing> = (0..20).map(|n| took(&format!("p{n}"), f64::from(n))).collect();
        all.push(took("p3", 50.0));
        let table = table(&all);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), SHOWN + 2);
        assert!(lines[1].starts_with("p3") && lines[1].contains("53.0"), "{table}");
        assert!(lines[SHOWN + 1].starts_with("8 others"), "{table}");
    }
}
