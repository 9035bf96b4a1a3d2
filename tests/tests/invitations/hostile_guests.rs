//! Guests that break the protocol at one of its steps, and stop, end or are killed at this step. The inviting
//! process refuses them or waits as documented, keeps nothing that belongs to them, and serves the next
//! guest.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use mp::connection::{ConnectError, Invitation, InvitationState, SocketOptions};
use mp::{Arena, Connection, Listener, PutError, Queue};
use mp_harness::hostile::{Random, hex, unhex};
use mp_tests::{
    DEADLINE, alive, eventually, eventually_none, in_use, open_files, settled, signal, take, threads_are,
};
use rustix::process::Signal;

use crate::raw::{self, HELLO, PACKET, PROOF};
use crate::{end, guest as program};

const SECRET: &str = "secret";

/// Result of the inviting process for a hostile guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// Incomplete handshake: the listener waits for more bytes.
    Nothing,
    /// Error of `accept` with this text.
    Refused(&'static str),
    /// Connection and invitation that the guest has not accepted.
    Invited,
    /// Connection and invitation that has lapsed.
    Lapsed,
}
use Seen::{Invited, Lapsed, Nothing, Refused};

/// Name of the case, `true` if both sides have a key, and result.
const CASES: &[(&str, bool, Seen)] = &[
    ("says nothing", false, Nothing),
    ("half a hello", false, Nothing),
    ("random bytes", false, Refused("sent no valid hello")),
    ("another version", false, Refused("another version")),
    ("a key that is not asked for", false, Refused("key")),
    ("too long a hello", false, Invited),
    ("says nothing to a key", true, Nothing),
    ("no key", true, Refused("key")),
    ("a hello without a proof", true, Nothing),
    ("half a proof", true, Nothing),
    ("a wrong proof", true, Refused("key")),
    ("a replayed handshake", true, Refused("key")),
    ("a reflected hello", true, Refused("key")),
    ("only a hello", false, Invited),
    ("a hello with descriptors", false, Invited),
    ("takes the announcement", false, Invited),
    ("takes the packet", false, Invited),
    ("takes the packet and leaves its socket", false, Lapsed),
    ("reports what it has not read", false, Lapsed),
    ("reports nonsense", false, Lapsed),
    ("reports a descriptor", false, Lapsed),
];

/// Runs the scenario of a guest. Not a test.
pub(crate) fn guest(what: &str, argument: &str) -> bool {
    let mut arguments = argument.split(' ');
    let mut next = || arguments.next().unwrap_or_default();
    match what {
        "is-hostile" => misbehave(next(), next().parse().unwrap(), next() == "stops", next()),
        "is-honest" => {
            let (address, key) = (next(), next() == "true");
            let options = if key { SocketOptions::new().authkey(SECRET) } else { SocketOptions::new() };
            let there = options.connect(address).unwrap();
            there.accept_invitation_timeout::<Queue<u32>>(DEADLINE).unwrap().put(7).unwrap();
        }
        _ => return false,
    }
    true
}

