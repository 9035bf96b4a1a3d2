//! Token in the environment of a child. The token makes the child a worker.

use std::fmt;
use std::os::fd::RawFd;
use std::str::FromStr;

/// Environment variable that holds the token.
pub(crate) const VARIABLE: &str = "MP_CHILD";
/// Name of the variable as a C string.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) const C_VARIABLE: &std::ffi::CStr = c"MP_CHILD";

/// Contents of a token: the socket to the parent, the parent's process id, a random number that can't be
/// guessed, and the copy of this crate that the token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) fd: RawFd,
    pub(crate) parent: u32,
    pub(crate) nonce: u64,
    pub(crate) taker: TokenTarget,
}

/// Copy of this crate that a token is for: a process can have several, one in the program and one in each
/// library that was made with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenTarget {
    /// Copy in the program.
    Program,
    /// Copy in a library. The copy takes the token when the host calls a function of the library.
    Call,
    /// Copy in the library whose build has this hash. The copy takes the token while it is loaded, before the
    /// host begins.
    Load(u64),
    /// Any copy. The copy takes the token when the program calls [`guest`](crate::guest()).
    Guest,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v1:{}:{}:{:016x}", self.fd, self.parent, self.nonce)?;
        match self.taker {
            TokenTarget::Program => Ok(()),
            TokenTarget::Call => f.write_str(":call"),
            TokenTarget::Load(build) => write!(f, ":load:{build:016x}"),
            TokenTarget::Guest => f.write_str(":guest"),
        }
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
        let taker = match part() {
            Err(()) => TokenTarget::Program,
            Ok("call") => TokenTarget::Call,
            Ok("load") => TokenTarget::Load(u64::from_str_radix(part()?, 16).map_err(drop)?),
            Ok("guest") => TokenTarget::Guest,
            Ok(_) => return Err(()),
        };
        if part().is_ok() || fd < 0 {
            return Err(());
        }
        Ok(Token { fd, parent, nonce, taker })
    }
}

impl Token {
    /// Parses the value of the variable.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Result<Token, String> {
        let token = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        token.ok_or_else(|| {
            format!("{VARIABLE} holds {:?}, which is not a valid token", String::from_utf8_lossy(bytes))
        })
    }
}

/// Returns `true` if this process was started as a worker and has not become one. Returns `false` in a
/// process with privileges that its user lacks: such a process is never a worker, regardless of its
/// environment.
pub(crate) fn unconsumed() -> bool {
    std::env::var_os(VARIABLE).is_some() && !mp_core::gained_privileges()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_tokens_round_trip_or_are_refused() {
        let load = TokenTarget::Load(u64::MAX - 5);
        for taker in [TokenTarget::Program, TokenTarget::Call, load, TokenTarget::Guest] {
            let token = Token { fd: 7, parent: 4711, nonce: 0x12ab, taker };
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        let (endings, numbers) = (
            ["v1:7:1:ab:", "v1:7:1:ab:call:", "v1:7:1:ab:load", "v1:7:1:ab:load:x", "v1:7:1:ab:load:1:"],
            ["", "v1", "v2:7:1:ab", "v1:-7:1:ab", "v1:7:1:xy", "v1:7:-1:ab"],
        );
        for nonsense in endings.into_iter().chain(numbers) {
            assert_eq!(nonsense.parse::<Token>(), Err(()), "{nonsense}");
        }
    }
}
