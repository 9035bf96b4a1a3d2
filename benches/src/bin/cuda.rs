//! CUDA tensors between processes, compared with `torch.multiprocessing`.
//!
//! ```sh
//! cargo build --release --features cuda --bin cuda       # in benches
//! cuda [--torch python3 torch_cuda.py] [--only warm_4k,cold] [--json FILE] [--limit SECONDS] [--quick]
//! ```
//!
//! `torch_cuda.py` and `torch_cuda_jobs.py` are in `benches/cuda`. Both must be in one folder.
//!
//! mp and torch each have a server process (`--serve`), which reads names of rows and starts the processes
//! that rows need once. Rounds of mp and of torch take turns. Each row prints lines of JSON, and the program
//! prints a table at the end. Times between processes come from CLOCK_MONOTONIC, which all processes share.
//! On the simulator (`mp-cuda-sim-run cuda --quick`), all rows run, but their times mean nothing. Such a run
//! finds races in the row `killed`: the stream of a receiver stops waiting for a killed producer, and may
//! read before the producer's work has run (`docs/reference/cuda.md`).
//!
//! | row | measurement |
//! |---|---|
//! | `kernel_floor`, `cpu_round_trip` | launch of a kernel and wait for it; round trip of a number to another process, without a GPU |
//! | `two_streams` | in one process: an event is recorded on one stream, another stream waits for it and runs a kernel, and the process waits |
//! | `warm_4k`, `warm_64m` | time from the put of a new tensor to the end of the receiver's kernel (`_launched`: to the launch of the kernel) |
//! | `cold` | time as in `warm_…` for the first tensor between two processes that have a context (`_with_allocation`: the allocation of the tensor included) |
//! | `same_2000`, `views_1000` | message with a tensor that was sent before, or with a row of such a tensor |
//! | `relay`, `relay_memory` | tensors per second through three processes; growth of memory over 100,000 tensors |
//! | `event_hop` | an event is recorded in one process, and another process waits for it and runs a kernel |
//! | `alloc_free`, `reuse` | allocation and drop of 1 MiB; memory that 1000 exchanges of 16 MiB reserve |
//! | `broadcast_4` | time until four processes have read a tensor of 64 MiB |
//! | `killed` | memory that a process retains after its producer or consumer was killed, and memory that is left after both have ended |

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
