//! The token in a child's environment: what makes a process a worker.

use std::fmt;
use std::os::fd::RawFd;
use std::str::FromStr;

/// The environment variable that holds it.
pub(crate) const VARIABLE: &str = "MP_CHILD";
/// The same, for the C library.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) const C_VARIABLE: &std::ffi::CStr = c"MP_CHILD";

/// Which socket leads to the parent, who the parent is, and a number that nobody guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) fd: RawFd,
    pub(crate) parent: u32,
    pub(crate) nonce: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v1:{}:{}:{:016x}", self.fd, self.parent, self.nonce)
    }
}

impl FromStr for Token {
    type Err = ();

    #[inline]
    fn from_str(text: &str) -> Result<Token, ()> {
        let mut parts = text.split(':');
        let mut part = || parts.next().ok_or(());
        if part()? != "v1" {
            return Err(());
        }
        let fd = part()?.parse().map_err(drop)?;
        let parent = part()?.parse().map_err(drop)?;
        let nonce = u64::from_str_radix(part()?, 16).map_err(drop)?;
        if part().is_ok() || fd < 0 {
            return Err(());
        }
        Ok(Token { fd, parent, nonce })
    }
}

impl Token {
    /// Reads what the variable holds.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Result<Token, String> {
        let token = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        token.ok_or_else(|| {
            format!("{VARIABLE} holds {:?}, which is no token", String::from_utf8_lossy(bytes))
        })
    }
}

/// True while this process was started as a worker and has not become one.
pub(crate) fn unconsumed() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_nonsense() {
        let token = Token { fd: 7, parent: 4711, nonce: 0x12ab };
        assert_eq!(token.to_string().parse(), Ok(token));
        for nonsense in ["", "v1", "v2:7:1:ab", "v1:-7:1:ab", "v1:7:1:xy", "v1:7:1:ab:", "v1:7:-1:ab"] {
            assert_eq!(nonsense.parse::<Token>(), Err(()), "{nonsense}");
        }
    }
}
