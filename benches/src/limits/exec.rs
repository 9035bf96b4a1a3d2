//! Start and end of a process: bare `posix_spawn` of this program, which ends before its `main`, and
//! `waitpid`.
//!
//! # Safety
//! The code calls C functions with pointers that are valid during the call. A hook runs at the start of the
//! program, before Rust's runtime is set up. The hook only compares an argument and ends the process.

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use crate::Result;
use crate::stats;
use crate::work::{Outcome, Plan, now};

/// The argument that makes this program end at once.
pub(crate) const NOOP: &str = "__noop";

/// Ends the process before `main`, and before Rust's own start-up, if the first argument is [`NOOP`]. Only
/// glibc passes the arguments to functions that run before `main`. With other C libraries, `main` checks the
/// argument.
#[cfg(target_env = "gnu")]
extern "C" fn end_at_once(count: c_int, words: *const *const c_char) {
    if count != 2 {
        return;
    }
    // SAFETY: `words` has `count` elements, as glibc promises.
    let second = unsafe { words.add(1) };
    // SAFETY: as above.
    let first = unsafe { *second };
    // SAFETY: every argument is a string that ends with a zero byte and lives as long as the process.
    let first = unsafe { std::ffi::CStr::from_ptr(first) };
    if first.to_bytes() == NOOP.as_bytes() {
        // SAFETY: nothing has been set up yet that would need its end.
        unsafe { libc::_exit(0) };
    }
}

#[cfg(target_env = "gnu")]
#[used]
// SAFETY: functions in this section are called once, before `main`, with the program's arguments. This
// function needs nothing of Rust's run time.
#[unsafe(link_section = ".init_array")]
static END_AT_ONCE: extern "C" fn(c_int, *const *const c_char) = end_at_once;

unsafe extern "C" {
    /// The environment; see environ(7).
    static environ: *const *mut c_char;
}

/// Runs a round of the limit in the row `spawn_exec`: the median time in ns to start one process that does
/// nothing and to wait for its end.
pub(crate) fn spawn_exec(plan: &Plan) -> Outcome {
    Ok(Some(stats::median(&spawn_times(plan.repetitions(30))?)))
}

/// Returns the time to start and end each of `count` processes.
pub(crate) fn spawn_times(count: u64) -> Result<Vec<f64>> {
    let path = CString::new(std::env::current_exe()?.into_os_string().into_vec())?;
    let word = CString::new(NOOP)?;
    let mut times = Vec::new();
    for number in 0..count + 5 {
        let start = now();
        spawn_and_wait(&path, &word)?;
        // The first few warm up.
        if number >= 5 {
            times.push((now() - start) as f64);
        }
    }
    Ok(times)
}

/// Runs `work` with 2 GiB of private, resident memory, after a delay of a second: on a virtual machine
/// everything is slow while its host provides the memory.
pub(crate) fn with_2g(work: impl FnOnce() -> Outcome) -> Outcome {
    let memory = vec![1_u8; 2 << 30];
    std::thread::sleep(std::time::Duration::from_secs(1));
    let outcome = work();
    assert_eq!(std::hint::black_box(&memory).last(), Some(&1));
    outcome
}

/// Runs a round of the limit in the row `spawn_exec_2g`: like [`spawn_exec`], with 2 GiB resident.
pub(crate) fn spawn_exec_2g(plan: &Plan) -> Outcome {
    with_2g(|| spawn_exec(plan))
}

/// Runs a round of the limit in the row `spawn_fork`: the median time in ns to fork a process that ends at
/// once, and to wait for its end.
pub(crate) fn spawn_fork(plan: &Plan) -> Outcome {
    let mut times = Vec::new();
    for _ in 0..plan.repetitions(100) {
        let start = now();
        // SAFETY: the copy calls `_exit` and nothing else.
        let pid = unsafe { libc::fork() };
        match pid {
            // SAFETY: `_exit` has no preconditions.
            0 => unsafe { libc::_exit(0) },
            1.. => wait(pid)?,
            _ => return Err(format!("fork: {}", std::io::Error::last_os_error()).into()),
        }
        times.push((now() - start) as f64);
    }
    Ok(Some(stats::median(&times)))
}

/// Runs a round of the limit in the row `spawn_fork_2g`: like [`spawn_fork`], with 2 GiB resident.
pub(crate) fn spawn_fork_2g(plan: &Plan) -> Outcome {
    with_2g(|| spawn_fork(plan))
}

/// Number of processes that `spawn_64` starts.
pub(crate) const MANY: usize = 64;

/// Runs a round of the limit in the row `spawn_64`: the median time in ns to start many processes that do
/// nothing and to wait for all of them.
pub(crate) fn spawn_64(plan: &Plan) -> Outcome {
    let path = CString::new(std::env::current_exe()?.into_os_string().into_vec())?;
    let word = CString::new(NOOP)?;
    let mut times = Vec::new();
    for _ in 0..plan.repetitions(10) {
        let start = now();
        let started = (0..MANY).map(|_| start_one(&path, &word)).collect::<Result<Vec<_>>>()?;
        started.into_iter().try_for_each(wait)?;
        times.push((now() - start) as f64);
    }
    Ok(Some(stats::median(&times)))
}

fn spawn_and_wait(path: &CString, word: &CString) -> Result<()> {
    wait(start_one(path, word)?)
}

fn start_one(path: &CString, word: &CString) -> Result<libc::pid_t> {
    let words = [path.as_ptr().cast_mut(), word.as_ptr().cast_mut(), ptr::null_mut()];
    let mut pid = 0;
    // SAFETY: no code changes the environment in this program, and reading the pointer is all we do.
    let environment = unsafe { environ };
    // SAFETY: the path is a C string, both lists end with a null pointer, nothing is written through them,
    // and all of it outlives the call.
    let error = unsafe {
        libc::posix_spawn(&raw mut pid, path.as_ptr(), ptr::null(), ptr::null(), words.as_ptr(), environment)
    };
    if error != 0 {
        return Err(format!("posix_spawn: {}", std::io::Error::from_raw_os_error(error)).into());
    }
    Ok(pid)
}

fn wait(pid: libc::pid_t) -> Result<()> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place to write to, and the call keeps no pointer.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if ended == pid {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(format!("waitpid: {error}").into());
        }
    }
    if status == 0 {
        Ok(())
    } else {
        Err(format!("wrong result: the child ended with status {status}").into())
    }
}
