//! Fuzz targets for this crate's parsers, used by `cargo xtask fuzz` and the unit tests: requests as received
//! by an object's thread, and answers as received by a caller.

use mp_core::message::{Incoming, Message, Outgoing, SmallBytes, Undecodable};
use mp_reduce::MessagePack;
use mp_spawn::{CallFailure, LazyClosure, StateClosure, closure};

use crate::answer::{AnswerStatus, CallAnswer, MessageBody};
use crate::object::{ObjectCall, write_call};
use crate::request::ObjectRequest;

/// Name, function to test with bytes, and encoded seeds.
#[allow(
    clippy::type_complexity,
    reason = "the harness defines this type, and only tests depend on the harness"
)]
pub const TARGETS: &[(&str, fn(&[u8]), fn() -> Vec<Vec<u8>>)] =
    &[("requests", requests, request_seeds), ("answers", answers, answer_seeds)];

/// Decodes a message with and without an envelope. Panics unless both succeed or both fail.
fn both<M: Message>(bytes: &[u8]) -> Option<[M; 2]> {
    let long = M::decode::<MessagePack>(&mut Incoming::from_plain(bytes.to_vec()));
    let few = SmallBytes::new(bytes).and_then(M::from_small_bytes::<MessagePack>);
    let short = few.map_or_else(|| M::decode_plain::<MessagePack>(bytes), Ok);
    let text = |read: &mp_core::Result<M>| read.as_ref().err().map(ToString::to_string);
    assert_eq!(text(&long), text(&short));
    Some([long.ok()?, short.ok()?])
}

fn encode_args<M: Message>(mut message: M) -> Vec<u8> {
    // In-band encoding keeps long texts in the bytes.
    let mut out = Outgoing::in_band();
    let few = message.to_small_bytes::<MessagePack>();
    message.encode::<MessagePack>(&mut out).unwrap();
    assert!(few.is_none_or(|few| few.as_slice() == out.bytes()), "{few:?} and {:?}", out.bytes());
    std::mem::take(out.bytes())
}

fn requests(bytes: &[u8]) {
    match both::<ObjectRequest>(bytes) {
        Some([ObjectRequest::Call { mut body, .. }, ObjectRequest::Call { body: short, .. }]) => {
            assert_eq!(body.unread(), short.unread());
            let few = SmallBytes::new(bytes).and_then(ObjectRequest::from_small_bytes::<MessagePack>);
            assert!(few.is_none_or(|few| encode_args(few) == bytes));
            // The same methods that the object's thread calls, for any types of the closure.
            let all = body.unread().len();
            body.advance(all + 1);
            assert!(body.unread().is_empty() && body.read::<u64>().is_err());
        }
        Some([ObjectRequest::Learn { task, .. }, _]) => _ = task.read(),
        Some([ObjectRequest::Make { maker, .. }, _]) => _ = maker.read(),
        Some([ObjectRequest::Free { .. } | ObjectRequest::Hello { .. }, _]) | None => {}
        Some([ObjectRequest::Call { .. }, _]) => panic!("the request differs without an envelope"),
    }
}

fn answers(bytes: &[u8]) {
    match both::<CallAnswer>(bytes) {
        Some([CallAnswer(Ok(mut body)), CallAnswer(Ok(mut short))]) => {
            assert_eq!(body.unread(), short.unread());
            let (long, short) = (body.read::<Option<u64>>(), short.read::<Option<u64>>());
            assert_eq!(long.ok(), short.ok());
        }
        Some([CallAnswer(Ok(_)), _]) => panic!("the answer differs without an envelope"),
        // All other answers consist of serde values, so encoding and decoding restores them.
        Some([other, _]) => {
            let again = encode_args(other);
            assert_eq!(both::<CallAnswer>(&again).map(|[answer, _]| encode_args(answer)), Some(again));
        }
        None => {}
    }
}

fn request_seeds() -> Vec<Vec<u8>> {
    let caller = 0x0010_0003;
    let call = |body| ObjectRequest::Call { caller, code: 2, body };
    let (name, long) = ("a".to_string(), "b".repeat(300));
    let with: [StateClosure<u64, u32, u64>; 3] = [
        closure!([] |number: &mut u64, by: u32| *number + u64::from(by)),
        closure!([name] |number: &mut u64, by: u32| *number + u64::from(by) + name.len() as u64),
        closure!([long] |number: &mut u64, by: u32| *number + u64::from(by) + long.len() as u64),
    ];
    let calls = with.iter().map(|closure| call(write_call(closure, &mut 70_000).unwrap()));
    let task = LazyClosure::ToSend(ObjectCall::factory::<u64, u32, u64>(with[0].code()));
    let others = [
        call(MessageBody::few([0], &()).unwrap()),
        ObjectRequest::Learn { caller, code: 2, task },
        ObjectRequest::Free { caller },
    ];
    calls.chain(others).map(encode_args).collect()
}

fn answer_seeds() -> Vec<Vec<u8>> {
    let done = |value: Option<u64>| CallAnswer(Ok(MessageBody::few([], &value).unwrap()));
    let why = || "why".to_string();
    let undecodable = Undecodable::from_parts(["u64".into(), "a field".into(), why()], vec![1, 2]);
    let statuses = [
        AnswerStatus::Created { object: 300 },
        AnswerStatus::Raised(CallFailure::error(&std::io::Error::other("why"))),
        AnswerStatus::Undecodable(Box::new(undecodable)),
        AnswerStatus::Unreadable(why()),
        AnswerStatus::Unsendable(why()),
        AnswerStatus::WrongType(why()),
        AnswerStatus::Freed,
        AnswerStatus::NoThread(why()),
    ];
    let statuses = statuses.into_iter().map(|status| CallAnswer(Err(status)));
    [done(Some(7)), done(Some(1 << 32)), done(None)].into_iter().chain(statuses).map(encode_args).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_manager_requests_are_read_or_refused() {
        mp_harness::hostile::short(super::TARGETS);
    }
}
