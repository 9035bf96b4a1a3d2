//! Contenders in Python, each in a process that runs as long as its row is measured.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Result;
use crate::run::{Contender, Round};

/// Returns the path of the Python interpreter for torch and SPDL, or `None` if it does not run.
pub(crate) fn find() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peers/bin/python");
    let python = std::env::var_os("MP_PYTHON").map_or(folder, PathBuf::from);
    let there = Command::new(&python).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match there {
        Ok(status) if status.success() => Some(python),
        _ => {
            eprintln!(
                "SKIPPED: torch and SPDL: there is no {}; main.rs says how to make it",
                python.display()
            );
            None
        }
    }
}

/// Script of a contender, and the arguments that all scripts have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'a> {
    pub(crate) python: &'a Path,
    pub(crate) script: &'a str,
    pub(crate) row: &'a str,
    pub(crate) variant: &'a str,
    pub(crate) batches: usize,
    pub(crate) images: &'a Path,
}

struct Script {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Script {
    fn line(&mut self) -> Result<Vec<String>> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("the script has ended: {}", self.process.wait()?).into());
        }
        Ok(line.trim_end().split('\t').map(str::to_owned).collect())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // It ends with its input, and its workers with it.
        drop(self.input.take());
        _ = self.process.wait();
    }
}

/// Starts the script of a contender, and adds the versions of its libraries to `versions`.
///
/// # Errors
/// Returns an error if the script does not start, most likely because its library is not installed.
pub(crate) fn start(task: Task<'_>, versions: &mut Vec<String>) -> Result<Contender> {
    let mut process = Command::new(task.python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(task.script))
        .args([task.row, task.variant, &task.batches.to_string()])
        .arg(task.images)
        .arg(decoder()?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = process.stdout.take().ok_or("no output")?;
    let mut script = Script { input: process.stdin.take(), output: BufReader::new(output), process };
    match script.line()?.as_slice() {
        [first, found @ ..] if first == "versions" => {
            versions.extend(found.iter().cloned());
            versions.sort_unstable();
            versions.dedup();
        }
        other => return Err(format!("it says {other:?}").into()),
    }
    Ok(Contender::new(task.variant, move || {
        let input = script.input.as_mut().ok_or("no input")?;
        input.write_all(b"\n")?;
        match script.line()?.as_slice() {
            [word, figure, check] if word == "round" => {
                Ok(Round::Figure { figure: figure.parse()?, check: check.parse()? })
            }
            [word, why] if word == "failed" => Ok(Round::Failed(why.clone())),
            other => Err(format!("it says {other:?}").into()),
        }
    }))
}

/// Returns the path of the shared library of `mp_bench_decoder`, which is built together with this program.
fn decoder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().ok_or("no folder")?;
    let name = "libmp_bench_decoder.so";
    [folder.join(name), folder.join("deps").join(name)]
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| format!("there is no {name} beside {}", program.display()).into())
}
