//! Torture test. Worker processes use queues, channels, pipes, sockets, clusters, locks, pools, futures,
//! tensors of all sizes and a simulated GPU. Meanwhile this program kills, stops and continues workers at
//! random, and replaces dead workers. The program checks that no process hangs, and that no message is torn
//! or duplicated. It checks that losses stay within the guarantees: the message that a killed consumer was
//! getting, or no message with acknowledgement. At the end, no resource of any worker may be left. `cargo
//! xtask torture` builds and starts the program.
//!
//! The program runs in rounds of two seconds. The seed determines the structures of each round. On a finding,
//! the program prints the seed, each worker's last operations and the state of the structures, and exits with
//! code 1. The seed repeats all choices, but not the moments at which signals reach their processes.

mod args;
mod bookkeeping;
mod random;
mod reporting;
mod rounds;
mod workloads;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use args::Args;
use bookkeeping::leaks::InUse;
use mp::memory::{SharingStrategy, set_sharing_directory, set_sharing_strategy};
use mp::{Process, StartMethod, Tensor};
use random::Random;
use reporting::finding::Finding;
use reporting::report::{Bar, Report};
use rounds::folder::Folder;
use rounds::group::Kind;

/// Duration of a round, during which signals are sent.
const ROUND: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("seed {}: {error}", args.seed);
            ExitCode::FAILURE
        }
    }
}

/// Returns the usage of resources while no workers run. First uses each start method, a named file and a
/// cluster once, because their first use allocates resources that stay allocated.
fn baseline(methods: &[StartMethod], args: &Args) -> mp::AnyResult<InUse> {
    for &method in methods {
        Process::builder().start_method(method).spawn(|(): ()| {}, ())?.join()?;
    }
    set_sharing_strategy(SharingStrategy::FileSystem)?;
    drop(Tensor::<u64>::zeros([1])?);
    set_sharing_strategy(SharingStrategy::FileDescriptor)?;
    if args.only.is_none_or(|only| only == Kind::Net) {
        workloads::hosts::first_cluster(&mut Random::new(args.seed))?;
    }
    InUse::now()
}

/// Runs the rounds. Returns `true` if there was no finding.
fn run(args: &Args) -> Result<bool, Finding> {
    if args.only.is_none_or(|only| only == Kind::Cuda)
        && let Err(missing) = workloads::cuda::is_there()
    {
        if args.only.is_some() {
            return Err(Finding::of(&missing));
        }
        println!("{missing}");
    }
    rounds::copies::allow();
    let folder = Folder::new()?;
    set_sharing_directory(folder.path())?;
    let before = baseline(rounds::copies::methods(args.copies()), args)?;
    let mut report = Report::new(args.clone());
    let bar = Bar::new(args.time);
    let begun = Instant::now();
    for number in 0.. {
        let left = args.time.saturating_sub(begun.elapsed());
        if number > 0 && left < ROUND / 4 {
            break;
        }
        let seed = random::mix(args.seed.wrapping_add(number));
        let seen = |messages, signals| bar.show(begun.elapsed(), &report, messages, signals);
        let ended = rounds::round::round((seed, args), ROUND.min(left), &before, &seen)?;
        let found = ended.found.is_some();
        report.add(ended);
        if found {
            break;
        }
    }
    bar.done();
    print!("{report}");
    Ok(report.clean())
}
