//! Pools of two workers.

use mp::{FrozenTensor, Pool, Tensor};

use crate::work::files::{self, Files};
use crate::work::{Outcome, Plan, now};
use crate::{Failure, Result};

const WORKERS: usize = 2;

fn wrong(what: &str) -> Failure {
    format!("wrong result: {what}").into()
}

/// Returns the tasks per second of `run`. Its argument is the number of tasks to run.
fn rate(tasks: u64, run: impl Fn(u64) -> Result<()>) -> Outcome {
    run(tasks / 10)?;
    let start = now();
    run(tasks)?;
    Ok(Some(tasks as f64 * 1e9 / (now() - start) as f64))
}

/// Runs a round of the row `pool_map`: a trivial function of a number, in chunks of one task.
pub(crate) fn map(plan: &Plan) -> Outcome {
    let pool = Pool::new(WORKERS)?;
    let figure = rate(plan.repetitions(1_000_000), |tasks| {
        let results = pool.task(|x: u64| x + 1).chunksize(1).map(0..tasks)?;
        let right = results.iter().zip(1..).all(|(got, wanted)| *got == wanted);
        if right && results.len() as u64 == tasks { Ok(()) } else { Err(wrong("not the successors")) }
    });
    pool.join()?;
    figure
}

/// Runs a round of the row `pool_tensor_1m`: each task has the same tensor of 1 MiB, and reads one element.
pub(crate) fn tensor_1m(plan: &Plan) -> Outcome {
    const LEN: usize = 1 << 17;
    let pool = Pool::new(WORKERS)?;
    let tensor: FrozenTensor<u64> = Tensor::from_fn(&[LEN], |i| i as u64)?.freeze();
    let figure = rate(plan.repetitions(400_000), |tasks| {
        let tasks = tasks as usize;
        let read = |(tensor, i): (FrozenTensor<u64>, usize)| tensor.get(&[i % LEN]);
        let results = pool.task(read).chunksize(1).map((0..tasks).map(|i| (tensor.clone(), i)))?;
        let right = results.iter().enumerate().all(|(i, got)| *got == (i % LEN) as u64);
        if right && results.len() == tasks { Ok(()) } else { Err(wrong("other elements")) }
    });
    pool.join()?;
    figure
}

/// Returns the nanoseconds for each task of `run`. Its argument is the number of tasks to run. A first run is
/// not measured, since workers and chunk sizes settle in it.
fn each(tasks: u64, run: impl Fn(u64) -> Result<()>) -> Outcome {
    run(tasks)?;
    let start = now();
    run(tasks)?;
    Ok(Some((now() - start) as f64 / tasks as f64))
}

fn right(got: &[u64], wanted: impl ExactSizeIterator<Item = u64>) -> Result<()> {
    let right = got.len() == wanted.len() && got.iter().copied().eq(wanted);
    if right { Ok(()) } else { Err(wrong("not what the function makes of the numbers")) }
}

/// Runs a round of the row `pool_map_1m`: the same function as in [`map`], in chunks of the pool's choice.
pub(crate) fn map_1m(plan: &Plan) -> Outcome {
    let pool = Pool::new(WORKERS)?;
    let figure = each(plan.repetitions(1_000_000), |tasks| {
        right(&pool.map(|x: u64| x + 1, 0..tasks)?, (0..tasks as usize).map(|x| x as u64 + 1))
    });
    pool.join()?;
    figure
}

/// Runs a round of the row `pool_imap_1m`, which takes the results one after the other.
pub(crate) fn imap_1m(plan: &Plan) -> Outcome {
    let pool = Pool::new(WORKERS)?;
    let figure = each(plan.repetitions(1_000_000), |tasks| {
        let got: Vec<u64> = pool.imap(|x: u64| x + 1, 0..tasks).collect::<std::result::Result<_, _>>()?;
        right(&got, (0..tasks as usize).map(|x| x as u64 + 1))
    });
    pool.join()?;
    figure
}

/// Returns the number of Collatz steps from `n` to 1.
pub(crate) fn collatz(mut n: u64) -> u64 {
    let mut steps = 0;
    while n > 1 {
        n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

/// Runs a round of the row `pool_collatz_1m`: a function of about 100 ns.
pub(crate) fn collatz_1m(plan: &Plan) -> Outcome {
    let pool = Pool::new(WORKERS)?;
    let figure = each(plan.repetitions(1_000_000), |tasks| {
        let got = pool.map(collatz, 0..tasks)?;
        if got.len() as u64 == tasks && got.get(27) == Some(&111) {
            Ok(())
        } else {
            Err(wrong("other steps"))
        }
    });
    pool.join()?;
    figure
}

/// Runs a round of the row `pool_files_8m`: reads files and sums up their bytes.
pub(crate) fn files_8m(plan: &Plan) -> Outcome {
    let files = Files::make()?;
    let pool = Pool::new(WORKERS)?;
    let figure = each(plan.repetitions(100), |tasks| {
        let sums = pool.map(files::sum, files.paths(tasks))?;
        files.check(&sums)
    });
    pool.join()?;
    figure
}
