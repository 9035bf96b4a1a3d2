//! Programs with more privileges than their user: set-user-ID programs, and programs with file capabilities.
//! They never become workers, and can't start workers that must be executed.
#![allow(unsafe_code)]

mod common;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use common::Folder;
use mp_spawn::{ExitStatus, Process, SpawnError, StartMethod, Stdio, allow_fork};

/// Id of a user other than root.
const STRANGER: u32 = 65_534;

/// Copy of this program, in a folder that is removed with it.
struct Copy(Folder);

impl Copy {
    fn path(&self) -> PathBuf {
        self.0.0.join("program")
    }

    /// Returns `true` if the copy gets privileges when another user executes it. The file system and the
    /// kernel may grant none.
    fn is_privileged(&self) -> bool {
        let mut command = as_a_stranger(&self.path());
        let output = command.args(["--exact", "helper_has_gained_privileges", "--ignored", "--nocapture"]);
        let output = output.output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("gained privileges: true")
    }
}

fn as_a_stranger(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(process::Stdio::null()).current_dir("/").gid(STRANGER).uid(STRANGER);
    command
}

#[test]
#[ignore = "part of other tests"]
fn helper_has_gained_privileges() {
    println!("\ngained privileges: {}", mp_core::gained_privileges());
}

/// Environment variable of programs that start workers. A worker that runs `main` by mistake, and so the
/// tests, finds the variable and starts no further processes.
const WITHIN: &str = "MP_TEST_WITHIN_A_TEST";

fn copy(test: &str) -> Copy {
    assert!(std::env::var_os(WITHIN).is_none(), "the program of a test has begun anew");
    let copy = Copy(Folder::new(test));
    let own = std::env::current_exe().unwrap();
    // Done by another process: a program that is open for writing can't be executed.
    let made = Command::new("install").args(["-m", "755"]).arg(own).arg(copy.path()).status();
    assert!(made.unwrap().success());
    copy
}

fn set_user_id(copy: &Copy) {
    std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(0o4755)).unwrap();
}

/// Capability to set the clock, which this system knows and which has no effect here.
const SYS_TIME: u32 = 1 << 25;

/// Gives the file a capability.
fn with_capability(copy: &Copy) -> bool {
    with_capabilities(copy, true, SYS_TIME, 0)
}

/// Sets the capabilities of the file.
fn with_capabilities(copy: &Copy, effective: bool, permitted: u32, inheritable: u32) -> bool {
    // See `vfs_cap_data` in `capability.h`: revision 2 and "effective"; permitted and inheritable, twice.
    let words = [0x0200_0000 | u32::from(effective), permitted, inheritable, 0, 0];
    let data = words.map(u32::to_le_bytes).concat();
    let path = CString::new(copy.path().as_os_str().as_bytes()).unwrap();
    let name = c"security.capability";
    // SAFETY: both texts are C strings, and the data has the length that is named.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), data.as_ptr().cast(), data.len(), 0) == 0 }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the real and effective user, and the effective capabilities, of the current process.
fn privileges((): ()) -> Result<(u32, u32, u64), String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).ok_or("no such line")?;
    let capabilities = u64::from_str_radix(line.trim(), 16).map_err(|error| error.to_string())?;
    Ok((rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw(), capabilities))
}

