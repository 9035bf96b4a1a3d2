//! Inviting processes that break the protocol at each of its steps. A guest gets an error with the reason
//! within its time limit, leaks nothing, and can accept the next invitation.

use std::fs::File;
use std::io::{Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::time::Duration;

use mp::connection::InvitationState;
use mp::message::MessageError;
use mp::{Arena, Error, GetError, Listener, Queue, connect};
use mp_harness::hostile::Random;
use mp_tests::limits::{Resource, limit};
use mp_tests::{DEADLINE, alive, eventually, open_files, settled, take};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::{end, guest as program, raw};

/// Name of the files that the hostile process sends instead of an arena.
const FILE: &str = "mp-hostile";
/// Size of the smallest arena in bytes.
const LEAST: u64 = 64 << 20;

/// Name of the case, and the expected error of the guest: [`LATE`], [`GONE`], [`NO_ARENA`], or a part of the
/// error text.
const CASES: &[(&str, &str)] = &[
    ("says nothing", LATE),
    ("closes", GONE),
    ("half a hello", LATE),
    ("half a hello and closes", GONE),
    ("random bytes", "sent no valid hello"),
    ("another version of connections", "another version of the protocol"),
    ("a key", "key"),
    ("closes after the hello", GONE),
    ("half an announcement", "the first 20 of the 70 bytes that announce one came by themselves. "),
    ("half an announcement and closes", "came by themselves, and the connection is closed. "),
    ("an announcement in parts", "the first 20 of the 70 bytes that announce one came by themselves. "),
    ("random bytes after the hello", "a message comes before it, or in its place"),
    ("an announcement without a socket", "of its socket: no descriptor was sent"),
    ("two sockets", "of its socket: more than one descriptor"),
    ("four sockets", "of its socket: more than one descriptor"),
    ("no place for a socket", "of its socket: the kernel could not open in this process"),
    ("a pipe for a socket", "the descriptor that was sent for it is no socket"),
    ("a directory for a socket", "the descriptor that was sent for it is no socket"),
    ("an empty socket", "a socket with no invitation in it"),
    ("a closed socket", "The other end of the socket is closed"),
    ("random bytes in the socket", "what was sent is no invitation"),
    ("half a packet", "only 10 of the 24 bytes"),
    ("another version of invitations", "the version of an invitation is 9"),
    ("too long a packet", "longer than the 24 bytes"),
    ("a cut packet", "longer than the 24 bytes"),
    ("a packet without a file", "of the arena's file: no descriptor"),
    ("a packet with two files", "of the arena's file: more than one descriptor"),
    ("no place for a file", "of the arena's file: the kernel could not open in this process"),
    ("a pipe for a file", NO_ARENA),
    ("a directory for a file", NO_ARENA),
    ("a device for a file", NO_ARENA),
    ("a socket for a file", "parcel"),
    ("a small file", NO_ARENA),
    ("a huge file", NO_ARENA),
    ("a file that can be cut", "not sealed against shrinking|no file of this user's alone"),
    ("an empty header", NO_ARENA),
    ("a header of random words", NO_ARENA),
    ("random words after the magic", "layout version"),
    ("a header of another version", "layout version|no file of this user's alone"),
];
/// Expected error of a case: the guest's time limit has expired.
const LATE: &str = "(late)";
/// Expected error of a case: the connection is closed.
const GONE: &str = "(gone)";
/// Expected error of a case: the file does not contain an arena.
const NO_ARENA: &str = "(no arena)";

/// Runs all cases in a guest, and then accepts a correct invitation. The guest begins each case when it reads
/// a byte from stdin, after the hostile process has done its part.
pub(crate) fn guest(what: &str, argument: &str) -> bool {
    if what != "meets-hostile" {
        return false;
    }
    let (hostile, honest) = argument.split_once(' ').unwrap();
    let mut before = 0;
    for (name, expected) in CASES {
        let there = connect(hostile).unwrap();
        std::io::stdin().read_exact(&mut [0]).unwrap();
        let time = if *expected == LATE { Duration::from_millis(50) } else { DEADLINE };
        let places = match *name {
            "no place for a socket" => 0,
            "no place for a file" => 1,
            _ => 100,
        };
        let free = std::io::stdin().as_fd().try_clone_to_owned().unwrap().as_raw_fd();
        limit(Resource::Nofile, free as u64 + places);
        let got = there.accept_invitation_timeout::<u32>(time);
        limit(Resource::Nofile, free as u64 + 100);
        let error = got.unwrap_err();
        let is_expected = match (*expected, &error) {
            (LATE, GetError::Empty) | (GONE, GetError::Disconnected) => true,
            (NO_ARENA, GetError::Failed(MessageError::Memory(Error::NotAnArena(_)))) => true,
            (texts, GetError::Failed(_)) => texts.split('|').any(|text| error.to_string().contains(text)),
            _ => false,
        };
        assert!(is_expected, "{name}: {error:?}, {error}");
        println!("{name}: {error}");
        drop((there, error));
        assert!(Arena::get().is_none(), "{name}");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains(FILE), "{name}: {maps}");
        if before == 0 {
            before = open_files();
        }
        assert_eq!(open_files(), before, "{name}");
    }
    let there = connect(honest).unwrap();
    there.accept_invitation_timeout::<Queue<u32>>(DEADLINE).unwrap().put(7).unwrap();
    true
}

