//! Limit of the rows about failures: a process ends, its siblings are killed, and all are awaited, by two
//! pipes, `kill` and `waitpid`.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::work::{Outcome, Plan, now};
use crate::{Result, stats};

/// First word of a child's command line.
pub(crate) const CHILD: &str = "__waits";

/// Runs in a child: reports that it is ready, waits until its standard input is closed, and reports the time
/// of its end.
///
/// # Errors
/// Returns an error if no process reads the output.
pub(crate) fn be_child() -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(&[0])?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    out.write_all(&now().to_ne_bytes())?;
    Ok(out.flush()?)
}

/// Starts a child that ends when its standard input is closed, at the latest when this process ends.
fn start() -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

/// Reads a child's output.
fn hear<const LEN: usize>(child: &mut Child) -> Result<[u8; LEN]> {
    let mut said = [0; LEN];
    child.stdout.as_mut().ok_or("it has no pipe")?.read_exact(&mut said)?;
    Ok(said)
}

/// Returns the median time in ns from the end of one child, as reported by this child, until the
/// `others` other children were killed and all children were awaited.
fn gone(plan: &Plan, others: usize) -> Outcome {
    let mut times = Vec::new();
    for number in 0..plan.repetitions(40) + 5 {
        let mut first = start()?;
        let mut rest = (0..others).map(|_| start()).collect::<Result<Vec<_>>>()?;
        for child in std::iter::once(&mut first).chain(&mut rest) {
            hear::<1>(child)?;
        }
        drop(first.stdin.take());
        let at = u64::from_ne_bytes(hear(&mut first)?);
        rest.iter_mut().try_for_each(Child::kill)?;
        for mut child in std::iter::once(first).chain(rest) {
            child.wait()?;
        }
        // The first few warm up.
        if number >= 5 {
            times.push(now().saturating_sub(at) as f64);
        }
    }
    Ok(Some(stats::median(&times)))
}

/// Returns the time from the signal that kills a waiting child until the child has ended.
#[cfg(feature = "grow")]
pub(crate) fn killed() -> Result<u64> {
    let mut child = start()?;
    hear::<1>(&mut child)?;
    let start = now();
    child.kill()?;
    child.wait()?;
    Ok(now() - start)
}

/// Runs a round of the limit in the row `first_failure`.
pub(crate) fn first_failure(plan: &Plan) -> Outcome {
    gone(plan, 0)
}

/// Runs a round of the limit in the row `siblings_gone`.
pub(crate) fn siblings_gone(plan: &Plan) -> Outcome {
    gone(plan, 3)
}
