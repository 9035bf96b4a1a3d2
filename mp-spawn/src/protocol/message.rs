//! Contents of the frames between a parent and a child, with the settings that processes inherit.

use std::ffi::OsString;
use std::path::PathBuf;

#[cfg(feature = "authkey")]
use mp_core::AuthKey;
use serde::{Deserialize, Serialize};

use crate::protocol::command::CommandLine;
use crate::protocol::fields::{Field, FieldReader, field_enum, fields, from_bytes};
use crate::protocol::frame::{CRASH_PAYLOAD, Frame, FrameKind};
use crate::protocol::function::FunctionRef;
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::report::Report;
use crate::protocol::resource_limits::Limits;
use crate::start_method::{StartMethod, StartSettings};

/// Start message: identity and task of the child.
#[derive(Debug)]
pub(crate) struct StartMessage {
    pub(crate) rank: usize,
    /// `true` if the rank is visible to the program.
    pub(crate) ranked: bool,
    pub(crate) name: String,
    pub(crate) function: FunctionRef,
    /// Library that holds the function, if the child may have to load it.
    pub(crate) library: Option<PathBuf>,
    /// `true` if an exit of the parent ends the child, `false` if the parent waits for the child.
    pub(crate) daemon: bool,
    /// Effect of SIGINT and SIGTERM.
    pub(crate) interrupt: Interrupt,
    pub(crate) interrupt_signals: InterruptSignals,
    /// Number of the start of this process, counted from 1.
    pub(crate) attempt: u32,
    /// Settings for processes that the child starts.
    pub(crate) settings: InheritedSettings,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) processors: Vec<usize>,
}

fields!(StartMessage {
    rank,
    ranked,
    name,
    function,
    library,
    daemon,
    interrupt,
    interrupt_signals,
    attempt,
    settings,
    directory,
    limits,
    processors,
});

/// Changes to the environment of a process, in order. `None` removes a variable.
pub(crate) type EnvironmentChanges = Vec<(OsString, Option<OsString>)>;

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
    /// Random part of the sender's token: proof that the sender is the process that was started.
    pub(crate) nonce: u64,
    /// Number of the child's member slot in the shared memory, if it has joined already.
    pub(crate) member: Option<u32>,
}

fields!(Hello { nonce, member });

/// Panic, as recorded by the panic hook.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PanicNote {
    pub(crate) message: String,
    pub(crate) location: Option<String>,
    pub(crate) backtrace: Option<String>,
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

field_enum!(CrashCause { Sent, Fault, StackOverflow, Panic });

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
        let mut fields = FieldReader(bytes);
        let (at, address) = Field::read(&mut fields)?;
        let (signal, rest) = fields.0.split_first_chunk()?;
        let cause = CrashCause::read(&mut FieldReader(rest))?;
        Some(Crash { at, address, signal: i32::from_le_bytes(*signal), cause })
    }
}

/// Maximum nesting of a decoded payload, greater than the nesting of any message. A reader skips unknown data
/// recursively, and a child must not be able to use up the reader's stack.
const NESTED: usize = 24;

/// Decodes the payload of a frame that the parent reads.
pub(crate) fn unpack<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(payload);
    reader.set_max_depth(NESTED);
    T::deserialize(&mut reader)
}

/// Message of a child to its parent.
#[derive(Debug)]
pub(crate) enum FromChild {
    Hello(Hello),
    /// The child has joined the shared memory as this member, after its hello.
    Joined(u32),
    Panic(PanicNote),
    Crash(Crash),
    Report(Report),
}

impl FromChild {
    /// Decodes a frame. Returns an error if a child never sends such a frame.
    pub(crate) fn from_frame(Frame { kind, payload }: &Frame) -> Result<FromChild, String> {
        let short = || format!("malformed {kind:?} frame");
        let malformed = |error: rmp_serde::decode::Error| format!("malformed {kind:?} frame: {error}");
        match kind {
            FrameKind::Hello => from_bytes(payload).map(FromChild::Hello).ok_or_else(short),
            FrameKind::Joined => from_bytes(payload).map(FromChild::Joined).ok_or_else(short),
            FrameKind::Crash => Crash::from_bytes(payload).map(FromChild::Crash).ok_or_else(short),
            FrameKind::Done => Ok(FromChild::Report(Report::Done)),
            FrameKind::Panic => unpack(payload).map(FromChild::Panic).map_err(malformed),
            FrameKind::Report => unpack(payload).map(FromChild::Report).map_err(malformed),
            _ => Err(format!("a child sends no {kind:?} frame")),
        }
    }
}

/// Settings that processes inherit from the process that starts them.
#[derive(Clone, Debug)]
pub(crate) struct InheritedSettings {
    pub(crate) start: StartSettings,
    /// Command that starts processes. `None` means the running program.
    pub(crate) command: Option<CommandLine>,
    /// Secret of the family.
    #[cfg(feature = "authkey")]
    pub(crate) key: Option<AuthKey>,
    /// Level of the logger that `log_to_stderr` sets.
    pub(crate) log: Option<String>,
}

impl InheritedSettings {
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn example() -> InheritedSettings {
        InheritedSettings {
            start: StartSettings { method: StartMethod::ForkServer, fork: true },
            command: CommandLine::command(["a", "b"]),
            #[cfg(feature = "authkey")]
            key: Some(b"secret".as_slice().into()),
            log: Some("INFO".to_string()),
        }
    }
}

field_enum!(StartMethod { Spawn, ForkServer, Fork });
fields!(StartSettings { method, fork });
fields!(InheritedSettings {
    start,
    command,
    #[cfg(feature = "authkey")]
    key,
    log,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fields::to_bytes;

    #[test]
    fn crash_record_round_trips_through_bytes() {
        let crash = Crash { at: 5, address: 0xdead, signal: 11, cause: CrashCause::StackOverflow };
        assert_eq!(Crash::from_bytes(&crash.to_bytes()), Some(crash));
        assert_eq!(Crash::from_bytes(&[0; 10]), None);
    }

    #[test]
    fn start_and_hello_messages_round_trip() {
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
        let bytes = to_bytes(&start);
        assert_eq!(format!("{:?}", from_bytes::<StartMessage>(&bytes).unwrap()), format!("{start:?}"));
        for end in 0..bytes.len() {
            assert!(from_bytes::<StartMessage>(&bytes[..end]).is_none());
        }
        assert!(from_bytes::<StartMessage>(&[&bytes[..], &[0]].concat()).is_none());
        let mut many = bytes;
        let count = many.len() - 3 * size_of::<u64>();
        many[count..].fill(0xff);
        assert!(from_bytes::<StartMessage>(&many).is_none());
        for member in [None, Some(9)] {
            let hello = Hello { nonce: 5, member };
            assert_eq!(from_bytes(&to_bytes(&hello)), Some(hello));
        }
        assert_eq!(from_bytes::<Hello>(&[1]), None);
    }

    #[test]
    fn parent_frame_from_a_child_is_an_error() {
        assert!(FromChild::from_frame(&Frame { kind: FrameKind::Args, payload: vec![] }).is_err());
        assert!(
            FromChild::from_frame(&Frame { kind: FrameKind::Report, payload: vec![0xc1, 0xff] }).is_err()
        );
    }
}
