//! Children that `std::process::Command` starts.

use std::process::{Command, Stdio};
use std::time::Duration;

use mp::connection::{Invitation, InvitationState, accept_invitation, invite};
use mp::{Arena, GetError, Process, Queue, SharedTensor, Tensor};
use mp_core::inject;
use mp_tests::kill::{KILL, for_every_access};
use mp_tests::parcel::Parcel;
use mp_tests::{DEADLINE, eventually_in_use, give, in_use, open_files, settled, take};

use crate::{as_guest, end, guest as program, outcome, said, sockets};

/// Arguments of most guests: jobs, results, and memory that all processes write.
type Work = (Queue<Tensor<f32>>, Queue<f32>, SharedTensor<u32>);

pub(crate) fn guest_works() {
    let (jobs, sums, seen) = accept_invitation::<Work>().unwrap();
    while let Some(batch) = jobs.get().unwrap() {
        seen.fetch_add(0, 1);
        sums.put(batch.iter().sum()).unwrap();
    }
}

fn puts((sums, value): (Queue<f32>, f32)) -> mp::AnyResult<()> {
    Ok(sums.put(value).map_err(|e| e.to_string())?)
}

pub(crate) fn guest(what: &str, argument: &str) -> bool {
    match what {
        "works" => guest_works(),
        "inherits" => {
            let sums = accept_invitation::<Queue<f32>>().unwrap();
            assert_eq!(
                sockets().len(),
                2,
                "the arena's parcel and the table of its locker, and nothing else"
            );
            assert_eq!(std::env::var_os("MP_INVITATION"), None);
            let script =
                "test -z \"${MP_INVITATION+set}\" && ! ls -l /proc/self/fd | grep -E 'socket:|arena'";
            assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
            sums.put(1.0).unwrap();
        }
        "starts-workers" => {
            let sums = accept_invitation::<Queue<f32>>().unwrap();
            let worker = Process::spawn(puts, (sums.clone(), 2.0)).unwrap();
            worker.join().unwrap();
            // The guest also invites other programs.
            let mut command = program("inherits");
            command.stdout(Stdio::null());
            invite(&mut command, sums).unwrap();
            let mut child = command.spawn().unwrap();
            assert!(end(&mut child).success());
        }
        "dies" => {
            inject::arm(argument.parse().unwrap(), KILL);
            drop(accept_invitation::<Parcel>().unwrap());
        }
        "dies-with-a-queue" => {
            inject::arm(argument.parse().unwrap(), KILL);
            drop(accept_invitation::<Queue<u8>>().unwrap());
        }
        _ => return false,
    }
    true
}

/// Waits until usage of memory and the number of open files are back to `before`.
#[track_caller]
fn nothing_left(before: ((u64, u64, u64), usize), what: &str) {
    eventually_in_use(before.0, what);
    assert_eq!(open_files(), before.1, "{what}");
}

/// Returns the usage of shared memory, and the number of open files. Calls `invite` first, because the first
/// call opens a descriptor that stays open for later children.
fn there() -> ((u64, u64, u64), usize) {
    let mut command = Command::new("true");
    invite(&mut command, 1_u8).unwrap();
    drop(command);
    Arena::current().unwrap().reclaim().unwrap();
    (in_use(), open_files())
}

#[test]
fn invited_program_shares_queues_and_memory() {
    let _alone = settled();
    let before = there();
    let (jobs, sums) = (Queue::bounded(2).unwrap(), Queue::<f32>::bounded(2).unwrap());
    let seen = Tensor::<u32>::zeros([1]).unwrap().share();
    let mut command = program("works");
    command.stdout(Stdio::null());
    let invitation = invite(&mut command, (jobs.clone(), sums.clone(), seen.clone())).unwrap();
    assert_eq!(invitation.state(), InvitationState::Open);
    let mut child = command.spawn().unwrap();
    // The state is final even though the command still exists, and could start another process.
    assert_eq!(outcome(&invitation), InvitationState::Accepted);
    for i in 0..10 {
        give(&jobs, Tensor::full([1000], i as f32).unwrap());
        assert_eq!(take(&sums), 1000.0 * i as f32);
    }
    assert_eq!(seen.fetch_add(0, 0), 10);
    jobs.close();
    assert!(end(&mut child).success());
    assert_eq!(invitation.withdraw(), InvitationState::Accepted);
    drop((command, jobs, sums, seen));
    nothing_left(before, "all is released");
}

