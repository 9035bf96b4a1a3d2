//! CUDA tensors between processes, beside `torch.multiprocessing`.
//!
//! ```sh
//! cargo build --release --features cuda --bin cuda       # in benches
//! cuda [--torch python3 torch_cuda.py] [--only warm_4k,cold] [--json FILE] [--limit SECONDS] [--quick]
//! ```
//!
//! `torch_cuda.py` and `torch_cuda_jobs.py` are in `benches/cuda`, and have to lie beside each other.
//!
//! Each side has a server process (`--serve`), which takes names of rows and starts what processes it needs
//! once. Rounds take turns: ours, torch's, ours, torch's. Each row prints lines of JSON, and a table comes in
//! the end. Times between processes are of CLOCK_MONOTONIC, which they share. On the simulator
//! (`mp-cuda-sim-run cuda --quick`) everything runs, and times mean nothing; it finds races in `killed`,
//! where a receiver's stream was released from its wait for a killed producer (`docs/reference/cuda.md`).
//!
//! | row | is |
//! |---|---|
//! | `kernel_floor`, `cpu_round_trip` | a kernel and a wait for it; a number there and back, without a GPU |
//! | `two_streams` | one process: event on one stream, another one waits, kernel, wait |
//! | `warm_4k`, `warm_64m` | from the put of a new tensor to the end of a kernel of the receiver (`_launched`: to its launch) |
//! | `cold` | the same, first of two processes that had a context (`_with_allocation`: from before the tensor was made) |
//! | `same_2000`, `views_1000` | a message with a tensor that was sent before, whole or a row of it |
//! | `relay`, `relay_memory` | tensors a second through three processes; what memory 100,000 of them leave |
//! | `event_hop` | record in one process, wait and kernel in the other |
//! | `alloc_free`, `reuse` | 1 MiB made and dropped; memory that 1000 exchanges of 16 MiB take |
//! | `broadcast_4` | 64 MiB, until four processes have read it |
//! | `killed` | a producer or consumer is killed: what its peer has to keep, and what is left when that has ended, too |

#[path = "../cuda/mod.rs"]
mod cuda;

use std::process::ExitCode;

use cuda::{Options, both, server};

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let result =
        if options.serve { server::serve(options.quick).map(|()| true) } else { both::run(&options) };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
