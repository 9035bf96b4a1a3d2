//! Starts that the system refuses, and the causes in their errors: without `/proc`, under seccomp filters, in
//! a full control group. Each test runs in a separate process, which restricts itself.
#![allow(unsafe_code)]

mod common;

use std::path::PathBuf;

use common::{DEADLINE, Outcome, refuse, wait_for_the_end};
use mp_spawn::{Process, SpawnError, SpawnOptions, StartMethod, allow_fork, start_processes};

/// Returns the error of a start, or of the started process, in words. Empty on success.
fn outcome(options: SpawnOptions) -> String {
    let error = match start_processes(|_: usize, (): ()| {}, (), options) {
        Ok(context) => context.join().map(drop),
        Err(error) => Err(error),
    };
    match error {
        Ok(()) => String::new(),
        Err(SpawnError::Launch(launch)) => launch.to_string(),
        Err(other) => format!("not an error of the start: {other}"),
    }
}

fn by(method: &str) -> SpawnOptions {
    // SAFETY: code in copies does nothing.
    unsafe { allow_fork() };
    SpawnOptions::nprocs(1).start_method(method.parse().unwrap())
}

const METHODS: [&str; 3] = ["spawn", "forkserver", "fork"];

/// In a separate process: returns the outcome of a start by each method.
fn each(test: fn(&str) -> String) -> Vec<String> {
    let number = TESTS.iter().position(|other| std::ptr::fn_addr_eq(*other, test)).unwrap();
    let call = |(number, method): (usize, String)| Ok::<_, String>(TESTS[number](&method));
    let start = |method: &str| {
        let alone = Process::builder().start_method(StartMethod::Spawn);
        let child = alone.spawn(call, (number, method.to_string())).unwrap();
        assert!(child.wait_timeout(2 * DEADLINE), "{child:?}");
        child.join().unwrap()
    };
    METHODS.into_iter().map(start).collect()
}

const TESTS: [fn(&str) -> String; 5] =
    [without_proc, without_proc_later, without_clone3, without_any_clone, without_prctl];

/// Hides `/proc` behind an empty file system. Returns `false` if this process lacks the privileges.
fn hide_proc() -> bool {
    // SAFETY: takes a number.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return false;
    }
    let mount = |from: &std::ffi::CStr, to: &std::ffi::CStr, kind: &std::ffi::CStr, flags| {
        // SAFETY: C strings, and no data.
        unsafe { libc::mount(from.as_ptr(), to.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) == 0 }
    };
    mount(c"none", c"/", c"none", libc::MS_REC | libc::MS_PRIVATE) && mount(c"none", c"/proc", c"tmpfs", 0)
}

fn without_proc(method: &str) -> String {
    if !hide_proc() {
        return "SKIPPED".to_string();
    }
    outcome(by(method))
}

/// Hides `/proc` after a first start: open files stay open, but the running program can no longer be found.
fn without_proc_later(method: &str) -> String {
    start_processes(|_: usize, (): ()| {}, (), by("spawn")).unwrap().join().unwrap();
    if !hide_proc() {
        return "SKIPPED".to_string();
    }
    outcome(by(method))
}

#[test]
fn start_error_names_an_unmounted_proc() {
    let said = each(without_proc_later);
    if said[0] == "SKIPPED" {
        return mp_harness::skip("/proc can't be hidden here");
    }
    for text in &said[..2] {
        assert!(text.contains("/proc is not mounted") && text.contains("mount it"), "{said:?}");
    }
    assert!(said[2].is_empty() || said[2].contains("/proc"), "{said:?}");
}

#[test]
fn start_error_names_a_missing_proc() {
    let said = each(without_proc);
    if said[0] == "SKIPPED" {
        return mp_harness::skip("/proc can't be hidden here");
    }
    for text in &said {
        assert!(text.contains("/proc is not mounted") && text.contains("mount it"), "{said:?}");
    }
}

fn without_clone3(method: &str) -> String {
    refuse([libc::SYS_clone3; 3], libc::EPERM);
    outcome(by(method))
}

#[test]
fn start_error_names_filter_that_refuses_clone3() {
    let said = each(without_clone3);
    // The version of the C library determines whether it tries an older call after EPERM.
    for text in &said {
        assert!(
            text.is_empty() || text.contains("seccomp") && text.contains("ENOSYS for clone3"),
            "{said:?}"
        );
    }
}

fn without_any_clone(method: &str) -> String {
    // The arena, and the thread that starts processes, are created first.
    start_processes(|_: usize, (): ()| {}, (), by(method)).unwrap().join().unwrap();
    refuse([libc::SYS_clone3, libc::SYS_clone, libc::SYS_vfork], libc::EPERM);
    outcome(by(method))
}

#[test]
#[cfg(target_arch = "x86_64")]
fn start_error_names_filter_of_all_process_calls() {
    let said = each(without_any_clone);
    for (method, text) in METHODS.into_iter().zip(&said) {
        // A fork server that was started earlier has no such filter.
        let expected = if method == "forkserver" { text.is_empty() } else { text.contains("seccomp") };
        assert!(expected, "{method}: {said:?}");
    }
}

fn without_prctl(method: &str) -> String {
    refuse([libc::SYS_prctl; 3], libc::EPERM);
    outcome(by(method))
}

#[test]
fn start_error_names_filter_that_refuses_prctl() {
    for (method, text) in METHODS.into_iter().zip(each(without_prctl)) {
        assert!(text.contains("PR_SET_PDEATHSIG") && text.contains("seccomp"), "{method}: {text:?}");
    }
}

/// Control group with this limit of processes, initially empty.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, most: u32) -> Option<Group> {
        let name = format!("mp-causes-{}-{name}", std::process::id());
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(PathBuf::from);
        roots.iter().filter(|root| root.is_dir()).find_map(|root| {
            let group = Group(root.join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join("pids.max"), most.to_string()).ok().map(|()| group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The processes of the group, including the fork server, end with the process that the test has
        // joined.
        let until = std::time::Instant::now() + DEADLINE;
        while std::fs::remove_dir(&self.0).is_err() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(1)); // sleep: polls for the end of processes
        }
    }
}

#[test]
fn start_error_names_a_full_control_group_and_limit() {
    fn crowd((method, group): (String, PathBuf)) -> Result<String, String> {
        let joins = std::fs::write(group.join("cgroup.procs"), std::process::id().to_string());
        joins.map_err(|error| error.to_string())?;
        let many = SpawnOptions::nprocs(100).start_method(method.parse().unwrap());
        match start_processes(|_: usize, (): ()| -> Outcome { wait_for_the_end() }, (), many) {
            Err(SpawnError::Launch(launch)) => Ok(launch.to_string()),
            other => Err(format!("{other:?}")),
        }
    }
    for method in ["spawn", "forkserver"] {
        let Some(group) = Group::new(method, 12) else {
            return mp_harness::skip("no control group can be made here");
        };
        let args = (method.to_string(), group.0.clone());
        let child = Process::builder().start_method(StartMethod::Spawn).spawn(crowd, args).unwrap();
        assert!(child.wait_timeout(2 * DEADLINE), "{child:?}");
        let text = child.join().unwrap();
        assert!(text.contains("pids.max = 12 of the control group /"), "{method}: {text}");
    }
}
