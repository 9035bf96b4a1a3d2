//! Fuzz targets of `cargo xtask fuzz` and the unit tests for this crate's parsers: frames between parent and
//! child, the token in a child's environment, and references to functions.

use std::fmt::Debug;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{CallFailure, RaisedKind};
use crate::protocol::fields::{Field, FieldReader, from_bytes, to_bytes};
use crate::protocol::frame::{Frame, FrameKind, HEADER, Inbox, append};
use crate::protocol::function::{FunctionRef, RankedFunction, StartFn, resolve};
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::message::{
    Crash, CrashCause, EnvironmentChanges, FromChild, Hello, InheritedSettings, PanicNote, ServerAnswer,
    StartMessage, unpack,
};
use crate::protocol::outbox::ReceivedFiles;
use crate::protocol::payload::ParentPayload;
use crate::protocol::payload::arguments::TICKET;
use crate::protocol::report::Report;
use crate::protocol::resource_limits::Limits;
use crate::protocol::token::{Token, TokenTarget};

/// Name of a target, its parser, and a function that encodes its seeds.
#[allow(
    clippy::type_complexity,
    reason = "the harness defines this type, and only tests depend on the harness"
)]
pub const TARGETS: &[(&str, fn(&[u8]), fn() -> Vec<Vec<u8>>)] = &[
    ("frames", frames, frame_seeds),
    ("tokens", tokens, token_seeds),
    ("functions", functions, function_seeds),
];

/// Parses frames. The first byte plus one is the size of the pieces in which the other bytes arrive.
fn frames(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    let (mut inbox, mut again) = (Inbox::default(), Vec::new());
    'pieces: for piece in bytes.chunks(usize::from(*cut) + 1) {
        inbox.push(piece);
        loop {
            match inbox.next() {
                Ok(Some(frame)) => {
                    assert!(frame.payload.len() <= frame.kind.limit(), "{frame:?}");
                    append(&mut again, frame.kind, &frame.payload).unwrap();
                    contents(&frame);
                }
                Ok(None) => break,
                Err(error) => {
                    _ = error.to_string();
                    break 'pieces;
                }
            }
        }
    }
    // The parsed frames equal the input, up to the first invalid or incomplete frame.
    assert!(bytes.starts_with(&again));
}

fn contents(frame: &Frame) {
    let payload = &frame.payload[..];
    match frame.kind {
        FrameKind::Fds => files(payload),
        // Tickets are left out: the child trusts a ticket from its parent.
        FrameKind::Args if payload.first() != Some(&TICKET) => {
            _ = ParentPayload { bytes: payload.to_vec() }.unpack::<(u64, String)>();
        }
        FrameKind::Start => same_field::<StartMessage>(payload),
        FrameKind::Environment => same_field::<EnvironmentChanges>(payload),
        FrameKind::Serve => same_field::<Option<FunctionRef>>(payload),
        FrameKind::Hello => same_field::<Hello>(payload),
        FrameKind::Joined => same_field::<u32>(payload),
        FrameKind::Answer => same::<ServerAnswer>(payload),
        FrameKind::Report => same::<Report>(payload),
        FrameKind::Panic => same::<PanicNote>(payload),
        _ => {}
    }
    match FromChild::from_frame(frame) {
        Ok(FromChild::Crash(crash)) => {
            let again = Frame { kind: FrameKind::Crash, payload: crash.to_bytes().to_vec() };
            assert_eq!(format!("{:?}", FromChild::from_frame(&again)), format!("Ok(Crash({crash:?}))"));
        }
        Ok(_) => {}
        Err(why) => assert!(!why.is_empty()),
    }
}

/// Assigns received files to the frame that announces them. Checks that no file is lost, and that no
/// inherited file has the number of a standard stream.
fn files(payload: &[u8]) {
    let arrived = 1 + payload.len() % 7;
    let files = (0..arrived).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
    if let Some(ReceivedFiles { memory, lifeline, ends, inherited }) = ReceivedFiles::assign(payload, files) {
        let own = [memory, lifeline, ends.stdout, ends.stderr].iter().flatten().count();
        assert_eq!(own + inherited.len(), arrived);
        assert!(inherited.iter().all(|(number, _)| *number > 2), "{inherited:?}");
    }
}

/// Checks that a decoded value survives encoding and decoding.
fn same<T: Serialize + DeserializeOwned + Debug>(payload: &[u8]) {
    if let Ok(value) = unpack::<T>(payload) {
        // A report without a value has its own frame, and no encoding in this form.
        let Ok(written) = rmp_serde::to_vec(&value) else { return };
        let again: T = unpack(&written).unwrap_or_else(|why| panic!("{why}: {value:?}"));
        assert_eq!(format!("{again:?}"), format!("{value:?}"));
    }
}

