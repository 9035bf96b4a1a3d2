//! Processes that a fork server starts. The server has loaded a large table once, and its children inherit
//! the table.
//!
//! `cargo run --release --example forkserver`

use std::sync::OnceLock;
use std::time::Instant;

use mp::process::set_forkserver_preload;
use mp::{SpawnOptions, StartMethod, get_context, start_processes};

/// Table that takes time to compute and never changes, as an example of a model or dictionary.
static TABLE: OnceLock<Vec<f64>> = OnceLock::new();

fn table() -> &'static [f64] {
    TABLE.get_or_init(|| (1..3_000_000).map(|n| f64::from(n).ln()).collect())
}

fn look_up(rank: usize, at: usize) -> Result<f64, String> {
    table().get(at + rank).copied().ok_or_else(|| format!("the table has no {at}"))
}

fn main() -> mp::AnyResult<()> {
    // Called once by each fork server, before it forks.
    set_forkserver_preload(|| _ = table())?;

    for method in [StartMethod::Spawn, StartMethod::ForkServer] {
        let context = get_context(method);
        // The first start begins the server, and waits until it has the table.
        context.spawn(look_up, 0, 1)?;
        let begin = Instant::now();
        let logarithms = context.spawn(look_up, 6, 8)?;
        println!("{method}: 8 processes with a table each in {:?}", begin.elapsed());
        assert_eq!(logarithms[0], 7_f64.ln());
    }

    // A server's processes behave like all others: their errors arrive completely, and they are children of
    // this process.
    let options = SpawnOptions::nprocs(2).start_method(StartMethod::ForkServer);
    let error =
        start_processes(look_up, usize::MAX / 2, options)?.join().expect_err("there is no such entry");
    println!("{error}");
    Ok(())
}