/// Returns a sealed file of this size that begins with these words.
fn file(size: u64, words: &[u64]) -> OwnedFd {
    let file = unsealed(size, words);
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    file
}

fn unsealed(size: u64, words: &[u64]) -> OwnedFd {
    let file = memfd_create(FILE, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, size).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(rustix::io::pwrite(&file, &bytes, 0).unwrap(), bytes.len());
    file
}

/// Sends the announcement of an invitation with an attached descriptor, which need not be a socket.
fn announce(stream: &UnixStream, way: impl AsFd) {
    raw::send(stream, &raw::greeting(), &[]);
    raw::send(stream, &raw::announcement(), &[way.as_fd()]);
}

/// Sends an invitation whose socket contains this packet and these files. Returns this process's end of the
/// socket.
fn invite(stream: &UnixStream, kind: SocketType, packet: &[u8], files: &[&OwnedFd]) -> OwnedFd {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    if !packet.is_empty() {
        raw::send(&ours, packet, &files.iter().map(|file| file.as_fd()).collect::<Vec<_>>());
    }
    announce(stream, theirs);
    ours
}

/// Runs one case of a hostile process. Returns the stream and the socket that must stay open.
fn misbehave(name: &str, stream: UnixStream) -> (Option<UnixStream>, Option<OwnedFd>) {
    let mut random = Random(5);
    let mut words = std::iter::repeat_with(move || random.number());
    let bytes: Vec<u8> = words.by_ref().take(50).flat_map(u64::to_ne_bytes).collect();
    let magic = u64::from_le_bytes(*b"mp-arena");
    let (greeting, announcement) = (raw::greeting(), raw::announcement());
    let say = |bytes: &[u8]| raw::send(&stream, bytes, &[]);
    let greet_and_say = |bytes: &[u8]| {
        say(&greeting);
        say(bytes);
    };
    let with = |packet: &[u8], files: &[&OwnedFd]| Some(invite(&stream, SocketType::STREAM, packet, files));
    let with_file = |file: OwnedFd| with(&raw::packet(2), &[&file]);
    let sockets = |count| {
        say(&greeting);
        raw::send(&stream, &announcement, &vec![stream.as_fd(); count]);
    };
    let kept = match name {
        "says nothing" | "closes" => None,
        "half a hello" | "half a hello and closes" => return (close(name, stream, &greeting[..20]), None),
        "random bytes" => return (close(name, stream, &bytes), None),
        "another version of connections" => return (close(name, stream, &raw::hello(9, false)), None),
        "a key" => return (close(name, stream, &raw::hello(8, true)), None),
        "closes after the hello" => return (close(name, stream, &greeting), None),
        "half an announcement" | "half an announcement and closes" => {
            say(&greeting);
            return (close(name, stream, &announcement[..20]), None);
        }
        "an announcement in parts" => {
            say(&greeting);
            let (first, rest) = announcement.split_at(20);
            raw::send(&stream, first, &[stream.as_fd()]);
            say(rest);
            None
        }
        "random bytes after the hello" => {
            greet_and_say(&bytes);
            None
        }
        "an announcement without a socket" => {
            greet_and_say(&announcement);
            None
        }
        "two sockets" => {
            sockets(2);
            None
        }
        "four sockets" => {
            sockets(4);
            None
        }
        "no place for a socket" => {
            sockets(1);
            None
        }
        "a pipe for a socket" => {
            announce(&stream, pipe().unwrap().0);
            None
        }
        "a directory for a socket" => {
            announce(&stream, File::open("/").unwrap());
            None
        }
        "an empty socket" => with(&[], &[]),
        "a closed socket" => {
            drop(with(&[], &[]));
            None
        }
        "random bytes in the socket" => with(&bytes, &[]),
        "half a packet" => with(&raw::packet(2)[..10], &[&file(LEAST, &[])]),
        "another version of invitations" => with(&raw::packet(9), &[&file(LEAST, &[])]),
        "too long a packet" => with(&[&raw::packet(2)[..], &[0; 9]].concat(), &[&file(LEAST, &[])]),
        "a cut packet" => {
            let long = [&raw::packet(2)[..], &[0; 9]].concat();
            Some(invite(&stream, SocketType::SEQPACKET, &long, &[&file(LEAST, &[])]))
        }
        "a packet without a file" => with(&raw::packet(2), &[]),
        "a packet with two files" => {
            let file = file(LEAST, &[]);
            with(&raw::packet(2), &[&file, &file])
        }
        "no place for a file" => with_file(file(LEAST, &[])),
        "a pipe for a file" => with_file(pipe().unwrap().0.into()),
        "a directory for a file" => with_file(File::open("/").unwrap().into()),
        "a device for a file" => with_file(File::open("/dev/zero").unwrap().into()),
        "a socket for a file" => with_file(stream.try_clone().unwrap().into()),
        "a small file" => with_file(file(4096, &[])),
        "a huge file" => with_file(file(i64::MAX as u64 & !4095, &[magic])),
        "a file that can be cut" => with_file(unsealed(LEAST, &[])),
        "an empty header" => with_file(file(LEAST, &[])),
        "a header of random words" => with_file(file(LEAST, &words.take(512).collect::<Vec<_>>())),
        "random words after the magic" => {
            with_file(file(LEAST, &[magic].into_iter().chain(words.take(511)).collect::<Vec<_>>()))
        }
        "a header of another version" => {
            // The version, and a valid number of messages.
            let mut header = [0; 32];
            (header[0], header[8], header[14]) = (magic, 9999, 1024);
            with_file(file(LEAST, &header))
        }
        other => panic!("{other}"),
    };
    (Some(stream).filter(|_| name != "closes"), kept)
}

