//! The command `mp`: shows live programs of `multiproc`, and says why one hangs.
//!
//! The command reads the memory of programs of the same user from outside ([`mp_core::Observer`]): it never
//! changes a program, stops no process, and leaves nothing. It is a library as well, so that the Python
//! package has the same command.
//!
//! | file | content |
//! |---|---|
//! | `args.rs` | the arguments |
//! | `programs.rs` | finds programs and their processes in `/proc` |
//! | `report.rs` | a program at one time: what `record` writes and `show` reads |
//! | `why.rs` | the chain of waits of a process, and the proof that it can't end |
//! | `whole_file.rs` | files that appear whole or not at all |
//! | `tables.rs` | the other outputs |
//! | `top` | the live view of a program |

mod args;
mod programs;
mod report;
mod tables;
mod top;
mod whole_file;
mod why;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use clap::Parser as _;

use args::{Arguments, Command};
use report::Report;

// Links the layer that describes queues.
use mp_queue as _;

/// Exit code of a command that failed.
const FAILED: u8 = 1;
/// Exit code of `why` for a wait that can't end by itself.
const HANGS: u8 = 3;

/// Error of a command, for people.
type Result<T, E = String> = std::result::Result<T, E>;

/// Runs the command with these arguments, of which the first is the name of the program. Returns its exit
/// code: 0, 1 for an error, 2 for wrong arguments, 3 if `why` has found a wait that can't end.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            _ = error.print();
            return error.exit_code() as u8;
        }
    };
    if let Command::Top { target } = &arguments.command {
        return match top::run(target.as_deref(), interval(&arguments)) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("mp: {error}");
                FAILED
            }
        };
    }
    loop {
        let output = match execute(&arguments) {
            Ok(output) => output,
            Err(error) => {
                eprintln!("mp: {error}");
                return FAILED;
            }
        };
        let clear = arguments.watch.is_some() && std::io::stdout().is_terminal();
        let before = if clear { "\x1b[H\x1b[2J" } else { "" };
        // A closed pipe is no error of this command.
        if write!(std::io::stdout(), "{before}{}", output.text).is_err() || arguments.watch.is_none() {
            return output.code;
        }
        std::thread::sleep(interval(&arguments));
    }
}

/// Returns the interval of `--watch`.
fn interval(arguments: &Arguments) -> Duration {
    Duration::from_secs_f64(
        arguments.watch.filter(|seconds| seconds.is_finite()).unwrap_or(1.0).clamp(0.1, 3600.0),
    )
}

/// Output of a command, and its exit code.
struct Output {
    text: String,
    code: u8,
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        Self { text, code: 0 }
    }
}

