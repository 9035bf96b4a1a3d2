//! Programs that connect over TCP. They are on this machine, since the tests may have no network.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mp::connection::{Address, ConnectError, SocketOptions};
use mp::{Connection, GetError, Listener, PutError, Queue, Tensor, connect};
use mp_tests::{DEADLINE, alone, eventually, signal};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::Signal;

const MOMENT: Duration = Duration::from_millis(20);
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(3);
/// Environment variable with the address, for this program when it is started again.
const ADDRESS: &str = "MP_TEST_TCP_ADDRESS";
const ROLE: &str = "MP_TEST_TCP_ROLE";
const HELLO: usize = 8 + 1 + 32;

const ANY_PORT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn keyed() -> SocketOptions {
    SocketOptions::new().authkey("secret")
}

fn port(options: &SocketOptions) -> (Listener, SocketAddr) {
    let listener = options.listen(Address::tcp(ANY_PORT).unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    assert!(at.ip().is_loopback() && at.port() != 0, "{at}");
    (listener, at)
}

#[track_caller]
fn accept(listener: &Listener) -> Connection {
    listener.accept_timeout(DEADLINE).unwrap().expect("a connection")
}

/// Returns both ends of a connection: first the end of the listener, then the end of the client.
fn pair(options: &SocketOptions) -> (Connection, Connection) {
    let (listener, at) = port(options);
    let options = options.clone();
    let there = std::thread::spawn(move || options.connect(at).unwrap());
    (accept(&listener), there.join().unwrap())
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

/// Returns a port that refuses connections while the socket is open: the socket is bound, and does not
/// listen.
fn refusing_port() -> (OwnedFd, SocketAddr) {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(ANY_PORT)).unwrap();
    let at = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, at)
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Entry of the other program. Not a test.
#[test]
fn helper_other_program() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "loses-its-host" {
        return loses_its_host();
    }
    let address = Address::tcp(&*std::env::var(ADDRESS).unwrap()).unwrap();
    if role == "listens" {
        let listener = keyed().listen(address).unwrap();
        println!("port {}", listener.local_addr().unwrap().port());
        accept(&listener).send(7_u32).unwrap();
        // Runs until its parent kills it. The parent has a deadline.
        loop {
            std::thread::park();
        }
    }
    let connection = keyed().connect(address).unwrap();
    loop {
        match connection.recv_timeout::<(u64, Vec<String>)>(DEADLINE) {
            Ok((i, words)) => connection.send((i + 1, words.concat())).unwrap(),
            Err(GetError::Disconnected) => return,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Process of the other program, which is killed on drop.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn other(role: &str, at: SocketAddr) -> Other {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tcp::helper_other_program", "--nocapture"]);
    command.env(ROLE, role).env(ADDRESS, at.to_string()).stdout(Stdio::piped());
    Other(command.spawn().unwrap())
}

fn meets(address: Address) {
    let listener = keyed().listen(address).unwrap();
    let at = listener.local_addr().unwrap();
    let mut other = other("connects", at);
    let connection = accept(&listener);
    assert_eq!(connection.peer_addr().unwrap().ip(), at.ip());
    assert_eq!(connection.peer_pid(), None);
    for i in 0..50 {
        let words = vec!["a".repeat(i * 10_000), "b".into()];
        connection.send((i as u64, words.clone())).unwrap();
        let answer = connection.recv_timeout::<(u64, String)>(DEADLINE).unwrap();
        assert_eq!(answer, (i as u64 + 1, words.concat()));
    }
    drop(connection);
    assert!(other.0.wait().unwrap().success());
}

#[test]
fn programs_connect_at_an_ipv4_address() {
    let _alone = alone();
    meets(Address::tcp(ANY_PORT).unwrap());
}

#[test]
fn programs_connect_at_an_ipv6_address() {
    let _alone = alone();
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        mp_harness::skip("no ::1 here");
        return;
    }
    meets(Address::tcp((Ipv6Addr::LOCALHOST, 0)).unwrap());
}

#[test]
fn address_beyond_loopback_requires_a_key() {
    // The port is in use, so an attempt to bind it would return `AddrInUse`.
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let all = taken.local_addr().unwrap();
    let mixed = Address::tcp(&[ANY_PORT.into(), all][..]).unwrap();
    for address in [all.into(), mixed] {
        let refused = SocketOptions::new().listen(&address).unwrap_err();
        assert!(matches!(refused, ConnectError::KeyRequired { .. }), "{refused:?}");
        assert!(!refused.is_of_peer());
        assert!(refused.to_string().contains("a key") || refused.to_string().contains("key is required"));
        let refused = SocketOptions::new().no_key().connect(&address).unwrap_err();
        assert!(matches!(refused, ConnectError::KeyRequired { .. }), "{refused:?}");
    }
    let refused = SocketOptions::new().authkey("").listen(all).unwrap_err();
    assert!(matches!(refused, ConnectError::EmptyKey), "{refused:?}");
    let listener = keyed().listen(Address::tcp("0.0.0.0:0").unwrap()).unwrap();
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()));
    let client = std::thread::spawn(move || keyed().connect(at).unwrap().send(7_u8).unwrap());
    assert_eq!(accept(&listener).recv_timeout::<u8>(DEADLINE).unwrap(), 7);
    client.join().unwrap();
}

