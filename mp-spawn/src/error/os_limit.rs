//! Causes of a refused start that the error number does not show: the limit that was reached, a missing part
//! of a container, a seccomp filter. The causes are determined only after a failure.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::Resource;

/// Names, in errors, of the calls that create processes or threads.
const MAKES_PROCESSES: [&str; 7] = [
    "clone3",
    "clone3 in the fork server",
    "posix_spawn",
    "fork",
    "the supervisor thread",
    "the thread of the pool",
    "a thread in place of a pidfd",
];

/// Step that is named in an error if `epoll_ctl` fails for a process.
pub(crate) const WATCH: &str = "watching its end and its messages (epoll_ctl)";
/// Step that is named if `epoll_ctl` fails for a descriptor of this library.
pub(crate) const OWN_WATCH: &str = "watching descriptors of the library (epoll_ctl)";
/// Step that is named if no epoll instance can be created.
pub(crate) const NO_EPOLL: &str = "a descriptor to watch processes with (epoll_create)";
/// Step that is named if `epoll_wait` fails.
pub(crate) const NO_EVENTS: &str = "waiting for events of processes (epoll_wait)";

/// Returns the limit that was reached, if the system reports it.
pub(crate) fn limit(what: &str, error: Option<Errno>) -> Option<String> {
    match error? {
        Errno::NOSPC if what.contains("epoll_ctl") => Some(watches(Path::new("/proc/sys/fs/epoll"))),
        Errno::MFILE => Some(resource("RLIMIT_NOFILE", Resource::Nofile, "open files, ulimit -n")),
        Errno::NFILE => Some("the system-wide number of open files (fs.file-max)".to_string()),
        Errno::AGAIN => Some(full_group(Path::new("/sys/fs/cgroup")).unwrap_or_else(|| {
            format!(
                "{}, or the system-wide one (kernel.pid_max, kernel.threads-max)",
                resource("RLIMIT_NPROC", Resource::Nproc, "processes, ulimit -u")
            )
        })),
        Errno::NOMEM => Some(
            "the memory of the system or of a control group, or the overcommit policy (vm.overcommit_memory)"
                .to_string(),
        ),
        _ => None,
    }
}

/// Describes the limit on watched descriptors.
fn watches(folder: &Path) -> String {
    let most = fs::read_to_string(folder.join("max_user_watches"));
    let most = most.map_or_else(|_| "unknown".into(), |most| most.trim().to_string());
    format!(
        "fs.epoll.max_user_watches = {most}, for all processes of this user together: start fewer processes \
         at a time, end programs that watch many descriptors, or raise it (sysctl -w \
         fs.epoll.max_user_watches=NUMBER)"
    )
}

fn resource(name: &str, resource: Resource, meaning: &str) -> String {
    let value = rustix::process::getrlimit(resource).current;
    let value = value.map_or_else(|| "unlimited".to_string(), |value| value.to_string());
    format!("{name} = {value} ({meaning})")
}

/// Returns a description of the control group that has reached its limit of processes: the group of this
/// process, or the nearest ancestor of that group.
fn full_group(root: &Path) -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let folders: &[&str] = match controllers {
            "" => &["", "unified"],
            one if one.split(',').any(|controller| controller == "pids") => &["pids"],
            _ => return None,
        };
        folders.iter().find_map(|folder| full(&root.join(folder), group))
    })
}

fn full(root: &Path, group: &str) -> Option<String> {
    let groups = Path::new(group).ancestors();
    groups.filter_map(|group| group.strip_prefix("/").ok()).find_map(|group| {
        let read = |name| fs::read_to_string(root.join(group).join(name)).ok()?.trim().parse::<u64>().ok();
        let (most, now) = (read("pids.max")?, read("pids.current")?);
        let group = group.display();
        (now >= most).then(|| {
            format!("pids.max = {most} of the control group /{group}, which has {now} processes and threads")
        })
    })
}

/// Returns the cause of a refused start in words, with a remedy: a missing part of a container, or a seccomp
/// filter.
pub(crate) fn of(what: &str, program: Option<&Path>, error: Option<Errno>) -> Option<String> {
    match error? {
        Errno::NOENT if program.is_some_and(|program| program.starts_with("/proc")) && !has_proc() => {
            Some(no_proc("the running program is executed through it"))
        }
        Errno::PERM | Errno::NOSYS if MAKES_PROCESSES.contains(&what) => Some(filtered(what)),
        refused @ (Errno::PERM | Errno::NOSYS) => mp_core::denied_syscall(what, &refused.into()),
        _ => None,
    }
}

