//! CUDA tensors between processes, compared with `torch.multiprocessing`.
//!
//! ```sh
//! cargo build --release --features cuda --bin cuda       # in benches
//! cuda [--torch python3 torch_cuda.py] [--only warm_4k,cold] [--json FILE] [--limit SECONDS] [--quick]
//! ```
//!
//! `torch_cuda.py` and `torch_cuda_jobs.py` are in `benches/cuda`. Both must be in one folder.
//!
//! Each side has a server process (`--serve`), which reads names of rows and starts the necessary processes
//! once. Rounds take turns: ours, torch's, ours, torch's. Each row prints lines of JSON, and a table is
//! printed at the end. Times between processes are of CLOCK_MONOTONIC, which all processes share. On the
//! simulator (`mp-cuda-sim-run cuda --quick`) all rows run, and their times mean nothing. This finds races in
//! `killed`, where a receiver's stream was released from its wait for a killed producer
//! (`docs/reference/cuda.md`).
//!
//! | row | measurement |
//! |---|---|
//! | `kernel_floor`, `cpu_round_trip` | a kernel and a wait for it; a number to another process and back, without a GPU |
//! | `two_streams` | one process: event on one stream, another one waits, kernel, wait |
//! | `warm_4k`, `warm_64m` | from the put of a new tensor to the end of a kernel of the receiver (`_launched`: to its launch) |
//! | `cold` | the same for the first tensor of two processes that have a context (`_with_allocation`: from before the allocation of the tensor) |
//! | `same_2000`, `views_1000` | a message with a tensor that was sent before, whole or a row of it |
//! | `relay`, `relay_memory` | tensors per second through three processes; growth of memory over 100,000 tensors |
//! | `event_hop` | record in one process, wait and kernel in the other |
//! | `alloc_free`, `reuse` | 1 MiB allocated and dropped; memory that 1000 exchanges of 16 MiB reserve |
//! | `broadcast_4` | 64 MiB, until four processes have read it |
//! | `killed` | a producer or consumer is killed: memory that the other process retains, and memory that is left after that process has ended |

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
