//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::{Result, rows};

/// Text of `--help`.
pub(crate) const USAGE: &str = "\
usage: mp-bench [--only ID,ID] [--quick] [--pin] [--json FILE] [--minutes N] [--publish FOLDER] [--list]
       mp-bench --grow [--only AXIS,AXIS] [--quick] [--json FILE] [--minutes N] [--publish FOLDER]
                [--from FILE]

  --only ID,ID   only these rows (see --list)
  --quick        3 short rounds instead of 7
  --pin          pin the two processes of each row to two processors
  --json FILE    also write the figures to FILE
  --minutes N    give up after N minutes (30)
  --publish FOLDER  also write the tables in FOLDER/benchmarks.md and in FOLDER/../../README.md
  --list         name the rows and end

  --grow         measure growth (built with the feature `grow`): the same work at ever larger sizes, for at
                 most 10 minutes, or 2 with --quick; --only: processes, queues, backlog, tensors, owned, sizes
  --publish FOLDER  write pictures and figures to FOLDER/grow, and tables into FOLDER/benchmarks.md
  --from FILE    publish the figures of an earlier --json
";

/// Parsed options.
#[derive(Debug)]
pub(crate) struct Options {
    /// Ids of the rows to measure. Empty for all of them.
    pub(crate) only: Vec<String>,
    /// `true` for few and short rounds.
    pub(crate) quick: bool,
    /// `true` if the processes are pinned.
    pub(crate) pin: bool,
    /// File for the figures as JSON.
    pub(crate) json: Option<PathBuf>,
    /// Time after which the watchdog ends the program.
    pub(crate) deadline: Duration,
    /// `true` if the rows are only listed.
    pub(crate) list: bool,
    /// `true` if growth is measured instead of the rows.
    pub(crate) grow: bool,
    /// Folder of the page of benchmarks.
    pub(crate) publish: Option<PathBuf>,
    /// File with earlier figures of growth.
    #[cfg(feature = "grow")]
    pub(crate) from: Option<PathBuf>,
}

impl Options {
    /// Returns `true` if the axis or row `id` is to be measured.
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == id)
    }
}

/// Parses the command line. Returns `None` if the user requested help.
///
/// # Errors
/// Returns an error for an unknown option, an unknown row, or a missing or malformed value.
pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let mut options = Options {
        only: Vec::new(),
        quick: false,
        pin: false,
        json: None,
        deadline: Duration::ZERO,
        list: false,
        grow: false,
        publish: None,
        #[cfg(feature = "grow")]
        from: None,
    };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
            "--quick" => options.quick = true,
            "--pin" => options.pin = true,
            "--json" => options.json = Some(value()?.into()),
            "--minutes" => options.deadline = minutes(&value()?)?,
            "--list" => options.list = true,
            "--grow" => options.grow = true,
            "--publish" => options.publish = Some(value()?.into()),
            #[cfg(feature = "grow")]
            "--from" => options.from = Some(value()?.into()),
            // `cargo bench` adds this option.
            "--bench" => {}
            "-h" | "--help" => return Ok(None),
            _ => return Err(format!("unknown option {word}\n{USAGE}").into()),
        }
    }
    if options.deadline.is_zero() {
        options.deadline = minutes(match (options.grow, options.quick) {
            (false, _) => "30",
            (true, false) => "10",
            (true, true) => "2",
        })?;
    }
    if options.publish.is_some() && !options.only.is_empty() && !options.grow {
        return Err("only a run of all rows is published: leave out --only".into());
    }
    for id in options.only.iter().filter(|_| !options.grow) {
        if !rows::all().any(|row| row.id == id) {
            return Err(format!("no row is called {id:?}; --list names them").into());
        }
    }
    Ok(Some(options))
}

fn minutes(text: &str) -> Result<Duration> {
    match text.parse::<u32>() {
        Ok(minutes) if minutes > 0 => Ok(Duration::from_secs(60 * u64::from(minutes))),
        _ => Err(format!("--minutes wants a positive whole number, not {text:?}").into()),
    }
}
