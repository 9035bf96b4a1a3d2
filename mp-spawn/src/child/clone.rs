//! Copy of this process that becomes its sibling: a child of the process that started this one.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it calls `clone3(2)` (or `clone(2)`), which returns twice, and maps a page
//! that two processes share. The copy is made by a process that has one thread ([`SingleThreadProof`]), so no
//! lock in the copy is held by a thread that does not exist there. The page is mapped for as long as it is
//! used, can't shrink (it is sealed), and is only accessed as an atomic word.
//!
//! # The pid cell
//!
//! Before the copy runs its first instruction, the kernel writes the copy's process id to the *pid cell*, a
//! word that the parent maps too. So the parent can find every child, even if the process that made the child
//! is killed right after.
//!
//! | writer | value | when |
//! |---|---|---|
//! | the parent | 0 | before it requests a process, and after it has sent a start message |
//! | the kernel, for the fork server | the process id | while the process is made (`CLONE_PARENT_SETTID`) |
//!
//! | killed process | content of the pid cell afterwards |
//! |---|---|
//! | the fork server, before the process was made | 0: there is no process |
//! | the fork server, after the process was made | the process id of a child that the parent can end and reap |
//! | the process, before it got its start message | its process id, which may be reused if the kernel or other code has reaped the process: see [`connection`](crate::parent::fork_server::connection) |
//! | the parent | not read again: the fork server and its siblings end with the parent |
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::{io, mem};

use mp_core::sync::shared::{AtomicU32, Ordering};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Pid;

const PAGE: usize = 4096;

/// Word in a page that two processes share. The kernel writes the id of a new process to the word.
#[derive(Debug)]
pub(crate) struct PidCell {
    at: NonNull<AtomicU32>,
    /// Process that has mapped the pid cell. In a copy of that process the page is not mapped, and the
    /// address may be in other use.
    process: u32,
}

// SAFETY: the word is atomic, and any thread may access it.
unsafe impl Send for PidCell {}

impl PidCell {
    /// Creates a pid cell, and the file by which other processes map it.
    pub(crate) fn new() -> io::Result<(PidCell, OwnedFd)> {
        let file = rustix::fs::memfd_create("mp-pid-cell", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, PAGE as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((PidCell::map(file.as_fd())?, file))
    }

    /// Maps the pid cell from its file.
    pub(crate) fn map(file: BorrowedFd<'_>) -> io::Result<PidCell> {
        if !rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK)
            || rustix::fs::fstat(file)?.st_size < PAGE as i64
        {
            return Err(io::Error::other("the fork server got a file that is not a pid cell"));
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap(ptr::null_mut(), PAGE, prot, flags, file, 0) }?;
        let none = || io::Error::other("mmap gave address 0");
        let pid_cell = PidCell { at: NonNull::new(at.cast()).ok_or_else(none)?, process: std::process::id() };
        // SAFETY: the range is the mapping just made, and the advice doesn't change its contents.
        unsafe { rustix::mm::madvise(at, PAGE, Advice::LinuxDontFork) }?;
        Ok(pid_cell)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: page aligned, mapped as long as `self` lives, in a file that can't shrink; all processes
        // reach it as an atomic word, and so does the kernel.
        unsafe { self.at.as_ref() }
    }

    /// Resets the pid cell, before a process is requested.
    pub(crate) fn clear(&self) {
        self.word().store(0, Ordering::Release);
    }

    /// Writes a process id, as the kernel does when it makes a process.
    #[cfg(test)]
    pub(crate) fn write(&self, pid: Pid) {
        self.word().store(pid.as_raw_nonzero().get().cast_unsigned(), Ordering::Release);
    }

    /// Returns the process id that the kernel has written, or `None` if no process was made.
    pub(crate) fn read(&self) -> Option<Pid> {
        Pid::from_raw(self.word().load(Ordering::Acquire).cast_signed())
    }
}

