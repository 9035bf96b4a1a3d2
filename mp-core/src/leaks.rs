//! Test only: descriptors, blocks and messages that this process still has when it ends.
//!
//! `cargo xtask leaks PROGRAM`, the runner of `cargo test`, requests the report by the environment variable
//! `MP_LEAKS`. The variable contains the runner's process ID, the descriptors that the program inherits, and
//! the path of the report. Only children of the runner write a report. Grandchildren also inherit the
//! variable, but the runner is not their parent. Orphans become children of the runner, too, so each process
//! appends its ID to the name of its report. The last exit function of the process writes the report, after
//! all threads and callbacks of the library have run.

use std::fmt::Write;
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::alloc::Allocator;
use crate::arena::Arena;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::quantity;
use crate::recovery::Recovery;
use crate::setup::Backing;
use crate::sys::at_exit;

/// Time limit for resources that ending threads are about to close or free.
const TIME_LIMIT: Duration = Duration::from_secs(5);

struct LeakCheck {
    inherited: Vec<RawFd>,
    report: PathBuf,
}

struct LongLivedFd {
    what: &'static str,
    fd: RawFd,
    target: PathBuf,
}

static CHECK: PerProcess<OnceLock<LeakCheck>> = per_process!(OnceLock::new());
static LONG_LIVED: PerProcess<Mutex<Vec<LongLivedFd>>> = per_process!(Mutex::new(Vec::new()));

static MEMORY_SKIPPED: PerProcess<OnceLock<()>> = per_process!(OnceLock::new());

#[cfg(all(target_os = "linux", target_env = "gnu"))]
at_exit::before_main!(begin);

/// Begins the check for leaks if `MP_LEAKS` requests it. Called before `main`.
#[cfg_attr(
    not(all(target_os = "linux", target_env = "gnu")),
    allow(dead_code, reason = "nothing calls it there")
)]
fn begin() {
    if crate::gained_privileges() {
        return;
    }
    let Ok(check) = std::env::var("MP_LEAKS") else { return };
    let mut words = check.splitn(3, ' ');
    let (Some(parent), Some(inherited), Some(report)) = (words.next(), words.next(), words.next()) else {
        return;
    };
    if parent.parse() != Ok(parent_id()) {
        return;
    }
    let inherited = inherited.split(',').filter_map(|fd| fd.parse().ok()).collect();
    let report = format!("{report}-{}", std::process::id()).into();
    if CHECK.set(LeakCheck { inherited, report }).is_ok() {
        at_exit::on_exit_last(write_report);
    }
}

/// Implements [`register`](crate::long_lived_fds::register).
pub(crate) fn register(what: &'static str, fd: RawFd) {
    if CHECK.get().is_none() {
        return;
    }
    let Some(target) = target(fd) else { return };
    let mut all = LONG_LIVED.lock();
    all.retain(|known| known.what != what || known.target != target);
    all.push(LongLivedFd { what, fd, target });
}

/// Implements [`register_made`](crate::long_lived_fds::register_made). Also records descriptors that other
/// threads open at the same time.
pub(crate) fn register_made<R>(what: &'static str, make: impl FnOnce() -> R) -> R {
    if CHECK.get().is_none() {
        return make();
    }
    // Another thread may close a descriptor meanwhile, and a new one may get its number.
    let before: Vec<_> = open_fds().into_iter().map(|fd| (fd, info(fd))).collect();
    let made = make();
    let new = open_fds().into_iter().filter(|&fd| !before.contains(&(fd, info(fd))));
    let of_kernel = new
        .filter_map(|fd| Some((fd, target(fd)?)))
        .filter(|(_, target)| target.to_string_lossy().starts_with("anon_inode:"));
    LONG_LIVED.lock().extend(of_kernel.map(|(fd, target)| LongLivedFd { what, fd, target }));
    made
}

fn open_fds() -> Vec<RawFd> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let all: Vec<RawFd> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // Excludes the descriptor of the directory that was read, which is closed by now.
    all.into_iter().filter(|fd| target(*fd).is_some()).collect()
}

/// Implements [`skip_memory_check`](crate::long_lived_fds::skip_memory_check).
pub(crate) fn skip_memory_check() {
    _ = MEMORY_SKIPPED.set(());
}

/// Returns the kernel's description of a descriptor. For an eventfd, it contains an identifier of the
/// eventfd.
fn info(fd: RawFd) -> String {
    fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default()
}

fn target(fd: RawFd) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{fd}")).ok()
}

fn write_report() {
    let Some(check) = CHECK.get() else { return };
    // In a new thread, because the thread-local variables of this one are destroyed.
    let thread = std::thread::Builder::new().spawn(|| {
        let until = Instant::now() + TIME_LIMIT;
        let mut found = findings(check);
        while !found.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10)); // sleep: pause of a poll
            found = findings(check);
        }
        _ = fs::write(&check.report, format!("looked\n{found}"));
    });
    _ = thread.map(std::thread::JoinHandle::join);
}

/// Returns one line for each finding.
fn findings(check: &LeakCheck) -> String {
    let mut found = String::new();
    descriptors(check, &mut found);
    memory(&mut found);
    found
}

fn descriptors(check: &LeakCheck, found: &mut String) {
    let all = open_fds();
    let of_arena = Arena::get().map(|arena| Backing(arena).descriptors()).unwrap_or_default();
    for fd in all {
        // A descriptor without a target was closed meanwhile.
        let Some(target) = target(fd) else { continue };
        let known = LONG_LIVED.lock().iter().any(|known| known.fd == fd && known.target == target);
        if !known && !check.inherited.contains(&fd) && !of_arena.contains(&fd) {
            _ = writeln!(found, "descriptor {fd} is open: {}", target.display());
        }
    }
}

fn memory(found: &mut String) {
    let Some(arena) = Arena::get().filter(|_| MEMORY_SKIPPED.get().is_none()) else { return };
    _ = Recovery(arena).reclaim();
    // A program that is not linked with the layer of queues can't check the queues of dead processes.
    if Recovery(arena).leaves_some_to_others() {
        return;
    }
    let stats = Allocator(arena).memory_stats();
    if stats.queued > 0 {
        _ = writeln!(found, "in queues or leased: {}", quantity(stats.queued, "message"));
    }
    for class in stats.classes.iter().filter(|class| class.live > 0) {
        _ = writeln!(found, "live: {} of {} bytes", quantity(class.live, "block"), class.size);
    }
    for member in stats.by_member.iter().filter(|member| member.blocks > 0) {
        let (pid, state) = (member.pid, if member.live { "" } else { ", which is dead" });
        let who = if pid == std::process::id() { ", this one" } else { state };
        _ = writeln!(found, "{} held by process {pid}{who}", quantity(member.blocks, "block"));
    }
}
