//! Connections between programs as futures. If futures are dropped, nothing is lost, duplicated or torn.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use mp::connection::{ConnectError, SocketOptions, connect_async};
use mp::wait::{Descriptor, wait_async};
use mp::{Connection, GetError, SpawnOptions, connect, start_processes};
use mp_tests::block_on::{block_on, poll_once};
use mp_tests::{DEADLINE, Outcome, alone, eventually, join, open_files};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

const MOMENT: Duration = Duration::from_millis(50);
/// Number of bytes that is larger than the buffers of a socket.
const MUCH: usize = 1 << 20;

/// Returns a name that no other test listens at.
fn name(what: &str) -> String {
    format!("@mp-tasks-{what}-{}", std::process::id())
}

/// Polls a future once, drops it, and returns `true` if it was pending.
fn is_pending<F: Future>(future: F) -> bool {
    poll_once(&mut pin!(future)).is_pending()
}

/// Returns both ends of a connection.
fn pair(what: &str) -> (Connection, Connection) {
    let listener = SocketOptions::new().listen(name(what)).unwrap();
    let at = name(what);
    let there = std::thread::spawn(move || connect(at).unwrap());
    (block_on(listener.accept_async()).unwrap(), there.join().unwrap())
}

fn answer(_: usize, at: String) -> Outcome {
    let connection = connect(at)?;
    block_on(async {
        loop {
            match connection.recv_async::<(u64, Vec<u8>)>().await {
                Ok((i, bytes)) => connection.send_async((i + 1, bytes)).await.map_err(|e| e.to_string())?,
                Err(GetError::Disconnected) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    })
}

#[test]
fn one_process_awaits_connections_of_three_processes() {
    let _alone = alone();
    let listener = SocketOptions::new().listen(name("answer")).unwrap();
    let context = start_processes(answer, name("answer"), SpawnOptions::nprocs(3)).unwrap();
    block_on(async {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(listener.accept_async().await.unwrap());
        }
        for i in 0..200 {
            let bytes = vec![i as u8; if i % 50 == 0 { MUCH / 2 } else { 100 }];
            for connection in &all {
                connection.send_async((i, bytes.clone())).await.unwrap();
            }
            for connection in &all {
                let (answer, back) = connection.recv_async::<(u64, Vec<u8>)>().await.unwrap();
                assert!(answer == i + 1 && back == bytes);
            }
        }
    });
    join(&context).unwrap();
}

#[test]
fn receive_future_dropped_at_any_poll_takes_nothing() {
    let _alone = alone();
    let (here, there) = pair("dropped");
    let sends = std::thread::spawn(move || {
        for i in 0..20_u8 {
            there.send(vec![i; MUCH / 4]).unwrap();
        }
    });
    for i in 0..20_u8 {
        // Each future is polled once, takes the bytes that have arrived, and is dropped.
        let mut got = None;
        eventually("the message has arrived", || {
            if let Poll::Ready(value) = poll_once(&mut pin!(here.recv_async::<Vec<u8>>())) {
                got = Some(value.unwrap());
            }
            got.is_some()
        });
        assert!(got.unwrap() == vec![i; MUCH / 4], "message {i}");
    }
    sends.join().unwrap();
    assert!(matches!(block_on(here.recv_async::<u8>()), Err(GetError::Disconnected)));
}

#[test]
fn dropped_send_future_sends_all_or_nothing() {
    let _alone = alone();
    let files = open_files();
    let (here, there) = pair("begun");
    assert!(is_pending(here.send_async(vec![1_u8; MUCH])), "the socket has no room for the message");
    assert!(is_pending(here.send_async("not begun".to_string())), "an earlier message is incomplete");
    assert!(is_pending(here.send_async("not begun either".to_string())));
    // This is the last handle of this end.
    drop(here);
    assert!(there.recv_timeout::<Vec<u8>>(DEADLINE).unwrap() == vec![1; MUCH]);
    assert!(matches!(there.recv_timeout::<String>(DEADLINE), Err(GetError::Disconnected)));
    drop(there);
    // The thread that waits for all descriptors has one descriptor.
    eventually("the socket is closed", || open_files() <= files + 1);
}

#[test]
fn threads_and_futures_share_one_connection_end() {
    let _alone = alone();
    let (here, there) = pair("share");
    // The future of a begun message is dropped. Then a blocking thread sends the next message, and a future
    // sends another one.
    assert!(is_pending(here.send_async(vec![1_u8; MUCH])));
    let blocks = here.clone();
    let blocks = std::thread::spawn(move || blocks.send(vec![2_u8; MUCH]).unwrap());
    let future = std::thread::spawn(move || block_on(here.send_async(vec![3_u8; MUCH])).unwrap());
    // A thread and a future receive: each message goes to one of them, and is whole.
    let copy = there.clone();
    let receives = std::thread::spawn(move || copy.recv_timeout::<Vec<u8>>(DEADLINE).unwrap());
    let mut got: Vec<Vec<u8>> = (0..2).map(|_| block_on(there.recv_async()).unwrap()).collect();
    got.push(receives.join().unwrap());
    got.sort();
    assert!(got == [vec![1; MUCH], vec![2; MUCH], vec![3; MUCH]]);
    blocks.join().unwrap();
    future.join().unwrap();
}

#[test]
fn silent_program_blocks_no_connection_future() {
    let _alone = alone();
    let options = SocketOptions::new().handshake_timeout(MOMENT);
    let listener = options.listen(name("silent")).unwrap();
    assert!(is_pending(listener.accept_async()), "no client has connected");
    let address = SocketAddr::from_abstract_name(&name("silent")[1..]).unwrap();
    let mut silent = UnixStream::connect_addr(&address).unwrap();
    assert!(is_pending(listener.accept_async()), "the client sends nothing");
    // No event occurs until the time limit.
    assert!(matches!(block_on(listener.accept_async()), Err(ConnectError::TimedOut(MOMENT))));
    silent.read_to_end(&mut Vec::new()).unwrap();
    // The peer sends half a hello, and the future is dropped in between.
    let mut slow = UnixStream::connect_addr(&address).unwrap();
    slow.write_all(b"mp-sock\x08\x00").unwrap();
    assert!(is_pending(listener.accept_async()));
    slow.write_all(&[7; 32]).unwrap();
    let connection = block_on(listener.accept_async()).unwrap();
    assert_eq!(connection.peer_pid(), Some(std::process::id()));
    let frame = [2, 0, 0, 0];
    slow.write_all(&frame).unwrap();
    drop(slow);
    assert!(matches!(block_on(connection.recv_async::<u8>()), Err(GetError::Failed(_))), "half a message");
}

fn connect_and_ask(rank: usize, at: String) -> Outcome {
    block_on(async {
        for i in 0..20_u64 {
            let connection = connect_async(at.as_str()).await?;
            connection.send_async((rank, i)).await.map_err(|e| e.to_string())?;
            assert_eq!(connection.recv_async::<u64>().await?, i + 1);
        }
        Ok(())
    })
}

#[test]
fn three_processes_connect_by_futures() {
    let _alone = alone();
    let listener = SocketOptions::new().listen(name("connects")).unwrap();
    let context = start_processes(connect_and_ask, name("connects"), SpawnOptions::nprocs(3)).unwrap();
    let mut asked = [0; 3];
    for _ in 0..60 {
        let connection = listener.accept_timeout(DEADLINE).unwrap().expect("a client connects");
        let (rank, i) = connection.recv_timeout::<(usize, u64)>(DEADLINE).unwrap();
        assert_eq!(i, asked[rank], "rank {rank} comes in its order");
        asked[rank] += 1;
        connection.send(i + 1).unwrap();
    }
    join(&context).unwrap();
    assert_eq!(asked, [20; 3]);
}

#[test]
fn dropped_connect_future_leaves_no_connection() {
    let _alone = alone();
    // With a key, the connect waits for the proof.
    let options = SocketOptions::new().authkey("secret");
    let listener = options.listen(name("unconnected")).unwrap();
    let files = open_files();
    for _ in 0..10 {
        assert!(is_pending(options.connect_async(name("unconnected"))), "no listener has answered yet");
    }
    assert!(open_files() <= files + 1, "except the descriptor of the waiting thread");
    let at = name("unconnected");
    let there = std::thread::spawn(move || {
        let connection = block_on(options.connect_async(at)).unwrap();
        connection.send(5).unwrap();
    });
    let connection = listener.accept_timeout(DEADLINE).unwrap().expect("a client that stays connected");
    assert_eq!(connection.recv_timeout::<i32>(DEADLINE).unwrap(), 5);
    there.join().unwrap();
    assert!(listener.accept_timeout(MOMENT).unwrap().is_none(), "the other futures have only polled");
}

#[test]
fn connect_future_reports_a_missing_listener() {
    let _alone = alone();
    let options = SocketOptions::new().authkey("secret").handshake_timeout(MOMENT);
    let absent = block_on(options.connect_async(name("unheard")));
    let Err(ConnectError::Io { source, .. }) = absent else { panic!("unexpected: {absent:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
    // The socket listens, accepts no connection, and has room for one waiting connection.
    let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(&name("unheard").as_bytes()[1..]).unwrap();
    rustix::net::bind(&fd, &address).unwrap();
    rustix::net::listen(&fd, 0).unwrap();
    let begun = Instant::now();
    let unanswered = block_on(options.connect_async(name("unheard")));
    assert!(matches!(unanswered, Err(ConnectError::TimedOut(MOMENT))), "unexpected: {unanswered:?}");
    // The first connection still takes that room.
    let full = block_on(options.connect_async(name("unheard")));
    assert!(matches!(full, Err(ConnectError::TimedOut(MOMENT))), "there was no room: {full:?}");
    // `block_on` polls once more when its own time has expired, so the time shows if a thread has woken it.
    assert!(begun.elapsed() < DEADLINE, "no thread woke them at their deadline");
}

#[test]
fn readable_descriptors_work_as_futures() {
    let _alone = alone();
    let (mut a, b) = UnixStream::pair().unwrap();
    let b = std::sync::Arc::new(b);
    let waits = || wait_async(Descriptor(b.clone()));
    let (mut one, mut two) = (Box::pin(waits()), Box::pin(waits()));
    assert!(poll_once(&mut one).is_pending() && poll_once(&mut two).is_pending());
    a.write_all(b"x").unwrap();
    block_on(one).unwrap();
    block_on(two).unwrap();
    // One future is dropped while it waits, and one after it was woken.
    let (mut x, mut both) = ([0], Vec::new());
    (&*b).read_exact(&mut x).unwrap();
    for _ in 0..2 {
        let mut waits: Pin<Box<_>> = Box::pin(waits());
        assert!(poll_once(&mut waits).is_pending());
        both.push(waits);
    }
    drop(both.pop());
    a.write_all(b"y").unwrap();
    block_on(waits()).unwrap();
    drop(both);
    drop(a);
    (&*b).read_to_end(&mut Vec::new()).unwrap();
    block_on(waits()).expect("the end of the file counts as readable");
    assert!(b.as_fd().try_clone_to_owned().is_ok());
}
