//! Descriptors sent in all kinds of messages.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use mp::{Fd, Pool, Queue};
use mp_tests::{DEADLINE, Outcome, alone, join, one_process, take};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::{is_close_on_exec, pipe, said};

#[derive(Serialize, Deserialize)]
struct Kinds {
    memfd: Fd<File>,
    tcp_listener: Fd<TcpListener>,
    #[serde(with = "mp::descriptor")]
    tcp: TcpStream,
    udp: Fd<UdpSocket>,
    unix_listener: Fd<UnixListener>,
    #[serde(with = "mp::descriptor")]
    unix: UnixStream,
    datagram: Fd<UnixDatagram>,
    reader: Fd<PipeReader>,
    writer: Fd<PipeWriter>,
    pidfd: Fd,
    several: Vec<Fd<PipeWriter>>,
    maybe: Option<Fd<PipeWriter>>,
}

fn use_kinds(_: usize, queue: Queue<Kinds>) -> Outcome {
    let mut all = queue.get_timeout(DEADLINE)?.ok_or("closed")?;
    assert!(is_close_on_exec(&all.memfd) && is_close_on_exec(&all.tcp) && is_close_on_exec(&all.pidfd));
    all.memfd.0.write_all(b"memfd")?;
    all.tcp.write_all(b"tcp")?;
    let (mut accepted, _) = all.tcp_listener.0.accept()?;
    accepted.write_all(b"accepted")?;
    all.udp.0.send(b"udp")?;
    all.unix.write_all(b"unix")?;
    let (mut accepted, _) = all.unix_listener.0.accept()?;
    accepted.write_all(b"accepted here")?;
    all.datagram.0.send(b"datagram")?;
    let mut text = String::new();
    all.reader.0.read_to_string(&mut text)?;
    all.writer.0.write_all(text.as_bytes())?;
    for (i, writer) in all.several.iter_mut().enumerate() {
        writer.0.write_all(i.to_string().as_bytes())?;
    }
    assert!(all.maybe.is_none());
    rustix::process::pidfd_send_signal(&all.pidfd, rustix::process::Signal::KILL)?;
    Ok(())
}

#[test]
fn descriptors_of_every_kind_arrive() {
    let _alone = alone();
    let queue = Queue::bounded(2).unwrap();
    let worker = one_process(use_kinds, queue.clone());

    let mut memfd: File = rustix::fs::memfd_create("kinds", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
    let tcp_listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = tcp_listener.local_addr().unwrap();
    let mut connected = TcpStream::connect(address).unwrap();
    let (mut accepted, _) = tcp_listener.accept().unwrap();
    let mut later = TcpStream::connect(address).unwrap();
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let udp_receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    udp.connect(udp_receiver.local_addr().unwrap()).unwrap();
    let scratch = mp_tests::scratch::Scratch::new("kinds");
    let path = scratch.0.join("socket");
    let unix_listener = UnixListener::bind(&path).unwrap();
    let mut unix_later = UnixStream::connect(&path).unwrap();
    let (unix, mut unix_other) = UnixStream::pair().unwrap();
    let (datagram, datagram_other) = UnixDatagram::pair().unwrap();
    let (reader, mut to_worker) = std::io::pipe().unwrap();
    let (from_worker, writer) = pipe();
    let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = Pid::from_raw(sleeper.id() as i32).unwrap();
    let (several, ends): (Vec<_>, Vec<_>) = (0..5).map(|_| pipe()).unzip();

    to_worker.write_all(b"through two pipes").unwrap();
    drop(to_worker);
    let copy = memfd.try_clone().unwrap();
    let all = Kinds {
        memfd: Fd(copy),
        tcp_listener: Fd(tcp_listener),
        tcp: accepted.try_clone().unwrap(),
        udp: Fd(udp),
        unix_listener: Fd(unix_listener),
        unix,
        datagram: Fd(datagram),
        reader: Fd(reader),
        writer: Fd(writer.into()),
        pidfd: Fd(pidfd_open(pid, PidfdFlags::empty()).unwrap()),
        several: ends.into_iter().map(|end| Fd(end.into())).collect(),
        maybe: None,
    };
    queue.put(all).unwrap();
    join(&worker).unwrap();

    let mut text = String::new();
    memfd.rewind().unwrap();
    memfd.read_to_string(&mut text).unwrap();
    assert_eq!(text, "memfd");
    let mut bytes = [0; 64];
    let mut read = |from: &mut dyn Read| {
        let n = from.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    };
    assert_eq!(read(&mut connected), "tcp");
    assert_eq!(read(&mut later), "accepted");
    assert_eq!(read(&mut unix_other), "unix");
    assert_eq!(read(&mut unix_later), "accepted here");
    let n = udp_receiver.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..n], b"udp");
    let n = datagram_other.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..n], b"datagram");
    assert_eq!(said(from_worker), "through two pipes");
    for (i, reader) in several.into_iter().enumerate() {
        assert_eq!(said(reader), i.to_string());
    }
    assert!(!sleeper.wait().unwrap().success(), "the worker has killed it by its pidfd");
    _ = accepted.flush();
}

fn write(fd: OwnedFd, text: &str) -> Outcome {
    Ok(File::from(fd).write_all(text.as_bytes())?)
}