/// Checks that the encoding of a decoded value equals the payload.
fn same_field<T: Field>(payload: &[u8]) {
    if let Some(value) = from_bytes::<T>(payload) {
        assert_eq!(to_bytes(&value), payload);
    }
}

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |kind, payload: &[u8]| {
        let mut out = Vec::new();
        append(&mut out, kind, payload).unwrap();
        out
    };
    fn pack<T: Serialize>(value: T) -> Vec<u8> {
        rmp_serde::to_vec(&value).unwrap()
    }
    let start = StartMessage {
        rank: 3,
        ranked: true,
        name: "ä".to_owned(),
        function: FunctionRef::example(),
        library: Some(PathBuf::from("/tmp/lib.so")),
        daemon: true,
        interrupt: Interrupt::Graceful,
        interrupt_signals: InterruptSignals::Both,
        attempt: 2,
        settings: InheritedSettings::example(),
        directory: Some(PathBuf::from("/tmp/x y")),
        limits: Limits::example(),
        processors: vec![0, 7],
    };
    let changes: EnvironmentChanges = vec![("NAME".into(), Some("value".into())), ("GONE".into(), None)];
    let note = PanicNote { message: "message".into(), location: Some("a.rs:1:2".into()), backtrace: None };
    let raised = |kind| {
        let (message, chain, debug) = ("error".into(), vec!["source".into()], "Error".into());
        let (location, backtrace) = (Some("a.rs:1:2".into()), None);
        let failure = Box::new(CallFailure { kind, message, chain, debug, location, backtrace });
        pack(Report::Raised { at: 5, failure })
    };
    let crash = Crash { at: 5, address: 0xdead, signal: 11, cause: CrashCause::StackOverflow };
    vec![
        ("files: all four, and one to be 5", frame(FrameKind::Fds, &[15, 5, 0, 0, 0])),
        ("arguments", frame(FrameKind::Args, &[0, 2, 0x92, 7, 0xa1, b't'])),
        ("fork", frame(FrameKind::Fork, &0x12ab_u64.to_le_bytes())),
        ("start", frame(FrameKind::Start, &to_bytes(&start))),
        ("environment", frame(FrameKind::Environment, &to_bytes(&changes))),
        ("hello", frame(FrameKind::Hello, &to_bytes(&Hello { nonce: 0x12ab, member: None }))),
        ("hello of a member", frame(FrameKind::Hello, &to_bytes(&Hello { nonce: 0x12ab, member: Some(9) }))),
        ("joined", frame(FrameKind::Joined, &to_bytes(&9_u32))),
        ("panic", frame(FrameKind::Panic, &pack(note))),
        ("crash", frame(FrameKind::Crash, &crash.to_bytes())),
        ("report of a value", frame(FrameKind::Report, &pack(Report::Plain(vec![1, 7])))),
        ("report of an error", frame(FrameKind::Report, &raised(RaisedKind::Error))),
        ("report of a panic", frame(FrameKind::Report, &raised(RaisedKind::Panic))),
        ("done", frame(FrameKind::Done, &[])),
        ("taken", frame(FrameKind::Taken, &[])),
        ("serve", frame(FrameKind::Serve, &to_bytes(&Some(FunctionRef::example())))),
        ("answer", frame(FrameKind::Answer, &pack(ServerAnswer::Refused(11)))),
        (
            "token",
            Token { fd: 7, parent: 4711, nonce: 0x12ab, taker: TokenTarget::Program }.to_string().into(),
        ),
        (
            "token of a library",
            Token { fd: 7, parent: 1, nonce: 2, taker: TokenTarget::Load(3) }.to_string().into(),
        ),
    ]
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        samples().into_iter().map(|(_, bytes)| [&[100], &bytes[..]].concat()).collect();
    // Nested data that the reader must skip, deeper than a stack has room for.
    let deep = [&[0x81, 0xa1, b'x'], &[0x91; 100_000][..], &[0xc0]].concat();
    for kind in [FrameKind::Report, FrameKind::Panic] {
        let mut frame = vec![255];
        append(&mut frame, kind, &deep[..60_000]).unwrap();
        all.push(frame);
    }
    let many = all.iter().take(10).flat_map(|frame| frame[1..].to_vec());
    all.push(std::iter::once(HEADER as u8).chain(many).collect());
    all
}

fn tokens(bytes: &[u8]) {
    match Token::parse(bytes) {
        Ok(token) => {
            assert_eq!(token.to_string().parse(), Ok(token));
            let parts = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b':').count();
            assert_eq!(parts(bytes), parts(token.to_string().as_bytes()), "{token}");
            assert!(token.fd >= 0);
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

fn token_seeds() -> Vec<Vec<u8>> {
    let of = |taker| Token { fd: 7, parent: 4711, nonce: 0x12ab, taker }.to_string().into_bytes();
    [TokenTarget::Program, TokenTarget::Call, TokenTarget::Load(u64::MAX - 5)].map(of).to_vec()
}

fn called(_rank: usize, _args: (u64, String)) {}

/// Checks that a resolved function is a function of this program with these types, and has the name in the
/// reference.
fn functions(bytes: &[u8]) {
    let mut fields = FieldReader(bytes);
    let Some(reference) = FunctionRef::read(&mut fields) else { return };
    let read = &bytes[..bytes.len() - fields.0.len()];
    assert_eq!(to_bytes(&reference), read);
    match resolve::<StartFn>(&reference) {
        Ok(found) => assert!(format!("{found:?}").contains(&reference.name), "{found:?} for {reference:?}"),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fn function_seeds() -> Vec<Vec<u8>> {
    let reference = RankedFunction::<_, (u64, String), ()>::described(called).reference();
    let near = reference.iter().flat_map(|one| [0, 8, 64, 4096].map(|by| one.moved(by)));
    near.chain([FunctionRef::example()]).map(|reference| to_bytes(&reference)).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_frames_and_tokens_are_read_or_refused() {
        mp_harness::hostile::short(super::TARGETS);
    }

    /// Needs the feature `authkey`, because the key is part of the start message.
    #[test]
    #[cfg(feature = "authkey")]
    fn spawn_frames_and_tokens_match_the_golden_file() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/protocol/golden.txt");
        let head = "frames between parent and child, and tokens of v1: both sides are one build";
        mp_harness::hostile::golden(file, head, &super::samples());
    }
}
