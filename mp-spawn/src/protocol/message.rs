//! Contents of the frames between a parent and a child.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::function_error::FunctionError;
use crate::protocol::fields::{FieldReader, put_bytes, put_number, put_option};
use crate::protocol::frame::{CRASH_PAYLOAD, Frame, FrameKind};
use crate::protocol::function::FunctionRef;
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::resource_limits::Limits;
use crate::protocol::settings::InheritedSettings;
use mp_core::EnvelopeTicket;

/// Start message: identity and duty of the child.
#[derive(Debug)]
pub(crate) struct StartMessage {
    pub(crate) rank: usize,
    /// `true` if the rank is visible to the program.
    pub(crate) ranked: bool,
    pub(crate) name: String,
    pub(crate) function: FunctionRef,
    /// Library that holds the function, if it may not be loaded.
    pub(crate) library: Option<PathBuf>,
    /// `true` if the parent ends this process at its exit, instead of waiting for it.
    pub(crate) daemon: bool,
    /// Effect of SIGINT and SIGTERM.
    pub(crate) interrupt: Interrupt,
    pub(crate) interrupt_signals: InterruptSignals,
    /// Number of the start of this process, counted from 1.
    pub(crate) attempt: u32,
    /// Settings for the processes that it starts.
    pub(crate) settings: InheritedSettings,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) processors: Vec<usize>,
}

impl StartMessage {
    /// Encodes the payload.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        put_number(&mut out, self.rank as u64);
        out.push(self.ranked.into());
        put_bytes(&mut out, self.name.as_bytes());
        self.function.put(&mut out);
        put_path(&mut out, self.library.as_deref());
        out.push(self.daemon.into());
        out.push(self.interrupt.to_byte());
        out.push(self.interrupt_signals.to_byte());
        put_number(&mut out, self.attempt.into());
        self.settings.put(&mut out);
        put_path(&mut out, self.directory.as_deref());
        self.limits.put(&mut out);
        put_number(&mut out, self.processors.len() as u64);
        self.processors.iter().for_each(|number| put_number(&mut out, *number as u64));
        out
    }

    /// Decodes a payload. Returns `None` if it is malformed.
    #[inline]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<StartMessage> {
        let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        let mut fields = FieldReader(bytes);
        let mut start = StartMessage {
            rank: fields.size()?,
            ranked: fields.flag()?,
            name: fields.text()?,
            function: FunctionRef::read(&mut fields)?,
            library: fields.option(FieldReader::bytes)?.map(path),
            daemon: fields.flag()?,
            interrupt: fields.byte().and_then(Interrupt::from_byte)?,
            interrupt_signals: fields.byte().and_then(InterruptSignals::from_byte)?,
            attempt: fields.size().and_then(|attempt| u32::try_from(attempt).ok())?,
            settings: InheritedSettings::read(&mut fields)?,
            directory: fields.option(FieldReader::bytes)?.map(path),
            limits: Limits::read(&mut fields)?,
            processors: Vec::new(),
        };
        // Read one by one: the count in the message is not trusted for an allocation.
        for _ in 0..fields.size()? {
            start.processors.push(fields.size()?);
        }
        fields.end().map(|()| start)
    }
}

fn put_path(out: &mut Vec<u8>, path: Option<&Path>) {
    put_option(out, path, |out, path| put_bytes(out, path.as_os_str().as_bytes()));
}

/// Start message of a fork server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ServeMessage {
    /// Function that it calls before it serves.
    pub(crate) preload: Option<FunctionRef>,
}

/// Changes to the environment of a process, in order. `None` removes a variable.
#[derive(Debug, Default)]
pub(crate) struct EnvironmentChanges(pub(crate) Vec<(OsString, Option<OsString>)>);

impl EnvironmentChanges {
    /// Decodes a payload. Returns `None` if it is malformed.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<EnvironmentChanges> {
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let (mut fields, mut changes) = (FieldReader(bytes), Vec::new());
        for _ in 0..fields.size()? {
            let name = text(fields.bytes()?);
            changes.push((name, fields.option(FieldReader::bytes)?.map(text)));
        }
        fields.end().map(|()| EnvironmentChanges(changes))
    }
}