#[test]
fn descriptors_pass_through_channels_and_pipes() {
    let _alone = alone();
    let (sender, receiver) = mp::bounded_channel::<Fd>(2).unwrap();
    let worker = one_process(
        |_: usize, receiver: mp::Receiver<Fd>| write(receiver.recv_timeout(DEADLINE)?.0, "channel"),
        receiver,
    );
    let (reader, writer) = pipe();
    sender.send(Fd(writer)).unwrap();
    join(&worker).unwrap();
    assert_eq!(said(reader), "channel");

    let (here, there) = mp::pipe().unwrap();
    let worker = one_process(
        |_: usize, there: mp::Connection| -> Outcome { Ok(there.send(there.recv_timeout::<Fd>(DEADLINE)?)?) },
        there,
    );
    let (reader, writer) = pipe();
    here.send(Fd(writer)).unwrap();
    write(here.recv_timeout::<Fd>(DEADLINE).unwrap().0, "there and back").unwrap();
    join(&worker).unwrap();
    assert_eq!(said(reader), "there and back");
}

#[test]
fn descriptors_pass_as_arguments_and_results() {
    let _alone = alone();
    // All ranks get the same descriptor.
    let (reader, writer) = pipe();
    mp::spawn(|rank: usize, fd: Fd| write(fd.0, &format!("{}", rank / 3)), Fd(writer), 3).unwrap();
    assert_eq!(said(reader), "000");

    let made = mp::spawn(
        |_: usize, (): ()| -> mp::AnyResult<(Fd<PipeReader>, String)> {
            let (reader, mut writer) = std::io::pipe()?;
            writer.write_all(b"made there")?;
            Ok((Fd(reader), "a result".into()))
        },
        (),
        1,
    );
    let (Fd(mut reader), text) = made.unwrap().remove(0);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!((said.as_str(), text.as_str()), ("made there", "a result"));
}

fn shout(mut word: Fd<PipeReader>) -> mp::AnyResult<Fd<PipeReader>> {
    let mut text = String::new();
    word.0.read_to_string(&mut text)?;
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(text.to_uppercase().as_bytes())?;
    Ok(Fd(reader))
}

#[test]
fn descriptors_pass_through_a_pool() {
    let _alone = alone();
    let pool = Pool::new(2).unwrap();
    let word = |i: usize| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        write!(writer, "word {i}").unwrap();
        Fd(reader)
    };
    let text = |mut reader: Fd<PipeReader>| {
        let mut text = String::new();
        reader.0.read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(text(pool.apply(shout, word(1)).unwrap()), "WORD 1");
    let all = pool.map(shout, (0..100).map(word)).unwrap();
    let all: Vec<_> = all.into_iter().map(text).collect();
    assert!(all.iter().enumerate().all(|(i, text)| *text == format!("WORD {i}")), "{all:?}");
}

#[test]
fn descriptors_outlive_their_exiting_sender() {
    let _alone = alone();
    let queue: Queue<(u32, Fd<PipeReader>)> = Queue::unbounded().unwrap();
    let sender = |_: usize, queue: Queue<(u32, Fd<PipeReader>)>| -> Outcome {
        for i in 0..20 {
            let (reader, mut writer) = std::io::pipe()?;
            write!(writer, "{i}")?;
            queue.put((i, Fd(reader)))?;
        }
        std::process::exit(0)
    };
    let worker = one_process(sender, queue.clone());
    _ = worker.join_timeout(DEADLINE);
    for i in 0..20 {
        let (number, mut reader) = take(&queue);
        let mut text = String::new();
        reader.0.read_to_string(&mut text).unwrap();
        assert_eq!((number, text), (i, i.to_string()));
    }
}

/// A refused descriptor is neither closed nor counted as in flight.
#[test]
fn descriptor_of_a_refused_message_stays_open() {
    let _alone = alone();
    let queue = Queue::bounded(1).unwrap();
    let ((first, one), (second, other)) = (pipe(), pipe());
    queue.put(Fd(one)).unwrap();
    let Err(mp::PutError::Full(back)) = queue.try_put(Fd(other)) else { panic!("the queue is full") };
    drop(queue);
    assert_eq!(said(first), "");
    write(back.0, "still open").unwrap();
    assert_eq!(said(second), "still open");
}

/// A serde format other than the library's codec can't contain descriptors, and returns an error that states
/// this.
#[test]
fn plain_byte_messages_have_no_descriptors() {
    let _alone = alone();
    let (_reader, writer) = pipe();
    let error = mp_reduce::to_bytes(&mut Fd(writer)).unwrap_err().to_string();
    assert!(error.contains("a value that is to leave this memory"), "{error}");
    let (_reader, writer) = pipe();
    let error = rmp_serde::to_vec(&Fd(writer)).unwrap_err().to_string();
    assert!(error.contains("can only be serialised inside of a message"), "{error}");
}

/// An untagged enum has two variants. The variant that serde tries first does not take the descriptors of the
/// variant that matches.
#[test]
fn untagged_variants_keep_their_descriptors() {
    let _alone = alone();
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number { fd: Fd, number: u64 },
        Text { fd: Fd, number: String },
    }
    let queue = Queue::bounded(1).unwrap();
    let (reader, fd) = pipe();
    queue.put(Either::Text { fd: Fd(fd), number: "a text".into() }).unwrap();
    match take(&queue) {
        Either::Number { .. } => panic!("the value is a text"),
        Either::Text { fd, number } => write(fd.0, &number).unwrap(),
    }
    assert_eq!(said(reader), "a text");
}
