//! Parts of the program `cuda`.

use std::time::Duration;

pub(crate) mod both;
pub(crate) mod gpu;
pub(crate) mod row;
pub(crate) mod server;
pub(crate) mod worker;

/// Parsed command line.
pub(crate) struct Options {
    /// `true` if this process is the server of mp's side.
    pub(crate) serve: bool,
    pub(crate) quick: bool,
    /// Rows to run. Empty for all.
    pub(crate) only: Vec<String>,
    /// Interpreter and script of the peer.
    pub(crate) torch: Option<(String, String)>,
    pub(crate) torch_device: String,
    pub(crate) json: Option<String>,
    /// Time after which no row begins.
    pub(crate) limit: Duration,
}

impl Options {
    /// Returns `true` if a row is to be run.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == row)
    }

    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            serve: false,
            quick: false,
            only: Vec::new(),
            torch: None,
            torch_device: "cuda".to_owned(),
            json: None,
            limit: Duration::from_secs(90),
        };
        while let Some(word) = words.next() {
            let mut next = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--serve" => options.serve = true,
                "--quick" => options.quick = true,
                "--only" => options.only = next()?.split(',').map(str::to_owned).collect(),
                "--torch" => options.torch = Some((next()?, next()?)),
                "--torch-device" => options.torch_device = next()?,
                "--json" => options.json = Some(next()?),
                "--limit" => {
                    let seconds = next()?.parse().map_err(|_| "--limit needs a number of seconds")?;
                    options.limit = Duration::from_secs(seconds);
                }
                _ => return Err(format!("what is {word}?")),
            }
        }
        let unknown = options.only.iter().find(|name| !row::ROWS.iter().any(|(row, _)| row == name));
        match unknown {
            Some(name) => Err(format!("there is no row {name}: {:?}", row::ROWS.map(|(row, _)| row))),
            None => Ok(options),
        }
    }
}
