//! # Safety
//! Client request to valgrind, by instructions that have no effect elsewhere. Unsafe, because it is assembly.
//! Sound, because those instructions rotate one register by 128 bits, which leaves it unchanged, and exchange
//! another one with itself. Valgrind reads six words that live longer, and changes one register, which is
//! declared.
#![allow(unsafe_code)]

/// Returns `true` if this process runs under valgrind (any of its tools, on x86-64). Takes a dozen
/// instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: see the head of this file; `valgrind.h` has the same code. Flags and memory count as changed.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer != 0
}

/// Returns `false`: other processors are not supported.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub fn under_valgrind() -> bool {
    false
}
