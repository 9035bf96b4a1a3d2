//! Programs that lock their memory (`mlockall(2)`): each test runs this program again, with an arena of 1
//! GiB.

use std::env;
use std::process::Command;

use mp::{Arena, Queue, Tensor};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

const ROLE: &str = "MP_TEST_LOCKED";
const MIB: u64 = 1 << 20;

/// Runs one test of this program again in a separate process, in which [`is_again`] returns `true`.
fn again(test: &str) {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, "1")
        .env("MP_ARENA_SIZE", (1024 * MIB).to_string());
    assert!(command.status().unwrap().success());
}

fn is_again() -> bool {
    env::var_os(ROLE).is_some()
}

/// Returns a line of this process's status, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Locks memory. Returns `false` if this process is not permitted to.
fn lock(flags: MlockAllFlags) -> bool {
    let locked = mlockall(flags);
    if let Err(e) = locked {
        mp_harness::skip(format_args!("mlockall is refused: {e}"));
    }
    locked.is_ok()
}

#[test]
fn locked_program_populates_only_used_memory() {
    if !is_again() {
        return again("locked_program_populates_only_used_memory");
    }
    if !lock(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        return;
    }
    let before = status("VmRSS");
    let queue = Queue::unbounded().unwrap();
    queue.put(Tensor::from_slice(&[7_u8; 1 << 20], [1 << 20]).unwrap()).unwrap();
    assert_eq!(queue.get().unwrap().unwrap().as_slice().unwrap()[5], 7);
    let used = status("VmRSS") - before;
    assert!(used < 128 * MIB, "{} MiB of an arena of 1024 MiB are resident", used / MIB);
}

#[test]
fn refused_locked_mapping_names_the_limit() {
    if !is_again() {
        return again("refused_locked_mapping_names_the_limit");
    }
    if !lock(MlockAllFlags::FUTURE) {
        return;
    }
    // The limit is enough for the test's own allocations, and not for the arena.
    let maximum = getrlimit(Resource::Memlock).maximum;
    let current = Some(maximum.unwrap_or(8 * MIB).min(8 * MIB));
    setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
    let error = Arena::current().unwrap_err().to_string();
    assert!(error.contains("RLIMIT_MEMLOCK"), "{error}");
}