/// Sends bytes, and returns the stream. Returns `None` after closing the stream if the case requires it.
fn close(name: &str, stream: UnixStream, bytes: &[u8]) -> Option<UnixStream> {
    raw::send(&stream, bytes, &[]);
    Some(stream).filter(|_| !name.contains("closes"))
}

#[test]
fn guest_survives_hostile_inviters() {
    let _alone = settled();
    let names = ["hostile", "honest"].map(|kind| format!("@mp-test-{}-{kind}", std::process::id()));
    let hostile = UnixListener::bind_addr(&raw::abstract_address(&names[0])).unwrap();
    hostile.set_nonblocking(true).unwrap();
    let honest = Listener::bind(names[1].as_str()).unwrap();
    let mut command = program(&format!("meets-hostile {} {}", names[0], names[1]));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut go = child.stdin.take().unwrap();
    // These stay open until the guest begins the next case.
    let mut kept = (None, None);
    for (name, _) in CASES {
        let mut stream = None;
        eventually(&format!("the guest connects for: {name}"), || {
            stream = hostile.accept().ok();
            stream.is_some() || !alive(child.id())
        });
        let (stream, _) = stream.unwrap_or_else(|| panic!("the guest has ended before: {name}"));
        drop(std::mem::replace(&mut kept, misbehave(name, stream)));
        go.write_all(&[0]).unwrap();
    }
    let here = honest.accept_timeout(DEADLINE).unwrap().expect("a guest");
    let queue = Queue::<u32>::bounded(1).unwrap();
    let invitation = here.invite(queue.clone()).unwrap();
    assert_eq!(take(&queue), 7);
    assert!(end(&mut child).success());
    assert_eq!(invitation.state(), InvitationState::Accepted);
}