#[test]
fn tcp_addresses_are_tried_in_order() {
    let (listener, at) = port(&keyed());
    let options = keyed();
    let (_refuses, refusing) = refusing_port();
    let several = Address::tcp(&[refusing, at][..]).unwrap();
    let client = std::thread::spawn(move || options.connect(several).unwrap());
    assert_eq!(accept(&listener).peer_addr().unwrap(), local(&client.join().unwrap()));
    let taken = keyed().listen(at).unwrap_err();
    let ConnectError::Io { source, .. } = &taken else { panic!("{taken}") };
    assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
    let refused = connect(Address::tcp(&[refusing, refusing][..]).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("start the process with the Listener first"), "{refused}");
    assert!(Address::tcp("no colon").is_err());
}

fn local(connection: &Connection) -> SocketAddr {
    rustix::net::getsockname(connection.as_fd().unwrap()).unwrap().try_into().unwrap()
}

#[test]
fn full_listener_times_connections_out() {
    let (listener, full) = port(&SocketOptions::new().backlog(1));
    let queued = connect(full).unwrap();
    let options = SocketOptions::new().handshake_timeout(SHORT);
    let (began, refused) = (Instant::now(), options.connect(full).unwrap_err());
    assert!(matches!(refused, ConnectError::TimedOut(SHORT)), "{refused:?}");
    assert!(began.elapsed() >= SHORT);
    // Each of the two addresses gets half of the time.
    let (other, at) = port(&SocketOptions::new());
    let (began, options) = (Instant::now(), options.handshake_timeout(LONG));
    let there = options.connect(Address::tcp(&[full, at][..]).unwrap()).unwrap();
    assert!(began.elapsed() < LONG);
    assert_eq!(there.peer_addr(), Some(at));
    there.send(1_u8).unwrap();
    assert_eq!(accept(&other).recv_timeout::<u8>(DEADLINE).unwrap(), 1);
    queued.send(2_u8).unwrap();
    assert_eq!(accept(&listener).recv_timeout::<u8>(DEADLINE).unwrap(), 2);
}

