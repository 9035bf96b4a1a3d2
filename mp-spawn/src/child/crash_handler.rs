//! Last report of a process that crashes.
//!
//! | event, thread | the parent receives | and reports |
//! |---|---|---|
//! | a fault in the guard area of the worker's stack, on the worker's thread | [`CrashCause::StackOverflow`] | [`ExitDetail::StackOverflow`] |
//! | a fault at the stack pointer, on any thread with a stack for handlers | [`CrashCause::StackOverflow`] | [`ExitDetail::StackOverflow`] |
//! | any other fault | [`CrashCause::Fault`] | [`ExitDetail::Fault`] |
//! | a SIGABRT that the program raises, on a thread that panics | [`CrashCause::Panic`] | [`ExitDetail::Panics`] |
//! | any other signal that a process sends, or the program raises | [`CrashCause::Sent`] | no detail |
//! | a SIGABRT that this handler does not get, because the program has replaced it | nothing | [`ExitDetail::EarlierPanics`], if any |
//! | a stack overflow, on a thread without a stack for handlers | nothing: no handler can run | [`ExitDetail::LikelyStackOverflow`] |
//!
//! A thread has a stack for handlers if code has called `sigaltstack(2)` on that thread. This file does so on
//! the worker's thread. The standard library does so on the threads that it starts only if its start-up code
//! has run `main`: in a copy of a program (start method `fork`), or after [`init`](crate::init) within
//! `main`. In a process that becomes a worker before `main`, other threads have no stack for handlers.
//!
//! [`ExitDetail::StackOverflow`]: crate::ExitDetail::StackOverflow
//! [`ExitDetail::LikelyStackOverflow`]: crate::ExitDetail::LikelyStackOverflow
//! [`ExitDetail::Fault`]: crate::ExitDetail::Fault
//! [`ExitDetail::Panics`]: crate::ExitDetail::Panics
//! [`ExitDetail::EarlierPanics`]: crate::ExitDetail::EarlierPanics
//!
//! A panic that was caught has ended: `std::thread::panicking` is true from a panic's beginning until it is
//! caught, on that thread alone. An abort because of a panic raises its signal in that period, on the same
//! thread.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it installs signal handlers and runs inside them, where only calls listed in
//! `signal-safety(7)` are allowed. The handler reads the kernel's arguments and constants that were set
//! before it was installed. It calls `clock_gettime`, `getpid`, `send`, `signal` and `raise`, and neither
//! allocates nor takes a lock. For a SIGABRT it also calls `std::thread::panicking`, which reads an atomic.
//! If any thread panics, that function reads a thread-local number too, which needs no initialisation and has
//! no destructor.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::{io, ptr, thread};

use mp_core::fork::PerProcess;
use mp_core::sync::shared::{AtomicU32, AtomicUsize, Ordering};

use crate::protocol::control_socket::ParentSocket;
use crate::protocol::frame::{self, CRASH_PAYLOAD, FrameKind, HEADER};
use crate::protocol::message::{Crash, CrashCause};

const SIGNALS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

/// Maximum distance in bytes between a fault and the stack pointer for a stack overflow. A fault below the
/// stack pointer is in the red zone or in the words that a call pushes, which are less than a page. A fault
/// above the stack pointer is in a new frame: code that needs more than a page touches each page in turn and
/// moves the stack pointer along (Rust code always does, and C code if it is compiled with stack probes).
const REACH: usize = 4096;

/// Stack for handlers, which takes no memory until a handler runs.
#[repr(align(16))]
struct HandlerStack(UnsafeCell<[MaybeUninit<u8>; 96 << 10]>);

// SAFETY: only the kernel accesses it.
unsafe impl Sync for HandlerStack {}

// fork: a copy has its own memory, and is not in a handler.
static STACK: HandlerStack = HandlerStack(UnsafeCell::new([MaybeUninit::uninit(); 96 << 10]));

/// Data that the signal handler reads, written once before the handler is installed. Before that all words
/// are zero, so the memory is not loaded from the program's file.
#[derive(Debug)]
struct CrashContext {
    socket: AtomicU32,
    process: AtomicU32,
    /// Lowest address below the worker's stack at which an access is a stack overflow.
    guard_begin: AtomicUsize,
    /// First address after the range in which an access is a stack overflow.
    guard_end: AtomicUsize,
}

static CONTEXT: PerProcess<CrashContext> = mp_core::per_process!(CrashContext::none());

