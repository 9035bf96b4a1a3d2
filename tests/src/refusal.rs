//! System calls that are made to fail as on other machines. Few kernels have file-system quotas that a test
//! can mount.
#![allow(unsafe_code)]

/// Makes every `fallocate(2)` of this process fail with `error`.
pub fn refuse_to_allocate(error: libc::c_int) {
    refuse(error, u32::MAX);
}

/// Makes every `fallocate(2)` of this process that frees memory (`FALLOC_FL_PUNCH_HOLE`) fail with
/// `EOPNOTSUPP`.
pub fn refuse_to_free() {
    refuse(libc::EOPNOTSUPP, libc::FALLOC_FL_PUNCH_HOLE as u32);
}

/// Makes `fallocate(2)` fail if its mode has one of these bits, or always for `u32::MAX`.
fn refuse(error: libc::c_int, modes: u32) {
    let any = u8::from(modes == u32::MAX);
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call is the first word of the filter's input.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 4, libc::SYS_fallocate as u32),
        // The lower half of the second argument, in little-endian words.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 24),
        statement(libc::BPF_JMP | libc::BPF_JA, 0, 0, u32::from(any)),
        statement(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, modes),
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