fn execute(arguments: &Arguments) -> Result<Output> {
    let json = arguments.json;
    match &arguments.command {
        Command::Ls => {
            let (reports, unreadable) = report::all();
            for error in unreadable {
                eprintln!("mp: {error}");
            }
            Ok(if json { to_json(&reports)? } else { tables::programs(&reports) }.into())
        }
        Command::Why { target } => why(target, json, arguments.watch.is_some()),
        Command::Show { target } => {
            let report = report::of_file_or_target(target.as_deref())?;
            Ok(if json { to_json(&report)? } else { tables::program(&report) }.into())
        }
        Command::Queue { object, program } => {
            let report = report::of_program(program.as_deref())?;
            let queues = chosen(&report.snapshot.queues, object.as_ref(), |queue| (queue.block, &queue.name));
            check_found("queue", &queues, object.as_ref(), &report)?;
            Ok(if json { to_json(&queues)? } else { tables::queues_with_waits(&report.snapshot, &queues) }
                .into())
        }
        Command::Lock { object, program } => {
            let report = report::of_program(program.as_deref())?;
            let objects =
                chosen(&report.snapshot.objects, object.as_ref(), |found| (found.block, &found.name));
            check_found("lock or other object", &objects, object.as_ref(), &report)?;
            Ok(if json { to_json(&objects)? } else { tables::objects(&report.snapshot, &objects) }.into())
        }
        Command::Pool { object, program } => {
            let report = report::of_program(program.as_deref())?;
            let pools = chosen(&report.snapshot.pools, object.as_ref(), |pool| (pool.block, &pool.name));
            check_found("pool", &pools, object.as_ref(), &report)?;
            Ok(if json { to_json(&pools)? } else { tables::pools_with_workers(&report.snapshot, &pools) }
                .into())
        }
        Command::Tensor { object, program } => {
            let mut report = report::of_program(program.as_deref())?;
            if let Some(block) = object.as_ref().and_then(args::ObjectId::number) {
                report.snapshot.storages =
                    report::open(&report.program)?.storage(block).into_iter().collect();
            }
            let name = String::new();
            let tensors = chosen(&report.snapshot.storages, object.as_ref(), |tensor| (tensor.block, &name));
            check_found("tensor", &tensors, object.as_ref(), &report)?;
            Ok(if json { to_json(&tensors)? } else { tables::tensors(&report.snapshot, &tensors) }.into())
        }
        // It writes to the terminal itself: see `run`.
        Command::Top { .. } => Ok(String::new().into()),
        Command::Record { file, program } => {
            let report = report::of_program(program.as_deref())?;
            let text = to_json(&report)?;
            whole_file::write(file, text.as_bytes()).map_err(|e| format!("{}: {e}", file.display()))?;
            Ok(format!("{}: {} processes\n", file.display(), report.snapshot.processes.len()).into())
        }
        Command::Gc { dry_run, directory } => {
            let directory = directory.clone().unwrap_or_else(mp_core::get_sharing_directory);
            let left = mp_core::leftovers(&directory, !dry_run).map_err(|e| e.to_string())?;
            Ok(if json { to_json(&left)? } else { tables::leftovers(&directory, &left, *dry_run) }.into())
        }
        Command::Man => {
            let mut page = Vec::new();
            clap_mangen::Man::new(args::command()).render(&mut page).map_err(|e| e.to_string())?;
            Ok(String::from_utf8_lossy(&page).into_owned().into())
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut args::command(), "mp", &mut text);
            Ok(String::from_utf8_lossy(&text).into_owned().into())
        }
    }
}

/// Maximum time to prove that a wait can't end. Each thread checks its condition at least once a second.
const PROVED_WITHIN: Duration = Duration::from_secs(5);

/// Explains the waits of a target. The explanation is printed before it is proved that they can't end.
fn why(target: &str, json: bool, repeated: bool) -> Result<Output> {
    let (first, pids) = report::of_target(target)?;
    let seen = why::explain(&first.snapshot, &pids);
    let text = seen.to_string();
    let at_once = !json && !repeated;
    if at_once {
        // A closed pipe is no error of this command.
        _ = write!(std::io::stdout(), "{text}");
    }
    let until = Instant::now() + PROVED_WITHIN;
    let mut found = seen;
    let mut proved = false;
    while found.hangs && !proved && Instant::now() < until {
        // sleep: between two looks at what waiting threads count, which no event announces.
        std::thread::sleep(Duration::from_millis(100));
        let Ok(mut later) = report::of_program(Some(&first.program.root.to_string())) else { break };
        let circle = why::explain(&later.snapshot, &pids);
        why::confirm(&mut later.snapshot, &first.snapshot);
        let confirmed = why::explain(&later.snapshot, &pids);
        proved = confirmed.hangs;
        found = if proved { confirmed } else { circle };
    }
    found.hangs = proved;
    let code = if proved { HANGS } else { 0 };
    let text = match () {
        () if json => to_json(&found)?,
        () if at_once => found.conclusion(),
        () => text + &found.conclusion(),
    };
    Ok(Output { text, code })
}

/// Returns the objects with a number or name, or all.
fn chosen<'a, T>(
    all: &'a [T],
    object: Option<&args::ObjectId>,
    of: impl Fn(&'a T) -> (u32, &'a String),
) -> Vec<&'a T> {
    let is_chosen = |found: &&'a T| {
        let (block, name) = of(found);
        object.is_none_or(|object| object.is(block, name))
    };
    all.iter().filter(is_chosen).collect()
}

/// Returns an error if nothing was chosen.
fn check_found<T>(
    what: &str,
    found: &[T],
    object: Option<&args::ObjectId>,
    Report { program, .. }: &Report,
) -> Result<()> {
    match object {
        _ if !found.is_empty() => Ok(()),
        Some(object) => Err(format!(
            "the program of process {} has no {what} {object}: `mp show` lists them",
            program.root
        )),
        None => Err(format!("the program of process {} has no {what}", program.root)),
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|e| e.to_string())
}
