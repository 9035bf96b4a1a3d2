//! Processes that can't accept an invitation. Each gets an error with the reason.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use mp::Arena;
use mp::connection::{InvitationState, accept_invitation, invite};
use mp_tests::scratch::Scratch;
use mp_tests::{eventually, settled};

use crate::{end, guest as program, outcome, said, wait_for_file};

/// User id other than root.
const STRANGER: u32 = 65_534;

/// Prints the outcome on a line of its own.
fn report(what: &str) {
    match accept_invitation::<String>() {
        Ok(value) => println!("\n{what}: took {value}"),
        Err(error) => println!("\n{what}: {error}"),
    }
}

pub(crate) fn guest(what: &str, argument: &str) -> bool {
    match what {
        "tells" => report("it"),
        "tells-twice" => {
            report("first");
            report("second");
        }
        "has-memory" => {
            Arena::current().unwrap();
            report("it");
        }
        "waits" => {
            wait_for_file(argument);
            report("it");
        }
        "invites-and-dies" => {
            let file: String = accept_invitation().unwrap();
            let mut command = program(&format!("waits {file}"));
            invite(&mut command, "a value".to_string()).unwrap();
            command.spawn().unwrap();
            std::process::abort();
        }
        _ => return false,
    }
    true
}

/// Returns the output of a guest that can't accept.
#[track_caller]
fn refusal(command: &mut Command) -> String {
    let text = said(command);
    let line = text.lines().find_map(|line| line.strip_prefix("it: "));
    let line = line.unwrap_or_else(|| panic!("{text}")).to_owned();
    assert!(!line.starts_with("took "), "{line}");
    line
}

#[track_caller]
fn refused_with(command: &mut Command, expected: &str) {
    let line = refusal(command);
    assert!(line.contains(expected), "{line}");
}

#[test]
fn guest_without_an_invitation_is_refused() {
    let _alone = settled();
    refused_with(&mut program("tells"), "the environment has no MP_INVITATION");
    for nonsense in ["", "v1:3", "v1:-1:1", "hello"] {
        refused_with(program("tells").env("MP_INVITATION", nonsense), "which is not from `invite`");
    }
    // The first number belongs to no file, and the second to a file that isn't a socket.
    for place in ["v1:1000:1", "v1:0:1"] {
        refused_with(program("tells").env("MP_INVITATION", place), "does not lead to process 1");
    }
    let other = "the format of MP_INVITATION is 9, this build has 1";
    refused_with(program("tells").env("MP_INVITATION", "v9:whatever"), other);
    // The variable or the descriptor was lost.
    let mut command = program("tells");
    invite(&mut command, "a value".to_string()).unwrap();
    refused_with(command.env_remove("MP_INVITATION"), "the environment has no MP_INVITATION");
}

#[test]
fn invitation_is_accepted_exactly_once() {
    let _alone = settled();
    let mut command = program("tells-twice");
    let invitation = invite(&mut command, "a value".to_string()).unwrap();
    let text = said(&mut command);
    assert!(text.contains("first: took a value"), "{text}");
    assert!(text.contains("second: this process has an arena already"), "{text}");
    assert_eq!(outcome(&invitation), InvitationState::Accepted);
    // The same command starts a second process.
    let text = said(&mut command);
    assert!(
        text.contains(
            "first: no invitation that this process can accept: its socket is empty: another process"
        ),
        "{text}"
    );
    assert!(
        text.contains("second: no invitation that this process can accept: the environment has"),
        "{text}"
    );
}

#[test]
fn guest_with_memory_or_another_type_is_refused() {
    let _alone = settled();
    let mut command = program("has-memory");
    let invitation = invite(&mut command, "a value".to_string()).unwrap();
    refused_with(&mut command, "this process has an arena already");
    drop(command);
    assert_eq!(outcome(&invitation), InvitationState::Lapsed);

    let mut command = program("tells");
    let invitation = invite(&mut command, 7_u64).unwrap();
    refused_with(&mut command, "and alloc::string::String is expected");
    // The state is final, although the command still exists and could start another process.
    assert_eq!(outcome(&invitation), InvitationState::Lapsed);
}