impl Drop for PidCell {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: the mapping belongs to this value, in this process, and nothing refers to it. The call
        // can't fail for such a range.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), PAGE) };
    }
}

/// Proof that this process has one thread. Valid until code runs that can start a second thread.
#[derive(Debug)]
pub(crate) struct SingleThreadProof {
    /// Address at which glibc stores the thread id of the only thread.
    thread_id: u64,
    /// List of locks that the kernel releases at the end of the thread, see `get_robust_list(2)`.
    locks: (*mut c_void, usize),
}

impl SingleThreadProof {
    /// Returns a proof if this process has one thread, otherwise `None`.
    pub(crate) fn check() -> io::Result<Option<SingleThreadProof>> {
        if std::fs::read_dir("/proc/self/task")?.count() != 1 {
            return Ok(None);
        }
        let (mut thread_id, mut list, mut size) = (0_u64, ptr::null_mut::<c_void>(), 0_usize);
        // SAFETY: the kernel writes an address to a valid place. Kernels without the call leave it 0.
        unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut thread_id) };
        // SAFETY: the kernel writes an address and a size to valid places. Thread 0 is the calling thread,
        // which is always permitted.
        let known = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut size) };
        let locks = if known == 0 { (list, size) } else { (ptr::null_mut(), 0) };
        Ok(Some(SingleThreadProof { thread_id, locks }))
    }
}

/// Process in which [`make`] has returned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CloneSide {
    Original,
    Sibling,
}

/// Copies this process. The copy is a child of this process's parent, and the kernel writes the id of the
/// copy into the pid cell.
pub(crate) fn make(single_thread: &SingleThreadProof, pid_cell: &PidCell) -> io::Result<CloneSide> {
    // SAFETY: all zeroes is a valid `clone_args` without any option.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    // The copy gets this process's exit signal, SIGCHLD: see CLONE_PARENT.
    args.flags = (libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID) as u64;
    args.parent_tid = pid_cell.at.addr().get() as u64;
    if single_thread.thread_id != 0 {
        // Same as in `fork` of the C library, so that its record of the thread's number is correct.
        args.flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
        args.child_tid = single_thread.thread_id;
    }
    // SAFETY:
    // - The size is that of the arguments, which name no stack and no shared address space: this is a fork.
    // - `parent_tid` is the pid cell, valid for writes. `child_tid` was returned by the kernel itself.
    // - The process has one thread (`SingleThreadProof`), so the copy finds no locked lock and no
    //   inconsistent data. No foreign code has run since the check.
    let mut made = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    if made == -1 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
        // Seccomp filters of containers refuse `clone3` with these errors, because they can't read its
        // arguments.
        made = clone(&args);
    }
    match made {
        0 => {
            if !single_thread.locks.0.is_null() {
                // SAFETY: the head of the list belongs to the thread, in memory that was copied along.
                unsafe {
                    libc::syscall(libc::SYS_set_robust_list, single_thread.locks.0, single_thread.locks.1)
                };
            }
            Ok(CloneSide::Sibling)
        }
        1.. => Ok(CloneSide::Original),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Calls the older `clone`, which has the same flags, and takes its arguments in an order that depends on the
/// processor.
fn clone(args: &libc::clone_args) -> libc::c_long {
    let (parent_tid, child_tid, none) = (args.parent_tid, args.child_tid, 0_u64);
    let [fourth, fifth] = if cfg!(target_arch = "x86_64") {
        [child_tid, none]
    } else if cfg!(any(target_arch = "aarch64", target_arch = "riscv64")) {
        [none, child_tid]
    } else {
        return -1;
    };
    // SAFETY: as for `clone3` above: no stack, no shared memory, and the same valid addresses. The exit
    // signal of the copy is that of this process (`CLONE_PARENT`).
    unsafe { libc::syscall(libc::SYS_clone, args.flags, none, parent_tid, fourth, fifth) }
}

const _: () = assert!(size_of::<c_int>() == size_of::<AtomicU32>());