fn misbehave(address: &str, case: usize, stops: bool, recorded: &str) {
    let there = UnixStream::connect_addr(&raw::abstract_address(address)).unwrap();
    there.set_read_timeout(Some(DEADLINE)).unwrap();
    let files = [there.as_fd(); 3];
    let say = |bytes: &[u8]| raw::send(&there, bytes, &[]);
    let mut way = None;
    match CASES[case].0 {
        "says nothing" | "says nothing to a key" => {}
        "half a hello" => say(&raw::greeting()[..20]),
        "random bytes" => {
            let mut random = Random(11);
            say(&std::iter::repeat_with(|| random.number() as u8).take(500).collect::<Vec<_>>());
        }
        "another version" => say(&raw::hello(9, false)),
        "a key that is not asked for" => say(&raw::hello(8, true)),
        "too long a hello" => say(&[&raw::greeting()[..], &[0xff; 500]].concat()),
        "no key" | "only a hello" => say(&raw::greeting()),
        "a hello without a proof" => say(&raw::hello(8, true)),
        "half a proof" => say(&[&raw::hello(8, true)[..], &[1; PROOF / 2]].concat()),
        "a wrong proof" => say(&[&raw::hello(8, true)[..], &[1; PROOF]].concat()),
        "a replayed handshake" => say(&unhex(recorded).unwrap()),
        "a reflected hello" => {
            // Sent with the listener's own random bytes, and with the bytes that it answers to a wrong proof.
            let (hello, _) = raw::receive(&there, HELLO);
            say(&[&hello[..], &[0; PROOF]].concat());
        }
        "a hello with descriptors" => raw::send(&there, &raw::greeting(), &files),
        _ => {
            say(&raw::greeting());
            raw::receive(&there, HELLO);
            way = raw::receive(&there, raw::announcement().len()).1;
            assert!(way.is_some());
        }
    }
    if let Some(socket) = &way
        && CASES[case].0 != "takes the announcement"
    {
        let (packet, arena) = raw::receive(socket, PACKET);
        assert!(arena.is_some() && packet.starts_with(b"mp-guest"));
        match CASES[case].0 {
            "takes the packet" => {}
            "takes the packet and leaves its socket" => way = None,
            "reports what it has not read" => raw::send(socket, &[1], &[]),
            "reports nonsense" => raw::send(socket, &[7; 100], &[]),
            "reports a descriptor" => raw::send(socket, &[0], &files),
            other => panic!("{other}"),
        }
    }
    if stops {
        signal(std::process::id(), Signal::STOP);
        // Another thread may have received the signal, so this thread may still run for a moment.
        std::thread::sleep(DEADLINE); // sleep: until it is killed
    }
    drop(way);
}

/// Inviting process with two listeners, of which the second has a key.
struct Inviter {
    names: [String; 2],
    listeners: [Listener; 2],
}

impl Inviter {
    fn new(what: &str) -> Self {
        let names = ["open", "key"].map(|kind| format!("@mp-test-{}-{what}-{kind}", std::process::id()));
        // A stopped guest stays in its handshake until it is killed.
        let options = SocketOptions::new().handshake_timeout(2 * DEADLINE);
        let keyed = options.clone().authkey(SECRET).listen(names[1].as_str()).unwrap();
        Self { listeners: [options.listen(names[0].as_str()).unwrap(), keyed], names }
    }

