//! Remedies for system calls that sandboxes refuse: seccomp filters, security modules.

use std::fs;
use std::io;

/// Error number of a refused operation in Linux, the same on all supported processors.
const EPERM: i32 = 1;
/// Error number of an unsupported system call in Linux, the same on all supported processors.
const ENOSYS: i32 = 38;

/// Words that occur in the descriptions of failed operations, each with the system call that a sandbox may
/// have refused. The first word that occurs is used.
const CALLS: [(&str, &str); 16] = [
    ("memfd_create", "memfd_create"),
    ("fallocate", "fallocate"),
    ("ftruncate", "ftruncate"),
    ("socketpair", "socketpair"),
    ("sendmsg", "sendmsg"),
    ("recvmsg", "recvmsg"),
    ("eventfd", "eventfd2"),
    ("epoll_create", "epoll_create1"),
    ("epoll_ctl", "epoll_ctl"),
    ("epoll_wait", "epoll_wait"),
    ("madvise", "madvise"),
    ("munmap", "munmap"),
    ("mmap", "mmap"),
    ("reserving addresses", "mmap"),
    ("fcntl", "fcntl"),
    ("prctl", "prctl"),
];

/// Returns the cause and the remedy of a call that failed with `source` during `what`. Returns `None` if no
/// sandbox refused it.
///
/// A sandbox or an old kernel returns ENOSYS. EPERM is attributed to a sandbox, except from `fcntl` in a
/// process without a seccomp filter.
#[doc(hidden)]
#[cold]
pub fn denied_syscall(what: &str, source: &io::Error) -> Option<String> {
    let unknown = match source.raw_os_error()? {
        ENOSYS => true,
        EPERM => false,
        _ => return None,
    };
    let (_, call) = CALLS.into_iter().find(|(word, _)| what.contains(word))?;
    let cause = match (is_seccomp_filtered(), unknown) {
        (true, _) => "a seccomp filter is in force for this process, and refuses the system call",
        (false, true) => "the kernel lacks the system call, or a sandbox refuses it",
        // Without a filter, the kernel itself refuses some locks and seals.
        (false, false) if call == "fcntl" => return None,
        (false, false) => "most likely a seccomp filter or a security module refuses the system call",
    };
    let otherwise = match call {
        "memfd_create" => ", or build with the sharing strategy `file_system` alone (features)",
        _ => "",
    };
    Some(format!("{cause}: let it allow {call}{otherwise}"))
}

/// Returns `true` if a seccomp filter is in force for this process.
#[doc(hidden)]
pub fn is_seccomp_filtered() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_denied_syscall_names_call_and_remedy() {
        let said = |what, error| denied_syscall(what, &io::Error::from_raw_os_error(error));
        let memory = said("memfd_create", ENOSYS).unwrap();
        assert!(
            memory.contains("let it allow memfd_create, or build with the sharing strategy `file_system`"),
            "{memory}"
        );
        assert!(said("eventfd (see RLIMIT_NOFILE)", EPERM).unwrap().ends_with("allow eventfd2"));
        assert_eq!(said("eventfd", 24), None);
        assert_eq!(said("opening a file", EPERM), None);
    }
}
