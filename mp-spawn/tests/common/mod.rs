//! Helpers of the tests with real processes. Each wait here has a deadline, and each worker ends by itself.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

pub mod supervised;

use std::error::Error;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use mp_harness::{DEADLINE, alive, eventually, time_until};
use mp_spawn::{Process, ProcessContext, SpawnError, StartMethod};
use rustix::process::Signal;

/// Time after which a worker that waits for its end returns an error.
pub const LIFETIME: Duration = Duration::from_secs(120);

pub type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Waits for all processes, at most until the deadline.
pub fn join<T>(context: &ProcessContext<T>) -> Result<(), SpawnError> {
    match context.join_timeout(DEADLINE) {
        Ok(true) => Ok(()),
        Ok(false) => panic!("still running after {DEADLINE:?}: {context:?}"),
        Err(error) => Err(error),
    }
}

/// Waits for all processes, and returns the first failure, which is expected.
pub fn failure(context: &ProcessContext) -> SpawnError {
    join(context).expect_err("a failure was expected")
}

/// Waits until another process ends this one.
pub fn wait_for_the_end() -> Outcome {
    let until = Instant::now() + LIFETIME;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left); // sleep: the worker waits until another process ends it
    }
    Err("this worker was not ended".into())
}

/// Runs a test in a separate process.
pub fn alone<F: Fn(()) + Copy + Send + 'static>(test: F) {
    let child = Process::builder().start_method(StartMethod::Spawn).spawn(test, ()).unwrap();
    assert!(child.wait_timeout(2 * DEADLINE), "{child:?}");
    child.join().unwrap();
}

/// Returns the children of this process, zombies included.
pub fn children() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let lists = tasks.flat_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")));
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

/// Returns the fork server of this process.
pub fn server() -> u32 {
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    children().into_iter().find(|pid| name(pid) == "mp-forkserver\n").expect("a fork server")
}

/// Waits for the process that the fork server makes for the next start, and returns it.
pub fn next_worker() -> u32 {
    next_worker_after(0)
}

/// Works like [`next_worker`], but ignores the process `started`, which may still have the name of a process
/// that was made in advance.
pub fn next_worker_after(started: u32) -> u32 {
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let is_next = |pid: &u32| *pid != started && alive(*pid) && name(pid) == "mp-next-worker\n";
    let mut found = None;
    eventually("a process is made in advance", || {
        found = children().into_iter().find(is_next);
        found.is_some()
    });
    found.unwrap()
}

/// Sends a signal, by its number in `libc`, to a process that has not been joined.
#[track_caller]
pub fn signal(pid: u32, signal: i32) {
    mp_harness::signal(pid, Signal::from_named_raw(signal).unwrap());
}

/// Makes system calls with these numbers return this error, in this process and all its descendants.
#[allow(unsafe_code)]
pub fn refuse(calls: [libc::c_long; 3], error: i32) {
    let step = |code, k: u32, jt: u8| libc::sock_filter { code, jt, jf: 0, k };
    let (load, equal, end) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET,
    );
    // The number is the first word of a filter's input.
    let mut steps = [
        step(load as u16, 0, 0),
        step(equal as u16, calls[0] as u32, 3),
        step(equal as u16, calls[1] as u32, 2),
        step(equal as u16, calls[2] as u32, 1),
        step(end as u16, libc::SECCOMP_RET_ALLOW, 0),
        step(end as u16, libc::SECCOMP_RET_ERRNO | error as u32, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let (mode, all_threads) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the program and its steps are valid for reads.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, all_threads, &raw const program) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Meeting point of workers and the test: a socket without a file, which workers find by its name.
#[derive(Debug)]
pub struct Meeting {
    pub name: String,
    listener: UnixListener,
}

impl Meeting {
    pub fn new(test: &str) -> Meeting {
        let name = format!("mp-spawn-{}-{test}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        Meeting { name, listener }
    }

    /// Waits for a worker and reads its line.
    pub fn recv(&self) -> String {
        let mut guest = None;
        eventually("a worker connects", || {
            guest = self.listener.accept().ok();
            guest.is_some()
        });
        let (mut guest, _) = guest.unwrap();
        guest.set_nonblocking(false).unwrap();
        guest.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut text = String::new();
        guest.read_to_string(&mut text).unwrap();
        text
    }
}

/// In a worker: sends a line to the test.
pub fn say(meeting: &str, text: &str) -> Outcome {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(meeting)?)?;
    stream.write_all(text.as_bytes())?;
    Ok(())
}

/// In a worker: waits until a line is written under this name.
pub fn wait_for_word(name: &str) -> Outcome {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    // Read to its end, because otherwise the writer might find the pipe broken.
    let (mut guest, _) = listener.accept()?;
    guest.read_to_string(&mut String::new())?;
    Ok(())
}

/// Folder of a test, removed when the test ends.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("mp-spawn-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