impl CrashContext {
    const fn none() -> CrashContext {
        CrashContext {
            socket: AtomicU32::new(0),
            process: AtomicU32::new(0),
            guard_begin: AtomicUsize::new(0),
            guard_end: AtomicUsize::new(0),
        }
    }

    fn set(&self, line: &ParentSocket, guard: Range<usize>) {
        self.socket.store(line.raw().cast_unsigned(), Ordering::Relaxed);
        self.guard_begin.store(guard.start, Ordering::Relaxed);
        self.guard_end.store(guard.end, Ordering::Relaxed);
        self.process.store(line.process, Ordering::Relaxed);
    }
}

/// Installs handlers that report crashes of this process to the parent. Called once, by the worker's thread.
/// This thread gets a separate stack for signal handlers, because its normal stack may be used up.
#[inline]
pub(crate) fn install(line: &ParentSocket) -> io::Result<()> {
    CONTEXT.set(line, guard_area()?);
    use_alternate_stack()?;
    for signal in SIGNALS {
        handle(signal)?;
    }
    Ok(())
}

#[inline]
fn use_alternate_stack() -> io::Result<()> {
    const ROOM: usize = 64 << 10;
    // SAFETY: `getauxval` reads values that the kernel passed to this process at its start.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    let size = usize::try_from(frame).unwrap_or(0).saturating_add(ROOM);
    let at = if size <= size_of::<HandlerStack>() {
        STACK.0.get().cast()
    } else {
        // Leaked: the thread uses it until the process ends.
        Box::leak(Box::<[u8]>::new_uninit_slice(size)).as_mut_ptr().cast()
    };
    let stack = libc::stack_t { ss_sp: at, ss_flags: 0, ss_size: size };
    // SAFETY: the size is that of the stack, which is never freed. Nothing else uses it: this is called once
    // in the life of a process, and a copy of a process has its own.
    check(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) })
}

#[inline]
fn handle(signal: c_int) -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_crash;
    // SAFETY: all zeroes is a `sigaction` with the default handler, an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO requires and does only what is allowed in a
    // handler. See the documentation of this file.
    check(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })
}

extern "C" fn on_crash(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes an info that is valid while the handler runs.
    let info = unsafe { &*info };
    let raised_by_instruction = info.si_code > 0;
    // SAFETY: `getpid` has no preconditions.
    let here = unsafe { libc::getpid() };
    if here.unsigned_abs() == CONTEXT.process.load(Ordering::Relaxed) {
        // SAFETY: any bytes are an address; it is used only when the kernel set it.
        let address = unsafe { info.si_addr() }.addr();
        // SAFETY: with SA_SIGINFO the kernel passes a context that is valid while the handler runs.
        let stack = unsafe { stack_pointer(context) };
        report(&CONTEXT, signal, raised_by_instruction.then_some(FaultAccess { address, stack }));
    }
    // SAFETY: this installs no handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // An instruction that faulted does so again, now with the default action. A signal that was sent is sent
    // again.
    if !raised_by_instruction {
        // SAFETY: `raise` has no preconditions; the signal stays pending until the handler returns.
        unsafe { libc::raise(signal) };
    }
}

/// Memory access of an instruction that raised a signal.
#[derive(Clone, Copy, Debug)]
struct FaultAccess {
    address: usize,
    /// Stack pointer of the faulting thread. `None` on an unsupported architecture.
    stack: Option<usize>,
}

impl FaultAccess {
    /// Returns `true` for a stack overflow: an access in the guard area `guard` of the worker's stack, or
    /// near the stack pointer of the faulting thread.
    fn is_overflow(self, guard: &Range<usize>) -> bool {
        guard.contains(&self.address) || self.stack.is_some_and(|stack| self.address.abs_diff(stack) <= REACH)
    }
}

/// Returns the stack pointer of the interrupted code.
///
/// # Safety
/// `context` is the argument of a handler with SA_SIGINFO.
unsafe fn stack_pointer(context: *mut c_void) -> Option<usize> {
    let context = context.cast_const().cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: guaranteed by the caller.
    let stack = Some(unsafe { (*context).uc_mcontext.gregs[libc::REG_RSP as usize] }.cast_unsigned());
    #[cfg(target_arch = "aarch64")]
    // SAFETY: guaranteed by the caller.
    let stack = Some(unsafe { (*context).uc_mcontext.sp });
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let (stack, _) = (None::<u64>, context);
    stack.and_then(|stack| usize::try_from(stack).ok())
}