/// In a separate process: becomes another user, and starts a worker of `program`, which is to call a
/// function.
fn attacks((program, method): (PathBuf, String)) -> Result<Result<(u32, u32, u64), String>, String> {
    mp_core::Arena::current().map_err(|error| error.to_string())?;
    becomes_a_stranger()?;
    let method: StartMethod = method.parse().map_err(|_| "no such method")?;
    // Executed by another program, so that this process doesn't check the privileged program and refuse it.
    let words = ["sh".into(), "-c".into(), "exec \"$0\" --list".into(), program.into_os_string()];
    let victim = Process::builder().start_method(method).command(words);
    let victim = victim.stdout(Stdio::Null).stderr(Stdio::Null).spawn(privileges, ());
    let error = match victim.and_then(|victim| victim.join()) {
        Ok(privileges) => return Ok(Ok(privileges)),
        Err(error) => error,
    };
    if let SpawnError::NeverReported { exit, .. } = &error {
        assert_eq!(*exit, ExitStatus::Code(0), "the program runs `main` as usual");
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
fn set_user_id_program_is_no_worker_of_a_stranger() {
    if !is_root() {
        return mp_harness::skip("only root can make a set-user-ID program of root's");
    }
    let copy = copy("set-user-id");
    set_user_id(&copy);
    if !copy.is_privileged() {
        return mp_harness::skip("this file system has no set-user-ID programs");
    }
    is_no_worker_of_a_stranger(&copy);
}

#[test]
fn program_with_capabilities_takes_no_foreign_token() {
    if !is_root() {
        return mp_harness::skip("only root can give a program capabilities");
    }
    let copy = copy("capabilities");
    if !with_capability(&copy) || !copy.is_privileged() {
        return mp_harness::skip("this file system has no programs with capabilities");
    }
    is_no_worker_of_a_stranger(&copy);
}

/// Executed again, a set-user-ID program would run `main` instead of becoming a worker, start further
/// processes, and so on.
#[test]
fn set_user_id_program_refuses_starts_by_execution() {
    if !is_root() {
        return mp_harness::skip("only root can make a set-user-ID program of root's");
    }
    let copy = copy("set-user-id-parent");
    set_user_id(&copy);
    if !copy.is_privileged() {
        return mp_harness::skip("this file system has no set-user-ID programs");
    }
    let mut command = as_a_stranger(&copy.path());
    command
        .args(["--exact", "helper_starts_workers", "--ignored", "--nocapture"])
        .env("MP_CHILD", "v1:0:1:0")
        .env(WITHIN, "");
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
    start_workers();
}

/// Starts workers of the running program, by each method.
fn start_workers() {
    // SAFETY: code in the copy asks the kernel for numbers.
    unsafe { allow_fork() };
    for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
        let child = Process::builder().start_method(method).spawn(privileges, ());
        match child.and_then(|child| child.join()) {
            Ok((real, effective, _)) => println!("helper: by {method}, {:?}", (real, effective)),
            Err(error) => println!("helper: by {method}, {error}"),
        }
    }
}

/// A program that root has started has gained no privileges when it becomes another user. So it can start
/// copies by `fork`, but its set-user-ID file is not executed again.
#[test]
fn program_with_dropped_privileges_is_not_executed() {
    if !is_root() {
        return mp_harness::skip("only root can make a set-user-ID program of root's");
    }
    let copy = copy("set-user-id-dropped");
    set_user_id(&copy);
    if !copy.is_privileged() {
        return mp_harness::skip("this file system has no set-user-ID programs");
    }
    let mut command = Command::new(copy.path());
    command.args(["--exact", "helper_drops_its_privileges_and_starts_workers", "--ignored", "--nocapture"]);
    let output = command.stdin(process::Stdio::null()).current_dir("/").env(WITHIN, "").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for expected in [
        "helper: gained privileges false",
        "helper: by spawn, could not start a process",
        "helper: by forkserver, could not start a process",
        "set-user-ID of the user 0",
        "SpawnOptions::executable",
        "helper: by fork, (65534, 65534)",
    ] {
        assert!(text.contains(expected), "{expected}: {output:?}");
    }
}

#[test]
#[ignore = "part of another test"]
fn helper_drops_its_privileges_and_starts_workers() {
    mp_spawn::init();
    println!("\nhelper: gained privileges {}", mp_core::gained_privileges());
    becomes_a_stranger().unwrap();
    start_workers();
}

/// Gives up the privileges of root, permanently.
fn becomes_a_stranger() -> Result<(), String> {
    // SAFETY: plain system calls, in a separate process of this test.
    let left = unsafe { libc::setresgid(STRANGER, STRANGER, STRANGER) };
    // SAFETY: as above.
    let left = left | unsafe { libc::setresuid(STRANGER, STRANGER, STRANGER) };
    (left == 0).then_some(()).ok_or_else(|| "root can't become another user".to_string())
}

/// In a separate process: starts a worker of `program`, as another user if `stranger` is set.
fn starts((program, stranger, no_new): (PathBuf, bool, bool)) -> Result<Vec<String>, String> {
    mp_core::Arena::current().map_err(|error| error.to_string())?;
    if stranger {
        becomes_a_stranger()?;
    }
    if no_new {
        rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string())?;
    }
    let mut all = Vec::new();
    for method in [StartMethod::Spawn, StartMethod::ForkServer] {
        let victim = Process::builder().start_method(method).stdout(Stdio::Null).stderr(Stdio::Null);
        // A program that runs `main` again instead has nothing to do.
        let victim = if no_new || !stranger {
            victim.executable(&program)
        } else {
            victim.command([program.clone().into_os_string(), "--list".into()])
        };
        all.push(match victim.spawn(privileges, ()) {
            Ok(victim) => {
                format!("it is started: {:?}", victim.join().map(|(user, effective, _)| (user, effective)))
            }
            Err(SpawnError::Launch(launch)) => format!("it is refused: {launch}"),
            Err(error) => error.to_string(),
        });
    }
    Ok(all)
}

