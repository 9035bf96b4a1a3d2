//! Pools: tasks per second, two workers.

use mp::{FrozenTensor, Pool, Tensor};

use crate::work::{Outcome, Plan, now};
use crate::{Failure, Result};

const WORKERS: usize = 2;

fn wrong(what: &str) -> Failure {
    format!("wrong result: {what}").into()
}

/// Tasks per second of `run`, which does that many of them.
fn rate(tasks: u64, run: impl Fn(u64) -> Result<()>) -> Outcome {
    run(tasks / 10)?;
    let start = now();
    run(tasks)?;
    Ok(Some(tasks as f64 * 1e9 / (now() - start) as f64))
}

/// A function that does next to nothing, of a number: `map`, one at a time.
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

/// The same tensor of 1 MiB in each task, of which one element is read.
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
