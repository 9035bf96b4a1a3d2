//! Environment of a process that is about to be started. Each start creates an environment, so all entries
//! are stored in one piece of memory.

use std::ffi::{OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

/// Entries in the kernel's format, `name=value` and a zero byte each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    bytes: Vec<u8>,
    /// Offset of each entry.
    begins: Vec<usize>,
}

impl Environment {
    /// Returns the environment of this process, without one variable.
    pub(crate) fn without(hidden: &str) -> Environment {
        let mut all = Environment { bytes: Vec::with_capacity(4 << 10), begins: Vec::with_capacity(64) };
        // The values come from C strings, so they contain no zero byte.
        for (name, value) in std::env::vars_os().filter(|(name, _)| name != OsStr::new(hidden)) {
            all.add(name.as_bytes(), value.as_bytes());
        }
        all
    }

    fn add(&mut self, name: &[u8], value: &[u8]) {
        self.begins.push(self.bytes.len());
        for part in [name, b"=", value, b"\0"] {
            self.bytes.extend_from_slice(part);
        }
    }

    /// Returns a copy with one variable changed. `None` removes the variable.
    ///
    /// # Errors
    /// Returns a description of the fault if the name or the value is invalid.
    pub(crate) fn with(&self, name: &OsStr, value: Option<&OsString>) -> Result<Environment, &'static str> {
        let name = name.as_bytes();
        if name.is_empty() || name.contains(&b'=') {
            return Err("it is not a valid name of a variable");
        }
        let value = value.map(|value| value.as_bytes());
        if name.contains(&0) || value.is_some_and(|value| value.contains(&0)) {
            return Err("its name or value contains a zero byte");
        }
        let mut changed = Environment::default();
        for entry in self.entries() {
            let (its_name, its_value) = entry;
            if its_name != name {
                changed.add(its_name, its_value);
            }
        }
        if let Some(value) = value {
            changed.add(name, value);
        }
        Ok(changed)
    }

    /// Returns the value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        let mut named = self.entries().filter(|(its_name, _)| *its_name == name.as_bytes());
        named.next().map(|(_, value)| OsStr::from_bytes(value))
    }

    /// Returns the names and values of all variables.
    fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let ends = self.begins.iter().skip(1).copied().chain([self.bytes.len()]);
        self.begins.iter().zip(ends).filter_map(|(begin, end)| {
            let entry = self.bytes.get(*begin..end - 1)?;
            // A name may begin with an equals sign.
            let equals = entry.iter().skip(1).position(|byte| *byte == b'=')? + 1;
            Some((&entry[..equals], &entry[equals + 1..]))
        })
    }

    /// Returns the entries, each of them a C string that lives as long as `self`.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = *const c_char> {
        self.begins.iter().map(|begin| self.bytes[*begin..].as_ptr().cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(environment: &Environment) -> Vec<String> {
        let text = |part: &[u8]| String::from_utf8(part.to_vec()).unwrap();
        environment.entries().map(|(name, value)| format!("{}|{}", text(name), text(value))).collect()
    }

    #[test]
    fn environment_variables_are_set_changed_and_removed() {
        let mut all = Environment::default();
        for (name, value) in [("A", "1"), ("AB", ""), ("=C:", "x=y")] {
            all.add(name.as_bytes(), value.as_bytes());
        }
        let [a, b] = ["A", "B"].map(OsStr::new);
        assert_eq!(texts(&all), ["A|1", "AB|", "=C:|x=y"]);
        assert_eq!(texts(&all.with(a, None).unwrap()), ["AB|", "=C:|x=y"]);
        let changed = all.with(a, Some(&"ä".into())).unwrap().with(b, Some(&"".into())).unwrap();
        assert_eq!(texts(&changed), ["AB|", "=C:|x=y", "A|ä", "B|"]);
        assert_eq!(changed.pointers().count(), 4);
        assert!(changed.bytes.ends_with(b"A=\xc3\xa4\0B=\0"));
    }

    #[test]
    fn invalid_environment_variables_are_refused() {
        let all = Environment::default();
        for (name, value) in [("", "x"), ("a=b", "x"), ("a\0", "x"), ("a", "\0")] {
            assert!(all.with(OsStr::new(name), Some(&value.into())).is_err(), "{name:?}={value:?}");
        }
    }

    #[test]
    fn current_environment_is_copied_without_one_variable() {
        let (path, all) = (std::env::var("PATH").unwrap(), Environment::without("MP_CHILD"));
        assert!(texts(&all).contains(&format!("PATH|{path}")));
        assert!(!texts(&Environment::without("PATH")).iter().any(|entry| entry.starts_with("PATH|")));
    }
}
