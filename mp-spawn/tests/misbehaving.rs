//! Misbehaving workers: each of them causes a specific error, or none.

mod common;

use std::io::Write;

use common::{Folder, Outcome, failure, join, wait_for_the_end};
use mp_spawn::{ExitStatus, Process, SpawnError, SpawnOptions, StartMethod, Stdio, start_processes};

/// Value whose destructor ends the process, with this exit code.
struct Exits(i32);

impl Drop for Exits {
    fn drop(&mut self) {
        std::process::exit(self.0);
    }
}

fn exit_code(error: &SpawnError) -> Option<i32> {
    match error {
        SpawnError::ProcessExited(exited) => match exited.exit {
            ExitStatus::Code(code) => Some(code),
            _ => None,
        },
        _ => None,
    }
}

#[test]
fn worker_exit_in_a_destructor_is_reported() {
    // After success, during a panic, and instead of a result.
    let well = start_processes(|_: usize, (): ()| drop(Exits(3)), (), SpawnOptions::nprocs(1)).unwrap();
    assert_eq!(exit_code(&failure(&well)), Some(3));
    let panics = |_: usize, (): ()| {
        let _exits = Exits(4);
        panic!("while it panics");
    };
    let quiet = SpawnOptions::nprocs(1).stderr(Stdio::Null);
    let context = start_processes(panics, (), quiet).unwrap();
    assert_eq!(exit_code(&failure(&context)), Some(4));
    let instead = |(): ()| {
        let _exits = Exits(0);
        Ok::<_, String>(17)
    };
    let error = Process::spawn(instead, ()).unwrap().join().unwrap_err();
    assert_eq!(exit_code(&error), Some(0), "{error}");
    assert!(error.to_string().contains("before its function returned"), "{error}");
}

#[test]
fn worker_without_environment_starts_processes() {
    fn inner(rank: usize, (): ()) -> Result<usize, String> {
        Ok(rank)
    }
    let wanderer = |folder: String| -> Result<Vec<usize>, Box<dyn std::error::Error + Send + Sync>> {
        std::env::set_current_dir(&folder)?;
        std::fs::remove_dir(&folder)?;
        for (name, _) in std::env::vars_os() {
            // SAFETY: this process has one thread so far.
            #[allow(unsafe_code)]
            unsafe {
                std::env::remove_var(name);
            }
        }
        let mut all = mp_spawn::spawn(inner, (), 2)?;
        all.extend(mp_spawn::get_context(StartMethod::ForkServer).spawn(inner, (), 2)?);
        Ok(all)
    };
    let folder = Folder::new("wanderer");
    let path = folder.0.to_str().unwrap().to_string();
    assert_eq!(Process::spawn(wanderer, path).unwrap().join().unwrap(), [0, 1, 0, 1]);
}

#[test]
fn worker_printing_a_gigabyte_ends() {
    const SIZE: u64 = 1 << 30;
    let worker = |_: usize, (): ()| -> Outcome {
        let block = vec![b'x'; 1 << 20];
        (0..SIZE >> 20).try_for_each(|_| std::io::stderr().write_all(&block))?;
        Ok(())
    };
    let context = start_processes(worker, (), SpawnOptions::nprocs(1).stderr(Stdio::Capture)).unwrap();
    join(&context).unwrap();
    let captured = context.stderr(0).unwrap();
    assert_eq!((captured.bytes.len() as u64 + captured.lost, captured.bytes.len()), (SIZE, 1 << 20));
}

/// Changes to an unprivileged user if this process runs as root. Returns `true` after the change.
#[allow(unsafe_code)]
fn give_up_privileges() -> Result<bool, String> {
    // SAFETY: plain system calls, in a separate process of this test.
    let user = unsafe { libc::getuid() };
    // SAFETY: as above.
    let error = unsafe { libc::setuid(65_534) };
    match (user, error) {
        (0, 0) => Ok(true),
        (0, _) => Err("this root can't become another user".to_string()),
        _ => Ok(false),
    }
}

#[test]
#[allow(unsafe_code)]
fn process_limit_is_named_in_the_error() {
    fn crowd((): ()) -> Result<String, String> {
        mp_core::Arena::current().map_err(|e| e.to_string())?;
        // Root is exempt from such limits.
        give_up_privileges()?;
        let few = libc::rlimit { rlim_cur: 8, rlim_max: 8 };
        // SAFETY: the limit is valid for reads.
        unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const few) };
        match start_processes(|_: usize, (): ()| wait_for_the_end(), (), SpawnOptions::nprocs(500)) {
            Err(SpawnError::Launch(launch)) => Ok(launch.to_string()),
            other => Err(format!("{other:?}")),
        }
    }
    let text = Process::spawn(crowd, ()).unwrap().join().unwrap();
    assert!(text.contains("RLIMIT_NPROC = 8"), "{text}");
}

#[test]
fn user_change_before_joining_the_arena_is_an_error() {
    fn late((): ()) -> Result<Option<String>, String> {
        if !give_up_privileges()? {
            return Ok(None);
        }
        Ok(mp_core::Arena::current().err().map(|e| e.to_string()))
    }
    match Process::spawn(late, ()).unwrap().join().unwrap() {
        None => mp_harness::skip("only root can become another user"),
        Some(text) => assert!(text.contains("call Arena::current before"), "{text}"),
    }
}
