//! Parser of command-line options. Options are taken one by one. Remaining words are an error.

/// Words after the task's name.
pub(crate) struct Args(Vec<String>);

impl Args {
    pub(crate) fn new(words: Vec<String>) -> Self {
        Self(words)
    }

    /// Takes all remaining words.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        std::mem::take(&mut self.0)
    }

    /// Takes `--name`. Returns `true` if it was present.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|word| word != name);
        self.0.len() < before
    }

    /// Takes the first word that isn't an option.
    pub(crate) fn word(&mut self) -> Option<String> {
        let at = self.0.iter().position(|word| !word.starts_with("--"))?;
        Some(self.0.remove(at))
    }

    /// Takes `--name VALUE` or `--name=VALUE`.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(at) = self.0.iter().position(|w| w == name || w.starts_with(&format!("{name}="))) else {
            return Ok(None);
        };
        let word = self.0.remove(at);
        if let Some((_, value)) = word.split_once('=') {
            return Ok(Some(value.to_owned()));
        }
        if at == self.0.len() || self.0[at].starts_with("--") {
            return Err(format!("{name} needs a value"));
        }
        Ok(Some(self.0.remove(at)))
    }

    /// Takes `--name a,b`, and returns the words between the commas. Returns an empty list if the option is
    /// missing.
    pub(crate) fn list(&mut self, name: &str) -> Result<Vec<String>, String> {
        let value = self.value(name)?.unwrap_or_default();
        Ok(value.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect())
    }

    /// Returns an error if words remain that no call has taken.
    pub(crate) fn finish(&self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => Err(format!("don't know `{word}` here; `cargo xtask help` lists the options")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn xtask_flags_values_and_lists_are_parsed() {
        let mut args = args("--strict --only a,b --json=out.json");
        assert!(args.flag("--strict"));
        assert!(!args.flag("--strict"));
        assert_eq!(args.list("--only").unwrap(), ["a", "b"]);
        assert_eq!(args.list("--skip").unwrap(), [""; 0]);
        assert_eq!(args.value("--json").unwrap().as_deref(), Some("out.json"));
        assert!(args.finish().is_ok());
    }

    #[test]
    fn unknown_xtask_arguments_are_refused() {
        assert!(args("--only").value("--only").is_err());
        assert!(args("--only --strict").value("--only").is_err());
        assert!(args("--onyl a").finish().is_err());
    }
}
