//! How a process learns that it is a worker, before `main` or at its beginning.
//!
//! On Linux with glibc, this file puts a function into the program's `.init_array`, whose entries run before
//! `main` and get its arguments. In a worker that function doesn't return: it runs the entries after its own,
//! so that no constructor of the program is left out, and then becomes the worker.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it places that entry, calls the entries after it, changes the
//! environment, and takes possession of an inherited file descriptor.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::{env, io};

use rustix::io::{Errno, FdFlags};

use crate::child;
use crate::token::{self, Token};

/// Becomes a worker if this process was started as one; otherwise does nothing.
///
/// ```
/// // The first line of `main`:
/// mp_spawn::init();
/// // ... what the program does when it is not a worker
/// ```
///
/// Programs on Linux with glibc need no call: there it happens before `main`. Elsewhere, and where this crate is
/// part of a shared library, `main` must begin with it: in a worker it does not return, and whatever comes before
/// it runs in every worker. It may be called any number of times.
///
/// Until it was called in a worker-to-be, nothing can be started from there: see
/// [`SpawnError::NotInitialised`](crate::SpawnError::NotInitialised).
#[doc(alias = "freeze_support")]
pub fn init() {
    if let Some(token) = take_token() {
        become_worker(token);
    }
}

#[inline]
fn become_worker(token: Result<Token, String>) -> ! {
    match token.and_then(|token| Ok((token, adopt(token)?))) {
        Ok((token, socket)) => child::main(token, socket, Ok(())),
        Err(why) => child::useless(&why),
    }
}

/// Takes the token out of the environment, so that no program started from here takes it for its own.
fn take_token() -> Option<Result<Token, String>> {
    let text = env::var_os(token::VARIABLE)?;
    // SAFETY: this runs before `main` or as its first act, and only in a process that this crate has started;
    // the threads that could read the environment meanwhile are those of constructors, and the standard library
    // guards its own reads with a lock.
    unsafe { env::remove_var(token::VARIABLE) };
    Some(Token::read(text.as_bytes()))
}

/// Changes the environment of a process that is about to become a worker; `None` removes.
pub(crate) fn change_environment(changes: impl Iterator<Item = (OsString, Option<OsString>)>) {
    for (name, value) in changes {
        match value {
            // SAFETY: this runs in a copy of a process, which has one thread.
            Some(value) => unsafe { env::set_var(name, value) },
            // SAFETY: as above.
            None => unsafe { env::remove_var(name) },
        }
    }
}

/// Takes the socket that the token names, if it is one and leads to the parent.
#[inline]
fn adopt(token: Token) -> Result<OwnedFd, String> {
    let checked = (|| -> io::Result<()> {
        // SAFETY: the number isn't negative (the token's parser saw to it). If no file has it, the calls below
        // fail with EBADF; nothing closes files meanwhile.
        let socket = unsafe { BorrowedFd::borrow_raw(token.fd) };
        rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
        let peer = rustix::net::sockopt::socket_peercred(socket)?;
        if peer.pid.as_raw_nonzero().get().unsigned_abs() == token.parent {
            Ok(())
        } else {
            Err(Errno::NOTCONN.into())
        }
    })();
    match checked {
        // SAFETY: the file is open, for the calls above succeeded, and it is this process's to own: the parent
        // that is named in the token made the socket and left it to this process for this purpose. The token was
        // taken out of the environment, so nobody else finds it.
        Ok(()) => Ok(unsafe { OwnedFd::from_raw_fd(token.fd) }),
        Err(error) => {
            Err(format!("file descriptor {} does not lead to process {}: {error}", token.fd, token.parent))
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod hook {
    use std::ffi::{CStr, c_char, c_int};
    use std::ops::Range;
    use std::ptr;

    use crate::object::{self, Object};
    use crate::token::{self, Token};

    type Initialiser = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

    /// The entry. Its neighbours are entries too, which may come from other languages.
    #[used]
    // SAFETY: glibc calls what is in this section with these arguments, and the static has the size and the
    // alignment of an entry.
    #[unsafe(link_section = ".init_array")]
    // fork: code, which nobody changes.
    static ENTRY: Initialiser = on_load;

    extern "C" fn on_load(argc: c_int, argv: *const *const c_char, envp: *const *const c_char) {
        // SAFETY: glibc passes the environment.
        let Some(text) = (unsafe { token_in(envp) }) else { return };
        let entry = (&raw const ENTRY).expose_provenance();
        let inside = |program: &&Object| program.offset_of(entry).is_some();
        let Some(program) = object::program().filter(inside) else {
            // In a library: while it is being loaded, the loader's lock may be held, and a worker that loads
            // another library would wait for it for ever. `init` will be called later.
            return;
        };
        let token = Token::read(text);
        // So that no program started from here takes it for its own.
        // SAFETY: the name is a C string. The threads that could use the environment meanwhile are those of constructors;
        // the call, which holds glibc's own lock, moves pointers in the list, and frees nothing.
        unsafe { libc::unsetenv(token::C_VARIABLE.as_ptr()) };
        for address in later_entries(program, entry).step_by(size_of::<usize>()) {
            // SAFETY: the address is that of an aligned word in the program's `.init_array`, which stays mapped.
            let initialiser =
                unsafe { ptr::read(ptr::with_exposed_provenance::<Option<Initialiser>>(address)) };
            if let Some(initialiser) = initialiser {
                initialiser(argc, argv, envp);
            }
        }
        super::become_worker(token);
    }

    /// The token in an environment. By hand, here and below, for a process that does little else needs none of what the
    /// standard library does for this: each part of a program that is used for the first time costs as much as ten
    /// system calls.
    ///
    /// # Safety
    /// This is an environment (`environ(7)`) that nobody changes meanwhile.
    unsafe fn token_in<'a>(envp: *const *const c_char) -> Option<&'a [u8]> {
        let mut at = envp;
        while !at.is_null() {
            // SAFETY: not beyond the null pointer that ends the list.
            let entry = unsafe { *at };
            if entry.is_null() {
                break;
            }
            // SAFETY: entries are C strings; those that the process was started with stay for ever.
            let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let value =
                entry.strip_prefix(token::VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            if value.is_some() {
                return value;
            }
            // SAFETY: there is another one: this one wasn't the last.
            at = unsafe { at.add(1) };
        }
        None
    }

    /// The addresses of the entries after this one.
    #[cfg(not(target_feature = "crt-static"))]
    fn later_entries(program: &Object, entry: usize) -> Range<usize> {
        program.initialisers_after(entry)
    }

    /// The addresses of the entries after this one. A static program need not have a dynamic section, but it is
    /// linked in one piece, so that the linker knows where the array ends.
    #[cfg(target_feature = "crt-static")]
    fn later_entries(_program: &Object, entry: usize) -> Range<usize> {
        // SAFETY: linkers define this symbol in every static program; only its address is used.
        unsafe extern "C" {
            // fork: code, which nobody changes.
            static __init_array_end: Initialiser;
        }
        entry + size_of::<usize>()..(&raw const __init_array_end).addr()
    }
}
