//! Programs that connect and send before the listener accepts: as with any socket, the kernel queues them. An
//! error of the other side is returned as soon as it is known.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use mp::connection::{ConnectError, SocketOptions, connect_async};
use mp::{Connection, GetError, Listener, PutError, connect, wait};
use mp_tests::block_on::{block_on, poll_once};
use mp_tests::{DEADLINE, alone, eventually};

const MOMENT: Duration = Duration::from_millis(50);

/// Returns a name that no other test listens at.
fn name(what: &str) -> String {
    format!("@mp-before-{what}-{}", std::process::id())
}

fn accepted(listener: &Listener) -> Connection {
    listener.accept_timeout(DEADLINE).unwrap().expect("a client is connected")
}

#[test]
fn one_thread_connects_sends_and_then_accepts() {
    let _alone = alone();
    let listener = Listener::bind(name("one")).unwrap();
    let there = connect(name("one")).unwrap();
    assert_eq!(there.peer_pid(), Some(std::process::id()));
    there.send("before".to_string()).unwrap();
    there.send_bytes(b"raw").unwrap();
    // No answer has arrived yet, and the listener's hello isn't mistaken for a message.
    assert!(there.try_recv::<u8>().unwrap_err().is_empty());
    assert!(there.recv_timeout::<u8>(MOMENT).unwrap_err().is_empty());
    assert!(!there.is_disconnected());
    let here = accepted(&listener);
    assert!(!there.poll(MOMENT).unwrap(), "the listener's hello does not count as a message");
    assert_eq!(wait(&[&there], Some(MOMENT)).unwrap(), []);
    assert!(poll_once(&mut Box::pin(there.recv_async::<u8>())).is_pending());
    assert_eq!(here.recv_timeout::<String>(DEADLINE).unwrap(), "before");
    assert_eq!(here.recv_bytes_timeout(DEADLINE).unwrap(), b"raw");
    here.send(5_u8).unwrap();
    assert!(there.poll(DEADLINE).unwrap());
    assert_eq!(wait(&[&there], Some(DEADLINE)).unwrap(), [0]);
    assert_eq!(there.recv::<u8>().unwrap(), 5);
    // As futures.
    let there = block_on(connect_async(name("one"))).unwrap();
    block_on(there.send_async(6_u8)).unwrap();
    let here = accepted(&listener);
    assert_eq!(here.recv_timeout::<u8>(DEADLINE).unwrap(), 6);
    here.send(7_u8).unwrap();
    assert_eq!(block_on(there.recv_async::<u8>()).unwrap(), 7);
}

#[test]
fn messages_of_a_departed_client_are_received() {
    let _alone = alone();
    let listener = Listener::bind(name("left")).unwrap();
    for i in 0..3_u32 {
        let there = connect(name("left")).unwrap();
        there.send(i).unwrap();
        there.send("last".to_string()).unwrap();
    }
    for i in 0..3 {
        let here = accepted(&listener);
        assert_eq!(here.recv_timeout::<u32>(DEADLINE).unwrap(), i);
        assert_eq!(here.recv_timeout::<String>(DEADLINE).unwrap(), "last");
        assert!(matches!(here.recv_timeout::<u32>(DEADLINE), Err(GetError::Disconnected)));
    }
}

#[test]
fn backlog_limits_queued_connections() {
    let _alone = alone();
    let options = SocketOptions::new().backlog(3).handshake_timeout(MOMENT);
    let listener = options.listen(name("backlog")).unwrap();
    let there: Vec<Connection> = (0..3).map(|_| options.connect(name("backlog")).unwrap()).collect();
    let full = options.connect(name("backlog"));
    assert!(matches!(full, Err(ConnectError::TimedOut(MOMENT))), "{full:?}");
    let full = block_on(options.connect_async(name("backlog")));
    assert!(matches!(full, Err(ConnectError::TimedOut(MOMENT))), "{full:?}");
    // After some connections were accepted, there is room again.
    let here = accepted(&listener);
    there[0].send(1_u8).unwrap();
    assert_eq!(here.recv_timeout::<u8>(DEADLINE).unwrap(), 1);
    options.connect(name("backlog")).unwrap();
    assert!(format!("{options:?}").contains("backlog: 3"), "{options:?}");
}

