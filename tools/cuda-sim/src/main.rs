//! Engine of one session: `mp-cuda-sim-engine FOLDER`. The program creates the socket `engine` in the folder,
//! prints `ready`, and exits at the end of its standard input.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: mp-cuda-sim-engine FOLDER");
        return ExitCode::FAILURE;
    };
    match mp_cuda_sim::engine::run(folder.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mp-cuda-sim-engine: {error}");
            ExitCode::FAILURE
        }
    }
}