fn outcome_of_starts(copy: &Copy, stranger: bool, no_new: bool) -> Vec<String> {
    let process = Process::builder().start_method(StartMethod::Spawn);
    let process = process.spawn(starts, (copy.path(), stranger, no_new)).unwrap();
    assert!(process.wait_timeout(2 * common::DEADLINE), "{process:?}");
    process.join().unwrap()
}

#[test]
fn named_privileged_program_is_not_executed() {
    if !is_root() {
        return mp_harness::skip("only root can make such programs");
    }
    fn mode(copy: &Copy, mode: u32) -> bool {
        std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        true
    }
    let set_user = |copy: &Copy| mode(copy, 0o4755);
    let set_group = |copy: &Copy| mode(copy, 0o2755);
    let cases = [
        ("set-user-ID of the user 0", set_user as fn(&Copy) -> bool),
        ("set-group-ID of the group 0", set_group),
        ("file capabilities", with_capability),
    ];
    for (text, make) in cases {
        let copy = copy("named");
        if !make(&copy) || !copy.is_privileged() {
            mp_harness::skip(format_args!("{text}: this file system has no such programs"));
            continue;
        }
        for outcome in outcome_of_starts(&copy, true, false) {
            assert!(outcome.starts_with("it is refused"), "{text}: {outcome}");
            for expected in [text, "SpawnOptions::executable", copy.path().to_str().unwrap()] {
                assert!(outcome.contains(expected), "{expected}: {outcome}");
            }
        }
    }
}

#[test]
fn ineffective_capabilities_allow_execution() {
    if !is_root() {
        return mp_harness::skip("only root can make such programs");
    }
    let copy = copy("no-capability");
    if !with_capabilities(&copy, false, SYS_TIME, 0) || !copy.is_privileged() {
        return mp_harness::skip("this file system has no programs with capabilities");
    }
    for outcome in outcome_of_starts(&copy, true, false) {
        assert!(outcome.starts_with("it is refused") && outcome.contains("file capabilities"), "{outcome}");
    }
    // A process that has set `no_new_privs`, a file with an empty list, and a file for users that have the
    // same capability already.
    for outcome in outcome_of_starts(&copy, true, true) {
        assert_eq!(outcome, format!("it is started: Ok({:?})", (STRANGER, STRANGER)));
    }
    for inheritable in [0, SYS_TIME] {
        assert!(with_capabilities(&copy, false, 0, inheritable) && !copy.is_privileged());
        for outcome in outcome_of_starts(&copy, true, false) {
            assert_eq!(outcome, format!("it is started: Ok({:?})", (STRANGER, STRANGER)), "{inheritable}");
        }
    }
}

