//! Process that executes a program: the effect of `posix_spawn(3)`, with fewer system calls.
//!
//! The child is made by `clone3(2)` as by `vfork(2)`: it has this process's memory, and the stack of the
//! thread that made it. That thread is suspended until the child has executed the program. Nothing is copied
//! or mapped for the child. The kernel clears the child's signal handlers (`CLONE_CLEAR_SIGHAND`), while the
//! C library would check each of 64 signals. The kernel also makes the child's pidfd (`CLONE_PIDFD`), while a
//! later request might get another process with the same number.
//!
//! | the child is killed | result |
//! |---|---|
//! | before it has executed the program | as with any killed child, its pidfd reports the end |
//!
//! | the parent is killed | result |
//! |---|---|
//! | while it is suspended | the child executes the program, which detects that its parent has ended: see `lifeline` |
//!
//! A call of `close_range(2)` marks all files of the child close-on-exec, except the standard streams. So
//! the program inherits only the standard streams, its socket, and the files that were named for it.
//!
//! [`posix_spawn`](crate::sys::posix_spawn) is used with kernels before 5.5 (before 5.11, for `close_range`),
//! with sandboxes whose filter doesn't know the call, in valgrind, and on processors without an
//! implementation of the ten instructions of assembler below.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it calls `clone3(2)`, which returns twice, on one stack. The second return
//! never leaves the block of assembler: there the child calls a function that doesn't return. Its frames are
//! below those of the parent, in memory that the parent does not use when it continues. The child reads only
//! the [`ExecPlan`], which outlives the block, and calls only functions that may be called while other
//! threads hold locks: it takes no lock, allocates nothing, and can't panic.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::{io, mem, ptr};

use mp_core::sync::shared::{AtomicBool, Ordering};
use rustix::process::{Pid, WaitId, WaitIdOptions};

use crate::sys::{self, INHERITED_IGNORED, Program, STANDARD_SIGNALS, above_standard, process_handle};

/// Process that was made just now, with its pidfd, if the kernel made one.
pub(crate) type StartedProcess = (Pid, Option<OwnedFd>);

/// Starts a program. The standard signals are at their default, except the ignored ones of
/// `INHERITED_IGNORED`. No signal is blocked, except SIGINT and SIGTERM if `interrupts_wait` is set.
///
/// # Errors
/// The name of the call that failed, and its error.
pub(crate) fn start(program: &Program<'_>) -> Result<StartedProcess, (&'static str, io::Error)> {
    if let Some(started) = vfork::start(program)? {
        return Ok(started);
    }
    sys::posix_spawn(program).map(|pid| (pid, None)).map_err(|error| ("posix_spawn", error))
}

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
mod vfork {
    use super::*;

    pub(super) fn start(_: &Program<'_>) -> Result<Option<StartedProcess>, (&'static str, io::Error)> {
        Ok(None)
    }
}

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
mod vfork {
    use super::*;

    /// Actions of the child, and their outcome.
    struct ExecPlan<'a> {
        path: *const c_char,
        argv: *const *mut c_char,
        environment: *const *mut c_char,
        /// Files to duplicate in the child, as pairs of source and target number. The numbers of a pair are
        /// equal, or the target is not the source of another pair.
        moves: &'a [(RawFd, RawFd)],
        /// Signals that are blocked in the program, in the kernel's format.
        blocked: u64,
        /// Call that failed, with its error number. The number is 0 if no call failed: the program was
        /// executed, or the child was killed.
        error: Cell<(&'static str, c_int)>,
    }

    /// Flag `CLONE_CLEAR_SIGHAND` of `clone3(2)`: handlers are reset to the default, and ignored signals stay
    /// ignored.
    const CLEAR_HANDLERS: u64 = 1 << 32;

    const CLOSE_RANGE: &str = "close_range";

    /// `true` after `close_range` failed because the kernel lacks it, or a filter refuses it.
    // fork: the kernel is the same for copies.
    static NO_CLOSE_RANGE: AtomicBool = AtomicBool::new(false);

