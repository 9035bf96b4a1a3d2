//! Jobs with acknowledgement. If a worker is killed, another worker does its job. A job that kills every
//! worker is set aside.
//!
//! `cargo run --release --example work_queue_ack`

use mp::{Process, Queue, QueueOptions, SharedTensor, Tensor};

const JOBS: u64 = 20_000;
/// Job that crashes every worker.
const POISON: u64 = JOBS - 1;

fn worker((jobs, done): (Queue<u64>, SharedTensor<u64>)) -> mp::AnyResult<()> {
    while let Some(job) = jobs.get_lease()? {
        if *job == POISON {
            std::process::abort(); // as good as SIGKILL: the job is not done, and comes back
        }
        done.fetch_add(*job as usize, 1);
        job.ack();
    }
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    let jobs = QueueOptions::new().deliveries(3).create()?;
    let done = Tensor::zeros([JOBS as usize])?.share();
    jobs.put_many(0..JOBS)?;
    jobs.close();

    let start = || Process::spawn(worker, (jobs.clone(), done.clone()));
    let mut workers = vec![start()?, start()?];
    let mut killed = 0;
    // The first worker is killed at an arbitrary point.
    while done.iter().sum::<u64>() < JOBS / 10 {
        std::thread::yield_now();
    }
    workers[0].kill()?;
    while let Some(worker) = workers.pop() {
        if let Err(error) = worker.join() {
            println!("{error}");
            killed += 1;
            workers.push(start()?);
        }
    }
    while let Some(job) = jobs.dead_letter()? {
        println!("job {job} was taken three times and never done");
        assert_eq!(job, POISON);
    }
    let times: Vec<u64> = done.to_vec();
    let undone = (0..JOBS).filter(|&job| times[job as usize] == 0).count();
    let twice = times.iter().filter(|&&n| n > 1).count();
    println!("{JOBS} jobs, {killed} workers killed: {undone} not done, {twice} done again by another worker");
    assert_eq!(undone, 1);
    assert!(twice <= killed);
    Ok(())
}
