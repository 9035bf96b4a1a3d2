//! The command `mp`: shows running programs of `multiproc`, and explains why a program hangs.
//!
//! The command reads the memory of programs of the same user from outside ([`mp_core::Observer`]): it never
//! changes a program, stops no process, and leaves no files. The command is also a library, which the Python
//! package uses.
//!
//! | file | content |
//! |---|---|
//! | `args.rs` | arguments of the command |
//! | `programs.rs` | search for programs and their processes in `/proc` |
//! | `program_report.rs` | snapshot of a program, which `record` writes and `show` reads |
//! | `why.rs` | chain of waits of a process |
//! | `hang_proof.rs` | proof that waits can't end by themselves |
//! | `whole_file.rs` | atomic creation of files |
//! | `tables.rs` | tables that the other commands print |
//! | `top` | live view of a program |

mod args;
mod hang_proof;
mod program_report;
mod programs;
mod tables;
mod top;
mod whole_file;
mod why;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use clap::Parser as _;
use mp_core::quantity;

use args::{Arguments, Command};
use program_report::Report;

// Links the layer that describes queues.
use mp_queue as _;

/// Exit code of a command that failed.
const FAILED: u8 = 1;
/// Exit code of `why` for a wait that can't end by itself.
const HANGS: u8 = 3;

/// Result of a command. The error is a text for the user.
type Result<T, E = String> = std::result::Result<T, E>;

/// Runs the command with these arguments. The first argument is the name of the program. Returns its exit
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
        return match top::run(target.as_deref(), arguments.watch.map(|_| interval(&arguments))) {
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
        match print(&format!("{before}{}", output.text)) {
            Ok(true) if arguments.watch.is_some() => {}
            Ok(_) => return output.code,
            Err(error) => {
                eprintln!("mp: {error}");
                return FAILED;
            }
        }
        std::thread::sleep(interval(&arguments));
    }
}

/// Prints a text. Returns `false` if standard output is a pipe that its reader has closed.
fn print(text: &str) -> Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("standard output: {error}")),
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
            let (reports, unreadable) = program_report::all();
            for error in unreadable {
                eprintln!("mp: {error}");
            }
            Ok(if json { to_json(&reports)? } else { tables::programs(&reports) }.into())
        }
        Command::Why { target } => why(target, json, arguments.watch.is_some()),
        Command::Show { target } => {
            let report = program_report::of_file_or_target(target.as_deref())?;
            Ok(if json { to_json(&report)? } else { tables::program(&report) }.into())
        }
        Command::Queue { object, program } => {
            let (report, object) = (program_report::of_program(program.as_deref())?, object.as_ref());
            let queues = chosen(&report.snapshot.queues, object, |queue| (queue.block, &queue.name));
            listed("queue", &queues, object, (&report, json), tables::queues_with_waits)
        }
        Command::Lock { object, program } => {
            let (report, object) = (program_report::of_program(program.as_deref())?, object.as_ref());
            let objects = chosen(&report.snapshot.objects, object, |found| (found.block, &found.name));
            listed("lock", &objects, object, (&report, json), tables::objects)
        }
        Command::Pool { object, program } => {
            let (report, object) = (program_report::of_program(program.as_deref())?, object.as_ref());
            let pools = chosen(&report.snapshot.pools, object, |pool| (pool.block, &pool.name));
            listed("pool", &pools, object, (&report, json), tables::pools_with_workers)
        }
        Command::Tensor { object, program } => {
            let (mut report, object) = (program_report::of_program(program.as_deref())?, object.as_ref());
            if let Some(block) = object.and_then(args::ObjectId::number) {
                let found = program_report::open(&report.program)?.storage(block);
                report.snapshot.storages = found.into_iter().collect();
            }
            let unnamed = String::new();
            let tensors = chosen(&report.snapshot.storages, object, |tensor| (tensor.block, &unnamed));
            listed("tensor", &tensors, object, (&report, json), tables::tensors)
        }
        // `top` writes to the terminal itself: see `run`.
        Command::Top { .. } => Ok(String::new().into()),
        Command::Record { file, program } => {
            let report = program_report::of_program(program.as_deref())?;
            let text = to_json(&report)?;
            whole_file::write(file, text.as_bytes()).map_err(|e| format!("{}: {e}", file.display()))?;
            let processes = quantity(report.snapshot.processes.len(), "process");
            Ok(format!("{}: {processes}\n", file.display()).into())
        }
        Command::Gc { dry_run, directory } => {
            let directory = directory.clone().unwrap_or_else(mp_core::get_sharing_directory);
            if !directory.is_dir() {
                return Err(format!("{} is not a directory", directory.display()));
            }
            let left = mp_core::leftovers(&directory, !dry_run).map_err(|e| e.to_string())?;
            let entry = |(path, bytes): &(_, u64)| serde_json::json!({"path": path, "bytes": bytes});
            Ok(if json {
                to_json(&left.iter().map(entry).collect::<Vec<_>>())?
            } else {
                tables::leftovers(&directory, &left, *dry_run)
            }
            .into())
        }
        Command::Man { command } => {
            let (mut page, mut of) = (Vec::new(), args::command());
            of.build();
            if let Some(name) = command {
                let found = of.find_subcommand(name).cloned();
                of = found.ok_or_else(|| {
                    format!("`{name}` is not a command of mp: `mp help` lists all commands")
                })?;
            }
            clap_mangen::Man::new(of).render(&mut page).map_err(|e| e.to_string())?;
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

/// Explains the waits of a target. If the waits form a cycle, prints the explanation first, and then takes
/// more snapshots for the proof that the waits can't end.
fn why(target: &str, json: bool, repeated: bool) -> Result<Output> {
    let (first, pids) = program_report::of_target(target)?;
    let seen = why::explain(&first.snapshot, &pids);
    let text = seen.to_string();
    let at_once = !json && !repeated;
    if at_once {
        print(&text)?;
    }
    let until = Instant::now() + PROVED_WITHIN;
    let mut found = seen;
    let mut proved = false;
    while found.hangs && !proved && Instant::now() < until {
        // sleep: between two reads of the counters of waiting threads, whose changes raise no event.
        std::thread::sleep(Duration::from_millis(100));
        let mut later = program_report::of_program(Some(&first.program.root.to_string()))?;
        let cycle = why::explain(&later.snapshot, &pids);
        hang_proof::confirm(&mut later.snapshot, &first.snapshot);
        let confirmed = why::explain(&later.snapshot, &pids);
        proved = confirmed.hangs;
        found = if proved { confirmed } else { cycle };
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

/// Returns the objects with this number or name, or all objects.
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

/// Returns the output of `queue`, `lock`, `pool` or `tensor`. Returns an error if the requested object does
/// not exist.
fn listed<T: serde::Serialize>(
    what: &str,
    found: &[&T],
    object: Option<&args::ObjectId>,
    (report, json): (&Report, bool),
    text: fn(&mp_core::Snapshot, &[&T]) -> String,
) -> Result<Output> {
    let root = report.program.root;
    match object {
        Some(object) if found.is_empty() => {
            Err(format!("the program of process {root} has no {what} {object}: `mp {what}` lists them"))
        }
        _ if json => Ok(to_json(&found)?.into()),
        _ if found.is_empty() => Ok(format!("the program of process {root} has no {what}\n").into()),
        _ => Ok(text(&report.snapshot, found).into()),
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|e| e.to_string())
}
