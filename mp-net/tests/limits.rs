//! Limits for peers that have not proved who they are.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mp_harness::{DEADLINE, eventually};
use mp_net::{Cluster, ClusterConfig, RemoteQueue};
use mp_queue::Queue;

/// Beginning of a connection with HTTP/2, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn first(lease: Duration) -> Cluster {
    Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0").key(b"secret").lease(lease)).unwrap()
}

fn connect(to: &Cluster) -> TcpStream {
    let peer = TcpStream::connect(to.address()).unwrap();
    peer.set_read_timeout(Some(DEADLINE)).unwrap();
    peer.set_write_timeout(Some(DEADLINE)).unwrap();
    peer
}

/// Blocks until the home has ended the connection.
fn read_to_end(peer: &mut TcpStream) {
    if let Err(error) = peer.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn silent_connections_keep_no_member_from_joining() {
    // The lease is long, so that it ends none of these connections.
    let first = first(Duration::from_secs(600));
    let before = first.refused();
    let mut silent: Vec<_> = (0..500).map(|_| connect(&first)).collect();
    let second = ClusterConfig::new(1, 2, first.address()).key(b"secret");
    let _second = Cluster::join(&second).unwrap();
    eventually("all but 256 silent connections have ended", || first.refused() >= before + 500 - 256);
    read_to_end(&mut silent[0]);
    drop(silent);
    eventually("all silent connections have ended", || first.refused() == before + 500);
}

#[test]
fn unproven_connection_ends_after_the_lease() {
    let lease = Duration::from_millis(200);
    let first = first(lease);
    let before = first.refused();
    let (mut silent, mut begun) = (connect(&first), connect(&first));
    begun.write_all(PREFACE).unwrap();
    read_to_end(&mut silent);
    read_to_end(&mut begun);
    // Bytes that arrive one by one do not extend the lease: here a settings frame of 16,380 bytes.
    let since = Instant::now();
    let mut slow = connect(&first);
    let settings = [0, 0x3f, 0xfc, 4, 0, 0, 0, 0, 0];
    for byte in PREFACE[..24].iter().chain(&settings).copied().chain(std::iter::repeat(0)) {
        if slow.write_all(&[byte]).is_err() {
            break;
        }
        assert!(since.elapsed() < DEADLINE);
        // sleep: the bytes shall arrive one by one, not together.
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(since.elapsed() >= lease, "{:?}", since.elapsed());
    eventually("all peers are counted", || first.refused() == before + 3);
}

/// A home with too many unproven connections ends the oldest ones. A connection of a new member may be among
/// them.
#[test]
fn new_cluster_connection_is_repeated_after_a_reset() {
    let first = first(Duration::from_secs(10));
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap();
    let home = format!("127.0.0.2:{}", address.port());
    let second = ClusterConfig::new(1, 2, first.address()).key(b"secret");
    let second = Cluster::join(&second.listen(&home).advertise(&address.to_string())).unwrap();
    let numbers = Queue::<u64>::bounded(1).unwrap();
    second.publish("numbers", &numbers).unwrap();
    let relaying = std::thread::spawn(move || {
        drop(proxy.accept().unwrap());
        let (caller, home) = (proxy.accept().unwrap().0, TcpStream::connect(home).unwrap());
        std::thread::scope(|scope| {
            for (mut from, mut to) in [(&caller, &home), (&home, &caller)] {
                scope.spawn(move || {
                    _ = std::io::copy(&mut from, &mut to);
                    _ = to.shutdown(Shutdown::Both);
                });
            }
        });
    });
    RemoteQueue::<u64>::connect(&first, "numbers").unwrap().put(7).unwrap();
    assert_eq!(numbers.get().unwrap(), Some(7));
    drop((first, second));
    relaying.join().unwrap();
}

#[test]
fn unproven_connection_ends_after_too_many_bytes() {
    let first = first(Duration::from_secs(600));
    let before = first.refused();
    let mut peer = connect(&first);
    peer.write_all(PREFACE).unwrap();
    // A frame of 16 KiB of an unknown kind, which HTTP/2 ignores.
    let frame = [&[0, 0x40, 0, 0xfa, 0, 0, 0, 0, 0], &[0; 0x4000][..]].concat();
    let mut sent = 0;
    while peer.write_all(&frame).is_ok() {
        sent += frame.len();
        assert!(sent < 64 << 20, "{sent} bytes");
    }
    read_to_end(&mut peer);
    eventually("the peer is counted", || first.refused() == before + 1);
}
