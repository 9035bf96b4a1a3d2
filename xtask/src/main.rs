//! Checks and benchmarks of mp. `cargo xtask help` lists the tasks.

mod args;
mod bench;
mod ci;
mod folder_cycles;
mod fuzz;
mod gpu_bundle;
mod layers;
mod leaks;
mod libtest;
mod mutate;
mod net;
mod reruns;
mod session;
mod steps;
mod text_table;
mod tidy;
mod timings;
mod torture;
mod types;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::Args;

const HELP: &str = "\
cargo xtask <task> [options]

  ci       every step below, in this order, and a summary
             --only a,b   these steps alone      --skip a,b   all but these
             --strict     a step or a test that can't run here fails, except for the free-threaded wheel,
                          and no test runs again
             --quick      fmt, tidy, layers, clippy and the unit tests alone: a few minutes
             --long       and then the steps that the second list below names
  bench    our figures beside the physical limits; the options of the benchmarks follow (--help)
             --peers      beside iceoryx2, ipc-channel, crossbeam-channel, tokio and rayon as well
             --grow       the same work at ever larger sizes
             --publish docs/reference  the tables of the page and of the README, or of growth
  torture  processes that use everything while they are killed and stopped at random
             --seconds S  for S seconds       --seed N     the same choices again
             --processes P  P at a time
  net      clusters across hosts (namespaces) while processes are killed and stopped and links are cut
             --long       also the long faults   --only a,b   faults whose names contain a or b
             --figures    latency and throughput, compared with TCP, iperf3 and Ray (MP_PYTHON)
             --strict     fails if this system refuses namespaces
  fuzz     hostile bytes for every parser
             --seconds N  all targets together   --target T   this one alone
             --seed S     the same changes again --input HEX  this input (or file) alone, of --target T
  mutate   mistakes in the protocol code, switched on one by one: which test finds which (docs/mutations.tsv)
             --only a,b   names that begin with a, b  --list    names and places alone
             --suites a,b  tests of these alone
             --anew       all tests of their areas, not first the one that found it last
             --survivors  also those that have a reason on the page
             --untried    those that are not on the page  --most S  no test that usually takes S seconds
             --jobs N     N at once
             --write      the page as it is now       --slower N  times as long as a test usually takes
  leaks    PROGRAM ARGUMENTS...: a test program, and what it leaves behind (as `cargo test` runs each)
  wheel    the Python package, optimised, in target/wheel/dist: built, installed and tested. With
           python3.14t (or MP_PYTHON_FREE_THREADED) another one in target/wheel/free-threaded/dist
             --strict     a test that can't run here fails, except for the free-threaded one
             --prepare    installs the Python packages that this needs, and nothing else
  gpu-bundle  DIR: programs and a script for a machine with a GPU, tried on the simulated one first
  api      writes docs/api.txt: every public path, which the step doc compares
  help     this page

Steps of ci, each a task of its own, also with --strict. `test` also takes the arguments of `cargo test`:
";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    // Runs in the folder in which it was started: the folder of the test program's package.
    if words.next().is_some_and(|task| task == "leaks") {
        return leaks::run(words.collect());
    }
    match run(std::env::args().skip(1).collect()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}

/// Returns `true` if the task succeeded, and an error for wrong usage or a broken environment.
fn run(mut words: Vec<String>) -> Result<bool, String> {
    let task = if words.is_empty() { "help".to_owned() } else { words.remove(0) };
    std::env::set_current_dir(repository()?).map_err(|e| format!("can't enter the repository: {e}"))?;
    let is_of_some = words.iter().any(|word| word != "--strict");
    let mut args = Args::new(words);
    match task.as_str() {
        "ci" => ci::run(&mut args),
        "bench" => bench::run(&mut args),
        "torture" => torture::run(&mut args),
        "api" => {
            args.finish()?;
            steps::doc::write()
        }
        "fuzz" => fuzz::run(&mut args),
        "gpu-bundle" => gpu_bundle::run(&mut args),
        "mutate" => mutate::run(&mut args),
        "net" => net::task(&mut args),
        "wheel" => steps::wheel::task(&mut args),
        "test" if is_of_some => steps::test_some(&args.rest()),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            let list = |steps: &[steps::Step]| {
                steps.iter().for_each(|step| println!("  {:<14}{}", step.name, step.what));
            };
            list(steps::ALL);
            println!("\nMore steps, of `ci --long`:\n");
            list(steps::LONG);
            Ok(true)
        }
        name => match steps::ALL.iter().chain(steps::LONG).find(|step| step.name == name) {
            Some(step) => ci::run_one(step, &mut args),
            None => Err(format!("no task `{name}`; `cargo xtask help` lists them")),
        },
    }
}

/// Returns the root folder of the workspace, the parent of this crate's folder.
fn repository() -> Result<PathBuf, String> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("start it as `cargo xtask`")?;
    Path::new(&here).parent().map(Path::to_path_buf).ok_or_else(|| "xtask has no parent folder".to_owned())
}
