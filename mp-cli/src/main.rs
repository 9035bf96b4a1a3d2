//! The command `mp`.

fn main() -> std::process::ExitCode {
    mp_cli::run(std::env::args_os()).into()
}