fn report(facts: &CrashContext, signal: c_int, fault: Option<FaultAccess>) {
    let guard = facts.guard_begin.load(Ordering::Relaxed)..facts.guard_end.load(Ordering::Relaxed);
    let socket = facts.socket.load(Ordering::Relaxed).cast_signed();
    let cause = match fault {
        None if signal == libc::SIGABRT && thread::panicking() => CrashCause::Panic,
        None => CrashCause::Sent,
        Some(fault) if signal == libc::SIGSEGV && fault.is_overflow(&guard) => CrashCause::StackOverflow,
        Some(_) => CrashCause::Fault,
    };
    let address = fault.map_or(0, |fault| fault.address as u64);
    let crash = Crash { at: now(), address, signal, cause };
    let mut frame = [0u8; HEADER + CRASH_PAYLOAD];
    let (head, payload) = frame.split_at_mut(HEADER);
    head.copy_from_slice(&frame::header(FrameKind::Crash, CRASH_PAYLOAD as u32));
    payload.copy_from_slice(&crash.to_bytes());
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the length is that of the buffer. If another file has the number by now, the call fails or
    // reaches another socket of a process that is about to end.
    unsafe { libc::send(socket, frame.as_ptr().cast(), frame.len(), flags) };
}

fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs())
}

/// Returns the addresses whose access is an overflow of the calling thread's stack.
#[inline]
fn guard_area() -> io::Result<Range<usize>> {
    if crate::sys::on_main_thread() { Ok(below_the_first_stack()) } else { below_this_stack() }
}

/// Returns the area below the main thread's stack. That stack has no guard area: the kernel lets it grow to
/// its limit, and keeps a gap below it (`stack_guard_gap` in the kernel's documentation).
/// `pthread_getattr_np` would return the area as well, but reads all of `/proc/self/maps` for it.
#[inline]
fn below_the_first_stack() -> Range<usize> {
    const GAP: usize = 1 << 20;
    const PAGE: usize = 4096;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    // SAFETY: `getauxval` reads values that the kernel passed to this process at its start.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) };
    // The name of the program lies at the top of the stack.
    let (Ok(name), Some(Ok(limit))) = (usize::try_from(name), limit.map(usize::try_from)) else {
        return 0..0;
    };
    let bottom = name.next_multiple_of(PAGE).saturating_sub(limit);
    if name == 0 { 0..0 } else { bottom.saturating_sub(GAP)..bottom.saturating_add(PAGE) }
}

/// Returns the guard area of the calling thread's stack.
fn below_this_stack() -> io::Result<Range<usize>> {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: `pthread_self` has no preconditions.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread lives. The function initialises the target of a valid pointer.
    let error = unsafe { libc::pthread_getattr_np(thread, attributes.as_mut_ptr()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: initialised just now, because the call returned zero.
    let mut attributes: libc::pthread_attr_t = unsafe { attributes.assume_init() };
    let (mut bottom, mut size, mut guard) = (ptr::null_mut(), 0, 0);
    // SAFETY: the attributes are initialised, the results valid for writes.
    unsafe { libc::pthread_attr_getstack(&raw const attributes, &raw mut bottom, &raw mut size) };
    // SAFETY: the attributes are initialised, the result valid for writes.
    unsafe { libc::pthread_attr_getguardsize(&raw const attributes, &raw mut guard) };
    // SAFETY: initialised above, and not used afterwards.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    // Old versions of glibc count the guard area as part of the stack (see `pthread_attr_setguardsize(3)`),
    // new ones don't. So the range covers both sides of the bottom.
    Ok(bottom.addr().saturating_sub(guard)..bottom.addr().saturating_add(guard))
}

#[inline]
fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_at_the_stack_pointer_is_a_stack_overflow() {
        let guard = 0x1000..0x2000;
        let fault = |address, stack| FaultAccess { address, stack }.is_overflow(&guard);
        // An access in the guard area of the worker's stack is an overflow, wherever the stack pointer is, as
        // with a large frame of C code.
        assert!(fault(0x1800, None) && fault(0x1800, Some(0x9_0000)));
        // Words that a call pushes, and a new frame of less than a page.
        assert!(fault(0x7_fff8, Some(0x8_0000)) && fault(0x8_0ff0, Some(0x8_0000)));
        assert!(!fault(24, Some(0x8_0000)) && !fault(0x7_0000, Some(0x8_0000)) && !fault(0x8_0000, None));
    }
}
