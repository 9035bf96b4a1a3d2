//! Guests: programs of another build or in another language that become children by a call.
//!
//! A guest has the socket, the token, the lifeline and the arena of any child, but no function: `main` runs
//! from its beginning, and takes the arguments by a call. This crate installs no signal handlers and no panic
//! hook in a guest, because they belong to the guest.
//!
//! | difference to a worker | reason |
//! |---|---|
//! | a guest joins the arena at once | the layout is checked before the program uses any memory |
//! | no handlers for crashes and panics | the host may have its own, such as `faulthandler` |
//! | no check of the build | no reference to code is sent |

use std::fmt;

use mp_core::Arena;
use mp_core::message::Message;

use crate::child::current::{self, CurrentProcess, WorkerIdentity};
use crate::child::{entry, limits, main};
use crate::protocol::control_socket;
use crate::protocol::fields::to_bytes;
use crate::protocol::frame::FrameKind;
use crate::protocol::message::Hello;
use crate::protocol::outbox::ReceivedFiles;
use crate::protocol::payload::shared_memory;
use crate::protocol::{inherited_files, lifeline};

/// Error returned when a program can't take its arguments as a [`guest`].
#[non_exhaustive]
pub enum GuestError {
    /// The process was not started by [`ProcessBuilder::guest`](crate::ProcessBuilder::guest), or has taken
    /// its arguments before.
    NoGuest,
    /// The parent sent arguments of a type other than the expected type.
    #[allow(missing_docs)]
    OtherType { found: String, expected: String },
    /// The process could not become a child, or the arguments can't be read.
    Unable(String),
}

mp_core::readable_debug!(GuestError);

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestError::NoGuest => {
                f.write_str("this process was not started as a guest, or has taken its arguments before")
            }
            GuestError::OtherType { found, expected } => {
                write!(f, "the program that started this one sent {found}, expected {expected}")
            }
            GuestError::Unable(why) => write!(f, "this process can't become a guest: {why}"),
        }
    }
}

impl std::error::Error for GuestError {}

/// Takes the arguments of this process, which another program started by
/// [`ProcessBuilder::guest`](crate::ProcessBuilder::guest). After the call, this process shares the memory of
/// that program, and ends with that program.
///
/// Call this function once, before any other function of this library. The process that the parent has
/// executed must make the call, not a child of that process.
///
/// ```no_run
/// let greeting = mp_spawn::guest::<String>()?;
/// # Ok::<(), mp_spawn::GuestError>(())
/// ```
///
/// # Errors
/// [`GuestError::NoGuest`] in a process that was started otherwise, and at the second call.
/// [`GuestError::OtherType`] names both types. Other errors contain the reason in words.
#[doc(alias = "child")]
pub fn guest<T: Message>() -> Result<T, GuestError> {
    guest_by::<T>(|found| {
        let expected = mp_reduce::name_of::<T>();
        let found = found.to_owned();
        let other =
            || GuestError::OtherType { found: found.clone(), expected: expected.clone().into_owned() };
        if found == expected { Ok(None) } else { Err(other()) }
    })
}

/// Works like [`guest`], but `check` gets the name of the arguments' type. If the type is dynamic, `check`
/// returns the schema by which the arguments are read.
#[doc(hidden)]
pub fn guest_by<T: Message>(
    check: impl FnOnce(&str) -> Result<Option<String>, GuestError>,
) -> Result<T, GuestError> {
    let unable = GuestError::Unable;
    let (token, mut socket) = entry::take_guest_token().ok_or(GuestError::NoGuest)?.map_err(unable)?;
    match main::has_parent(token.parent) {
        Ok(true) => {}
        Ok(false) => return Err(unable("the program that started it has ended".into())),
        Err(error) => return Err(unable(format!("the parent-death signal: {error}"))),
    }
    if Arena::get().is_some() {
        return Err(unable("it has shared memory of its own already: take the arguments first".into()));
    }
    let (files, _, start, args) = main::receive_work(&socket).map_err(|error| unable(error.to_string()))?;
    main::handle_interrupts(start.interrupt, start.interrupt_signals, None);
    let ReceivedFiles { mut memory, mut lifeline, mut ends, inherited } = files;
    if !inherited.is_empty() {
        let own = [&mut memory, &mut lifeline, &mut ends.stdout, &mut ends.stderr].into_iter().flatten();
        let mut own: Vec<_> = own.chain([&mut socket]).collect();
        inherited_files::place(inherited, &mut own).map_err(unable)?;
    }
    if lifeline.is_some_and(|end| !lifeline::hold(end)) {
        return Err(unable("the program that started it has ended".into()));
    }
    let line = control_socket::open(socket).map_err(|error| unable(error.to_string()))?;
    limits::apply(&start.limits).map_err(unable)?;
    let member = shared_memory::child_attach(memory, true, main::report_joined)
        .map_err(|error| unable(format!("joining the shared memory failed: {error}")))?;
    limits::change_user(&start.limits).map_err(unable)?;
    let hello = Hello { nonce: token.nonce, member };
    line.send_bytes(FrameKind::Hello, &to_bytes(&hello)).map_err(|error| unable(error.to_string()))?;
    main::apply_setup(&start).map_err(unable)?;
    let (name, daemon, attempt) = (start.name, start.daemon, start.attempt);
    let process = CurrentProcess { name, pid: 0, rank: None, daemon, attempt };
    current::set(WorkerIdentity { process, parent: token.parent });
    #[cfg(feature = "authkey")]
    if let Some(key) = start.settings.key {
        mp_core::set_authkey(key);
    }
    let schema = check(&start.function.name)?;
    let read =
        || args.unpack::<T>().map_err(|(why, _)| unable(format!("its arguments can't be read: {why}")));
    match schema {
        Some(schema) => T::with_schema(&schema, read),
        None => read(),
    }
}
