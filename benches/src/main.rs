//! Benchmarks of mp, each compared with the physical limit of the same work and, with the feature `peers`,
//! with iceoryx2, ipc-channel and crossbeam-channel.
//!
//! In each row, the contenders take turns within one run: limit, ours, each peer, limit, ours, … A value is
//! the median over the rounds. Every benchmark checks the received values. A wrong value ends the program
//! with an error.
//!
//! Files: [`rows`] defines the measurements; [`work`] has the work itself, written once and generic over the
//! carrier of the messages; [`limits`], [`ours`] and [`peers`] have the carriers; [`run`] runs the contenders
//! in turns; [`report`] prints, [`page`] publishes, and [`goals`] has the goals.

mod args;
mod goals;
#[cfg(feature = "grow")]
mod grow;
mod limits;
mod ours;
mod page;
#[cfg(feature = "peers")]
mod peers;
mod process;
mod report;
mod rows;
mod run;
mod shm;
mod syscalls;
mod work;

use std::process::ExitCode;

use mp_bench::{machine, stats};

/// Any error, with its message.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Result of every fallible function of this program.
type Result<T> = std::result::Result<T, Failure>;

fn main() -> ExitCode {
    // Children of `spawn_exec` end here, unless the start-up hook has already ended them.
    if std::env::args_os().nth(1).is_some_and(|first| first == limits::exec::NOOP) {
        return ExitCode::SUCCESS;
    }
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mp-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(process::CHILD) => return process::be_child(&words.collect::<Vec<_>>()),
        Some(limits::failure::CHILD) => return limits::failure::be_child(),
        #[cfg(feature = "grow")]
        Some(grow::AXIS) => return grow::be_axis(&words.collect::<Vec<_>>()),
        Some(syscalls::HELPER) => return syscalls::be_helper(&words.collect::<Vec<_>>()),
        _ => {}
    }
    let Some(options) = args::parse(std::env::args().skip(1))? else {
        print!("{}", args::USAGE);
        return Ok(());
    };
    if options.list {
        for row in rows::all() {
            println!("{:<22} {:<5} {}", row.id, row.unit, row.about);
        }
        return Ok(());
    }
    if cfg!(debug_assertions) {
        eprintln!("mp-bench: built without --release: these figures say nothing about speed");
    }
    process::start_watchdog(options.deadline);
    if options.grow {
        #[cfg(feature = "grow")]
        return grow::run(&options);
        #[cfg(not(feature = "grow"))]
        return Err("built without the feature `grow`".into());
    }
    let cores = if options.pin { Some(process::two_cores()?) } else { None };
    let plan = work::Plan::new(options.quick, cores)?;
    let load = machine::load();
    let outcomes = run::all(&options, &plan)?;
    let machine = machine::describe(plan.processors, plan.quick, plan.cores.is_some(), load);
    print!("{}{}", report::table(&machine, &outcomes), goals::list(&outcomes));
    if let Some(path) = &options.json {
        report::write_json(path, &machine, &outcomes)?;
    }
    if let Some(folder) = &options.publish {
        page::publish(&machine, &outcomes, folder)?;
    }
    Ok(())
}