/// Answer of a fork server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ServerAnswer {
    /// The server is ready, and now calls its preloaded function, which may take any time. Another answer
    /// follows.
    Preloading,
    /// The server is ready, or has made the process.
    Done,
    /// The kernel refused to make a process, with this error number.
    Refused(i32),
    /// The process can't be a server, for this reason.
    Failed(String),
}

/// Message of a child that has become a worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Random part of its token: proof that it is the process that was started.
    pub(crate) nonce: u64,
    /// Member of the shared memory that it is, if it has joined already.
    pub(crate) member: Option<u32>,
}

impl Hello {
    /// Encodes the payload.
    #[inline]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17);
        put_number(&mut out, self.nonce);
        put_option(&mut out, self.member, |out, member| put_number(out, member.into()));
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Hello> {
        let mut fields = FieldReader(bytes);
        let (nonce, member) = (fields.number()?, fields.option(FieldReader::number)?);
        let member = member.map_or(Some(None), |member| u32::try_from(member).ok().map(Some))?;
        fields.end().map(|()| Hello { nonce, member })
    }
}

/// Message of a child that has joined the shared memory later, as this member.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MemberJoined {
    pub(crate) member: u32,
}

/// Panic, as recorded by the panic hook.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PanicNote {
    pub(crate) message: String,
    pub(crate) location: Option<String>,
    pub(crate) backtrace: Option<String>,
}

/// Result of the function.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The function returned without an error. This has its own frame, without a payload.
    #[serde(skip)]
    Done,
    /// The function returned this value.
    Plain(Vec<u8>),
    /// The function returned a value, and the child waits until the parent has taken it.
    Value(EnvelopeTicket),
    /// The function returned an error.
    Error { at: u64, message: String, chain: Vec<String>, debug: String, interrupted: bool },
    /// The function panicked.
    Panic { at: u64, note: PanicNote },
    /// The function was not called: its reference is invalid here.
    Refused(FunctionError),
    /// The function was not called: its arguments could not be decoded.
    Undecodable(String),
    /// The function was not called: the process has no spare descriptors for its arguments, and waits until
    /// the parent has taken them back.
    Unread(String, EnvelopeTicket),
    /// The function was not called: the process lacks a resource that it needs.
    Unable(String),
}

/// Last report of a process that a signal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    pub(crate) at: u64,
    pub(crate) address: u64,
    pub(crate) signal: i32,
    pub(crate) cause: CrashCause,
}

/// Cause of a signal, as determined by a signal handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CrashCause {
    /// A process sent the signal, or the program raised it.
    Sent = 0,
    /// An instruction raised the signal.
    Fault = 1,
    /// An instruction raised the signal by using the stack beyond its end.
    StackOverflow = 2,
    /// The program raised the signal, on a thread with a panic that was not caught.
    Panic = 3,
}

impl CrashCause {
    fn from_byte(byte: u8) -> Option<CrashCause> {
        [CrashCause::Sent, CrashCause::Fault, CrashCause::StackOverflow, CrashCause::Panic]
            .into_iter()
            .find(|cause| *cause as u8 == byte)
    }
}

impl Crash {
    /// Encodes the payload. Called from a signal handler, so it must not allocate.
    pub(crate) fn to_bytes(self) -> [u8; CRASH_PAYLOAD] {
        let mut bytes = [0; CRASH_PAYLOAD];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.signal.to_le_bytes());
        bytes[20] = self.cause as u8;
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Crash> {
        let (at, bytes) = bytes.split_first_chunk()?;
        let (address, bytes) = bytes.split_first_chunk()?;
        let (signal, bytes) = bytes.split_first_chunk()?;
        Some(Crash {
            at: u64::from_le_bytes(*at),
            address: u64::from_le_bytes(*address),
            signal: i32::from_le_bytes(*signal),
            cause: CrashCause::from_byte(*bytes.first()?)?,
        })
    }
}