/// The kernel checks the mode of the file that it executes: the interpreter.
#[test]
fn script_has_the_privileges_of_its_interpreter() {
    if !is_root() {
        return mp_harness::skip("only root can make such programs");
    }
    let (privileged, program, script) = (copy("interpreter"), copy("of-the-script"), copy("script"));
    set_user_id(&privileged);
    if !privileged.is_privileged() {
        return mp_harness::skip("this file system has no set-user-ID programs");
    }
    let write = |text: String| {
        // Done by another process, as above.
        let mut echo = Command::new("sh");
        echo.args(["-c", "printf '%s' \"$0\" > \"$1\""]).arg(text).arg(script.path());
        assert!(echo.status().unwrap().success());
        set_user_id(&script);
    };
    write(format!("#!/bin/sh\nexec '{}' \"$@\"\n", program.path().display()));
    for outcome in outcome_of_starts(&script, true, false) {
        assert_eq!(outcome, format!("it is started: Ok({:?})", (STRANGER, STRANGER)));
    }
    write(format!("#! {} --list\n", privileged.path().display()));
    let interpreter = privileged.path().display().to_string();
    for outcome in outcome_of_starts(&script, true, false) {
        for expected in ["it is refused", "is a script", &interpreter, "set-user-ID of the user 0"] {
            assert!(outcome.contains(expected), "{expected}: {outcome}");
        }
    }
}

/// In a separate process: starts a set-user-ID program from a thread that never executes one itself. The flag
/// `no_new_privs` is set only on that thread, or only on the thread that executes.
fn starts_by_another_thread((program, executes_with_flag): (PathBuf, bool)) -> Result<String, String> {
    fn in_a_thread<R: Send>(flag: bool, call: impl FnOnce() -> R + Send) -> Result<R, String> {
        let body = || {
            let set = if flag { rustix::thread::set_no_new_privs(true) } else { Ok(()) };
            set.map(|()| call()).map_err(|error| error.to_string())
        };
        std::thread::scope(|scope| scope.spawn(body).join().map_err(|_| "it panicked")?)
    }
    mp_core::Arena::current().map_err(|error| error.to_string())?;
    becomes_a_stranger()?;
    let start = |words: Vec<std::ffi::OsString>| {
        let victim = Process::builder().start_method(StartMethod::Spawn).stdout(Stdio::Null);
        victim.command(words).spawn(privileges, ()).and_then(|victim| victim.join())
    };
    // The thread that executes inherits the flag from the first thread that requests a start.
    let first = in_a_thread(executes_with_flag, || start(vec!["true".into()]))?;
    if !matches!(first, Err(SpawnError::NeverReported { .. })) {
        return Err(format!("`true` was no worker: {first:?}"));
    }
    let ended = in_a_thread(!executes_with_flag, || start(vec![program.into_os_string(), "--list".into()]))?;
    Ok(format!(
        "{:?}",
        ended.map(|(real, effective, _)| (real, effective)).map_err(|error| error.to_string())
    ))
}

#[test]
fn no_new_privs_of_the_executing_thread_counts() {
    if !is_root() {
        return mp_harness::skip("only root can make a set-user-ID program of root's");
    }
    let copy = copy("flags-of-threads");
    set_user_id(&copy);
    if !copy.is_privileged() {
        return mp_harness::skip("this file system has no set-user-ID programs");
    }
    let outcome = |executes_with_flag| {
        let process = Process::builder().start_method(StartMethod::Spawn);
        let process = process.spawn(starts_by_another_thread, (copy.path(), executes_with_flag)).unwrap();
        assert!(process.wait_timeout(2 * common::DEADLINE), "{process:?}");
        process.join().unwrap()
    };
    assert_eq!(outcome(true), format!("Ok({:?})", (STRANGER, STRANGER)));
    let refused = outcome(false);
    assert!(refused.contains("set-user-ID of the user 0"), "{refused}");
}

#[test]
fn program_that_gains_no_privileges_is_executed() {
    if !is_root() {
        return mp_harness::skip("only root can make such programs");
    }
    let copy = copy("harmless");
    let mode = |mode| std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    let works = |stranger, no_new, user: u32| {
        for outcome in outcome_of_starts(&copy, stranger, no_new) {
            assert_eq!(outcome, format!("it is started: Ok({:?})", (user, user)));
        }
    };
    // With the same user and group as the process.
    mode(0o6755);
    works(false, false, 0);
    // The process has set `no_new_privs`.
    works(true, true, STRANGER);
    mode(0o755);
    with_capability(&copy);
    works(false, false, 0);
}