#[test]
fn withdrawn_invitation_is_refused() {
    let _alone = settled();
    let scratch = Scratch::new("withdrawn");
    let file = scratch.0.join("go");
    let mut command = program(&format!("waits {}", file.display()));
    let invitation = invite(&mut command, "a value".to_string()).unwrap();
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(command);
    assert_eq!(invitation.withdraw(), InvitationState::Lapsed);
    std::fs::write(file, "").unwrap();
    let status = end(&mut child);
    let text = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    assert!(status.success() && text.contains("it was withdrawn, or the process that invited"), "{text}");
}

#[test]
fn invitation_of_a_dead_process_is_refused() {
    let _alone = settled();
    let scratch = Scratch::new("has-died");
    let file = scratch.0.join("go");
    let mut command = program("invites-and-dies");
    invite(&mut command, file.display().to_string()).unwrap();
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert!(!end(&mut child).success());
    eventually("what the dead process had is released", || {
        Arena::current().unwrap().reclaim().unwrap();
        Arena::current().unwrap().members().len() == 1
    });
    std::fs::write(file, "").unwrap();
    // The socket stays open until the orphan has closed it as well.
    let text = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    assert!(text.contains("it was withdrawn, or the process that invited has ended"), "{text}");
}

/// Copies this program into a folder that every user can enter.
fn copy(scratch: &Scratch, mode: u32) -> Command {
    let path = scratch.0.join("program");
    let own = std::env::current_exe().unwrap();
    // Another process makes the copy, because a program that is open for writing can't be executed.
    let made = Command::new("install").args(["-m", "755"]).arg(own).arg(&path).status();
    assert!(made.unwrap().success());
    for (path, mode) in [(&scratch.0, 0o755), (&path, mode)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    crate::as_guest(Command::new(path), "tells")
}

/// Configures a command to run as another user.
fn of_stranger(mut command: Command) -> Command {
    command.current_dir("/").gid(STRANGER).uid(STRANGER);
    command
}

#[test]
fn guest_of_another_user_is_refused() {
    let _alone = settled();
    if !rustix::process::geteuid().is_root() {
        return mp_harness::skip("only root can start processes of other users");
    }
    let lapses = |what: &str, command: Command, check: fn(&str) -> bool| {
        let mut command = command;
        let invitation = invite(&mut command, "a value".to_string()).unwrap();
        let line = refusal(&mut command);
        assert!(check(&line), "{what}: {line}");
        drop(command);
        assert_eq!(outcome(&invitation), InvitationState::Lapsed, "{what}");
        line
    };
    // The guest does not get the socket at all: with the socket, it could receive without the library.
    let gets_none =
        |line: &str| line.contains("does not lead to process") && !line.contains("socket of user");
    let scratch = Scratch::new("stranger");
    lapses("a command as another user", of_stranger(copy(&scratch, 0o755)), gets_none);
    // The program changes its user after it was executed.
    let mut through = Command::new("chroot");
    through.args(["--userspec=65534:65534", "/"]).arg(copy(&scratch, 0o755).get_program());
    let refuses = |line: &str| line.contains("it is a socket of user 0, and this process is of user 65534");
    lapses("a program that changes its user", crate::as_guest(through, "tells"), refuses);
    // The program has privileges that its user lacks, if the file system permits such programs.
    let scratch = Scratch::new("set-user-id");
    let ignores = |line: &str| line.contains("MP_INVITATION is ignored") || line.contains("does not lead to");
    let line = lapses("a set-user-ID program", of_stranger(copy(&scratch, 0o4755)), ignores);
    if !line.contains("ignored") {
        mp_harness::skip(format_args!(
            "the file system of {} has no set-user-ID programs",
            scratch.0.display()
        ));
    }
}