/// Maximum nesting, greater than that of any of these types. A reader skips unknown data recursively, and a
/// child must not be able to use up the reader's stack.
const NESTED: usize = 24;

/// Decodes a payload, except of frames that children read.
pub(crate) fn unpack<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(payload);
    reader.set_max_depth(NESTED);
    T::deserialize(&mut reader)
}

/// Message of a child to its parent.
#[derive(Debug)]
pub(crate) enum FromChild {
    Hello(Hello),
    Joined(MemberJoined),
    Panic(PanicNote),
    Crash(Crash),
    Report(Report),
}

impl FromChild {
    /// Decodes a frame. Returns an error if a child never sends such a frame.
    pub(crate) fn from_frame(frame: &Frame) -> Result<FromChild, String> {
        let malformed =
            |error: rmp_serde::decode::Error| format!("malformed {:?} frame: {error}", frame.kind);
        match frame.kind {
            FrameKind::Hello => Hello::from_bytes(&frame.payload)
                .map(FromChild::Hello)
                .ok_or_else(|| "malformed Hello frame".to_string()),
            FrameKind::Done => Ok(FromChild::Report(Report::Done)),
            FrameKind::Joined => unpack(&frame.payload).map(FromChild::Joined).map_err(malformed),
            FrameKind::Panic => unpack(&frame.payload).map(FromChild::Panic).map_err(malformed),
            FrameKind::Report => unpack(&frame.payload).map(FromChild::Report).map_err(malformed),
            FrameKind::Crash => Crash::from_bytes(&frame.payload)
                .map(FromChild::Crash)
                .ok_or_else(|| "malformed Crash frame".to_string()),
            FrameKind::Fds
            | FrameKind::Environment
            | FrameKind::Start
            | FrameKind::Args
            | FrameKind::Taken
            | FrameKind::Serve
            | FrameKind::Fork
            | FrameKind::Ask
            | FrameKind::Answer => Err(format!("a child sends no {:?} frame", frame.kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_round_trip() {
        let crash = Crash { at: 5, address: 0xdead, signal: 11, cause: CrashCause::StackOverflow };
        assert_eq!(Crash::from_bytes(&crash.to_bytes()), Some(crash));
        assert_eq!(Crash::from_bytes(&[0; 10]), None);
    }

    #[test]
    fn a_start_and_a_hello_are_read_as_they_were_written() {
        let start = StartMessage {
            rank: 3,
            ranked: true,
            name: "ä".to_string(),
            function: FunctionRef::example(),
            library: Some(PathBuf::from("/tmp/lib.so")),
            daemon: true,
            interrupt: Interrupt::Graceful,
            interrupt_signals: InterruptSignals::Sigterm,
            attempt: 2,
            settings: InheritedSettings::example(),
            directory: Some(PathBuf::from("/tmp/x y")),
            limits: Limits::example(),
            processors: vec![0, 7],
        };
        let bytes = start.to_bytes();
        assert_eq!(format!("{:?}", StartMessage::from_bytes(&bytes).unwrap()), format!("{start:?}"));
        for end in 0..bytes.len() {
            assert!(StartMessage::from_bytes(&bytes[..end]).is_none());
        }
        assert!(StartMessage::from_bytes(&[&bytes[..], &[0]].concat()).is_none());
        let mut many = bytes;
        let count = many.len() - 3 * size_of::<u64>();
        many[count..].fill(0xff);
        assert!(StartMessage::from_bytes(&many).is_none());
        for member in [None, Some(9)] {
            let hello = Hello { nonce: 5, member };
            assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
        }
        assert_eq!(Hello::from_bytes(&[1]), None);
    }

    #[test]
    fn a_parents_frame_from_a_child_is_an_error() {
        assert!(FromChild::from_frame(&Frame { kind: FrameKind::Args, payload: vec![] }).is_err());
        assert!(
            FromChild::from_frame(&Frame { kind: FrameKind::Report, payload: vec![0xc1, 0xff] }).is_err()
        );
    }
}
