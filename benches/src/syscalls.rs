//! System calls per message, counted by `strace -f -c` over the round trips of `rtt_awake`.
//!
//! The count covers a helper process, which runs this program, too, and the child of the helper. The
//! difference between a run with 100,000 messages and a run with two excludes the calls of start and end.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::process::{self, Child, Cores};
use crate::work::{Outcome, Plan, Round};
use crate::{Result, ours};

/// First word of the helper's command line.
pub(crate) const HELPER: &str = "__helper";

/// Number of round trips, each of two messages.
const ROUND_TRIPS: u64 = 50_000;

static STRACE: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|folder| folder.join("strace")).find(|path| path.is_file())
});

/// Returns a note about the counting of system calls, for the table.
pub(crate) fn note() -> &'static str {
    if STRACE.is_some() {
        "counted by strace over 100,000 messages (25,000 in a quick round), start and end not included; \
         both processes \
         together"
    } else {
        "not measured: strace isn't installed"
    }
}

/// Measures the system calls per message of mp.
pub(crate) fn ours(plan: &Plan) -> Outcome {
    // No helper is started if there is nothing to measure.
    let one = Plan { exactly: Some(1), ..*plan };
    if ours::rtt_awake(&one)?.is_none() {
        return Ok(None);
    }
    per_message("ours", plan)
}

/// Measures the system calls per message of iceoryx2.
#[cfg(feature = "peers")]
pub(crate) fn iceoryx2(plan: &Plan) -> Outcome {
    per_message("iceoryx2", plan)
}

/// Measures the system calls per message of ipc-channel.
#[cfg(feature = "peers")]
pub(crate) fn ipc_channel(plan: &Plan) -> Outcome {
    per_message("ipc-channel", plan)
}

fn per_message(who: &str, plan: &Plan) -> Outcome {
    let Some(strace) = STRACE.as_ref() else { return Ok(None) };
    let round_trips = plan.repetitions(ROUND_TRIPS);
    let least = count(strace, who, 1, plan)?;
    let all = count(strace, who, round_trips, plan)?;
    // Start and end vary by a few calls, so a negative difference counts as zero.
    let calls = all.saturating_sub(least) as f64;
    Ok(Some(calls / (2 * (round_trips - 1)) as f64))
}

/// Returns the number of system calls of a helper that does `round_trips` round trips, and of its child.
fn count(strace: &PathBuf, who: &str, round_trips: u64, plan: &Plan) -> Result<u64> {
    let path = std::env::temp_dir().join(format!("mp-bench-{}-{who}.strace", std::process::id()));
    let mut command = Command::new(strace);
    command.args(["-f", "-c", "-o"]).arg(&path);
    command.arg(std::env::current_exe()?).args([HELPER, who, &round_trips.to_string()]);
    if let Some(cores) = plan.cores {
        command.args([cores.parent.to_string(), cores.child.to_string()]);
    }
    Child::spawn("strace", command.stdin(Stdio::null()))?.finish()?;
    let text = std::fs::read_to_string(&path);
    // If this fails, a short file is left in the temporary folder.
    let _ = std::fs::remove_file(&path);
    total(&text?).ok_or_else(|| "strace wrote no table of calls".into())
}

/// Returns the sum of the column "calls" of strace's table.
fn total(table: &str) -> Option<u64> {
    let rules = |line: &str| line.starts_with("------");
    let calls = |line: &str| line.split_whitespace().nth(3)?.parse::<u64>().ok();
    let body = table.lines().skip_while(|line| !rules(line)).skip(1).take_while(|line| !rules(line));
    let sums: Option<Vec<u64>> = body.map(calls).collect();
    sums.filter(|sums| !sums.is_empty()).map(|sums| sums.iter().sum())
}

/// Runs the helper. `words` are the contender, the number of round trips, and the processors of a pinned run.
///
/// # Errors
/// Returns the error of the contender.
pub(crate) fn be_helper(words: &[String]) -> Result<()> {
    process::die_with_parent()?;
    let [who, round_trips, cores @ ..] = words else {
        return Err("a helper needs a name and a count".into());
    };
    let cores = match cores {
        [parent, child] => Some(Cores { parent: parent.parse()?, child: child.parse()? }),
        _ => None,
    };
    let round: Round = match who.as_str() {
        "ours" => ours::rtt_awake,
        #[cfg(feature = "peers")]
        "iceoryx2" => crate::peers::iceoryx2::rtt_awake,
        #[cfg(feature = "peers")]
        "ipc-channel" => crate::peers::ipc_channel::rtt_awake::<{ crate::peers::ipc_channel::BLOCKING }>,
        _ => return Err(format!("there is no contender {who:?}").into()),
    };
    round(&Plan { exactly: Some(round_trips.parse()?), ..Plan::new(false, cores)? })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn strace_table_yields_the_total_of_calls() {
        let table = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 76.92    0.000010          10         1           read
 23.08    0.000003           0        12         2 openat
------ ----------- ----------- --------- --------- ----------------
100.00    0.000013           1        13         2 total
";
        assert_eq!(super::total(table), Some(13));
        assert_eq!(super::total(""), None);
    }
}
