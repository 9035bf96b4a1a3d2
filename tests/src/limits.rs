//! Limits of this process, which tests lower.

use std::sync::Once;

use mp::Arena;
use rustix::process::{Rlimit, getrlimit, setrlimit};

pub use rustix::process::Resource;

/// Sets a soft limit of this process.
pub fn limit(resource: Resource, value: u64) {
    setrlimit(resource, Rlimit { current: Some(value), maximum: getrlimit(resource).maximum }).unwrap();
}

/// Sets the limit of file sizes to `bytes`, and creates the arena. Each test of the program must call this
/// function first.
pub fn arena_of(bytes: u64) -> Arena {
    static LIMIT: Once = Once::new();
    LIMIT.call_once(|| limit(Resource::Fsize, bytes));
    let arena = Arena::current().unwrap();
    assert_eq!(arena.size(), bytes);
    arena
}
