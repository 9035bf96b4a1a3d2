//! Programs with more privileges than their user: set-user-ID ones, and those with file capabilities. They are no worker of
//! anybody's, and have none that would have to be executed.
#![allow(unsafe_code)]

mod common;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::Folder;
use mp_spawn::{Exit, Output, Process, SpawnError, StartMethod, allow_fork};

/// A user that is not root.
const STRANGER: u32 = 65_534;

/// A copy of this program, in a folder that goes with it.
struct Copy(Folder);

impl Copy {
    fn path(&self) -> PathBuf {
        self.0.0.join("program")
    }

    /// Whether a stranger who executes it gets privileges: the file system and the kernel may have none to give.
    fn is_privileged(&self) -> bool {
        let mut command = as_a_stranger(&self.path());
        let output = command.args(["--exact", "helper_has_gained_privileges", "--ignored", "--nocapture"]);
        let output = output.output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("gained privileges: true")
    }
}

fn as_a_stranger(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).current_dir("/").gid(STRANGER).uid(STRANGER);
    command
}

#[test]
#[ignore = "part of other tests"]
fn helper_has_gained_privileges() {
    println!("\ngained privileges: {}", mp_core::gained_privileges());
}

fn copy(test: &str) -> Copy {
    let copy = Copy(Folder::new(test));
    let own = std::env::current_exe().unwrap();
    // By another process: a program that is open for writing can't be executed.
    let made = Command::new("install").args(["-m", "755"]).arg(own).arg(copy.path()).status();
    assert!(made.unwrap().success());
    copy
}

fn set_user_id(copy: &Copy) {
    std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(0o4755)).unwrap();
}

/// Gives the file one capability that this system knows and that changes nothing here: to set the clock.
fn with_capability(copy: &Copy) -> bool {
    const SYS_TIME: u32 = 25;
    // See `vfs_cap_data` in `capability.h`: revision 2 and "effective"; permitted and inheritable, twice.
    let data = [0x0200_0001_u32, 1 << SYS_TIME, 0, 0, 0].map(u32::to_le_bytes).concat();
    let path = CString::new(copy.path().as_os_str().as_bytes()).unwrap();
    let name = c"security.capability";
    // SAFETY: both texts are C strings, and the data has the length that is named.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), data.as_ptr().cast(), data.len(), 0) == 0 }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Real and effective user, and the effective capabilities, of the process that runs this.
fn privileges((): ()) -> Result<(u32, u32, u64), String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).ok_or("no such line")?;
    let capabilities = u64::from_str_radix(line.trim(), 16).map_err(|error| error.to_string())?;
    Ok((rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw(), capabilities))
}

/// In a process of its own: becomes a stranger, and makes a worker of that program, which is to call a function.
fn attacks((program, method): (PathBuf, String)) -> Result<Result<(u32, u32, u64), String>, String> {
    mp_core::Arena::current().map_err(|error| error.to_string())?;
    // SAFETY: plain system calls, in a process of this test's own.
    let left = unsafe { libc::setresgid(STRANGER, STRANGER, STRANGER) };
    // SAFETY: as above.
    let left = left | unsafe { libc::setresuid(STRANGER, STRANGER, STRANGER) };
    if left != 0 {
        return Err("root can't become anybody else".to_string());
    }
    let method: StartMethod = method.parse().map_err(|_| "no such method")?;
    let victim = Process::builder().start_method(method).command([program.into_os_string(), "--list".into()]);
    let victim = victim.stdout(Output::Null).stderr(Output::Null).spawn(privileges, ());
    let error = match victim.and_then(|victim| victim.join()) {
        Ok(privileges) => return Ok(Ok(privileges)),
        Err(error) => error,
    };
    if let SpawnError::NeverReported { exit, .. } = &error {
        assert_eq!(*exit, Exit::Code(0), "it runs as if nothing were");
    }
    Ok(Err(error.to_string()))
}

