//! Errors of processes that crash: names of signals, addresses, core files, backtraces.
#![allow(unsafe_code)]

mod common;

use std::io;
use std::time::Duration;

use common::{Folder, failure};
use mp_spawn::{
    ExitDetail, ExitStatus, ProcessExited, Signal, SpawnError, SpawnOptions, StartMethod, Stdio,
    start_processes,
};

fn exited(error: SpawnError) -> ProcessExited {
    match error {
        SpawnError::ProcessExited(exited) => *exited,
        other => panic!("unexpected: {other:?}"),
    }
}

/// Limits the core file of this process to this number of bytes.
fn limit_core(bytes: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid for writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max.min(bytes);
    // SAFETY: the limit is valid for reads.
    if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[test]
fn error_of_a_death_by_signal_names_the_signal() {
    let raise = |_: usize, number: i32| {
        limit_core(0).unwrap();
        // SAFETY: no memory is involved.
        unsafe { libc::raise(number) };
        // For signals that are blocked or ignored.
        std::thread::sleep(Duration::from_secs(30)); // sleep: the process waits until it is killed
    };
    for (number, name) in [
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGSYS, "SIGSYS"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGRTMIN() + 1, "SIGRTMIN+1"),
    ] {
        let exited = exited(failure(&start_processes(raise, number, SpawnOptions::nprocs(1)).unwrap()));
        let expected = ExitStatus::Signal { signal: Signal::from_number(number), core_dumped: false };
        // Sent by a process, not raised by an access to memory.
        assert_eq!((exited.exit, exited.detail.clone()), (expected, None), "{exited}");
        let text = exited.to_string();
        assert!(text.contains(&format!("was killed by {name} (signal {number})")), "{text}");
    }
}

/// Accesses a page beyond the end of a file.
fn past_the_end_of_a_file() {
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"empty".as_ptr(), 0) };
    let (any, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let place = unsafe { libc::mmap(any, 4096, access, libc::MAP_SHARED, file, 0) };
    assert_ne!(place, libc::MAP_FAILED);
    // SAFETY: none; the test observes the crash.
    unsafe { place.cast::<u8>().write_volatile(1) };
}

#[cfg(target_arch = "x86_64")]
fn no_instruction() {
    // SAFETY: none; the test observes the crash.
    unsafe { std::arch::asm!("ud2") };
}

#[cfg(target_arch = "x86_64")]
fn a_division_by_zero() {
    // SAFETY: as above.
    unsafe { std::arch::asm!("idiv ecx", inout("eax") 1 => _, inout("edx") 0 => _, in("ecx") 0) };
}

#[test]
fn faulting_instruction_address_is_reported() {
    let does = |_: usize, what: i32| {
        limit_core(0).unwrap();
        match what {
            #[cfg(target_arch = "x86_64")]
            libc::SIGILL => no_instruction(),
            #[cfg(target_arch = "x86_64")]
            libc::SIGFPE => a_division_by_zero(),
            _ => past_the_end_of_a_file(),
        }
    };
    let others: &[i32] = if cfg!(target_arch = "x86_64") { &[libc::SIGILL, libc::SIGFPE] } else { &[] };
    for number in [&[libc::SIGBUS], others].concat() {
        let exited = exited(failure(&start_processes(does, number, SpawnOptions::nprocs(1)).unwrap()));
        let signal = Signal::from_number(number);
        assert_eq!(exited.exit, ExitStatus::Signal { signal, core_dumped: false }, "{exited}");
        assert!(matches!(exited.detail, Some(ExitDetail::Fault { address }) if address > 0), "{exited}");
        assert!(exited.to_string().contains(": fault at address 0x"), "{exited}");
    }
}

#[test]
fn core_file_of_a_crash_is_reported() {
    let abort = |_: usize, bytes: u64| {
        limit_core(bytes).unwrap();
        std::process::abort();
    };
    let core_dumped = |folder: &Folder, bytes: u64| {
        let options = SpawnOptions::nprocs(1).current_dir(&folder.0);
        let exited = exited(failure(&start_processes(abort, bytes, options).unwrap()));
        let ExitStatus::Signal { core_dumped, .. } = exited.exit else { panic!("{exited}") };
        assert_eq!(exited.to_string().contains("core dumped"), core_dumped, "{exited}");
        core_dumped
    };
    let folder = Folder::new("core");
    let files = || std::fs::read_dir(&folder.0).unwrap().count();
    assert!(!core_dumped(&folder, 0));
    assert_eq!(files(), 0);
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim().is_empty() || pattern.contains(['|', '/', '@']) {
        mp_harness::skip(format_args!("core files go elsewhere: {pattern}"));
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid for writes.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit) }, 0);
    if limit.rlim_max < 1 << 30 {
        mp_harness::skip("no core files of this size are allowed");
        return;
    }
    assert!(core_dumped(&folder, 1 << 30));
    assert_eq!(files(), 1);
}

#[inline(never)]
fn the_function_that_panics() {
    panic!("for its backtrace");
}

#[test]
fn panic_is_reported_with_a_requested_backtrace() {
    let backtrace = |method: StartMethod, wanted: &str| {
        let options = SpawnOptions::nprocs(1).start_method(method).stderr(Stdio::Null);
        let options = options.env("RUST_BACKTRACE", wanted).env_remove("RUST_LIB_BACKTRACE");
        let worker = |_: usize, (): ()| the_function_that_panics();
        match failure(&start_processes(worker, (), options).unwrap()) {
            SpawnError::ProcessRaised(raised) => {
                let text = raised.to_string();
                assert_eq!(text.contains("backtrace in the worker"), raised.backtrace.is_some(), "{text}");
                // Functions that the program itself has called.
                assert_eq!(text.contains("the_function_that_panics"), raised.backtrace.is_some(), "{text}");
                assert!(!text.contains("_start"), "{text}");
                let whole = format!("{raised:#}");
                assert!(
                    raised.backtrace.as_ref().is_none_or(|backtrace| whole.contains(backtrace)),
                    "{whole}"
                );
                raised.backtrace
            }
            other => panic!("unexpected: {other:?}"),
        }
    };
    for method in [StartMethod::Spawn, StartMethod::ForkServer] {
        assert_eq!(backtrace(method, "0"), None, "{method}");
        let text = backtrace(method, "1").expect("a backtrace");
        assert!(text.contains("the_function_that_panics") && text.contains("_start"), "{method}: {text}");
    }
}
