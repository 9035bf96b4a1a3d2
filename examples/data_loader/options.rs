//! The command line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

const HELP: &str = "\
Trains a classifier on image files of digits, which it writes first. Worker processes decode and change \
them at random.

  --images N      how many, a fifth of which is held out (default: 4000)
  --epochs N      times through the others (default: 8)
  --workers N     processes that make batches; 0: this one (default: 2)
  --folder DIR    where the images are, or are written, and stay (default: a temporary one, removed at the \
  end)
  --kill-one      kills a worker in the middle of the training (SIGKILL)
  --save FILE     writes weights and the loader's state to a file (JSON), after each epoch and at the end
  --stop-after N  ends after the batch of that number, counted over all epochs; needs --save
  --press-after N presses Ctrl-C after the batch of that number
  --resume FILE   goes on from such a file
  --help          this text";

/// Parsed options.
#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) images: usize,
    pub(crate) epochs: u64,
    pub(crate) workers: usize,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) kill_one: bool,
    pub(crate) save: Option<PathBuf>,
    pub(crate) stop_after: Option<usize>,
    pub(crate) press_after: Option<usize>,
    pub(crate) resume: Option<PathBuf>,
}

impl Options {
    /// Parses the command line. Returns `None` if only help was requested.
    ///
    /// # Errors
    /// Returns an error for an unknown option, or an invalid value.
    pub(crate) fn from_args() -> mp::AnyResult<Option<Self>> {
        let mut o = Self {
            images: 4000,
            epochs: 8,
            workers: 2,
            folder: None,
            kill_one: false,
            save: None,
            stop_after: None,
            press_after: None,
            resume: None,
        };
        let mut args = std::env::args_os().skip(1);
        while let Some(arg) = args.next() {
            let name = arg.display().to_string();
            let mut value = || args.next().ok_or_else(|| format!("{name} needs a value"));
            match arg.to_str() {
                Some("--images") => o.images = number(&name, &value()?, 100)?,
                Some("--epochs") => o.epochs = number(&name, &value()?, 1)? as u64,
                Some("--workers") => o.workers = number(&name, &value()?, 0)?,
                Some("--folder") => o.folder = Some(value()?.into()),
                Some("--kill-one") => o.kill_one = true,
                Some("--save") => o.save = Some(value()?.into()),
                Some("--stop-after") => o.stop_after = Some(number(&name, &value()?, 1)?),
                Some("--press-after") => o.press_after = Some(number(&name, &value()?, 1)?),
                Some("--resume") => o.resume = Some(value()?.into()),
                Some("--help" | "-h") => {
                    println!("{HELP}");
                    return Ok(None);
                }
                _ => return Err(format!("there is no option {name}; --help lists them").into()),
            }
        }
        if o.stop_after.is_some() && o.save.is_none() {
            return Err("--stop-after needs --save FILE: what was trained would be lost".into());
        }
        if o.kill_one && o.workers == 0 {
            return Err("--kill-one needs a worker".into());
        }
        Ok(Some(o))
    }
}

fn number(name: &str, value: &std::ffi::OsStr, least: usize) -> mp::AnyResult<usize> {
    match value.to_str().and_then(|text| text.parse().ok()) {
        Some(number) if number >= least => Ok(number),
        _ => Err(format!("{name} needs a number from {least} on, and {} is none", value.display()).into()),
    }
}
