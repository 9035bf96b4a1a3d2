//! Entry point of the command `mp`.

fn main() -> std::process::ExitCode {
    multiproc_cli::run(std::env::args_os()).into()
}
