//! Detection of a worker, before `main` or at its beginning.
//!
//! On Linux with glibc, this file puts a function into the `.init_array` of the program (or of the library
//! that was made with this crate), whose entries run before `main` and get its arguments. In a worker that
//! function doesn't return: it runs the later entries, so that no constructor of the program (or library) is
//! left out, and then turns the process into a worker. In a library that is loaded later the function does
//! nothing: see [`shared_library`](crate::child::shared_library).
//!
//! # Safety
//!
//! This file may hold `unsafe`: it places the entry in `.init_array`, calls the later entries, changes the
//! environment, and vouches for the number of an inherited file descriptor.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use crate::child::main;
use crate::protocol::function::loaded_objects;
use crate::protocol::token::{self, Token, TokenTarget};

/// Becomes a worker if this process was started as one. Otherwise does nothing.
///
/// ```
/// // The first line of `main`:
/// mp_spawn::init();
/// // ... what the program does when it is not a worker
/// ```
///
/// Programs on Linux with glibc need no call, because their processes become workers before `main`. On other
/// systems, and in a program that is linked with a shared library of which this crate is part, `main` must
/// begin with this call. In a worker the call does not return, and code before the call runs in every worker.
/// The function may be called any number of times. Hosts that are written in other languages use
/// [`export_child_main!`](crate::export_child_main!).
///
/// Before this call, a process that was started as a worker can't start anything: see
/// [`SpawnError::NotInitialised`](crate::SpawnError::NotInitialised).
#[doc(alias = "freeze_support")]
pub fn init() {
    if let Some(token) = take_token() {
        become_worker(token);
    }
}

/// Body of the C function that [`export_child_main!`](crate::export_child_main!) defines: becomes a worker,
/// or returns 0 if this process was not started as a worker, and 1 if it could not become one here.
#[doc(hidden)]
#[must_use]
pub fn child_main() -> i32 {
    // In a worker nothing unwinds: it catches panics, and ends through `exit`.
    let init = std::panic::catch_unwind(init);
    i32::from(init.is_err() || token::unconsumed())
}

/// Defines a C function, `int mp_child_main(void)`, in the calling library, by which a host becomes a worker.
///
/// ```
/// mp_spawn::export_child_main!();
/// # // That nothing happens in a process that is no worker:
/// # assert_eq!(mp_child_main(), 0);
/// ```
///
/// A host that loads the library calls this function if workers must call back into the host. A
/// [command](crate::set_command) executes the host as a worker. (Other libraries become workers without this
/// function.) The function does not return in a worker of the calling library. It returns 0 in a process that
/// was not started as a worker, so a host can call the function whenever it begins. It returns 1 in a worker
/// of another copy of this crate, in the program or in another library.
///
/// The function is defined in the calling library, and not in this crate. Otherwise two libraries that are
/// linked into one program, or two versions of this crate in one library, would define the same name. A
/// library can choose another name:
///
/// ```
/// mp_spawn::export_child_main!(job_child_main);
/// ```
#[macro_export]
macro_rules! export_child_main {
    () => {
        $crate::export_child_main!(mp_child_main);
    };
    ($name:ident) => {
        /// Becomes a worker if this process was started as a worker of this library, and then does not
        /// return. Returns 0 if this process was not started as a worker, 1 if this process is a worker of
        /// the program or of another library.
        // SAFETY: the author of the library gives no other function this name.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> ::std::ffi::c_int {
            $crate::child_main()
        }
    };
}

#[inline]
fn become_worker(token: Result<Token, String>) -> ! {
    match token.and_then(|token| Ok((token, adopt_socket(token)?))) {
        Ok((token, socket)) => main::main(token, socket, Ok(())),
        Err(why) => main::exit_useless(&why),
    }
}

/// Removes the token from the environment, so that no program started by this process uses the token. A token
/// for another copy of the crate stays.
fn take_token() -> Option<Result<Token, String>> {
    let text = env::var_os(token::VARIABLE)?;
    let token = Token::parse(text.as_bytes());
    if mp_core::gained_privileges() {
        // The user that started this process must not control it, and processes that it starts must not find
        // the variable.
        mp_core::inherited::remove_variable(token::VARIABLE);
        return None;
    }
    if token.as_ref().is_ok_and(|token| !is_for_call(token.taker)) {
        return None;
    }
    mp_core::inherited::remove_variable(token::VARIABLE);
    Some(token)
}

/// Returns `true` if a call to this copy of the crate, such as [`init`], is allowed to take a token for this
/// target.
fn is_for_call(taker: TokenTarget) -> bool {
    let Some(own) = loaded_objects::own() else { return true };
    match taker {
        TokenTarget::Program => own.is_program,
        TokenTarget::Call => !own.is_program,
        TokenTarget::Guest => false,
        // The token should have been taken when the library was loaded.
        TokenTarget::Load(build) => own.identity().is_some_and(|identity| identity.short() == build),
    }
}

/// Changes the environment of a process that is about to become a worker. `None` removes a variable.
pub(crate) fn change_environment(changes: impl Iterator<Item = (OsString, Option<OsString>)>) {
    for (name, value) in changes {
        match value {
            // SAFETY: this runs in a copy of a process, which has one thread, or before the program begins.
            Some(value) => unsafe { env::set_var(name, value) },
            // SAFETY: as above.
            None => unsafe { env::remove_var(name) },
        }
    }
}