    /// Starts a program. Returns `None` if the system lacks the calls.
    pub(super) fn start(program: &Program<'_>) -> Result<Option<StartedProcess>, (&'static str, io::Error)> {
        if NO_CLOSE_RANGE.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (argv, environment) = (program.argv(), program.environment());
        let inherit = program.inherit.as_raw_fd();
        let streams = [(program.stdout, libc::STDOUT_FILENO), (program.stderr, libc::STDERR_FILENO)];
        let streams = streams.into_iter().filter_map(|(fd, to)| Some((fd?.as_raw_fd(), to)));
        let files = program.files.iter().map(|(number, file)| (file.as_raw_fd(), *number));
        let moves: Vec<_> = [(inherit, inherit)].into_iter().chain(streams).chain(files).collect();
        let plan = ExecPlan {
            path: program.path.as_ptr(),
            argv: argv.as_ptr(),
            environment: environment.as_ptr(),
            moves: &moves,
            blocked: if program.interrupts_wait { sys::interrupts_mask() } else { 0 },
            error: Cell::new(("", 0)),
        };
        let mut pidfd: c_int = -1;
        // SAFETY: all zeroes is a valid `clone_args` without any option.
        let mut args: libc::clone_args = unsafe { mem::zeroed() };
        args.flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64 | CLEAR_HANDLERS;
        args.pidfd = (&raw mut pidfd).expose_provenance() as u64;
        args.exit_signal = libc::SIGCHLD as u64;
        // Until it executes the program, the child must not be stopped while its parent is suspended, nor
        // dump core, which old kernels take for the parent's. This can't fail for a valid set.
        let before = sys::block_all_signals();
        let made = clone(&args, &plan);
        before.iter().for_each(sys::restore_signal_mask);
        let Ok(pid) = i32::try_from(made).map_err(drop).and_then(|pid| Pid::from_raw(pid.max(0)).ok_or(()))
        else {
            return match io::Error::from_raw_os_error(made.unsigned_abs() as i32) {
                // EINVAL is returned by a kernel that doesn't know one of the flags.
                error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL)) => {
                    Ok(None)
                }
                error => Err(("clone3", error)),
            };
        };
        if pidfd < 0 {
            // The kernel has ignored `CLONE_PIDFD`.
            return Ok(Some((pid, None)));
        }
        // SAFETY: the kernel has made it just now, for this process.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let (what, error) = plan.error.get();
        if error != 0 {
            // The child has ended. The call fails if the kernel has reaped it already, as it does if SIGCHLD
            // is ignored.
            let id = WaitId::PidFd(pidfd.as_fd());
            let _ = rustix::io::retry_on_intr(|| rustix::process::waitid(id.clone(), WaitIdOptions::EXITED));
            if what == CLOSE_RANGE {
                NO_CLOSE_RANGE.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            return Err((what, io::Error::from_raw_os_error(error)));
        }
        // Without the pidfd, the child's end would not be detected, so the child is ended.
        let pidfd = above_standard(pidfd)
            .inspect_err(|_| process_handle::end(pid))
            .map_err(|error| ("fcntl", error))?;
        Ok(Some((pid, Some(pidfd))))
    }

    /// Makes the child, and waits until it has executed the program or ended. Returns the process id of the
    /// child, or a negative error number.
    #[inline(never)]
    fn clone(args: &libc::clone_args, plan: &ExecPlan<'_>) -> i64 {
        let made: i64;
        // SAFETY:
        // - The size is that of the arguments. `CLONE_VM` without a stack of its own lets the child continue
        //   on this thread's stack. The kernel suspends this thread (`CLONE_VFORK`) until the child has
        //   memory of its own, or is gone.
        // - The child (0) calls `in_child`, which doesn't return: it changes nothing at or above the stack
        //   pointer, which is aligned for a call here, and below it this block may write.
        // - The parent has its own registers, of which the call changes the three that are named.
        unsafe {
            std::arch::asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "mov rdi, r12",
                "call {child}",
                "ud2",
                "2:",
                child = sym in_child,
                inlateout("rax") libc::SYS_clone3 => made,
                in("rdi") ptr::from_ref(args),
                in("rsi") size_of_val(args),
                in("r12") ptr::from_ref(plan),
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        made
    }

    /// Runs the child, which shares the memory of its parent while the parent's other threads run.
    extern "C" fn in_child(plan: *const ExecPlan<'_>) -> ! {
        // SAFETY: `clone` was given a reference, and waits.
        let plan = unsafe { &*plan };
        // Done without the C library, which in newer versions takes a lock to change the action of SIGABRT.
        let default = [0_u64; 4];
        for signal in STANDARD_SIGNALS.filter(|signal| !INHERITED_IGNORED.contains(signal)) {
            // SAFETY: this is the kernel's `sigaction`, of 32 bytes, with no handler, no flags and an empty
            // mask of 8 bytes. For the two signals that can't be changed, the call returns an error and
            // changes nothing.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    signal,
                    default.as_ptr(),
                    ptr::null_mut::<u64>(),
                    8_usize,
                )
            };
        }
        // SAFETY: this call takes numbers. The child has its own table of files.
        let marked =
            unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        let marked = marked == 0;
        let moved = marked && plan.moves.iter().all(|(from, to)| place(*from, *to));
        if moved {
            // SAFETY: a mask of 8 bytes. The old mask is not requested.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigprocmask,
                    libc::SIG_SETMASK,
                    &raw const plan.blocked,
                    ptr::null_mut::<u64>(),
                    8_usize,
                )
            };
            // SAFETY: the path is a C string, both lists are of C strings and end with a null pointer. They
            // live in the parent, which waits.
            unsafe { libc::execve(plan.path, plan.argv.cast(), plan.environment.cast()) };
        }
        let what = if moved {
            "execve"
        } else if marked {
            "dup2"
        } else {
            CLOSE_RANGE
        };
        // `errno` is shared with the parent, which reads it only after its own calls.
        plan.error.set((what, io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)));
        sys::exit_at_once(127)
    }

    /// Gives an open file the number `to`, without close-on-exec. Returns `false` on an error.
    fn place(from: RawFd, to: RawFd) -> bool {
        if from == to {
            // SAFETY: a command that takes an integer. For a number that is not open, the call returns an
            // error.
            return unsafe { libc::fcntl(to, libc::F_SETFD, 0) } != -1;
        }
        // SAFETY: both are numbers. For a number that is not open, the call returns an error.
        unsafe { libc::dup2(from, to) != -1 }
    }
}