#[test]
fn invitation_is_not_inherited_by_grandchildren() {
    let _alone = settled();
    let before = there();
    let sums = Queue::<f32>::bounded(4).unwrap();
    let mut command = program("inherits");
    let invitation = invite(&mut command, sums.clone()).unwrap();
    said(&mut command);
    drop(command);
    assert_eq!((take(&sums), invitation.state()), (1.0, InvitationState::Accepted));
    // The guest is started through a shell, which does not use this library.
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let mut command = as_guest(command, "inherits");
    let through = invite(&mut command, sums.clone()).unwrap();
    said(&mut command);
    assert_eq!((take(&sums), through.state()), (1.0, InvitationState::Accepted));
    drop((command, invitation, through, sums));
    nothing_left(before, "all is released");
}

#[test]
fn guest_starts_workers_and_invites() {
    let _alone = settled();
    let sums = Queue::<f32>::bounded(4).unwrap();
    let mut command = program("starts-workers");
    invite(&mut command, sums.clone()).unwrap();
    said(&mut command);
    assert_eq!([take(&sums), take(&sums)], [2.0, 1.0]);
}

/// Creates a parcel whose memory has no other handle in this process.
fn parcel() -> Parcel {
    Parcel::new(7, &Tensor::zeros([1000]).unwrap().freeze()).unwrap()
}

#[test]
fn unaccepted_invitation_is_released() {
    let _alone = settled();
    let before = there();
    let released = |what: &str, invitation: Invitation| {
        eventually_in_use(before.0, what);
        assert_eq!(invitation.state(), InvitationState::Lapsed, "{what}");
        drop(invitation);
        nothing_left(before, what);
    };
    let mut command = Command::new("true");
    let invitation = invite(&mut command, parcel()).unwrap();
    assert_eq!(invitation.state(), InvitationState::Open);
    assert_ne!(in_use(), before.0);
    drop(command);
    released("a command that started nothing", invitation);

    let mut command = Command::new("/no/such/program");
    let invitation = invite(&mut command, parcel()).unwrap();
    command.spawn().unwrap_err();
    drop(command);
    released("a program that could not be executed", invitation);

    let mut command = Command::new("true");
    let invitation = invite(&mut command, parcel()).unwrap();
    let mut child = command.spawn().unwrap();
    drop(command);
    assert!(end(&mut child).success());
    released("a program that knows nothing of it", invitation);

    let mut command = Command::new("cat");
    let invitation = invite(&mut command, parcel()).unwrap();
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    drop(command);
    Arena::current().unwrap().reclaim().unwrap();
    assert_eq!(invitation.state(), InvitationState::Open, "the child may accept it");
    child.kill().unwrap();
    end(&mut child);
    drop(child);
    released("a child that was killed", invitation);

    let mut command = Command::new("true");
    let invitation = invite(&mut command, parcel()).unwrap();
    let another = invitation.clone();
    assert_eq!(another.withdraw(), InvitationState::Lapsed);
    drop(command);
    released("an invitation that was withdrawn", invitation);
}

#[test]
fn guest_killed_while_accepting_leaks_nothing() {
    for_every_access(|at| {
        let mut command = program(&format!("dies {at}"));
        let invitation = invite(&mut command, parcel()).unwrap();
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        drop(command);
        let status = end(&mut child);
        assert_ne!(outcome(&invitation), InvitationState::Open);
        !status.success()
    });
}

#[test]
fn guest_killed_at_every_access_ends_gets() {
    for_every_access(|at| {
        let queue = Queue::<u8>::bounded(1).unwrap();
        let mut command = program(&format!("dies-with-a-queue {at}"));
        invite(&mut command, queue.clone()).unwrap();
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        drop(command);
        let got = queue.get_timeout(DEADLINE);
        assert!(matches!(got, Err(GetError::Deserted { .. })), "killed at access {at}: {got:?}");
        !end(&mut child).success()
    });
}

#[test]
fn withdrawn_invitation_ends_gets() {
    let _alone = settled();
    let queue = Queue::<u8>::bounded(1).unwrap();
    let mut command = program("works");
    let invitation = invite(&mut command, queue.clone()).unwrap();
    assert!(queue.get_timeout(Duration::from_millis(1)).unwrap_err().is_empty());
    assert_eq!(invitation.withdraw(), InvitationState::Lapsed);
    let got = queue.get_timeout(DEADLINE);
    assert!(matches!(got, Err(GetError::Deserted { last: None, .. })), "{got:?}");
}
