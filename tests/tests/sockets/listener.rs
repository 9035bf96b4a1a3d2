//! Programs that share only an address: they connect, authenticate, and send. Any other peer at that address
//! is an error, and does not block clients.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mp::connection::{ConnectError, SocketOptions};
use mp::{Connection, GetError, Listener, PutError, Queue, Tensor, connect, wait};
use mp_tests::{DEADLINE, Outcome, alone, eventually, failure, one_process, signal, take};
use rustix::fs::FlockOperation;
use rustix::process::Signal;

const MOMENT: Duration = Duration::from_millis(20);
/// Environment variable with the address, for this program when it is started again.
const ADDRESS: &str = "MP_TEST_ADDRESS";

/// Returns a name that no other test listens at.
fn name(what: &str) -> String {
    format!("@mp-test-{what}-{}", std::process::id())
}

/// Returns a path in a new directory.
fn path(what: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("mp-test-{what}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory.join("socket")
}

/// Removes the directory that [`path`] has made.
fn remove(path: &Path) {
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

/// Connects a client that does not use the library.
fn stranger(name: &str) -> UnixStream {
    let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Returns the first bytes that a program of this library without a key sends.
fn hello() -> Vec<u8> {
    let mut hello = b"mp-sock\x08\x00".to_vec();
    hello.resize(8 + 1 + 32, 7);
    hello
}

/// Returns both ends of a connection.
fn pair(options: &SocketOptions, name: &str) -> (Connection, Connection) {
    let listener = options.listen(name).unwrap();
    let (options, at) = (options.clone(), name.to_string());
    let there = std::thread::spawn(move || options.connect(at).unwrap());
    (listener.accept_timeout(DEADLINE).unwrap().unwrap(), there.join().unwrap())
}

/// Entry of the other program. Not a test.
#[test]
fn helper_other_program() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let connection = SocketOptions::new().authkey("secret").connect(address).unwrap();
    loop {
        match connection.recv::<(u64, Vec<String>)>() {
            Ok((i, words)) => connection.send((i + 1, words.concat())).unwrap(),
            Err(GetError::Disconnected) => return,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn two_programs_connect_and_answer_each_other() {
    let _alone = alone();
    let at = path("meet");
    let listener = SocketOptions::new().authkey("secret").listen(at.clone()).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "listener::helper_other_program"])
        .env(ADDRESS, &at)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(wait(&[&listener], Some(DEADLINE)).unwrap(), [0]);
    let connection = listener.accept_timeout(DEADLINE).unwrap().unwrap();
    assert_eq!(connection.peer_pid(), Some(other.id()));
    for i in 0..100 {
        let words = vec!["a".repeat(i * 1000), "b".into()];
        connection.send((i as u64, words.clone())).unwrap();
        assert!(wait(&[&connection, &listener], Some(DEADLINE)).unwrap().contains(&0));
        assert_eq!(connection.recv::<(u64, String)>().unwrap(), (i as u64 + 1, words.concat()));
    }
    drop(connection);
    assert!(other.wait().unwrap().success());
    drop(listener);
    assert!(!at.exists(), "the path is removed with the listener");
    remove(&at);
}

#[test]
fn handles_are_refused_over_a_socket() {
    let _alone = alone();
    let (here, there) = pair(&SocketOptions::new(), &name("memory"));
    let tensor = Tensor::full([5], 1.5_f32).unwrap().freeze();
    match here.send(tensor.clone()) {
        Err(PutError::Failed { value: back, error }) => {
            assert_eq!(back.len(), 5);
            assert!(error.to_string().contains("leave this memory"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(here.send(Queue::<u8>::bounded(1).unwrap()).is_err());
    // The contents of the tensor can be sent.
    here.send(tensor.iter().collect::<Vec<f32>>()).unwrap();
    assert_eq!(there.recv_timeout::<Vec<f32>>(DEADLINE).unwrap(), [1.5; 5]);
    here.send_bytes(b"raw").unwrap();
    let mut buffer = [0; 8];
    assert_eq!(there.recv_into(&mut buffer).unwrap(), 3);
    // Receives a message as another type, and then the next message.
    here.send(1_u8).unwrap();
    here.send(2_u8).unwrap();
    let error = there.recv_timeout::<String>(DEADLINE).unwrap_err();
    assert!(error.to_string().contains("has type u8,") && error.to_string().contains("String"), "{error}");
    let GetError::Failed(error) = error else { panic!("{error:?}") };
    assert!(matches!(error, mp_reduce::Error::TypeMismatch { .. }), "{error:?}");
    assert_eq!(error.bytes(), mp_reduce::to_bytes(&mut 1_u8).ok().as_deref());
    assert_eq!(there.recv_timeout::<u8>(DEADLINE).unwrap(), 2);
    // The connection itself can't be sent either.
    let queue = Queue::bounded(1).unwrap();
    assert!(matches!(queue.put(here.clone()), Err(PutError::Failed { .. })));
}

#[test]
fn socket_messages_beyond_the_limit_are_refused() {
    let _alone = alone();
    let options = SocketOptions::new().max_message(20 << 20);
    let (here, there) = pair(&options, &name("long"));
    let long: Vec<u8> = (0..20 << 20).map(|i| (i >> 12) as u8).collect();
    let (sent, back) = (long.clone(), there.clone());
    let thread = std::thread::spawn(move || {
        back.send_bytes(&sent).unwrap();
        back.recv_bytes().unwrap()
    });
    assert!(here.poll(DEADLINE).unwrap());
    assert_eq!(here.recv_bytes().unwrap(), long);
    here.send_bytes(&long).unwrap();
    assert_eq!(thread.join().unwrap(), long);
    let longer = vec![0; (20 << 20) + 1];
    let error = here.send_bytes(&longer).unwrap_err();
    assert!(error.to_string().contains("max_message"), "{error}");
    assert_eq!(error.into_value().len(), longer.len());
    // The other side has a smaller limit.
    let name = name("other-limit");
    let listener = SocketOptions::new().max_message(10).listen(name.as_str()).unwrap();
    let thread = std::thread::spawn(move || connect(name).unwrap());
    let here = listener.accept_timeout(DEADLINE).unwrap().unwrap();
    let there = thread.join().unwrap();
    there.send_bytes(&[1; 11]).unwrap();
    let error = here.recv_timeout::<u8>(DEADLINE).unwrap_err();
    assert!(error.to_string().contains("11 bytes"), "{error}");
    assert!(matches!(here.recv_timeout::<u8>(DEADLINE), Err(GetError::Disconnected)));
    eventually("the other side notices", || there.is_disconnected());
}

#[test]
fn program_without_the_key_is_refused() {
    let _alone = alone();
    let name = name("key");
    let listener = SocketOptions::new().authkey("right").listen(name.as_str()).unwrap();
    let tries = |options: SocketOptions| {
        let name = name.clone();
        let thread = std::thread::spawn(move || options.connect(name).map(drop));
        let here = listener.accept_timeout(DEADLINE).map(|c| drop(c.unwrap()));
        (here, thread.join().unwrap())
    };
    let (here, there) = tries(SocketOptions::new().authkey("wrong"));
    assert!(
        matches!(here, Err(ConnectError::KeyMismatch { pid, .. }) if pid == std::process::id()),
        "{here:?}"
    );
    // The other end may detect first that this side has closed the connection.
    assert!(matches!(there, Err(ConnectError::KeyMismatch { .. } | ConnectError::Gone)), "{there:?}");
    // A client without a key does not wait for an answer: see `backlog.rs`.
    let (here, there) = tries(SocketOptions::new());
    assert!(matches!(here, Err(ConnectError::KeyMissing { here: false })), "{here:?}");
    assert!(there.is_ok(), "{there:?}");
    let (here, there) = tries(SocketOptions::new().authkey("right"));
    assert!(here.is_ok() && there.is_ok(), "{here:?} {there:?}");
    assert!(!format!("{:?}", SocketOptions::new().authkey("right")).contains("right"));
    // This peer sends a correct hello, but no proof.
    let mut forger = stranger(&name);
    let mut said = hello();
    said[8] = 1;
    forger.write_all(&said).unwrap();
    forger.write_all(&[7; 32]).unwrap();
    let listening = listener.accept_timeout(DEADLINE);
    assert!(matches!(listening, Err(ConnectError::KeyMismatch { .. })), "{listening:?}");
}

#[allow(unsafe_code)]
fn becomes_another_user(_: usize, name: String) -> Outcome {
    // SAFETY: `setuid` takes a number.
    if unsafe { libc::setuid(65_534) } != 0 {
        mp_harness::skip("only root can become another user");
        return Ok(());
    }
    let refused = connect(name);
    assert!(matches!(refused, Err(ConnectError::OtherUser { uid: 0, .. })), "{refused:?}");
    Ok(())
}

#[test]
fn client_is_accepted_before_another_user_is_refused() {
    let _alone = alone();
    let name = name("user-and-client");
    let listener = Listener::bind(name.as_str()).unwrap();
    let mut client = stranger(&name);
    client.write_all(&hello()).unwrap();
    mp_tests::join(&one_process(becomes_another_user, name)).unwrap();
    let accepted = listener.accept_timeout(Duration::ZERO).unwrap();
    assert!(accepted.is_some(), "the error of a later peer was returned first");
}

#[test]
fn connection_of_another_user_is_refused() {
    let _alone = alone();
    let name = name("user");
    let listener = Listener::bind(name.as_str()).unwrap();
    let context = one_process(becomes_another_user, name);
    let joined = mp_tests::join(&context);
    let here = listener.accept_timeout(Duration::ZERO);
    joined.unwrap();
    if rustix::process::geteuid().is_root() {
        assert!(matches!(here, Err(ConnectError::OtherUser { uid: 65_534, .. })), "{here:?}");
    }
}

#[test]
fn silent_program_blocks_no_other_and_times_out() {
    let _alone = alone();
    let name = name("silent");
    let options = SocketOptions::new().handshake_timeout(Duration::from_millis(500));
    let listener = options.listen(name.as_str()).unwrap();
    // One peer sends nothing, and one stops in the middle of its hello.
    let silent = stranger(&name);
    let mut half = stranger(&name);
    half.write_all(&hello()[..20]).unwrap();
    let at = name.clone();
    let thread = std::thread::spawn(move || connect(at).unwrap());
    let connection = listener.accept_timeout(DEADLINE).unwrap().unwrap();
    connection.send(1_u8).unwrap();
    assert_eq!(thread.join().unwrap().recv::<u8>().unwrap(), 1);
    for _ in 0..2 {
        assert!(matches!(listener.accept_timeout(DEADLINE), Err(ConnectError::TimedOut(_))));
    }
    assert!(listener.accept_timeout(MOMENT).unwrap().is_none());
    drop((silent, half));
    // The same for a listener that sends nothing.
    let address = SocketAddr::from_abstract_name(format!("{}-mute", &name[1..])).unwrap();
    let mute = UnixListener::bind_addr(&address).unwrap();
    let refused = options.authkey("waits for its proof").connect(format!("{name}-mute"));
    assert!(matches!(refused, Err(ConnectError::TimedOut(_))), "{refused:?}");
    drop(mute);
    let absent = connect(format!("{name}-absent")).unwrap_err();
    let is_refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    assert!(matches!(&absent, ConnectError::Io { source, .. } if is_refused(source)), "{absent}");
    assert!(absent.to_string().contains("-absent"), "{absent}");
}

#[test]
fn clients_beyond_the_handshake_limit_wait() {
    let _alone = alone();
    let name = name("crowd");
    let options = SocketOptions::new().handshake_timeout(Duration::from_millis(500));
    let listener = options.listen(name.as_str()).unwrap();
    let silent: Vec<UnixStream> = (0..70).map(|_| stranger(&name)).collect();
    let thread = std::thread::spawn(move || SocketOptions::new().connect(name).unwrap());
    let until = Instant::now() + DEADLINE;
    let mut given_up = 0;
    let connection = loop {
        assert!(Instant::now() < until);
        match listener.accept_timeout(DEADLINE) {
            Ok(connection) => break connection.unwrap(),
            Err(ConnectError::TimedOut(_)) => given_up += 1,
            Err(e) => panic!("{e}"),
        }
    };
    assert!(given_up > 0 && given_up <= silent.len());
    connection.send(1_u8).unwrap();
    assert_eq!(thread.join().unwrap().recv::<u8>().unwrap(), 1);
}

#[test]
fn hostile_bytes_on_a_socket_are_errors() {
    let _alone = alone();
    let name = name("hostile");
    let listener = Listener::bind(name.as_str()).unwrap();
    for said in [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n_______".to_vec(), vec![0xff; 41], {
        let mut other_version = hello();
        other_version[7] += 1;
        other_version
    }] {
        let mut stream = stranger(&name);
        stream.write_all(&said).unwrap();
        let refused = listener.accept_timeout(DEADLINE);
        assert!(matches!(refused, Err(ConnectError::Incompatible(_))), "{refused:?}");
    }
    let mut stream = stranger(&name);
    stream.write_all(b"mp-so").unwrap();
    assert!(listener.accept_timeout(MOMENT).unwrap().is_none());
    drop(stream);
    assert!(matches!(listener.accept_timeout(DEADLINE), Err(ConnectError::Gone)));
    // A client that closes before it sends anything has only tested if a process listens.
    drop(stranger(&name));
    assert!(listener.accept_timeout(MOMENT).unwrap().is_none());
    // This peer connects correctly, and then sends invalid bytes.
    let meets = || {
        let mut stream = stranger(&name);
        stream.write_all(&hello()).unwrap();
        let connection = listener.accept_timeout(DEADLINE).unwrap().unwrap();
        stream.read_exact(&mut [0; 41]).unwrap();
        (stream, connection)
    };
    let (mut stream, connection) = meets();
    stream.write_all(&[0xff; 14]).unwrap();
    let error = connection.recv_timeout::<String>(DEADLINE).unwrap_err();
    assert!(error.to_string().contains("4294967295 bytes"), "{error}");
    assert!(matches!(connection.recv_timeout::<String>(DEADLINE), Err(GetError::Disconnected)));
    // The peer announces a long message, for which no memory is allocated.
    let (mut stream, connection) = meets();
    let before = resident();
    stream.write_all(&(60_u32 << 20).to_le_bytes()).unwrap();
    stream.write_all(&[0; 8 + 2 + 1000]).unwrap();
    assert!(connection.recv_timeout::<String>(MOMENT).unwrap_err().is_empty());
    assert!(resident() < before + (20 << 20));
    drop(stream);
    assert!(connection.recv_timeout::<String>(DEADLINE).unwrap_err().to_string().contains("in the middle"));
    // The bytes are invalid for the type, and have the fingerprint of the type.
    type Wanted = (Vec<Vec<String>>, Option<u64>, std::collections::BTreeMap<String, f64>);
    let fingerprint = mp_reduce::TypeFingerprint::<Wanted>::new().get().to_le_bytes();
    let (mut stream, connection) = meets();
    let mut state = 88_172_645_463_325_252_u64;
    for n in 0..2000_usize {
        let body: Vec<u8> = (0..n % 60)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        let mut message = (body.len() as u32 + 4).to_le_bytes().to_vec();
        message.extend(fingerprint);
        message.extend([0; 2]);
        message.extend((body.len() as u32).to_le_bytes());
        message.extend(&body);
        stream.write_all(&message).unwrap();
        assert!(connection.recv_timeout::<Wanted>(DEADLINE).is_err(), "{body:?}");
    }
    // The connection still works.
    connection.send(5_u8).unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    // Wrong type names, and names that aren't text, are refused. Correct names that arrive in pieces are
    // accepted.
    let named = |fingerprint: u64, name: &[u8]| {
        let mut head = 2_u32.to_le_bytes().to_vec();
        head.extend(fingerprint.to_le_bytes());
        head.extend((name.len() as u16).to_le_bytes());
        [&head, name, &[1, 7]].concat()
    };
    let (mut stream, connection) = meets();
    stream.write_all(&named(77, b"you should trust me")).unwrap();
    let error = connection.recv_timeout::<Wanted>(DEADLINE).unwrap_err().to_string();
    assert!(error.contains("another type") && !error.contains("trust"), "{error}");
    let odd = [b'o', 0xff, b'd'];
    let message = named(mp_core::fnv1a(&odd), &odd);
    for byte in &message[..message.len() - 1] {
        stream.write_all(&[*byte]).unwrap();
        assert!(connection.poll(DEADLINE).unwrap());
        assert!(connection.try_recv::<Wanted>().unwrap_err().is_empty());
    }
    stream.write_all(&message[message.len() - 1..]).unwrap();
    assert!(connection.recv_timeout::<Wanted>(DEADLINE).unwrap_err().to_string().contains("o\u{fffd}d"));
    // A name that is too long.
    let mut long = named(77, &[b'x'; 4097]);
    stream.write_all(&long).unwrap();
    let error = connection.recv_timeout::<Wanted>(DEADLINE).unwrap_err().to_string();
    assert!(error.contains("4097 bytes"), "{error}");
    assert!(matches!(connection.recv_timeout::<Wanted>(DEADLINE), Err(GetError::Disconnected)));
    // The peer announces a name, and does not send it.
    let (mut stream, connection) = meets();
    long.truncate(1000);
    long[12..14].copy_from_slice(&4096_u16.to_le_bytes());
    stream.write_all(&long).unwrap();
    assert!(connection.recv_timeout::<Wanted>(MOMENT).unwrap_err().is_empty());
    drop(stream);
    assert!(connection.recv_timeout::<Wanted>(DEADLINE).unwrap_err().to_string().contains("in the middle"));
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let pages: u64 =
        std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn message_in_pieces_is_received_piecewise() {
    let _alone = alone();
    let name = name("pieces");
    let listener = Listener::bind(name.as_str()).unwrap();
    let mut stream = stranger(&name);
    stream.write_all(&hello()).unwrap();
    let connection = listener.accept_timeout(DEADLINE).unwrap().unwrap();
    let mut message = 9_u32.to_le_bytes().to_vec();
    message.extend(mp_reduce::TypeFingerprint::<u64>::new().get().to_le_bytes());
    message.extend(3_u16.to_le_bytes());
    message.extend(b"u64");
    message.extend(mp_reduce::to_bytes(&mut (1_u64 << 40)).unwrap());
    let len = message.len() as u32 - 12 - 2 - 3;
    message[..4].copy_from_slice(&len.to_le_bytes());
    for byte in &message[..message.len() - 1] {
        stream.write_all(&[*byte]).unwrap();
        assert!(connection.poll(DEADLINE).unwrap());
        assert!(connection.try_recv::<u64>().unwrap_err().is_empty());
    }
    assert!(connection.recv_timeout::<u64>(MOMENT).unwrap_err().is_empty());
    stream.write_all(&message[message.len() - 1..]).unwrap();
    assert_eq!(connection.recv_timeout::<u64>(DEADLINE).unwrap(), 1 << 40);
}

#[test]
fn process_that_locks_socket_directory_is_named() {
    let _alone = alone();
    let (at, other) = (path("locked"), path("locked").with_file_name("other"));
    let listener = Listener::bind(at.clone()).unwrap();
    let directory = std::fs::File::open(at.parent().unwrap()).unwrap();
    rustix::fs::flock(&directory, FlockOperation::LockExclusive).unwrap();
    // The listener of the process that holds the lock is not involved.
    drop(listener);
    assert!(!at.exists());
    let Err(ConnectError::Io { source, .. }) = Listener::bind(other.clone()) else { panic!("wrong result") };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
    assert!(source.to_string().contains("flock") && !other.exists(), "{source}");
    drop(directory);
    Listener::bind(other).unwrap();
    remove(&at);
}

#[test]
fn socket_path_is_replaced_only_without_a_listener() {
    let _alone = alone();
    fn listens(_: usize, (path, ready): (PathBuf, Queue<()>)) -> Outcome {
        let _listener = Listener::bind(path)?;
        ready.put(())?;
        loop {
            std::thread::park();
        }
    }
    let at = path("stale");
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(listens, (at.clone(), ready.clone()));
    take(&ready);
    let in_use = |refused: Result<Listener, ConnectError>| match refused {
        Err(ConnectError::Io { source, .. }) => source.kind() == std::io::ErrorKind::AddrInUse,
        _ => false,
    };
    assert!(in_use(Listener::bind(at.clone())), "another process listens");
    signal(context.pids()[0], Signal::KILL);
    failure(&context);
    assert!(at.exists());
    let listener = Listener::bind(at.clone()).unwrap();
    assert!(in_use(Listener::bind(at.clone())), "this one listens");
    let client = at.clone();
    let thread = std::thread::spawn(move || connect(client).map(drop));
    listener.accept_timeout(DEADLINE).unwrap().unwrap();
    thread.join().unwrap().unwrap();
    // Another process has put its own socket at the path, so the path stays.
    std::fs::remove_file(&at).unwrap();
    let other = Listener::bind(at.clone()).unwrap();
    drop(listener);
    assert!(at.exists());
    drop(other);
    assert!(!at.exists());
    // A file that is not a socket is never removed.
    std::fs::write(&at, "a file").unwrap();
    assert!(in_use(Listener::bind(at.clone())));
    assert_eq!(std::fs::read_to_string(&at).unwrap(), "a file");
    remove(&at);
}

#[test]
fn peer_death_disconnects_a_connection() {
    let _alone = alone();
    fn sends_and_waits(_: usize, name: String) -> Outcome {
        let connection = connect(name)?;
        connection.send(7_u32)?;
        loop {
            std::thread::park();
        }
    }
    let name = name("end");
    let listener = Listener::bind(name.as_str()).unwrap();
    let context = one_process(sends_and_waits, name);
    let connection = listener.accept_timeout(DEADLINE).unwrap().unwrap();
    assert!(connection.poll(DEADLINE).unwrap() && !connection.is_disconnected());
    signal(context.pids()[0], Signal::KILL);
    failure(&context);
    assert_eq!(connection.recv_timeout::<u32>(DEADLINE).unwrap(), 7);
    assert!(matches!(connection.recv_timeout::<u32>(DEADLINE), Err(GetError::Disconnected)));
    assert!(matches!(connection.send(1_u8), Err(PutError::Disconnected(1))));
    assert!(connection.is_disconnected());
}

#[test]
fn socket_handshake_without_a_time_limit_succeeds() {
    let options = SocketOptions::new().handshake_timeout(Duration::MAX);
    let (here, there) = pair(&options, &name("patient"));
    here.send(1_u8).unwrap();
    assert_eq!(there.recv::<u8>().unwrap(), 1);
}
