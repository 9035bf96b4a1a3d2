//! Parsing of the command line.

use std::time::Duration;

use crate::rounds::group::Kind;

/// Arguments of the program.
#[derive(Clone, Debug)]
pub(crate) struct Args {
    /// Duration of the run.
    pub(crate) time: Duration,
    /// Seed of all random choices. The moments at which signals reach processes are not determined by the
    /// seed.
    pub(crate) seed: u64,
    /// Number of concurrent workers.
    pub(crate) processes: usize,
    /// Only kind of structure to use. `None` for all kinds.
    pub(crate) only: Option<Kind>,
    /// Environment variable that is set for the workers: name and value.
    pub(crate) env: Option<(String, String)>,
}

pub(crate) const USAGE: &str =
    "mp-torture [--seconds S] [--seed N] [--processes P] [--only KIND] [--env NAME=VALUE]";

impl Args {
    /// Parses the words after the program's name.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64 & 0xffff_ffff);
        let mut args = Self { time: Duration::from_secs(15), seed, processes: 16, only: None, env: None };
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            let value = value.or_else(|| words.next()).ok_or(format!("{name} needs a value"))?;
            if name == "--env" {
                let (name, value) = value.split_once('=').ok_or("--env NAME=VALUE: for the workers")?;
                args.env = Some((name.to_owned(), value.to_owned()));
                continue;
            }
            if name == "--only" {
                let kind = Kind::ALL.into_iter().find(|kind| format!("{kind:?}").to_lowercase() == value);
                args.only = Some(kind.ok_or_else(|| format!("--only {value}: there is {:?}", Kind::ALL))?);
                continue;
            }
            let number: u64 = value.parse().map_err(|_| format!("{name} {value}: that is no number"))?;
            match name.as_str() {
                "--seconds" => args.time = Duration::from_secs(number),
                "--seed" => args.seed = number,
                "--processes" if (4..=200).contains(&number) => args.processes = number as usize,
                "--processes" => return Err(format!("{number} processes: 4 to 200 are possible")),
                _ => return Err(format!("don't know {name}: {USAGE}")),
            }
        }
        Ok(args)
    }

    /// Returns `true` if workers may be forked. Returns `false` if `env` is set, because a forked child
    /// doesn't read its environment again.
    pub(crate) fn copies(&self) -> bool {
        self.env.is_none()
    }
}