#[test]
fn wrong_and_missing_tcp_keys_are_refused() {
    let (listener, at) = port(&keyed());
    let tries = |options: SocketOptions| {
        let client = std::thread::spawn(move || options.connect(at).map(drop));
        let here = listener.accept_timeout(DEADLINE).map(|accepted| drop(accepted.unwrap()));
        (here, client.join().unwrap())
    };
    let (here, there) = tries(SocketOptions::new().authkey("wrong"));
    let Err(ConnectError::KeyMismatch { pid: 0, host: Some(host) }) = &here else { panic!("{here:?}") };
    assert!(host.ip().is_loopback() && here.as_ref().unwrap_err().to_string().contains(&host.to_string()));
    assert!(matches!(there, Err(ConnectError::KeyMismatch { .. } | ConnectError::Gone)), "{there:?}");
    let (here, _) = tries(SocketOptions::new());
    assert!(matches!(here, Err(ConnectError::KeyMissing { here: false })), "{here:?}");
    let (here, there) = tries(keyed());
    assert!(here.is_ok() && there.is_ok(), "{here:?} {there:?}");
}

#[test]
fn tcp_bytes_before_the_key_proof_take_no_memory() {
    let (listener, at) = port(&keyed());
    let before = resident();
    for said in [b"GET / HTTP/1.1\r\n\r\n".repeat(4), vec![0xff; 8 << 20], hello(true).repeat(1 << 16)] {
        let stream = stranger(at);
        let mut writing = stream.try_clone().unwrap();
        // The listener closes during the message.
        let writer = std::thread::spawn(move || _ = writing.write_all(&said));
        let refused = listener.accept_timeout(DEADLINE).unwrap_err();
        assert!(
            matches!(refused, ConnectError::Incompatible(_) | ConnectError::KeyMismatch { .. }),
            "{refused:?}"
        );
        writer.join().unwrap();
        drop(stream);
    }
    assert!(resident() < before + (24 << 20));
    // A process that only tests if the port is open is skipped.
    drop(stranger(at));
    assert!(listener.accept_timeout(MOMENT).unwrap().is_none());
}

#[test]
fn slow_and_silent_tcp_peers_time_out() {
    let (listener, at) = port(&keyed().handshake_timeout(SHORT));
    let (silent, mut slow) = (stranger(at), stranger(at));
    let mut refused = Vec::new();
    for byte in hello(true) {
        // The connection may be closed by now.
        _ = slow.write_all(&[byte]);
        match listener.accept_timeout(MOMENT) {
            Ok(none) => assert!(none.is_none()),
            Err(error) => refused.push(error),
        }
        if refused.len() == 2 {
            break;
        }
    }
    assert!(matches!(refused[..], [ConnectError::TimedOut(SHORT), ConnectError::TimedOut(SHORT)]));
    drop((silent, slow));
    let client = std::thread::spawn(move || keyed().connect(at).unwrap().send(7_u8).unwrap());
    assert_eq!(accept(&listener).recv_timeout::<u8>(DEADLINE).unwrap(), 7);
    client.join().unwrap();
}

#[test]
fn hostile_message_lengths_end_the_tcp_connection() {
    let (listener, at) = port(&SocketOptions::new().max_message(1 << 20));
    let meets = || {
        let mut stream = stranger(at);
        stream.write_all(&hello(false)).unwrap();
        let connection = accept(&listener);
        stream.read_exact(&mut [0; HELLO]).unwrap();
        (stream, connection)
    };
    let (mut stream, connection) = meets();
    stream.write_all(&[0xff; 14]).unwrap();
    let error = connection.recv_timeout::<String>(DEADLINE).unwrap_err();
    assert!(error.to_string().contains("4294967295 bytes"), "{error}");
    assert!(matches!(connection.recv_timeout::<String>(DEADLINE), Err(GetError::Disconnected)));
    // The peer reads the end of the connection.
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    // The first message is announced and does not arrive completely, and the second one does.
    let (mut stream, connection) = meets();
    stream.write_all(&(1_u32 << 20).to_le_bytes()).unwrap();
    stream.write_all(&[0; 8 + 2 + 1000]).unwrap();
    assert!(connection.recv_timeout::<String>(MOMENT).unwrap_err().is_empty());
    drop(stream);
    let error = connection.recv_timeout::<String>(DEADLINE).unwrap_err();
    assert!(error.to_string().contains("in the middle"), "{error}");
}

