//! Hostile, silent or absent peers at a TCP address, and a listener that lacks descriptors.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use mp::connection::{Address, ConnectError, SocketOptions};
use mp::{Connection, Listener};
use mp_tests::limits::{Resource, limit};
use mp_tests::{DEADLINE, Outcome, alone, join, one_process};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

const MOMENT: Duration = Duration::from_millis(20);
const SHORT: Duration = Duration::from_millis(300);
const HELLO: usize = 8 + 1 + 32;
const PROOF: usize = 32;
/// Maximum number of handshakes that a listener runs at the same time.
const MOST: usize = 64;

const ANY_PORT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn keyed() -> SocketOptions {
    SocketOptions::new().authkey("secret")
}

fn port(options: &SocketOptions) -> (Listener, SocketAddr) {
    let listener = options.listen(Address::tcp(ANY_PORT).unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Connects a client that does not use the library.
fn stranger(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn hello(has_key: bool) -> Vec<u8> {
    let mut hello = b"mp-sock\x08".to_vec();
    hello.push(has_key.into());
    hello.resize(HELLO, 7);
    hello
}

/// Returns a socket that is bound to this address.
fn bound(address: SocketAddr) -> OwnedFd {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    socket
}

/// Returns a port that refuses connections while the socket is open.
fn refusing_port() -> (OwnedFd, SocketAddr) {
    let socket = bound(ANY_PORT.into());
    let at = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, at)
}

fn kind_of<T>(result: &Result<T, ConnectError>) -> Option<ErrorKind> {
    match result {
        Err(ConnectError::Io { source, .. }) => Some(source.kind()),
        _ => None,
    }
}

/// Connects a peer that sends the bytes `said` to a listener with a key. Returns the listener's answer and
/// its error.
fn answered(said: &[u8]) -> (Vec<u8>, ConnectError) {
    let (listener, at) = port(&keyed());
    let mut peer = stranger(at);
    peer.write_all(said).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    let error = listener.accept_timeout(DEADLINE).unwrap_err();
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).unwrap();
    (answer, error)
}

#[test]
fn key_proof_is_sent_only_to_a_proven_peer() {
    let (answer, error) = answered(&hello(true));
    assert!(matches!(error, ConnectError::Gone), "{error:?}");
    assert_eq!(answer.len(), HELLO, "the listener sends only its hello to an unproven peer");
    let (answer, error) = answered(&[&hello(true)[..], &[7; PROOF]].concat());
    assert!(matches!(error, ConnectError::KeyMismatch { .. }), "{error:?}");
    assert_eq!(answer[HELLO..], [0; PROOF], "the refusal depends on the key");
}

#[test]
fn key_proof_sent_back_to_the_connecter_is_refused() {
    for sends_hello_back in [false, true] {
        let forger = TcpListener::bind(ANY_PORT).unwrap();
        let at = forger.local_addr().unwrap();
        let client = std::thread::spawn(move || keyed().handshake_timeout(DEADLINE).connect(at).map(drop));
        let (mut stream, _) = forger.accept().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let (mut theirs, mut proof) = ([0; HELLO], [0; PROOF]);
        stream.read_exact(&mut theirs).unwrap();
        stream.write_all(if sends_hello_back { &theirs[..] } else { &[] }).unwrap();
        stream.write_all(if sends_hello_back { Vec::new() } else { hello(true) }.as_slice()).unwrap();
        stream.read_exact(&mut proof).unwrap();
        stream.write_all(&proof).unwrap();
        let refused = client.join().unwrap();
        assert!(matches!(refused, Err(ConnectError::KeyMismatch { .. })), "{refused:?}");
    }
}

#[test]
fn client_with_a_wrong_key_gets_a_key_mismatch() {
    let (listener, at) = port(&keyed());
    let client = std::thread::spawn(move || SocketOptions::new().authkey("wrong").connect(at).map(drop));
    let here = listener.accept_timeout(DEADLINE);
    assert!(matches!(here, Err(ConnectError::KeyMismatch { .. })), "{here:?}");
    let there = client.join().unwrap();
    assert!(matches!(there, Err(ConnectError::KeyMismatch { .. })), "{there:?}");
}

/// Accepts while this process can't open descriptors. Three handshakes were begun before.
fn lacks_descriptors(_: usize, (): ()) -> Outcome {
    let (listener, at) = port(&SocketOptions::new().handshake_timeout(SHORT));
    let (mut done, closed, overdue) = (stranger(at), stranger(at), stranger(at));
    assert!(listener.accept_timeout(MOMENT)?.is_none());
    let later = bound(ANY_PORT.into());
    limit(Resource::Nofile, 3);
    done.write_all(&hello(false))?;
    drop(closed);
    let connection: Option<Connection> = listener.accept_timeout(DEADLINE)?;
    assert!(connection.is_some(), "the finished handshake");
    let late = listener.accept_timeout(DEADLINE);
    assert!(matches!(late, Err(ConnectError::TimedOut(SHORT))), "{late:?}");
    assert!(listener.accept_timeout(MOMENT)?.is_none(), "nothing waits to be accepted");
    rustix::net::connect(&later, &at)?;
    let failed = listener.accept_timeout(DEADLINE);
    let ConnectError::Io { source, .. } = failed.unwrap_err() else { panic!("another error") };
    assert_eq!(source.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
    limit(Resource::Nofile, 1024);
    TcpStream::from(later).write_all(&hello(false))?;
    assert!(listener.accept_timeout(DEADLINE)?.is_some());
    drop(overdue);
    Ok(())
}

#[test]
fn handshakes_continue_without_descriptors() {
    let _alone = alone();
    join(&one_process(lacks_descriptors, ())).unwrap();
}

#[test]
fn only_an_unavailable_address_is_skipped() {
    let (_listener, at) = port(&keyed());
    let second = keyed().listen(Address::tcp(&[at, ANY_PORT.into()][..]).unwrap());
    assert_eq!(kind_of(&second), Some(ErrorKind::AddrInUse), "{second:?}");
    // This address belongs to no machine (RFC 5737).
    let elsewhere = SocketAddr::from(([203, 0, 113, 1], 0));
    let second = keyed().listen(Address::tcp(&[elsewhere, ANY_PORT.into()][..]).unwrap()).unwrap();
    assert!(second.local_addr().unwrap().ip().is_loopback());
    let none = keyed().listen(elsewhere);
    assert_eq!(kind_of(&none), Some(ErrorKind::AddrNotAvailable), "{none:?}");
}

#[test]
fn refusal_is_reported_before_an_unreachable_address() {
    let (_refuses, refusing) = refusing_port();
    // No TCP connection leads to a broadcast address.
    let unreachable = SocketAddr::from((Ipv4Addr::BROADCAST, 1));
    for hosts in [[refusing, unreachable], [unreachable, refusing]] {
        let refused = keyed().connect(Address::tcp(&hosts[..]).unwrap());
        assert_eq!(kind_of(&refused), Some(ErrorKind::ConnectionRefused), "{refused:?}");
    }
    let unreached = keyed().connect(unreachable);
    assert_ne!(kind_of(&unreached), Some(ErrorKind::ConnectionRefused), "{unreached:?}");
}

/// Returns an address of this machine that is not a loopback address.
fn own_address() -> Option<SocketAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Connecting a UDP socket sends nothing.
    socket.connect("203.0.113.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback()).then(|| SocketAddr::new(ip, 0))
}

#[test]
fn keyless_listener_refuses_a_foreign_address() {
    let Some(own) = own_address() else {
        mp_harness::skip("no address but loopback here");
        return;
    };
    let peer_at = |at: SocketAddr| {
        let socket = bound(own);
        rustix::net::connect(&socket, &at).unwrap();
        TcpStream::from(socket)
    };
    let (listener, at) = port(&SocketOptions::new());
    let mut peer = peer_at(at);
    _ = peer.write_all(&hello(false));
    let accepted = listener.accept_timeout(SHORT).unwrap();
    assert!(accepted.is_none(), "{accepted:?}");
    // With a key the address does not matter: the listener reads the peer's hello, which has no key.
    let (listener, at) = port(&keyed());
    let mut peer = peer_at(at);
    peer.write_all(&hello(false)).unwrap();
    let accepted = listener.accept_timeout(DEADLINE);
    assert!(matches!(accepted, Err(ConnectError::KeyMissing { .. })), "{accepted:?}");
}

#[test]
fn silent_tcp_peers_yield_to_others() {
    let patient = SocketOptions::new().handshake_timeout(10 * DEADLINE);
    let (listener, at) = port(&patient);
    let mut half = stranger(at);
    half.write_all(&hello(false)[..20]).unwrap();
    let silent: Vec<TcpStream> = (1..MOST).map(|_| stranger(at)).collect();
    assert!(listener.accept_timeout(MOMENT).unwrap().is_none(), "all places are taken");
    let mut peer = stranger(at);
    peer.write_all(&hello(false)).unwrap();
    let began = Instant::now();
    let connection = listener.accept_timeout(DEADLINE).unwrap();
    assert!(connection.is_some(), "no place after {:?}", began.elapsed());
    assert_eq!(connection.unwrap().peer_addr(), Some(peer.local_addr().unwrap()));
    // The peer that has sent a part of its hello keeps its place.
    half.write_all(&hello(false)[20..]).unwrap();
    let connection = listener.accept_timeout(DEADLINE).unwrap().unwrap();
    assert_eq!(connection.peer_addr(), Some(half.local_addr().unwrap()));
    drop(silent);
}
