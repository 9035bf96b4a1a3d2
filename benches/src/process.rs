//! Peer process of each benchmark, which runs this program, too. Deadlines, a watchdog, and death with the
//! parent end a stuck process.
//!
//! # Safety
//! Between fork and exec, one system call is made and no memory is touched. Processes that mp forks do
//! nothing.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::thread::CpuSet;

use crate::work::Plan;
use crate::{Result, limits};

/// First word of a child's command line.
pub(crate) const CHILD: &str = "__child";

/// Time limit for waiting for the other process.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A running child, which is killed on drop.
#[derive(Debug)]
pub(crate) struct Child {
    role: String,
    process: std::process::Child,
}

impl Child {
    /// Starts this program as the child called `role`.
    ///
    /// # Errors
    /// Returns an error if the program can't be started.
    pub(crate) fn start(role: &str, words: &[String], plan: &Plan) -> Result<Self> {
        let cpu = plan.cores.map_or("-".to_owned(), |cores| cores.child.to_string());
        let mut command = Command::new(std::env::current_exe()?);
        command.args([CHILD, role, cpu.as_str()]).args(words).stdin(Stdio::piped());
        Self::spawn(role, &mut command)
    }

    /// Starts `command` as the child called `role`.
    ///
    /// # Errors
    /// Returns an error if the command can't be started.
    pub(crate) fn spawn(role: &str, command: &mut Command) -> Result<Self> {
        let die_with_parent = || Ok(die_with_parent()?);
        // SAFETY: between fork and exec, this makes one system call and touches no memory.
        let command = unsafe { command.pre_exec(die_with_parent) };
        let process =
            command.stdout(Stdio::null()).spawn().map_err(|error| format!("can't start {role}: {error}"))?;
        Ok(Self { role: role.to_owned(), process })
    }

    /// Lets the child end and waits for it.
    ///
    /// # Errors
    /// Returns an error if the child failed, or doesn't end within [`DEADLINE`].
    pub(crate) fn finish(self) -> Result<()> {
        self.finish_within(DEADLINE)
    }

    /// Lets the child end and waits for it for at most `limit`.
    ///
    /// # Errors
    /// Returns the same errors as [`finish`](Self::finish).
    pub(crate) fn finish_within(mut self, limit: Duration) -> Result<()> {
        drop(self.process.stdin.take());
        let start = Instant::now();
        while start.elapsed() < limit {
            match self.process.try_wait()? {
                None => std::thread::sleep(Duration::from_micros(200)),
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{} failed: {status}", self.role).into()),
            }
        }
        Err(format!("{} didn't end within {limit:?}", self.role).into())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if the child has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a child. `words` are its role, its processor and the arguments of the role.
///
/// # Errors
/// Returns the error of the role.
pub(crate) fn be_child(words: &[String]) -> Result<()> {
    let [role, cpu, rest @ ..] = words else {
        return Err("a child needs a role and a processor".into());
    };
    if let Ok(cpu) = cpu.parse() {
        pin(cpu)?;
    }
    // The child's shared memory stays until the parent has closed its standard input: see `linger`.
    let done = match role.as_str() {
        role if role.starts_with(limits::PREFIX) => limits::be_child(role, rest),
        #[cfg(feature = "peers")]
        role => crate::peers::be_child(role, rest),
        #[cfg(not(feature = "peers"))]
        role => Err(format!("no child is called {role:?}").into()),
    };
    done.map_err(|error| format!("child {role}: {error}").into())
}

/// Allows mp to fork this process from now on.
pub(crate) fn allow_fork() {
    // SAFETY: the functions that forked copies run here do nothing. Other threads of this process are mp's
    // own, and the watchdog.
    unsafe { mp::process::allow_fork() };
}

/// Makes this process end when its parent ends.
///
/// # Errors
/// Returns the error of the system call, which does not occur in practice.
pub(crate) fn die_with_parent() -> rustix::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
}

/// Waits in the child until the parent closes the child's standard input.
///
/// # Errors
/// Returns the error of the read, which does not occur in practice.
pub(crate) fn linger() -> Result<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Spins until `ready` returns `true`.
///
/// # Errors
/// Returns an error if `ready` still returns `false` after [`DEADLINE`].
#[inline(always)]
pub(crate) fn spin_until(mut ready: impl FnMut() -> bool) -> Result<()> {
    let mut spins = 0_u32;
    let mut since = None;
    while !ready() {
        spins = spins.wrapping_add(1);
        if spins.is_multiple_of(1 << 20) {
            past_deadline(&mut since)?;
        }
    }
    Ok(())
}

#[cold]
fn past_deadline(since: &mut Option<Instant>) -> Result<()> {
    if since.get_or_insert_with(Instant::now).elapsed() > DEADLINE {
        return Err(format!("the other process hasn't answered within {DEADLINE:?}").into());
    }
    Ok(())
}

/// Ends this process after `limit`, whatever it is waiting for. The children of this process end with it.
pub(crate) fn start_watchdog(limit: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("mp-bench: not done after {} minutes: giving up", limit.as_secs() / 60);
        std::process::exit(3);
    });
}

/// Processors of the two processes of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    /// The processor of the measuring process.
    pub(crate) parent: usize,
    /// The processor of its peer.
    pub(crate) child: usize,
}

/// Returns the first two processors that this process may use.
///
/// # Errors
/// Returns an error if there is only one.
pub(crate) fn two_cores() -> Result<Cores> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    match (usable.next(), usable.next()) {
        (Some(parent), Some(child)) => Ok(Cores { parent, child }),
        _ => Err("--pin needs two processors".into()),
    }
}

/// Pins the calling thread, and everything that it starts later, to one processor.
///
/// # Errors
/// Returns an error if the processor is not available.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| format!("can't pin to processor {cpu}: {error}"))?;
    Ok(())
}