#[test]
fn killed_tcp_client_is_disconnected() {
    let _alone = alone();
    let (listener, at) = port(&keyed());
    let other = other("connects", at);
    let connection = accept(&listener);
    connection.send((1_u64, vec!["a".to_string()])).unwrap();
    assert_eq!(connection.recv_timeout::<(u64, String)>(DEADLINE).unwrap(), (2, "a".into()));
    assert!(!connection.is_disconnected());
    signal(other.0.id(), Signal::KILL);
    assert!(matches!(connection.recv_timeout::<u8>(DEADLINE), Err(GetError::Disconnected)));
    assert!(connection.is_disconnected());
    assert!(matches!(connection.send(1_u8), Err(PutError::Disconnected(1))));
}

#[test]
fn killed_tcp_listener_is_disconnected() {
    let _alone = alone();
    let mut other = other("listens", ANY_PORT.into());
    let port = said_port(&mut other);
    let connection = keyed().connect(Address::tcp((Ipv4Addr::LOCALHOST, port)).unwrap()).unwrap();
    assert_eq!(connection.recv_timeout::<u32>(DEADLINE).unwrap(), 7);
    signal(other.0.id(), Signal::KILL);
    assert!(matches!(connection.recv_timeout::<u32>(DEADLINE), Err(GetError::Disconnected)));
    assert!(matches!(connection.send(1_u8), Err(PutError::Disconnected(1))));
    other.0.wait().unwrap();
    let refused = keyed().connect(Address::tcp((Ipv4Addr::LOCALHOST, port)).unwrap()).unwrap_err();
    assert!(matches!(refused, ConnectError::Io { .. }), "{refused:?}");
}

/// Reads the port at which the other program listens.
fn said_port(other: &mut Other) -> u16 {
    use std::io::BufRead;
    let out = std::io::BufReader::new(other.0.stdout.as_mut().unwrap());
    // "test tcp::helper_other_program ... port 1234"
    let port = |line: String| line.split_once("port ")?.1.trim().parse().ok();
    out.lines().map_while(Result::ok).find_map(port).expect("the other program listens")
}

