//! System calls that fail as they do on other machines: few kernels know quotas of a file system that a test can mount.
#![allow(unsafe_code)]

/// From now on every `fallocate(2)` of this process fails with that error.
pub fn refuse_to_allocate(error: libc::c_int) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call is the first word of what the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_fallocate as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let (all_threads, filter) = (libc::SECCOMP_FILTER_FLAG_TSYNC, &raw const filter);
    // SAFETY: the filter and its program live until the call returns; the kernel copies and checks them.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, all_threads, filter) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}
