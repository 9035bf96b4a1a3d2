//! Execution of a round: creates structures, starts workers that use them, and sends signals to the workers.
//! At the end of the round, all workers must end, and no resource may be left.

use std::time::Duration;

use mp::Tensor;
use mp::memory::{SharingStrategy, set_sharing_strategy};

use crate::args::Args;
use crate::bookkeeping::leaks::InUse;
use crate::bookkeeping::ledger::Account;
use crate::bookkeeping::parcel::COMMON;
use crate::random::Random;
use crate::reporting::finding::Finding;
use crate::rounds::crew::{Crew, Signals};
use crate::rounds::group::{Group, Kind};
use crate::workloads::cuda;

/// Outcome of a round.
pub(crate) struct RoundEnd {
    pub(crate) accounts: Vec<(Kind, Account)>,
    pub(crate) signals: Signals,
    /// Finding, with a description of the workers and structures at that time. `None` if there was none.
    pub(crate) found: Option<(Finding, String)>,
}

/// Creates groups that together have at least `args.processes` processes.
fn groups(args: &Args, random: &mut Random) -> mp::AnyResult<Vec<Group>> {
    let simulator = cuda::is_there().is_ok();
    let mut groups = Vec::new();
    let first = random.below(Kind::ALL.len() as u64) as usize;
    let wanted =
        |kind: &Kind| args.only.is_none_or(|only| only == *kind) && (simulator || *kind != Kind::Cuda);
    let mut kinds = Kind::ALL.into_iter().cycle().skip(first).filter(wanted);
    let mut workers = 0;
    while workers < args.processes
        && let Some(kind) = kinds.next()
    {
        let group = Group::new(kind, args.copies(), random)?;
        workers += group.processes();
        groups.push(group);
    }
    Ok(groups)
}

/// Starts all workers, sends signals until the round ends, and waits for the workers.
fn torture(
    crew: &mut Crew,
    time: Duration,
    seen: &dyn Fn(u64, Signals),
) -> Result<Vec<(Kind, Account)>, Finding> {
    let mut next = Duration::ZERO;
    while crew.now() < time {
        crew.fill()?;
        if crew.now() >= next {
            crew.torment();
            next = crew.pause();
        }
        crew.look()?;
        let messages = crew.groups.iter().map(|g| g.ledger.begun()).sum();
        seen(messages, crew.signals);
    }
    // Workers that were just killed are replaced once more, because the queues must be emptied.
    crew.wait_for(Crew::was_killed)?;
    crew.fill()?;
    crew.board.stop();
    crew.wait_for(Crew::produces)?;
    crew.groups.iter_mut().try_for_each(Group::close)?;
    crew.wait_for(|_, _| true)?;
    crew.settle()
}

/// Runs one round. `before` is the usage of resources while no workers run.
pub(crate) fn round(
    (seed, args): (u64, &Args),
    time: Duration,
    before: &InUse,
    seen: &dyn Fn(u64, Signals),
) -> Result<RoundEnd, Finding> {
    let mut random = Random::new(seed);
    let in_files = random.percent(25);
    set_sharing_strategy(if in_files {
        SharingStrategy::FileSystem
    } else {
        SharingStrategy::FileDescriptor
    })?;
    let common = Tensor::full([500], COMMON)?.freeze();
    let groups = groups(args, &mut random)?;
    let mut crew = Crew::new(groups, common, random, args)?;
    let end = torture(&mut crew, time, seen);
    let (signals, state) = (crew.signals, crew.describe());
    drop(crew);
    let (accounts, found) = match end {
        Ok(accounts) => (accounts, before.again().err()),
        Err(finding) => (Vec::new(), Some(finding)),
    };
    let found = found.map(|finding| (finding, state));
    Ok(RoundEnd { accounts, signals, found })
}
