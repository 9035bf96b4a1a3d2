//! Size of an arena and its number of messages, which are chosen before it is created.
//!
//! | priority | source of the numbers | set by |
//! |---|---|---|
//! | 1 | [`Arena::configure`](crate::Arena::configure) | the program, before it uses shared memory |
//! | 2 | `MP_ARENA_SIZE`, `MP_ARENA_MESSAGES` | the environment of the program that creates the arena |
//! | 3 | defaults: 1 TiB of addresses, or as much as the limits of the process allow; a number of messages that depends on the size | no setting |
//!
//! Both numbers are in the arena's header. A process that joins reads the number of messages there, computes
//! the positions of all tables, and checks the whole header against them. So children have the same
//! layout as their parent.

use std::env::{VarError, var};

use crate::error::{ByteSize, Error, Result};
use crate::layout::ArenaLayout;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};

/// Options for the creation of an arena: see [`Arena::configure`](crate::Arena::configure).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[must_use = "options do nothing until they are given to `Arena::configure`"]
pub struct ArenaOptions {
    pub(crate) size: Option<u64>,
    pub(crate) messages: Option<u32>,
}

pub(crate) static CHOSEN: PerProcess<Mutex<ArenaOptions>> =
    per_process!(Mutex::new(ArenaOptions { size: None, messages: None }));

const SIZE: &str = "MP_ARENA_SIZE";
const MESSAGES: &str = "MP_ARENA_MESSAGES";
/// Granularity of sizes in bytes. Sizes are rounded up to a multiple.
const GRAIN: u64 = 2 << 20;
/// Largest size of an arena in bytes.
pub(crate) const MOST_SIZE: u64 = 1 << 40;

impl ArenaOptions {
    /// Creates options that set nothing.
    pub const fn new() -> Self {
        Self { size: None, messages: None }
    }

    /// Sets the size of the arena's address range in bytes: from 64 MiB to 1 TiB, and rounded up to a
    /// multiple of 2 MiB. The range contains all queues and messages of the program, and its tensors, except
    /// tensors in [files](crate::SharingStrategy::FileSystem). Only used addresses take memory.
    pub const fn size(self, bytes: u64) -> Self {
        Self { size: Some(bytes), ..self }
    }

    /// Sets the maximum number of messages in flight, in all queues together: from 1,024 to 15,728,640, and
    /// rounded up to a multiple of 512. Small messages (on x86-64, of up to 10 bytes when encoded) are stored
    /// in their queues and don't count. Nevertheless, an unbounded queue can contain at most this number of
    /// small messages.
    pub const fn messages(self, messages: u32) -> Self {
        Self { messages: Some(messages), ..self }
    }

    pub(crate) fn checked(self) -> Result<Self> {
        let size = match self.size {
            Some(bytes) if !(ArenaLayout::MIN..=MOST_SIZE).contains(&bytes) => {
                let (least, most) = (ByteSize(ArenaLayout::MIN), ByteSize(MOST_SIZE));
                let why = format!("an arena of {}: {least} to {most} are possible", ByteSize(bytes));
                return Err(Error::out_of_range(bytes > MOST_SIZE, why));
            }
            size => size.map(|bytes| bytes.next_multiple_of(GRAIN)),
        };
        let (least, most) = (ArenaLayout::LEAST_ENVELOPES, ArenaLayout::MOST_ENVELOPES);
        let messages = match self.messages {
            Some(n) if !(least..=most).contains(&n) => {
                let why = format!("an arena for {n} messages in flight: {least} to {most} are possible");
                return Err(Error::out_of_range(n > most, why));
            }
            messages => messages.map(|n| n.next_multiple_of(512)),
        };
        Ok(Self { size, messages })
    }
}

/// Returns the options in effect. The environment supplies the options that the program has not set.
pub(crate) fn settings() -> Result<ArenaOptions> {
    let asked = *CHOSEN.lock();
    let size = match asked.size {
        Some(bytes) => Some(bytes),
        None => number(SIZE)?,
    };
    let messages = match (asked.messages, asked.messages.map_or_else(|| number(MESSAGES), |_| Ok(None))?) {
        (Some(n), _) => Some(n),
        (None, n) => n.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
    };
    ArenaOptions { size, messages }.checked()
}

/// Returns the number in an environment variable, if it is set: `4096`, `64M`, `16G`, `1T`.
fn number(name: &str) -> Result<Option<u64>> {
    if crate::sys::gained_privileges() {
        // The environment is input of a user without this program's privileges.
        return Ok(None);
    }
    let text = match var(name) {
        Err(VarError::NotPresent) => return Ok(None),
        Err(VarError::NotUnicode(text)) => text.to_string_lossy().into_owned(),
        Ok(text) => text,
    };
    let number = parse(&text).ok_or_else(|| {
        Error::InvalidArgument(format!(
            "{name}={text:?} is invalid: expected a number such as 4096, 64M, 16G or 1T"
        ))
    })?;
    Ok(Some(number))
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let shift = match text.bytes().last()? {
        b'K' | b'k' => 10,
        b'M' | b'm' => 20,
        b'G' | b'g' => 30,
        b'T' | b't' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_size_variable_with_a_unit_is_parsed() {
        assert_eq!(parse("4096"), Some(4096));
        assert_eq!(parse(" 64M "), Some(64 << 20));
        assert_eq!(parse("1t"), Some(1 << 40));
        for text in ["", "M", "1.5G", "-1", "1MB", "99999999999T"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn impossible_arena_options_are_refused() {
        let size = |bytes| ArenaOptions::new().size(bytes).checked();
        let messages = |n| ArenaOptions::new().messages(n).checked();
        assert_eq!(size(ArenaLayout::MIN + 1).unwrap().size, Some(ArenaLayout::MIN + GRAIN));
        assert_eq!(messages(1025).unwrap().messages, Some(1536));
        assert_eq!(
            messages(ArenaLayout::MOST_ENVELOPES).unwrap().messages,
            Some(ArenaLayout::MOST_ENVELOPES)
        );
        for refused in [size(0), messages(0)] {
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
        }
        for refused in [size(u64::MAX), messages(u32::MAX)] {
            assert!(matches!(refused, Err(Error::LimitExceeded(_))), "{refused:?}");
        }
    }
}
