//! Environment variables as checked values with their names.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::Ipv6Addr;

use super::LauncherError;

/// Longest printed part of a value, in bytes.
const PRINTED: usize = 48;

/// Result of reading a variable. `None` if the variable is not set.
pub(super) type Reading<T> = Result<Option<T>, LauncherError>;

/// Environment variables, read by a function. An empty variable counts as unset.
pub(super) struct Vars<'a>(pub(super) &'a dyn Fn(&str) -> Option<OsString>);

/// Value of a variable with the variable's name, displayed as `NAME=value` in printable characters.
#[derive(Clone)]
pub(super) struct Variable<T> {
    /// Name of the variable.
    pub(super) name: &'static str,
    /// Value of the variable.
    pub(super) value: T,
}

impl Vars<'_> {
    /// Returns the value of a variable as text.
    pub(super) fn text(&self, name: &'static str) -> Reading<Variable<String>> {
        let Some(value) = (self.0)(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        match value.into_string() {
            Ok(value) => Ok(Some(Variable { name, value })),
            Err(value) => Err(invalid(name, &value, "it is not valid UTF-8")),
        }
    }

    /// Returns the value of the first variable that is set.
    pub(super) fn first_text(&self, names: &[&'static str]) -> Reading<Variable<String>> {
        names.iter().find_map(|name| self.text(name).transpose()).transpose()
    }

    /// Returns the value of a variable as a number.
    pub(super) fn number(&self, name: &'static str) -> Reading<Variable<usize>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match number(&text.value) {
            Some(value) => Ok(Some(Variable { name, value })),
            None => Err(text.invalid("a rank or a size is a decimal number from 0, within 64 bits")),
        }
    }

    /// Returns the number in the first variable that is set.
    pub(super) fn first_number(&self, names: &[&'static str]) -> Reading<Variable<usize>> {
        names.iter().find_map(|name| self.number(name).transpose()).transpose()
    }

    /// Returns the value of a variable as a port.
    pub(super) fn port(&self, name: &'static str) -> Reading<Variable<u16>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match number(&text.value).and_then(|value| u16::try_from(value).ok()) {
            Some(value) if value != 0 => Ok(Some(Variable { name, value })),
            _ => Err(text.invalid("a port is a number from 1 to 65535")),
        }
    }

    /// Returns the value of a variable as a host: a name, or an address without brackets.
    pub(super) fn host(&self, name: &'static str) -> Reading<String> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match host(&text.value) {
            Some(host) => Ok(Some(host.to_owned())),
            None => Err(text.invalid(
                "an address is a host name, an IPv4 or an IPv6 address, without a port \
                 (a port belongs into MP_PORT)",
            )),
        }
    }
}

impl Variable<String> {
    /// Returns the error that the value of this variable is invalid.
    pub(super) fn invalid(&self, reason: &'static str) -> LauncherError {
        invalid(self.name, OsStr::new(&self.value), reason)
    }
}

impl fmt::Display for Variable<usize> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl fmt::Display for Variable<String> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, printable(OsStr::new(&self.value)))
    }
}

/// Returns the error that the value of a variable is invalid.
fn invalid(variable: &'static str, value: &OsStr, reason: &'static str) -> LauncherError {
    LauncherError::Invalid { variable, value: printable(value), reason }
}

/// Returns the beginning of a value as printable ASCII text, with escapes.
fn printable(value: &OsStr) -> String {
    let bytes = value.as_encoded_bytes();
    let shown = bytes[..bytes.len().min(PRINTED)].escape_ascii();
    if bytes.len() > PRINTED { format!("{shown}… ({} bytes)", bytes.len()) } else { shown.to_string() }
}

/// Returns the number in a text, or `None` if the text has other characters than decimal digits.
pub(super) fn number(text: &str) -> Option<usize> {
    // `parse` alone accepts a sign.
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Returns the host in a text: a host name, or an address without its brackets. Returns `None` if the text is
/// neither.
pub(super) fn host(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let address = inner.unwrap_or(text);
    let (number, zone) = address.split_once('%').unwrap_or((address, "0"));
    if number.parse::<Ipv6Addr>().is_ok() && is_name(zone) {
        return Some(address);
    }
    (inner.is_none() && is_name(text)).then_some(text)
}

/// Returns `true` if a text has only the characters of host names and IPv4 addresses.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}
