//! Runs the parsers of mp on hostile bytes, which are made from the output of the encoders by random changes.
//! Each target runs in a child process with limits for memory and for the time of each input. An input fails
//! if it causes a panic, ends the process, takes too long, or allocates too much for its length. A failing
//! input is shortened, printed, and stored for the tests.

mod allocator;
mod child;
mod finding;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use mp_fuzz::{PLANTED, target, targets};
use mp_harness::hostile::{Target, hex, kept, regressions, unhex};

/// Largest number of hex digits of an input that are shown.
const SHOWN: usize = 1000;

const HELP: &str = "mp-fuzz [--seconds N] [--target T] [--seed S] | --input HEX|FILE --target T | --planted \
| \
                    --corpora FOLDER | --list";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).collect::<Vec<_>>();
    if words.first().is_some_and(|word| word == "child") {
        return child::run(&words[1..]);
    }
    // An option without a value remains in the list, and is refused below.
    let mut value = |name: &str| {
        let at = words.iter().position(|word| word == name).filter(|at| at + 1 < words.len())?;
        words.remove(at);
        Some(words.remove(at))
    };
    let (seconds, only, seed, input) =
        (value("--seconds"), value("--target"), value("--seed"), value("--input"));
    if let Some(folder) = value("--corpora") {
        return corpora(Path::new(&folder));
    }
    let number =
        |text: Option<String>, otherwise: u64| text.map_or(Some(otherwise), |text| text.parse().ok());
    let (Some(seconds), Some(seed)) = (number(seconds, 60), number(seed, now())) else { return usage() };
    if only.as_deref().is_some_and(|name| target(name).is_none()) {
        eprintln!("there is no target {}; --list names them", only.unwrap_or_default());
        return ExitCode::from(2);
    }
    match (&words[..], input, &only) {
        ([], Some(input), Some(name)) => one(name, &input),
        ([], None, _) => fuzz(only.as_deref(), seconds, seed),
        ([word], None, None) if word == "--planted" => planted(seed),
        ([word], None, None) if word == "--list" => {
            targets().iter().for_each(|(name, ..)| println!("{name}"));
            ExitCode::SUCCESS
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{HELP}");
    ExitCode::from(2)
}

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_micros() as u64)
}

/// Runs one input in a child process, and shows its output.
fn one(name: &str, input: &str) -> ExitCode {
    // Hex digits, or the name of a file that contains them.
    let text = fs::read_to_string(input).unwrap_or_else(|_| input.to_owned());
    let Some(input) = unhex(&text) else { return usage() };
    match finding::fails(name, &input) {
        Some(why) => {
            println!("{name}: {why}");
            ExitCode::FAILURE
        }
        None => {
            println!("{name}: nothing is wrong with that");
            ExitCode::SUCCESS
        }
    }
}

/// Formats bytes as hex digits. Truncates the text after [`SHOWN`] digits.
fn cut(bytes: &[u8]) -> String {
    let text = hex(bytes);
    if text.len() <= SHOWN { text } else { format!("{}…", &text[..SHOWN]) }
}

/// Returns the path of the file to which a child writes an input before it runs the input.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mp-fuzz-{}-{name}", std::process::id()))
}

/// Runs a child for `time`. Returns the first input that causes a fault, if there is one.
fn hunt(name: &str, time: Duration, seed: u64, mutant: Option<&str>, quiet: bool) -> Option<Vec<u8>> {
    let (file, me) = (scratch(name), std::env::current_exe().expect("this program has a path"));
    let mut command = Command::new(me);
    command.args(["child", name, &time.as_millis().to_string(), &seed.to_string()]).arg(&file);
    if let Some(mutant) = mutant {
        command.env("MP_MUTANT", mutant);
    }
    if quiet {
        command.stdout(Stdio::null());
    }
    let status = command.stderr(Stdio::null()).status().expect("a child starts");
    let found = (!status.success()).then(|| fs::read(&file).unwrap_or_default());
    _ = fs::remove_file(file);
    found
}

fn fuzz(only: Option<&str>, seconds: u64, seed: u64) -> ExitCode {
    let all: Vec<_> =
        targets().into_iter().filter(|(name, ..)| only.is_none_or(|only| only == *name)).collect();
    let each = Duration::from_secs(seconds) / all.len() as u32;
    println!("{} targets, {:.1} s each, --seed {seed}", all.len(), each.as_secs_f64());
    let mut found = 0;
    for (name, ..) in all {
        let Some(input) = hunt(name, each, seed, None, false) else { continue };
        found += 1;
        let shortest = finding::shortest(name, input);
        let why =
            finding::fails(name, &shortest).unwrap_or_else(|| "it happened once, and not again".to_owned());
        println!("FOUND in {name}, {} bytes: {}\n{why}", shortest.len(), cut(&shortest));
        match keep(name, &shortest, &why) {
            Ok(again) => println!("kept for the tests; again: {again}"),
            Err(why) => println!("not kept: {why}"),
        }
    }
    println!("{found} findings");
    ExitCode::from(u8::from(found > 0))
}

/// Writes a finding to a file in the folder that the tests read: the fault, the command that runs the input
/// again, and the hex digits of the input. Returns the command.
fn keep(name: &str, input: &[u8], why: &str) -> std::io::Result<String> {
    let file = format!("{:016x}.hex", mp_core::fnv1a(input));
    let again = format!("cargo xtask fuzz --target {name} --input tools/fuzz/regressions/{name}/{file}");
    let comments: String = why.lines().chain([&again[..]]).map(|line| format!("# {line}\n")).collect();
    let folder = kept().join(name);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(file), format!("{comments}{}\n", hex(input)))?;
    Ok(again)
}

/// Writes the output of the encoders, and earlier findings, as the initial inputs of libFuzzer: a folder for
/// each target, with a file for each input.
fn corpora(folder: &Path) -> ExitCode {
    let write = |(name, _, seeds): Target| -> std::io::Result<()> {
        let folder = folder.join(name);
        fs::create_dir_all(&folder)?;
        let mut all = regressions(name).into_iter().chain(seeds());
        all.try_for_each(|input| fs::write(folder.join(format!("{:016x}", mp_core::fnv1a(&input))), input))
    };
    match targets().into_iter().try_for_each(write) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{}: {why}", folder.display());
            ExitCode::FAILURE
        }
    }
}

/// Fails unless each planted mutation is found. Mutations exist only in the copy of the sources that `cargo
/// xtask mutate` makes.
fn planted(seed: u64) -> ExitCode {
    let mut missed = 0;
    for (name, mutant) in PLANTED {
        let started = Instant::now();
        match hunt(name, Duration::from_secs(20), seed, Some(mutant), true) {
            // In this process the mutation is off.
            Some(input) if finding::fails(name, &input).is_some() => {
                missed += 1;
                println!("{mutant}: {name} fails without it: {}", cut(&input));
            }
            Some(input) => {
                let took = started.elapsed().as_secs_f64();
                println!("{mutant}: found in {name} after {took:.2} s, {} bytes", input.len());
            }
            None => {
                missed += 1;
                println!("{mutant}: NOT FOUND in {name}");
            }
        }
    }
    ExitCode::from(u8::from(missed > 0))
}
