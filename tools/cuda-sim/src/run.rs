//! `mp-cuda-sim-run PROGRAM ARGUMENTS…`: runs a program in a session of the simulator, and prints the
//! findings after the program has ended. The exit code is 1 if there are findings.

use std::path::Path;
use std::process::{Command, ExitCode};

use mp_cuda_sim::session::Setup;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: mp-cuda-sim-run PROGRAM ARGUMENTS…");
        return ExitCode::from(2);
    };
    match run(Command::new(program).args(words)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mp-cuda-sim-run: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(command: &mut Command) -> std::io::Result<ExitCode> {
    let this = std::env::current_exe()?;
    let folder = this.parent().unwrap_or(Path::new("."));
    let session =
        Setup::new(&folder.join("mp-cuda-sim-engine"), &folder.join("libmp_cuda_sim.so")).start()?;
    session.prepare(command);
    let status = command.status()?;
    let findings = session.findings()?;
    findings.iter().for_each(|finding| eprintln!("FOUND {}: {}", finding.kind, finding.text));
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(if findings.is_empty() { ExitCode::from(code) } else { ExitCode::FAILURE })
}
