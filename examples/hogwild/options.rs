//! The command line.

use std::path::PathBuf;

const HELP: &str = "\
Trains a classifier on handwritten digits with several processes on one set of weights.

  --workers N     processes (default: one for each processor)
  --epochs N      times through the data (default: 40)
  --data FILE     your own data: a line for each image, numbers separated by commas, the class last
  --kill-one      kills a worker in the middle (SIGKILL); the training goes on
  --help          this text";

/// Parsed options.
pub(crate) struct Options {
    pub(crate) workers: usize,
    pub(crate) epochs: usize,
    pub(crate) data: Option<PathBuf>,
    pub kill_one: bool,
}

impl Options {
    /// Parses the command line. Returns `None` if only help was requested.
    pub(crate) fn from_args() -> mp::AnyResult<Option<Self>> {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let mut o = Self { workers: processors, epochs: 40, data: None, kill_one: false };
        let mut args = std::env::args_os().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{} needs a value", arg.display()));
            match arg.to_str() {
                Some("--workers") => o.workers = number(&value()?)?,
                Some("--epochs") => o.epochs = number(&value()?)?,
                Some("--data") => o.data = Some(value()?.into()),
                Some("--kill-one") => o.kill_one = true,
                Some("--help" | "-h") => {
                    println!("{HELP}");
                    return Ok(None);
                }
                _ => return Err(format!("unknown option {}; --help lists them", arg.display()).into()),
            }
        }
        if o.kill_one && o.workers < 2 {
            return Err("--kill-one needs at least 2 workers: one has to go on".into());
        }
        Ok(Some(o))
    }
}

fn number(arg: &std::ffi::OsStr) -> mp::AnyResult<usize> {
    match arg.to_str().and_then(|s| s.parse().ok()) {
        Some(n) if n > 0 => Ok(n),
        _ => Err(format!("{} is no number above 0", arg.display()).into()),
    }
}
