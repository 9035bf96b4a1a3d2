//! Locks of mp, as a contender of the work in [`crate::work::lock`].

use mp::{Event, Lock, SpawnOptions, start_processes};

use crate::Result;
use crate::process::{DEADLINE, pin};
use crate::work::lock::{self, Counts, Section};
use crate::work::{Outcome, Plan};

impl Section for Lock<Counts> {
    #[inline]
    fn enter(&mut self, who: usize) -> Result<Counts> {
        let mut counts = self.lock()?;
        counts[who] += 1;
        Ok(*counts)
    }
}

/// Runs a round of the row `lock_uncontended`.
pub(crate) fn uncontended(plan: &Plan) -> Outcome {
    lock::uncontended(&mut Lock::new([0; 2])?, plan, 5_000_000).map(Some)
}

/// Runs a round of the row `lock_contended`: two processes lock all the time.
pub(crate) fn contended(plan: &Plan) -> Outcome {
    let (mut section, over) = (Lock::new([0; 2])?, Event::new()?);
    let cpu = plan.cores.map(|cores| cores.child);
    let child = |_, (mut section, over, cpu): (Lock<Counts>, Event, Option<usize>)| -> Result<()> {
        if let Some(cpu) = cpu {
            pin(cpu)?;
        }
        lock::contend(&mut section, || over.is_set())
    };
    let process = start_processes(child, (section.clone(), over.clone(), cpu), SpawnOptions::nprocs(1))?;
    let figure = lock::contended(&mut section, plan, 2_000_000)?;
    over.set()?;
    if process.join_timeout(DEADLINE)? {
        return Ok(Some(figure));
    }
    Err(format!("the child didn't end within {DEADLINE:?}").into())
}
