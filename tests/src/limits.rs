//! Limits of this process, which tests lower.

use std::sync::Once;

use mp::Arena;
use rustix::process::{Rlimit, getrlimit, setrlimit};

pub use rustix::process::Resource;

/// Sets a soft limit of this process.
pub fn limit(resource: Resource, value: u64) {
    setrlimit(resource, Rlimit { current: Some(value), maximum: getrlimit(resource).maximum }).unwrap();
}

/// Creates the arena of a test program that calls this first in each of its tests. The limit of file sizes is
/// `bytes` from then on.
pub fn arena_of(bytes: u64) -> Arena {
    static LIMIT: Once = Once::new();
    LIMIT.call_once(|| limit(Resource::Fsize, bytes));
    let arena = Arena::current().unwrap();
    assert_eq!(arena.size(), bytes);
    arena
}