/// Takes the token of a guest out of the environment, and the socket that the token names. Returns `None` if
/// there is no such token.
pub(super) fn take_guest_token() -> Option<Result<(Token, OwnedFd), String>> {
    let text = env::var_os(token::VARIABLE)?;
    let token = Token::parse(text.as_bytes());
    if mp_core::gained_privileges() || !token.as_ref().is_ok_and(|token| token.taker == TokenTarget::Guest) {
        return None;
    }
    mp_core::inherited::remove_variable(token::VARIABLE);
    Some(token.and_then(|token| Ok((token, adopt_socket(token)?))))
}

/// Takes the socket that the token names, if it is a socket that leads to the parent.
#[inline]
fn adopt_socket(token: Token) -> Result<OwnedFd, String> {
    // SAFETY: the number isn't negative (the token's parser checks that); the token was taken out of the
    // environment by this thread, before `main` or as its first act.
    unsafe { mp_core::inherited::adopt(token.fd, token.parent) }.map_err(|error| {
        format!("file descriptor {} does not lead to process {}: {error}", token.fd, token.parent)
    })
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod hook {
    use std::ffi::{CStr, OsStr, c_char, c_int};
    use std::ops::Range;
    use std::os::unix::ffi::OsStrExt;
    use std::ptr;

    use crate::child::shared_library;
    use crate::protocol::function::loaded_objects::{self, Object};
    use crate::protocol::token::{self, Token, TokenTarget};

    type Initialiser = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

    /// Entry in `.init_array`. The entries before and after this entry may come from other languages.
    #[used]
    // SAFETY: glibc calls the entries of this section with these arguments, and the static has the size and
    // the alignment of an entry.
    #[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
    // fork: code, which never changes.
    static ENTRY: Initialiser = on_load;

    extern "C" fn on_load(argc: c_int, argv: *const *const c_char, envp: *const *const c_char) {
        // SAFETY: glibc passes the environment.
        let Some(text) = (unsafe { value_in(envp, token::VARIABLE) }) else { return };
        if mp_core::gained_privileges() {
            // See `take_token`.
            // SAFETY: the name is a C string. If this is a library that is loaded later, other threads may
            // use the environment. The call, which holds glibc's own lock, moves pointers in the list, and
            // frees nothing.
            unsafe { libc::unsetenv(token::C_VARIABLE.as_ptr()) };
            return;
        }
        let Some(own) = loaded_objects::own() else { return };
        let token = Token::parse(text);
        if own.is_program {
            if token.as_ref().is_ok_and(|token| token.taker != TokenTarget::Program) {
                return;
            }
        } else {
            let Ok(Token { taker: TokenTarget::Load(build), .. }) = token else { return };
            // SAFETY: as above.
            let first = unsafe { value_in(envp, shared_library::PRELOAD) };
            let more =
                first.and_then(|first| shared_library::without_library(OsStr::from_bytes(first), own.path()));
            let (Some(more), true) = (more, own.identity().is_some_and(|own| own.short() == build)) else {
                return;
            };
            super::change_environment([(shared_library::PRELOAD.into(), more)].into_iter());
        }
        let entry = (&raw const ENTRY).expose_provenance();
        // Removed so that no program started by this process uses the token.
        // SAFETY: the name is a C string. Only threads of constructors could use the environment meanwhile.
        // The call, which holds glibc's own lock, moves pointers in the list, and frees nothing.
        unsafe { libc::unsetenv(token::C_VARIABLE.as_ptr()) };
        for address in later_entries(own, entry).step_by(size_of::<usize>()) {
            // SAFETY: the address is that of an aligned word in the `.init_array` of the object that this
            // code is in.
            let initialiser =
                unsafe { ptr::read(ptr::with_exposed_provenance::<Option<Initialiser>>(address)) };
            if let Some(initialiser) = initialiser {
                initialiser(argc, argv, envp);
            }
        }
        super::become_worker(token);
    }

    /// Returns a variable of an environment. Like the functions below, this function avoids the standard
    /// library: the first use of each part of the program's code costs a short-lived process as much as ten
    /// system calls.
    ///
    /// # Safety
    /// `envp` is an environment (`environ(7)`) that no thread changes meanwhile.
    unsafe fn value_in<'a>(envp: *const *const c_char, name: &str) -> Option<&'a [u8]> {
        let mut at = envp;
        while !at.is_null() {
            // SAFETY: not beyond the null pointer that ends the list.
            let entry = unsafe { *at };
            if entry.is_null() {
                break;
            }
            // SAFETY: entries are C strings. Entries that the process was started with are never freed.
            let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let value = entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            if value.is_some() {
                return value;
            }
            // SAFETY: there is a next entry, because this one wasn't the last.
            at = unsafe { at.add(1) };
        }
        None
    }

    /// Returns the addresses of the `.init_array` entries after `entry`.
    #[cfg(not(target_feature = "crt-static"))]
    fn later_entries(program: &Object, entry: usize) -> Range<usize> {
        program.initialisers_after(entry)
    }

    /// Returns the addresses of the `.init_array` entries after `entry`. A static program may lack a dynamic
    /// section, but it is linked in one piece, so the linker defines the end of the array.
    #[cfg(target_feature = "crt-static")]
    fn later_entries(_program: &Object, entry: usize) -> Range<usize> {
        // SAFETY: linkers define this symbol in every static program; only its address is used.
        unsafe extern "C" {
            // fork: code, which never changes.
            static __init_array_end: Initialiser;
        }
        entry + size_of::<usize>()..(&raw const __init_array_end).addr()
    }
}
