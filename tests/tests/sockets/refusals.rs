//! Notes about refused messages. The peers of these tests do not use the library.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;
use std::time::Duration;

use mp::message::MessageError;
use mp::{Connection, GetError, Listener, PutError};
use mp_tests::{DEADLINE, alone, eventually};

/// Returns a connection, and the socket of the other side, which has sent its hello.
fn connected(what: &str) -> (Connection, UnixStream) {
    let name = format!("@mp-test-{what}-{}", std::process::id());
    let listener = Listener::bind(name.as_str()).unwrap();
    let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
    let mut there = UnixStream::connect_addr(&address).unwrap();
    let mut hello = b"mp-sock\x08\x00".to_vec();
    hello.resize(8 + 1 + 32, 7);
    there.write_all(&hello).unwrap();
    (listener.accept_timeout(DEADLINE).unwrap().unwrap(), there)
}

fn frame(fingerprint: u64, length_of_name: u16, rest: &[u8], length: usize) -> Vec<u8> {
    let head =
        [&(length as u32).to_le_bytes()[..], &fingerprint.to_le_bytes(), &length_of_name.to_le_bytes()];
    [&head.concat(), rest].concat()
}

/// Returns the bytes of a message that contains the number 5.
fn five() -> Vec<u8> {
    let name = std::any::type_name::<u8>().as_bytes();
    let bytes = mp_reduce::to_bytes(&mut 5_u8).unwrap();
    frame(mp_core::fnv1a(name), name.len() as u16, &[name, &bytes].concat(), bytes.len())
}

/// Returns the bytes of a note by which a peer reports that it has received a `there::Sent` instead of a
/// `there::Expected`.
fn note() -> Vec<u8> {
    let (expected, sent) = (b"there::Expected", b"there::Sent");
    let names = [&(expected.len() as u16).to_le_bytes()[..], expected, sent].concat();
    frame(1, u16::MAX, &names, names.len())
}

/// A send finds that the other side is closed, and then reads until it finds the note with the reason. The
/// messages that it reads before the note are not lost.
#[test]
fn message_before_a_refusal_is_received() {
    let _alone = alone();
    let (here, mut there) = connected("beside");
    let cut_off = &five()[..5];
    there.write_all(&[&five(), &note(), &five(), cut_off].concat()).unwrap();
    drop(there);
    let error = here.send(1_u8).unwrap_err();
    assert!(matches!(error, PutError::TypeRefused { value: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("there::Expected"), "{error}");
    assert_eq!([here.recv::<u8>().unwrap(), here.recv::<u8>().unwrap()], [5, 5]);
    let error = here.recv::<u8>().unwrap_err();
    assert!(matches!(error, GetError::Failed(MessageError::Memory(mp::Error::Malformed(_)))), "{error:?}");
    let error = here.recv::<u8>().unwrap_err();
    assert!(matches!(error, GetError::TypeRefused(_)), "{error:?}");
}

/// A peer that sends only notes, as fast as it can, can't make a call last longer than its time-out.
#[test]
fn many_refusals_do_not_extend_a_receive() {
    let _alone = alone();
    let (here, mut there) = connected("flood");
    // One call reads at most 1,024 notes. The next call reads the rest.
    there.write_all(&[note().repeat(1024), five()].concat()).unwrap();
    assert!(here.try_recv::<u8>().unwrap_err().is_empty());
    assert_eq!(here.try_recv::<u8>().unwrap(), 5);
    let flood = thread::spawn(move || while there.write_all(&note().repeat(1000)).is_ok() {});
    let receives = thread::spawn(move || {
        let got = here.recv_timeout::<u8>(Duration::from_millis(50));
        assert!(got.as_ref().is_err_and(GetError::is_empty), "{got:?}");
        // The next note may have arrived only in part, and could then be a message.
        assert!(here.accept_invitation_timeout::<u8>(Duration::from_millis(50)).is_err());
    });
    eventually("the calls end", || receives.is_finished());
    receives.join().unwrap();
    flood.join().unwrap();
}

/// A peer that no longer receives may still send without end. A send does not read all messages of such a
/// peer.
#[test]
fn send_reads_a_refusal_only_after_disconnection() {
    let _alone = alone();
    let (here, mut there) = connected("endless");
    there.write_all(&[note(), five()].concat()).unwrap();
    there.shutdown(std::net::Shutdown::Read).unwrap();
    let error = here.send(1_u8).unwrap_err();
    assert!(matches!(error, PutError::Disconnected(1)), "{error:?}");
    assert_eq!(here.recv::<u8>().unwrap(), 5);
    drop(there);
    let error = here.send(1_u8).unwrap_err();
    assert!(matches!(error, PutError::TypeRefused { value: 1, .. }), "{error:?}");
}

/// A server that uses `incoming` with `?` survives peers that are not programs of this library.
#[test]
fn listener_incoming_skips_refused_peers() {
    let _alone = alone();
    let name = format!("@mp-test-incoming-{}", std::process::id());
    let listener = Listener::bind(name.as_str()).unwrap();
    let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
    let mut strangers = Vec::new();
    for text in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 100], b"mp-sock"] {
        let mut stranger = UnixStream::connect_addr(&address).unwrap();
        stranger.write_all(text).unwrap();
        stranger.shutdown(std::net::Shutdown::Write).unwrap();
        strangers.push(stranger);
    }
    let client = thread::spawn(move || mp::connect(name.as_str()).unwrap().send(7_u8).unwrap());
    let connection = listener.incoming().next().unwrap().unwrap();
    assert_eq!(connection.recv_timeout::<u8>(DEADLINE).unwrap(), 7);
    client.join().unwrap();
    // The same peer is an error of `accept`, where `?` would end the server.
    let mut stranger = UnixStream::connect_addr(&address).unwrap();
    stranger.write_all(&[0xff; 100]).unwrap();
    let error = listener.accept_timeout(DEADLINE).map(drop).unwrap_err();
    assert!(error.is_of_peer(), "{error}");
}