#[test]
fn handles_are_refused_and_returned_over_tcp() {
    let _alone = alone();
    let (here, there) = pair(&keyed());
    let tensor = Tensor::full([5], 1.5_f32).unwrap().freeze();
    match here.send(tensor.clone()) {
        Err(PutError::Failed { value, error }) => {
            assert_eq!(value.len(), 5);
            assert!(error.to_string().contains("leave this memory"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let queue = Queue::<u8>::bounded(1).unwrap();
    let Err(PutError::Failed { value: queue, .. }) = here.send(queue) else { panic!("the handle was sent") };
    // Only over a Unix socket, a program can be invited.
    let Err(PutError::Failed { value: queue, error }) = here.invite(queue) else { panic!("no refusal") };
    assert!(error.to_string().contains("TCP") && error.to_string().contains("a path"), "{error}");
    queue.put(1).unwrap();
    let error = there.accept_invitation::<Queue<u8>>().unwrap_err();
    assert!(error.to_string().contains("TCP"), "{error}");
    let file = mp_reduce::Fd(std::fs::File::open("/dev/null").unwrap());
    assert!(matches!(here.send(file), Err(PutError::Failed { .. })));
    // The contents of a tensor can be sent by value.
    here.send(tensor.iter().collect::<Vec<f32>>()).unwrap();
    assert_eq!(there.recv_timeout::<Vec<f32>>(DEADLINE).unwrap(), [1.5; 5]);
}

#[test]
fn tcp_socket_options_are_set_at_both_ends() {
    let (here, there) = pair(&keyed());
    for end in [&here, &there] {
        let fd = end.as_fd().unwrap();
        assert!(sockopt::tcp_nodelay(fd).unwrap() && sockopt::socket_keepalive(fd).unwrap());
        let found = sockopt::tcp_keepidle(fd).unwrap()
            + sockopt::tcp_keepintvl(fd).unwrap() * sockopt::tcp_keepcnt(fd).unwrap();
        assert_eq!(found, Duration::from_secs(25));
    }
}

/// The kernel resets a connection that is closed with unread bytes, such as the hello of the listener.
#[test]
fn sender_that_closes_unread_loses_nothing() {
    const BYTES: usize = 300_000;
    let (listener, at) = port(&SocketOptions::new());
    let there = connect(at).unwrap();
    let here = accept(&listener);
    eventually("the hello of the listener has arrived", || {
        let mut fds = [PollFd::from_borrowed_fd(there.as_fd().unwrap(), PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    });
    for _ in 0..3 {
        there.send_bytes_timeout(&[7; BYTES], DEADLINE).unwrap();
    }
    drop(there);
    for _ in 0..3 {
        assert_eq!(here.recv_bytes_timeout(DEADLINE).unwrap(), [7; BYTES]);
    }
    assert!(matches!(here.recv_timeout::<u8>(DEADLINE), Err(GetError::Disconnected)));
}

#[test]
fn connect_and_accept_futures_work_over_tcp() {
    let (listener, at) = port(&keyed());
    let (_refuses, refusing) = refusing_port();
    let client = std::thread::spawn(move || {
        mp_tests::block_on::block_on(async {
            let several = Address::tcp(&[refusing, at][..]).unwrap();
            let connection = keyed().connect_async(several).await.unwrap();
            connection.send_async(7_u8).await.unwrap();
            connection.recv_async::<u8>().await.unwrap()
        })
    });
    let got = mp_tests::block_on::block_on(async {
        let connection = listener.accept_async().await.unwrap();
        let got = connection.recv_async::<u8>().await.unwrap();
        connection.send_async(got + 1).await.unwrap();
        got
    });
    assert_eq!((got, client.join().unwrap()), (7, 8));
}

/// Address of the other host, in a network namespace.
const HOST: &str = "10.9.0.2";

fn ip(command: &str) {
    assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success(), "{command}");
}

/// Runs in a network namespace. After a route is removed, no packet reaches the other host.
fn loses_its_host() {
    ip("link set lo up");
    ip("addr add 10.9.0.1/32 dev lo");
    ip(&format!("route add local {HOST}/32 dev lo src 10.9.0.1"));
    let listener = keyed().listen(Address::tcp((HOST, 0)).unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || keyed().connect(at).unwrap());
    let (_there, here) = (accept(&listener), client.join().unwrap());
    let fd = here.as_fd().unwrap();
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(1)).unwrap();
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(1)).unwrap();
    ip(&format!("route del local {HOST}/32 dev lo"));
    assert!(!here.is_disconnected(), "the loss is not noticed yet");
    let lost = here.recv_timeout::<u8>(DEADLINE);
    assert!(matches!(lost, Err(GetError::Disconnected)), "{lost:?}");
    let unsent = here.send(1_u8);
    assert!(matches!(unsent, Err(PutError::Disconnected(1))), "{unsent:?}");
}

#[test]
fn lost_tcp_host_is_disconnected() {
    let _alone = alone();
    let alone =
        |command: &[&str]| Command::new("unshare").arg("-rn").args(command).stdout(Stdio::null()).status();
    if !alone(&["ip", "link", "set", "lo", "up"]).is_ok_and(|status| status.success()) {
        mp_harness::skip("no network namespaces, or no `unshare` or `ip` here");
        return;
    }
    let mut command = Command::new("unshare");
    command.arg("-rn").arg(std::env::current_exe().unwrap()).args(["--exact", "tcp::helper_other_program"]);
    let child = command.env(ROLE, "loses-its-host").env(ADDRESS, "").stdout(Stdio::piped()).spawn().unwrap();
    let mut other = Other(child);
    let said = std::io::read_to_string(other.0.stdout.take().unwrap()).unwrap();
    assert!(other.0.wait().unwrap().success(), "{said}");
}