    /// Checks that a guest that uses the library is served.
    #[track_caller]
    fn serves_next(&self, key: bool) {
        let i = usize::from(key);
        let mut child = program(&format!("is-honest {} {key}", self.names[i])).stdout(Stdio::null()).spawn();
        let until = Instant::now() + DEADLINE;
        let here = loop {
            match self.listeners[i].accept_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Some(here)) => break here,
                Ok(None) => panic!("no guest within {DEADLINE:?}"),
                // The error belongs to the hostile guest, which was killed.
                Err(error) => assert!(error.is_of_peer(), "{error}"),
            }
        };
        let queue = Queue::<u32>::bounded(1).unwrap();
        let invitation = here.invite(queue.clone()).unwrap();
        assert_eq!(take(&queue), 7);
        assert!(end(child.as_mut().unwrap()).success());
        assert_eq!(invitation.state(), InvitationState::Accepted);
    }

    /// Accepts connections and invites guests until the hostile guest has stopped or ended.
    fn observe(&self, key: bool, child: &Child) -> (Option<ConnectError>, Option<(Connection, Invitation)>) {
        let (mut refused, mut invited) = (None, None);
        let mut look = || match self.listeners[usize::from(key)].accept_timeout(Duration::ZERO) {
            Ok(None) => {}
            Ok(Some(here)) => {
                let queue = Queue::<u32>::bounded(1).unwrap();
                match here.invite(queue) {
                    Ok(invitation) => invited = Some((here, invitation)),
                    // The guest has ended.
                    Err(error) => assert!(matches!(error, PutError::Disconnected(_)), "{error:?}"),
                }
            }
            Err(error) => refused = Some(error),
        };
        eventually("the guest stops or ends", || {
            look();
            threads_are(child.id(), 'T') || !alive(child.id())
        });
        // Handles the actions of the guest just before it stopped.
        look();
        (refused, invited)
    }

    /// Runs one case. If `stops` is set, the guest stops at the end of its case and is then killed.
    /// Otherwise, the guest exits.
    fn endure(&self, case: usize, stops: bool, recorded: &str) {
        let (what, key, expected) = CASES[case];
        let address = &self.names[usize::from(key)];
        let ends = if stops { "stops" } else { "ends" };
        let mut command = program(&format!("is-hostile {address} {case} {ends} {recorded}"));
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let (refused, invited) = self.observe(key, &child);
        if let Some(error) = &refused {
            assert!(error.is_of_peer(), "{what}, {ends}: {error}");
        }
        let seen = match (&refused, &invited) {
            (None, None) => Nothing,
            // The listener may accept a guest before the guest ends.
            (Some(ConnectError::Gone), None) if !stops && expected == Nothing => Nothing,
            (Some(error), None) => match expected {
                Refused(text) if error.to_string().contains(text) => expected,
                _ => panic!("{what}, {ends}: {error}"),
            },
            (None, Some((_, invitation))) => match invitation.state() {
                InvitationState::Open => Invited,
                InvitationState::Lapsed => Lapsed,
                InvitationState::Accepted => panic!("{what}, {ends}: accepted"),
            },
            both => panic!("{what}, {ends}: {both:?}"),
        };
        if stops {
            assert_eq!(seen, expected, "{what}");
            // The stopped guest still holds everything that it has received.
            self.serves_next(key);
            assert!(threads_are(child.id(), 'T'), "{what}");
            signal(child.id(), Signal::KILL);
        }
        assert_eq!(end(&mut child).success(), !stops, "{what}");
        if let Some((here, invitation)) = invited {
            // A socket that was not received is still in the connection.
            drop(here);
            assert_eq!(invitation.wait_timeout(DEADLINE).unwrap(), InvitationState::Lapsed, "{what}, {ends}");
        }
        self.serves_next(key);
    }
}

/// Returns the bytes that a client with the key sends in its handshake.
fn recorded(inviter: &Inviter) -> String {
    let between = format!("{}-between", inviter.names[1]);
    let proxy = UnixListener::bind_addr(&raw::abstract_address(&between)).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| SocketOptions::new().authkey(SECRET).connect(between.as_str()).map(drop));
        let accepts = scope.spawn(|| inviter.listeners[1].accept_timeout(DEADLINE).map(drop));
        let (client_side, _) = proxy.accept().unwrap();
        let listener_side = UnixStream::connect_addr(&raw::abstract_address(&inviter.names[1])).unwrap();
        for side in [&client_side, &listener_side] {
            side.set_read_timeout(Some(DEADLINE)).unwrap();
        }
        let pass = |from: &UnixStream, to: &UnixStream, len| {
            let (bytes, _) = raw::receive(from, len);
            raw::send(to, &bytes, &[]);
            bytes
        };
        let mut said = pass(&client_side, &listener_side, HELLO);
        pass(&listener_side, &client_side, HELLO);
        said.extend(pass(&client_side, &listener_side, PROOF));
        pass(&listener_side, &client_side, PROOF);
        client.join().unwrap().unwrap();
        accepts.join().unwrap().unwrap();
        hex(&said)
    })
}

#[test]
fn hostile_guest_leaks_no_resources() {
    let _alone = settled();
    let inviter = Inviter::new("endures");
    let recorded = recorded(&inviter);
    inviter.serves_next(false);
    inviter.serves_next(true);
    let before = left();
    for stops in [true, false] {
        for (case, (what, ..)) in CASES.iter().enumerate() {
            inviter.endure(case, stops, &recorded);
            eventually_none(&format!("nothing is left of: {what}"), || {
                let now = left();
                (now != before).then(|| format!(": {now:?}, before {before:?}"))
            });
        }
    }
}

/// Returns the numbers of open descriptors and of blocks, messages and members.
fn left() -> (usize, (u64, u64, u64)) {
    Arena::current().unwrap().reclaim().unwrap();
    (open_files(), in_use())
}