/// In a separate process with its own mount namespace: mounts a folder whose programs get no privileges, and
/// starts a set-user-ID program in that folder.
fn starts_one_that_gets_nothing(
    (folder, program): (PathBuf, PathBuf),
) -> Result<Option<Vec<String>>, String> {
    // SAFETY: a plain system call, in a separate process of this test.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Ok(None);
    }
    let run = |words: &[&str]| {
        Command::new(words[0]).args(&words[1..]).status().is_ok_and(|status| status.success())
    };
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let within = folder.join("within");
    if !run(&["mount", "--make-rprivate", "/"])
        || !run(&["mount", "-t", "tmpfs", "-o", "nosuid,mode=755", "mp-test", &text(&folder)])
    {
        return Ok(None);
    }
    let made = run(&["install", "-m", "4755", &text(&program), &text(&within)]);
    made.then_some(()).ok_or("no copy of the program")?;
    mp_core::Arena::current().map_err(|error| error.to_string())?;
    becomes_a_stranger()?;
    let start = |method| {
        let victim = Process::builder().start_method(method).executable(&within);
        victim.spawn(privileges, ()).and_then(|victim| victim.join()).map_err(|error| error.to_string())
    };
    let all = [StartMethod::Spawn, StartMethod::ForkServer].map(start);
    Ok(Some(all.into_iter().map(|outcome| format!("{outcome:?}")).collect()))
}

#[test]
fn program_on_a_nosuid_mount_is_executed() {
    if !is_root() {
        return mp_harness::skip("only root can mount a file system");
    }
    let (copy, folder) = (copy("to-copy"), Folder::new("without-privileges"));
    let process = Process::builder().start_method(StartMethod::Spawn);
    let process = process.spawn(starts_one_that_gets_nothing, (folder.0.clone(), copy.path())).unwrap();
    assert!(process.wait_timeout(2 * common::DEADLINE), "{process:?}");
    let Some(all) = process.join().unwrap() else {
        return mp_harness::skip("this system mounts nothing for a test");
    };
    for outcome in all {
        assert!(outcome.starts_with("Ok((65534, 65534,"), "{outcome}");
    }
}

#[test]
fn other_effective_user_refuses_starts_by_execution() {
    if !is_root() {
        return mp_harness::skip("only root can lend itself another user");
    }
    fn lends((): ()) -> Result<String, String> {
        // SAFETY: a plain system call, in a separate process of this test.
        if unsafe { libc::seteuid(STRANGER) } != 0 {
            return Err("root can't become another user".to_string());
        }
        match Process::spawn(privileges, ()) {
            Err(SpawnError::Launch(launch)) => Ok(launch.to_string()),
            other => Err(format!("{other:?}")),
        }
    }
    let text = Process::builder().start_method(StartMethod::Spawn).spawn(lends, ()).unwrap().join().unwrap();
    assert!(text.contains("real user 0") && text.contains("effective user 65534"), "{text}");
}

#[test]
fn worker_has_the_user_of_its_parent() {
    if !is_root() {
        return mp_harness::skip("only root can start a program as another user");
    }
    let copy = copy("other-user");
    let program = copy.path().into_os_string();
    let words = ["setpriv", "--reuid", "65534", "--clear-groups"].map(Into::into);
    let other = Process::builder().command(words.into_iter().chain([program])).stderr(Stdio::Capture);
    let child = match other.spawn(privileges, ()) {
        Ok(child) => child,
        Err(error) if error.to_string().contains("PATH") => return mp_harness::skip("no setpriv"),
        Err(error) => panic!("{error}"),
    };
    assert!(child.wait_timeout(common::DEADLINE), "{child:?}");
    let said = child.stderr().text();
    assert!(said.contains("of user 0") && said.contains("is of user 65534"), "{said}");
    let error = child.join().unwrap_err();
    assert!(matches!(error, SpawnError::NeverReported { exit: ExitStatus::Code(120), .. }), "{error:?}");
}
