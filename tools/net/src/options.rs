//! Options of a role: words `name=value`.

use std::collections::HashMap;
use std::str::FromStr;

/// Options by name.
pub(crate) struct Options(HashMap<String, String>);

impl Options {
    pub(crate) fn new(words: impl Iterator<Item = String>) -> Self {
        Self(words.filter_map(|word| word.split_once('=').map(|(n, v)| (n.into(), v.into()))).collect())
    }

    /// Returns the value of an option.
    pub(crate) fn text(&self, name: &str) -> Result<&str, String> {
        self.0.get(name).map(String::as_str).ok_or_else(|| format!("the option {name} is missing"))
    }

    /// Returns the value of an option as a number.
    pub(crate) fn number<N: FromStr>(&self, name: &str) -> Result<N, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("{name}={text}: not a number"))
    }

    /// Returns the value of an option as a number, or 0 if the option is missing.
    pub(crate) fn number_or_zero<N: FromStr + Default>(&self, name: &str) -> Result<N, String> {
        if self.0.contains_key(name) { self.number(name) } else { Ok(N::default()) }
    }
}