#[test]
fn one_sided_connection_key_fails_the_first_receive() {
    let _alone = alone();
    let listener = SocketOptions::new().authkey("secret").listen(name("key")).unwrap();
    let meets = || {
        let there = connect(name("key")).unwrap();
        let refused = listener.accept_timeout(DEADLINE);
        assert!(matches!(refused, Err(ConnectError::KeyMissing { here: false })), "{refused:?}");
        there
    };
    let there = meets();
    assert!(there.poll(DEADLINE).unwrap(), "receiving would not wait");
    assert_eq!(wait(&[&there], Some(DEADLINE)).unwrap(), [0]);
    let error = there.recv::<u8>().unwrap_err();
    assert!(matches!(error.refused(), Some(ConnectError::KeyMissing { here: true })), "{error:?}");
    assert!(error.to_string().contains("only the other side has an authentication key"), "{error}");
    assert!(matches!(there.recv::<u8>(), Err(GetError::Disconnected)));
    // The error can also be that of a send, which returns the value.
    let there = meets();
    eventually("the listener has closed the connection", || there.is_disconnected());
    let error = there.send("a value".to_string()).unwrap_err();
    assert!(matches!(error.refused(), Some(ConnectError::KeyMissing { here: true })), "{error:?}");
    assert_eq!(error.into_value(), "a value");
    assert!(matches!(there.send(1_u8), Err(PutError::Disconnected(1))));
    let error = block_on(meets().recv_async::<u8>()).unwrap_err();
    assert!(matches!(error.refused(), Some(ConnectError::KeyMissing { here: true })), "{error:?}");
    // A client with a key waits for the proof.
    let keyed = SocketOptions::new().authkey("secret").handshake_timeout(MOMENT);
    let unproved = keyed.connect(name("key"));
    assert!(matches!(unproved, Err(ConnectError::TimedOut(MOMENT))), "{unproved:?}");
}

#[test]
fn foreign_listener_fails_the_first_receive() {
    let _alone = alone();
    let address = SocketAddr::from_abstract_name(&name("foreign")[1..]).unwrap();
    let foreign = UnixListener::bind_addr(&address).unwrap();
    let mut other_version = b"mp-sock\x04\x00".to_vec();
    other_version.resize(41, 7);
    for (said, why) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n and so on it goes".to_vec(), "no valid hello"),
        (other_version, "version"),
    ] {
        let there = connect(name("foreign")).unwrap();
        there.send(1_u8).unwrap();
        let (mut stream, _) = foreign.accept().unwrap();
        // The bytes are sent in pieces.
        stream.write_all(&said[..20]).unwrap();
        assert!(there.try_recv::<u8>().unwrap_err().is_empty());
        assert!(!there.poll(Duration::ZERO).unwrap());
        stream.write_all(&said[20..]).unwrap();
        let error = there.recv_timeout::<u8>(DEADLINE).unwrap_err();
        assert!(matches!(error.refused(), Some(ConnectError::Incompatible(_))), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(matches!(there.recv_timeout::<u8>(DEADLINE), Err(GetError::Disconnected)));
    }
    // The listener is dropped without having accepted the connection.
    let there = connect(name("foreign")).unwrap();
    assert!(there.recv_timeout::<u8>(MOMENT).unwrap_err().is_empty(), "not accepted yet");
    drop(foreign);
    assert!(matches!(there.recv_timeout::<u8>(DEADLINE), Err(GetError::Disconnected)));
    assert!(matches!(there.send(1_u8), Err(PutError::Disconnected(1))));
}
