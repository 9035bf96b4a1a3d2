//! Output of workers: into one file for each worker, or with the worker's name before each line.
//!
//! `cargo run --example per_rank_logs`

use mp::process::{ProcessOptions, Stdio};
use mp::{SpawnOptions, start_processes};

fn worker(rank: usize, steps: usize) -> Result<(), String> {
    for step in 0..steps {
        println!("step {step} of {steps}");
    }
    eprintln!("this is rank {rank} with device {}", std::env::var("DEVICE").unwrap_or_default());
    if rank == 2 { Err("no more memory on the device".to_string()) } else { Ok(()) }
}

/// Sets the variable `DEVICE` of a worker to its rank, so that each worker uses another device.
fn own_device(rank: usize, setup: ProcessOptions) -> ProcessOptions {
    setup.env("DEVICE", rank.to_string())
}

fn main() -> mp::AnyResult<()> {
    let folder = std::env::temp_dir().join(format!("per_rank_logs-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;

    // Standard output goes into a file for each, errors to the terminal: whole lines, each with its rank.
    let options = SpawnOptions::nprocs(3)
        .name("trainer")
        .per_rank(own_device)
        .stdout(Stdio::file(folder.join("{name}.log")))
        .stderr(Stdio::Tee);
    let workers = start_processes(worker, 3, options)?;
    if let Err(error) = workers.wait() {
        println!("{error}");
    }
    for rank in 0..3 {
        let file = folder.join(format!("trainer-{rank}.log"));
        println!("{}:\n{}", file.display(), std::fs::read_to_string(&file)?);
    }
    std::fs::remove_dir_all(&folder)?;

    // Or into memory, to be read while they run, and afterwards.
    let options = SpawnOptions::nprocs(2).stdout(Stdio::Capture).stderr(Stdio::Null);
    let workers = start_processes(worker, 1000, options)?;
    workers.wait()?;
    let text = workers.stdout(1)?.text();
    println!("rank 1 wrote {} lines, the last of them {:?}", text.lines().count(), text.lines().last());
    Ok(())
}