fn is_no_worker_of_a_stranger(copy: &Copy) {
    for method in ["spawn", "forkserver"] {
        let attack = Process::builder().start_method(StartMethod::Spawn);
        let outcome = attack.spawn(attacks, (copy.path(), method.to_string())).unwrap().join().unwrap();
        let text = outcome.expect_err("the worker of a stranger has run with privileges");
        let expected = if method == "spawn" { "before it reported as a worker" } else { "it is gone" };
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_set_user_id_program_is_no_worker_of_a_stranger() {
    if !is_root() {
        return println!("SKIPPED: only root can make a set-user-ID program of root's");
    }
    let copy = copy("set-user-id");
    set_user_id(&copy);
    if !copy.is_privileged() {
        return println!("SKIPPED: this file system has no set-user-ID programs");
    }
    is_no_worker_of_a_stranger(&copy);
}

#[test]
fn a_program_with_file_capabilities_is_no_worker_of_a_stranger() {
    if !is_root() {
        return println!("SKIPPED: only root can give a program capabilities");
    }
    let copy = copy("capabilities");
    if !with_capability(&copy) || !copy.is_privileged() {
        return println!("SKIPPED: this file system has no programs with capabilities");
    }
    is_no_worker_of_a_stranger(&copy);
}

/// Executed anew, such a program would begin once more instead of becoming a worker, and start others, and so on.
#[test]
fn a_set_user_id_program_has_no_workers_that_would_be_executed() {
    if !is_root() {
        return println!("SKIPPED: only root can make a set-user-ID program of root's");
    }
    let copy = copy("set-user-id-parent");
    set_user_id(&copy);
    if !copy.is_privileged() {
        return println!("SKIPPED: this file system has no set-user-ID programs");
    }
    let mut command = as_a_stranger(&copy.path());
    command
        .args(["--exact", "helper_starts_workers", "--ignored", "--nocapture"])
        .env("MP_CHILD", "v1:0:1:0");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for expected in [
        "helper: token None",
        "helper: by spawn, could not start a process",
        "helper: by forkserver, could not start a process",
        "set-user-ID",
        "helper: by fork, (65534, 0)",
    ] {
        assert!(text.contains(expected), "{expected}: {output:?}");
    }
}

#[test]
#[ignore = "part of another test"]
fn helper_starts_workers() {
    mp_spawn::init();
    println!("\nhelper: token {:?}", std::env::var_os("MP_CHILD"));
    // SAFETY: what runs in the copy asks the kernel for numbers.
    unsafe { allow_fork() };
    for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
        let child = Process::builder().start_method(method).spawn(privileges, ());
        match child.and_then(|child| child.join()) {
            Ok((real, effective, _)) => println!("helper: by {method}, {:?}", (real, effective)),
            Err(error) => println!("helper: by {method}, {error}"),
        }
    }
}

#[test]
fn whoever_lent_itself_another_user_starts_nothing_that_would_be_executed() {
    if !is_root() {
        return println!("SKIPPED: only root can lend itself another user");
    }
    fn lends((): ()) -> Result<String, String> {
        // SAFETY: a plain system call, in a process of this test's own.
        if unsafe { libc::seteuid(STRANGER) } != 0 {
            return Err("root can't become anybody else".to_string());
        }
        match Process::spawn(privileges, ()) {
            Err(SpawnError::Launch(launch)) => Ok(launch.to_string()),
            other => Err(format!("{other:?}")),
        }
    }
    let text = Process::builder().start_method(StartMethod::Spawn).spawn(lends, ()).unwrap().join().unwrap();
    assert!(text.contains("real user 0") && text.contains("effective one 65534"), "{text}");
}

#[test]
fn a_worker_has_the_user_of_its_parent() {
    if !is_root() {
        return println!("SKIPPED: only root can start a program as another user");
    }
    let copy = copy("other-user");
    let program = copy.path().into_os_string();
    let words = ["setpriv", "--reuid", "65534", "--clear-groups"].map(Into::into);
    let other = Process::builder().command(words.into_iter().chain([program])).stderr(Output::Capture);
    let child = match other.spawn(privileges, ()) {
        Ok(child) => child,
        Err(error) if error.to_string().contains("PATH") => return println!("SKIPPED: no setpriv"),
        Err(error) => panic!("{error}"),
    };
    assert!(child.wait_timeout(common::DEADLINE), "{child:?}");
    let said = child.stderr().text();
    assert!(said.contains("of user 0") && said.contains("is of user 65534"), "{said}");
    let error = child.join().unwrap_err();
    assert!(matches!(error, SpawnError::NeverReported { exit: Exit::Code(120), .. }), "{error:?}");
}
