//! Programs that connect, and share nothing with the inviting process.

use std::sync::OnceLock;

use mp::connection::{InvitationState, SocketOptions};
use mp::message::MessageError;
use mp::{Connection, GetError, Listener, PutError, Queue, Tensor, connect, pipe};
use mp_core::inject;
use mp_tests::kill::{KILL, for_every_access};
use mp_tests::parcel::Parcel;
use mp_tests::{DEADLINE, eventually, eventually_in_use, give, in_use, settled, take};

use crate::{end, guest as program, outcome};

type Work = (Queue<Tensor<f32>>, Queue<f32>);

/// Number of threads of a program that accept at the same time.
const THREADS: usize = 8;

pub(crate) fn guest(what: &str, argument: &str) -> bool {
    let (address, at) = argument.split_once(' ').unwrap_or((argument, "0"));
    match what {
        "connects" => {
            let there = SocketOptions::new().authkey("secret").connect(address).unwrap();
            there.send(1_u8).unwrap();
            let (jobs, sums) = there.accept_invitation_timeout::<Work>(DEADLINE).unwrap();
            while let Some(batch) = jobs.get().unwrap() {
                sums.put(batch.iter().sum()).unwrap();
            }
            // The connection continues.
            there.send("done".to_string()).unwrap();
        }
        "receives" => {
            let there = connect(address).unwrap();
            // First a message arrives where an invitation is expected, and then an invitation where a message
            // is expected.
            let early = there.accept_invitation_timeout::<Work>(DEADLINE).unwrap_err();
            assert!(early.to_string().contains("a message comes before it"), "{early}");
            assert_eq!(there.recv_timeout::<u8>(DEADLINE).unwrap(), 1);
            let error = there.recv_timeout::<u8>(DEADLINE).unwrap_err();
            assert!(
                error.to_string().contains("an invitation, for Connection::accept_invitation"),
                "{error}"
            );
            assert_eq!(there.recv_timeout::<u8>(DEADLINE).unwrap(), 2);
        }
        "is-refused-first" => {
            let there = connect(address).unwrap();
            there.send(1_u8).unwrap();
            // The other side reports the refusal, and invites.
            let queue = there.accept_invitation_timeout::<Queue<u32>>(DEADLINE).unwrap();
            queue.put(7).unwrap();
        }
        "sends-late" => {
            let there = connect(address).unwrap();
            let mut sent = Ok(());
            eventually("the other side is gone", || {
                sent = there.send(1_u8);
                sent.is_err()
            });
            assert!(matches!(sent, Err(PutError::TypeRefused { .. })), "{sent:?}");
            assert_eq!(there.recv_timeout::<u8>(DEADLINE).unwrap(), 2);
            let queue = there.accept_invitation_timeout::<Queue<u32>>(DEADLINE).unwrap();
            queue.put(8).unwrap();
        }
        "accepts-in-threads" => {
            let ends: Vec<_> = (0..THREADS).map(|_| connect(address).unwrap()).collect();
            let accept = |there: &Connection| there.accept_invitation_timeout::<Queue<u32>>(DEADLINE);
            let accepted: Vec<Result<_, _>> = std::thread::scope(|scope| {
                let threads: Vec<_> = ends.iter().map(|there| scope.spawn(|| accept(there))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for error in accepted.iter().filter_map(|accepted| accepted.as_ref().err()) {
                assert!(error.to_string().contains("before anything uses shared memory"), "{error}");
            }
            let queue = accepted.into_iter().find_map(Result::ok).expect("one of the calls is accepted");
            queue.put(9).unwrap();
        }
        "dies-connected" => {
            let there = connect(address).unwrap();
            inject::arm(at.parse().unwrap(), KILL);
            drop(there.accept_invitation::<Parcel>().unwrap());
        }
        _ => return false,
    }
    true
}

fn name(test: &str) -> String {
    format!("@mp-test-{}-{test}", std::process::id())
}

#[track_caller]
fn accept(listener: &Listener) -> Connection {
    listener.accept_timeout(DEADLINE).unwrap().expect("a connection")
}

#[test]
fn unrelated_invited_program_shares_queues() {
    let _alone = settled();
    let (name, before) = (name("joins"), in_use());
    let listener = SocketOptions::new().authkey("secret").listen(name.as_str()).unwrap();
    let mut child = program(&format!("connects {name}")).stdout(std::process::Stdio::null()).spawn().unwrap();
    let here = accept(&listener);
    assert_eq!(here.recv_timeout::<u8>(DEADLINE).unwrap(), 1);
    let (jobs, sums) = (Queue::bounded(2).unwrap(), Queue::<f32>::bounded(2).unwrap());
    let invitation = here.invite((jobs.clone(), sums.clone())).unwrap();
    for i in 0..10 {
        give(&jobs, Tensor::full([1000], i as f32).unwrap());
        assert_eq!(take(&sums), 1000.0 * i as f32);
    }
    assert_eq!(invitation.state(), InvitationState::Accepted);
    jobs.close();
    assert_eq!(here.recv_timeout::<String>(DEADLINE).unwrap(), "done");
    assert!(end(&mut child).success());
    drop((jobs, sums, invitation));
    eventually_in_use(before, "all memory is released");
}

#[test]
fn invitation_received_as_a_message_lapses() {
    let _alone = settled();
    let (name, before) = (name("receives"), in_use());
    let listener = Listener::bind(name.as_str()).unwrap();
    let mut child = program(&format!("receives {name}")).stdout(std::process::Stdio::null()).spawn().unwrap();
    let here = accept(&listener);
    here.send(1_u8).unwrap();
    let queues = (Queue::<Tensor<f32>>::bounded(2).unwrap(), Queue::<f32>::bounded(2).unwrap());
    let invitation = here.invite(queues).unwrap();
    here.send(2_u8).unwrap();
    assert!(end(&mut child).success());
    assert_eq!(outcome(&invitation), InvitationState::Lapsed);
    eventually_in_use(before, "all memory is released");
    // The peer has ended, and the value is returned.
    let queue = Queue::<u8>::bounded(1).unwrap();
    match here.invite((queue, "mine".to_string())) {
        Err(PutError::Disconnected((queue, text))) => {
            queue.put(1).unwrap();
            assert_eq!((queue.get().unwrap(), text.as_str()), (Some(1), "mine"));
        }
        other => panic!("{other:?}"),
    }
    eventually_in_use(before, "all memory is released");
}

/// The inviting process refuses a message of the guest, and then invites the guest. So the guest receives the
/// note about the refusal before the invitation, or before a message that precedes the invitation.
#[test]
fn invitation_after_a_refusal_is_accepted() {
    let _alone = settled();
    let (name, before) = (name("refuses"), in_use());
    let listener = Listener::bind(name.as_str()).unwrap();
    for (guest, expected) in [("is-refused-first", 7), ("sends-late", 8)] {
        let mut child =
            program(&format!("{guest} {name}")).stdout(std::process::Stdio::null()).spawn().unwrap();
        let here = accept(&listener);
        let error = here.recv_timeout::<String>(DEADLINE).unwrap_err();
        assert!(matches!(error, GetError::Failed(MessageError::TypeMismatch { .. })), "{error:?}");
        let queue = Queue::<u32>::bounded(1).unwrap();
        if guest == "sends-late" {
            here.send(2_u8).unwrap();
        }
        let invitation = here.invite(queue.clone()).unwrap();
        drop(here);
        assert_eq!(take(&queue), expected);
        assert!(end(&mut child).success(), "{guest}");
        assert_eq!(invitation.state(), InvitationState::Accepted);
    }
    drop(listener);
    eventually_in_use(before, "all memory is released");
}

#[test]
fn one_of_concurrent_invitations_is_accepted() {
    let _alone = settled();
    let (name, before) = (name("threads"), in_use());
    let listener = Listener::bind(name.as_str()).unwrap();
    let mut command = program(&format!("accepts-in-threads {name}"));
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let ends: Vec<_> = (0..THREADS).map(|_| accept(&listener)).collect();
    let queue = Queue::<u32>::bounded(1).unwrap();
    let invitations: Vec<_> = ends.iter().map(|here| here.invite(queue.clone()).unwrap()).collect();
    assert_eq!(take(&queue), 9);
    assert!(end(&mut child).success());
    let accepted = invitations.iter().filter(|one| outcome(one) == InvitationState::Accepted);
    assert_eq!(accepted.count(), 1);
    drop((queue, invitations));
    eventually_in_use(before, "all memory is released");
}

#[test]
fn unreceived_invitation_lapses() {
    let _alone = settled();
    let (name, before) = (name("gone"), in_use());
    let listener = Listener::bind(name.as_str()).unwrap();
    let there = connect(name.as_str()).unwrap();
    let here = accept(&listener);
    let invitation = here.invite(Tensor::<u8>::zeros([1000]).unwrap().freeze()).unwrap();
    assert_ne!(in_use(), before);
    assert_eq!(invitation.state(), InvitationState::Open);
    // This process has memory already, so it can't become a guest.
    let error = there.accept_invitation::<u8>().unwrap_err();
    let GetError::Failed(MessageError::Memory(mp::Error::ArenaExists(_))) = error else { panic!("{error}") };
    assert_eq!(outcome(&invitation), InvitationState::Lapsed);
    let invitation = here.invite(Tensor::<u8>::zeros([1000]).unwrap().freeze()).unwrap();
    drop(there);
    assert_eq!(outcome(&invitation), InvitationState::Lapsed);
    drop(invitation);
    eventually_in_use(before, "all memory is released");
    let (one, other) = pipe().unwrap();
    assert!(matches!(one.invite(1), Err(PutError::Failed { value: 1, .. })));
    assert!(matches!(other.accept_invitation::<u8>(), Err(GetError::Failed(_))));
}

#[test]
fn program_killed_while_accepting_leaks_nothing() {
    let name = name("killed");
    // No other test counts open files at the same time.
    let listener = OnceLock::new();
    for_every_access(|at| {
        let listener = listener.get_or_init(|| Listener::bind(name.as_str()).unwrap());
        let mut child = program(&format!("dies-connected {name} {at}"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let here = accept(listener);
        let parcel = Parcel::new(7, &Tensor::zeros([1000]).unwrap().freeze()).unwrap();
        let invitation = here.invite(parcel).unwrap();
        let status = end(&mut child);
        drop(here);
        assert_ne!(outcome(&invitation), InvitationState::Open);
        !status.success()
    });
}
