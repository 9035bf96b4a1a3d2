//! Programs that are invited into another program's memory, and are started by `std::process::Command` or
//! connected over a socket. They must begin without shared memory, so they are this program, started again.

mod commands;
mod hostile_guests;
mod hostile_inviters;
mod raw;
mod refused;
mod sockets;
mod values;

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};

use mp::connection::{Invitation, InvitationState};
use mp_tests::{DEADLINE, eventually};

/// Variable with the scenario of a guest: a word and an argument.
const GUEST: &str = "MP_TESTS_GUEST";

/// Returns the command that starts this program as a guest.
fn guest(what: &str) -> Command {
    as_guest(Command::new(std::env::current_exe().unwrap()), what)
}

/// Configures a command to start this program as a guest. The command runs this program, directly or by its
/// last arguments.
fn as_guest(mut command: Command, what: &str) -> Command {
    command.args(["helper", "--exact", "--nocapture", "--test-threads=1"]).env(GUEST, what);
    command.stdin(Stdio::null());
    command
}

/// Entry of the programs that [`guest`] starts. Not a test.
#[test]
fn helper() {
    let Ok(what) = std::env::var(GUEST) else { return };
    let (what, argument) = what.split_once(' ').unwrap_or((&what, ""));
    let known = commands::guest(what, argument)
        || hostile_guests::guest(what, argument)
        || hostile_inviters::guest(what, argument)
        || refused::guest(what, argument)
        || sockets::guest(what, argument)
        || values::guest(what, argument);
    assert!(known, "{what}");
}

/// Waits for the end of a child.
#[track_caller]
fn end(child: &mut Child) -> ExitStatus {
    let mut status = None;
    eventually("the child ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Runs a guest to its successful end, and returns its output.
#[track_caller]
fn said(command: &mut Command) -> String {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let status = end(&mut child);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(status.success(), "{status}\n{text}");
    text
}

/// Waits until an invitation whose command was dropped is no longer open. Returns its state.
#[track_caller]
fn outcome(invitation: &Invitation) -> InvitationState {
    let state = invitation.wait_timeout(DEADLINE).unwrap();
    assert_ne!(state, InvitationState::Open);
    state
}

/// Returns the open sockets of this guest.
fn sockets() -> Vec<String> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = fds.filter_map(|fd| Some(std::fs::read_link(fd.ok()?.path()).ok()?.display().to_string()));
    targets.filter(|target| target.starts_with("socket:")).collect()
}

/// Blocks until a file with this name exists. Used in a process that a test releases.
fn wait_for_file(path: &str) {
    eventually("the file is there", || File::open(path).is_ok());
}