fn has_proc() -> bool {
    fs::metadata("/proc/self").is_ok()
}

fn no_proc(why: &str) -> String {
    format!("/proc is not mounted, and {why}: mount it (`mount -t proc proc /proc`)")
}

/// Returns the reason why shared memory can't be opened, if `/proc` is missing.
pub(crate) fn of_memory() -> Option<String> {
    (!has_proc()).then(|| no_proc("shared memory is opened through it"))
}

/// Describes the cause of an error that the kernel itself would not return from this call.
fn filtered(what: &str) -> String {
    let by = if mp_core::is_seccomp_filtered() {
        "a seccomp filter is in force for this process, and refuses the system call"
    } else {
        "most likely a seccomp filter or a security module refuses the system call"
    };
    let advice = match what {
        "prctl" => "let it allow PR_SET_PDEATHSIG",
        _ => {
            "let it allow clone, clone3 and vfork, or return ENOSYS for clone3, so that older calls are tried"
        }
    };
    format!("{by}: {advice}")
}

/// Describes the error of a worker whose request for a parent-death signal failed.
pub(crate) fn of_prctl(error: Errno) -> String {
    let why = if matches!(error, Errno::PERM | Errno::NOSYS) { filtered("prctl") } else { String::new() };
    format!("prctl(PR_SET_PDEATHSIG), by which a worker ends with its parent, failed: {error}. {why}")
        .trim_end()
        .to_string()
}

/// Adds the cause to the error of a file in `/proc` that can't be read.
pub(crate) fn of_proc(error: std::io::Error) -> std::io::Error {
    if has_proc() {
        return error;
    }
    let why = no_proc("the state of processes is read from it");
    std::io::Error::new(error.kind(), format!("{error}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_a_full_parent_control_group() {
        let root = std::env::temp_dir().join(format!("mp-spawn-groups-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        for (group, most, now) in [("a", "7\n", "7\n"), ("a/b", "max\n", "3\n"), ("", "9\n", "8\n")] {
            fs::write(root.join(group).join("pids.max"), most).unwrap();
            fs::write(root.join(group).join("pids.current"), now).unwrap();
        }
        let said = full(&root, "/a/b").unwrap();
        assert!(said.starts_with("pids.max = 7 of the control group /a, which has 7 processes"), "{said}");
        fs::write(root.join("a/pids.current"), "6\n").unwrap();
        assert_eq!(full(&root, "/a/b"), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn refused_epoll_watch_names_limit_and_remedy() {
        let said = |error: Errno| {
            let source = std::io::Error::from(error);
            super::super::launch_error(WATCH, None, source).to_string()
        };
        let full = said(Errno::NOSPC);
        let most = fs::read_to_string("/proc/sys/fs/epoll/max_user_watches").unwrap();
        assert!(
            full.starts_with(
                "could not start a process: watching its end and its messages \
                                  (epoll_ctl) failed: No space"
            ),
            "{full}"
        );
        assert!(full.contains(&format!("fs.epoll.max_user_watches = {}, for", most.trim())), "{full}");
        assert!(full.contains("sysctl -w fs.epoll.max_user_watches="), "{full}");
        assert!(said(Errno::NOMEM).contains("The limit is the memory"));
        let disk = super::super::launch_error("open", None, Errno::NOSPC.into()).to_string();
        assert!(!disk.contains("epoll"), "a full disk is another limit: {disk}");
        assert!(watches(Path::new("/nowhere")).starts_with("fs.epoll.max_user_watches = unknown"));
    }

    #[test]
    fn error_names_a_cause_only_for_refused_syscalls() {
        let said = of("posix_spawn", None, Some(Errno::PERM)).unwrap();
        assert!(said.contains("seccomp") && said.contains("clone3"), "{said}");
        assert_eq!(of("execve", Some(Path::new("/etc/passwd")), Some(Errno::ACCESS)), None);
        assert_eq!(of("execve", Some(Path::new("/proc/self/exe")), Some(Errno::NOENT)), None);
        assert!(of_prctl(Errno::PERM).contains("seccomp"));
    }
}
