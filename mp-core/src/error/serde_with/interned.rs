//! Static texts of another process's errors, stored once for the life of this process.

use std::collections::BTreeSet;

use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess};

/// Maximum number of texts, and maximum length of a text. A program has some hundreds; more come only from a
/// program that does not use this library.
const MAX_TEXTS: usize = 4096;
const LONGEST: usize = 4096;
/// Replacement for texts beyond the limits.
const OTHER: &str = "something that another process says, in too many words";

static TEXTS: PerProcess<Mutex<BTreeSet<&'static str>>> =
    PerProcess::new([const { Mutex::new(BTreeSet::new()) }; GENERATIONS]);

pub(super) fn interned(text: String) -> &'static str {
    let mut known = TEXTS.lock();
    if let Some(there) = known.get(text.as_str()) {
        return there;
    }
    if known.len() >= MAX_TEXTS || text.len() > LONGEST {
        return OTHER;
    }
    let kept: &'static str = text.leak();
    known.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interned_texts_are_stored_once_up_to_the_limit() {
        let first = interned("doing this".to_string());
        assert!(std::ptr::eq(first, interned("doing this".to_string())));
        assert_eq!(interned("x".repeat(LONGEST + 1)), OTHER);
        for i in 0..MAX_TEXTS {
            interned(format!("text {i}"));
        }
        assert_eq!(interned("one more".to_string()), OTHER);
        assert!(std::ptr::eq(first, interned("doing this".to_string())));
    }
}
