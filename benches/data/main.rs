//! Comparison of the data loaders of mp, torch and SPDL, and of threads in one process.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --features data --bin data -- --json figures.json`
//!
//! First, each contender of a row is tried at several settings. The best setting of each is then measured in
//! rounds, in which the contenders take turns. The process that would train with a batch reads it. The
//! checksums of all loaders of a row must be equal (except for decoders that round differently). The batches
//! of mp's loader must also equal the plan, batch by batch and row by row. Any difference ends the program
//! with an error.
//!
//! torch and SPDL run in one Python interpreter: `MP_PYTHON`, or `benches/target/peers/bin/python`. If the
//! interpreter is missing, a message reports that torch and SPDL are left out. Commands that install both:
//!
//! `python3 -m venv benches/target/peers && benches/target/peers/bin/pip install torch torchvision pillow
//! spdl spdl-core spdl-io`

mod images;
mod ours;
mod python;
mod references;
mod results;
mod rows;
mod run;
mod svg;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use mp_bench::{machine, stats};

/// Any error, with its message.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Result of every fallible function of this program.
type Result<T> = std::result::Result<T, Failure>;

const USAGE: &str = "\
usage: data [--only ID,ID] [--rounds N] [--json FILE] [--minutes N] [--list]
       data --details RUNS
       data --table FILE
       data --publish FILE PAGE
       data --draw FILE PICTURE

  --only ID,ID         only these rows
  --rounds N           how often the contenders take turns (7)
  --json FILE          writes the figures to FILE; those of other rows that are there stay
  --minutes N          gives up after N minutes (30)
  --list               names the rows and ends
  --details RUNS       what a batch of one number takes in each of RUNS runs, and how often threads have \
  waited for it
  --table FILE         prints such a file as a table, in Markdown
  --publish FILE PAGE  writes that table into a page that has a place for it
  --draw FILE PICTURE  draws it, as SVG
";

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("data: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let (mut only, mut rounds, mut minutes, mut json) = (Vec::new(), 7, 30, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--only" => only.extend(value()?.split(',').map(str::to_owned)),
            "--rounds" => rounds = value()?.parse::<usize>()?.max(1),
            "--minutes" => minutes = value()?.parse()?,
            "--json" => json = Some(PathBuf::from(value()?)),
            "--list" => {
                rows::ALL.iter().for_each(|row| println!("{:<12} {:<10} {}", row.id, row.unit, row.about));
                return Ok(());
            }
            "--details" => {
                for run in 0..value()?.parse::<usize>()? {
                    let [set, two] = [None, Some(2)].map(|ahead| ours::details(10_000, ahead));
                    println!("run {run}: {}\n  two ahead: {}", set?, two?);
                }
                return Ok(());
            }
            "--table" => {
                print!("{}", results::read(value()?.as_ref())?.table());
                return Ok(());
            }
            "--publish" => {
                return results::read(value()?.as_ref())?.publish(value()?.as_ref());
            }
            "--draw" => {
                let results = results::read(value()?.as_ref())?;
                return Ok(std::fs::write(value()?, svg::draw(&results))?);
            }
            "--help" | "-h" => {
                print!("{USAGE}");
                return Ok(());
            }
            _ => return Err(format!("unknown option {word}\n{USAGE}").into()),
        }
    }
    if let Some(id) = only.iter().find(|id| rows::ALL.iter().all(|row| row.id != **id)) {
        return Err(format!("no row is called {id}; --list names them").into());
    }
    if cfg!(debug_assertions) {
        eprintln!("data: built without --release: these figures say nothing about speed");
    }
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(60 * minutes));
        eprintln!("data: not done after {minutes} minutes: giving up");
        std::process::exit(3);
    });

    let processors = std::thread::available_parallelism()?.get();
    let images = images::Images::write()?;
    let setup = rows::Setup { images: &images, python: python::find() };
    for row in rows::ALL.iter().filter(|row| only.is_empty() || only.iter().any(|id| id == row.id)) {
        let load = machine::load();
        let machine = machine::describe(processors, false, false, load);
        let results = results::Results { rows: vec![run::row(row, &setup, rounds)?.on(&machine)] };
        print!("{}", results.table());
        // Earlier figures are kept if a later row fails.
        if let Some(path) = &json {
            results.write(path)?;
        }
    }
    Ok(())
}
