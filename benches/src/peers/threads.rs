//! rayon: threads of one process, which need no messages.

use rayon::prelude::*;

use crate::ours::pool::collatz;
use crate::work::files::{self, Files};
use crate::work::{Outcome, Plan, now};
use crate::{Failure, Result};

fn pool() -> Result<rayon::ThreadPool> {
    Ok(rayon::ThreadPoolBuilder::new().num_threads(2).build()?)
}

fn each(tasks: u64, run: impl Fn(u64) -> Result<()>) -> Outcome {
    run(tasks)?;
    let start = now();
    run(tasks)?;
    Ok(Some((now() - start) as f64 / tasks as f64))
}

/// Runs a round of the row `pool_collatz_1m`.
pub(crate) fn collatz_1m(plan: &Plan) -> Outcome {
    let pool = pool()?;
    each(plan.repetitions(1_000_000), |tasks| {
        let got: Vec<u64> = pool.install(|| (0..tasks).into_par_iter().map(collatz).collect());
        if got.get(27) == Some(&111) { Ok(()) } else { Err(Failure::from("other steps")) }
    })
}

/// Runs a round of the row `pool_files_8m`.
pub(crate) fn files_8m(plan: &Plan) -> Outcome {
    let (files, pool) = (Files::make()?, pool()?);
    each(plan.repetitions(100), |tasks| {
        let paths: Vec<_> = files.paths(tasks).collect();
        // One file at a time, since the files are large.
        let sums = pool.install(|| {
            paths.into_par_iter().with_max_len(1).map(files::sum).collect::<std::io::Result<Vec<_>>>()
        });
        files.check(&sums?)
    })
}
