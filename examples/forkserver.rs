//! Processes that start as copies of one that has loaded everything already.
//!
//! `cargo run --release --example forkserver`

use std::sync::OnceLock;
use std::time::Instant;

use mp::process::set_forkserver_preload;
use mp::{SpawnOptions, StartMethod, get_context, start_processes};

/// In place of a model, a dictionary, a table: something that takes time to make, and that no process
/// changes.
static TABLE: OnceLock<Vec<f64>> = OnceLock::new();

fn table() -> &'static [f64] {
    TABLE.get_or_init(|| (1..3_000_000).map(|n| f64::from(n).ln()).collect())
}

fn look_up(rank: usize, at: usize) -> Result<f64, String> {
    table().get(at + rank).copied().ok_or_else(|| format!("the table has no {at}"))
}

fn main() -> mp::AnyResult<()> {
    // What fork servers call once, before they copy themselves.
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

    // A process of a server is as any other: its errors arrive whole, and it is this process's own child.
    let options = SpawnOptions::nprocs(2).start_method(StartMethod::ForkServer);
    let error =
        start_processes(look_up, usize::MAX / 2, options)?.join().expect_err("there is no such entry");
    println!("{error}");
    Ok(())
}
