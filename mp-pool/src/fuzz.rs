//! Fuzz targets for this crate's parsers, used by `cargo xtask fuzz` and the unit tests: tasks as received by
//! a worker, and replies as received by the pool, both including chunks of many values; and messages between
//! pools of several hosts.

use mp_core::message::{Incoming, Message, Outgoing};
use mp_reduce::MessagePack;
use mp_spawn::{CallFailure, Closure};

use crate::child::message::{
    FunctionMessage, ManyValues, PoolReply, SingleValue, TaskReply, WorkerRequest, read_function,
};
use crate::child::runner::Runner;
use crate::child::task_span::FirstTask;
use crate::child::values::{EndPositions, PackedRange, PackedValues, ReceivedValues, TaskArgs, ValuesView};
#[cfg(feature = "net")]
use crate::forward::messages::{ForwardReply, ForwardRequest, ForwardedOutcome, ForwarderId};

/// Name, function to test with bytes, and encoded seeds.
#[allow(
    clippy::type_complexity,
    reason = "the harness defines this type, and only tests depend on the harness"
)]
pub const TARGETS: &[(&str, fn(&[u8]), fn() -> Vec<Vec<u8>>)] = &[
    ("tasks", tasks, task_seeds),
    ("replies", replies, reply_seeds),
    #[cfg(feature = "net")]
    ("forwards", forwards, forward_seeds),
];

/// Maximum number of values of a chunk that are checked.
const MOST_CHECKED: usize = 1000;

fn read<M: Message>(bytes: &[u8]) -> Option<M> {
    M::decode::<MessagePack>(&mut Incoming::from_plain(bytes.to_vec()))
        .map_err(|error| error.to_string())
        .ok()
}

fn written<M: Message>(mut message: M) -> Vec<u8> {
    // `in_band` keeps long texts in the bytes, instead of shared memory.
    let mut out = Outgoing::in_band();
    message.encode::<MessagePack>(&mut out).unwrap();
    std::mem::take(out.bytes())
}

fn tasks(bytes: &[u8]) {
    match read::<WorkerRequest>(bytes) {
        Some(WorkerRequest::Run { args: TaskArgs::Received(many), .. }) => values(&many),
        Some(WorkerRequest::Run { args: TaskArgs::ReceivedSingle(inc), .. }) => {
            assert!(bytes.ends_with(inc.rest()))
        }
        Some(WorkerRequest::Learn { runner, .. }) => _ = read_function(runner),
        Some(WorkerRequest::Forget { .. }) | None => {}
        Some(WorkerRequest::Run { .. }) => panic!("a received task has the form of an unsent one"),
    }
}

fn replies(bytes: &[u8]) {
    let Some(reply) = read::<PoolReply>(bytes) else { return };
    _ = reply.duration();
    let PoolReply::Outcome { outcome, .. } = &reply else { return again(reply) };
    match outcome {
        TaskReply::Results { values: ManyValues::Received(many), .. } => values(many),
        TaskReply::Done(SingleValue::Received(inc))
        | TaskReply::Unread { arguments: SingleValue::Received(inc), .. }
        | TaskReply::Returned { arguments: Some(SingleValue::Received(inc)), .. } => {
            assert!(bytes.ends_with(inc.rest()));
        }
        TaskReply::Results { .. } | TaskReply::Done(_) | TaskReply::Unread { .. } => {
            panic!("a received reply has the form of an unsent one")
        }
        _ => again(reply),
    }
}

/// Checks that encoding and decoding restores a reply of serde values.
fn again(reply: PoolReply) {
    let again = written(reply);
    assert_eq!(read::<PoolReply>(&again).map(written), Some(again));
}

/// Checks that no value exists after the last, that each lies within the message, and that encoding and
/// decoding restores all values.
fn values(many: &ReceivedValues) {
    let all = many.all();
    assert!(all.get(many.count).is_none() && all.get(usize::MAX).is_none());
    let first = many.count.min(MOST_CHECKED);
    let there: Vec<&[u8]> = (0..first).map_while(|i| all.get(i)).collect();
    // Each value begins at the end of the previous one.
    let bytes = there.concat();
    let mut end = 0;
    let ends: EndPositions = there
        .iter()
        .map(|value| {
            end += value.len();
            end
        })
        .collect();
    let mut out = Outgoing::default();
    ends.write(0..ends.len(), &bytes, &mut out);
    let again = ValuesView::of(out.bytes(), there.len());
    assert!((0..there.len()).all(|i| again.get(i) == Some(there[i])));
    assert_eq!(again.get(there.len()), None);
}

fn plain(values: &[&str]) -> PackedValues {
    let mut plain = PackedValues::default();
    for value in values {
        plain.bytes.extend_from_slice(value.as_bytes());
        plain.ends.push(plain.bytes.len());
    }
    plain
}

const VALUES: [&[&str]; 4] = [&["abc"; 40], &["abc", "", "defg"], &["a"], &["", ""]];

fn task_seeds() -> Vec<Vec<u8>> {
    let run = |values: &&[&str], timed: bool| WorkerRequest::Run {
        id: 7,
        code: 3,
        timeout: timed.then(|| std::time::Duration::from_secs(1)),
        first: FirstTask::default(),
        args: TaskArgs::Packed(PackedRange::of(plain(values))),
    };
    let alone = |timed: bool| WorkerRequest::Run {
        id: 7,
        code: 3,
        timeout: timed.then(|| std::time::Duration::from_secs(1)),
        first: FirstTask::default(),
        args: TaskArgs::Single(Outgoing::default()),
    };
    let runner = Closure::from_parts((), |(): &(), (): ()| Runner::new(|x: u64| x + 1));
    let runs = VALUES.iter().flat_map(|values| [run(values, false), run(values, true)]);
    let learn = WorkerRequest::Learn { code: 3, runner: FunctionMessage::ToSend(runner) };
    runs.chain([alone(false), alone(true), learn, WorkerRequest::Forget { code: 3 }]).map(written).collect()
}

fn reply_seeds() -> Vec<Vec<u8>> {
    let reply = |outcome| PoolReply::Outcome { worker: 1, id: 7, item: 2, outcome };
    let parts = VALUES
        .iter()
        .map(|values| TaskReply::Results { nanos: 5, values: ManyValues::ToSend(plain(values)) });
    let raise = CallFailure::error(&std::io::Error::other("why"));
    let arguments =
        mp_core::message::Undecodable::from_parts(["u64".into(), "a field".into(), "why".into()], vec![1, 2]);
    let empty = || SingleValue::ToSend(Outgoing::default());
    let outcomes = [
        TaskReply::Done(empty()),
        TaskReply::Raised { note: 9, raise },
        TaskReply::Undecodable(Box::new(arguments)),
        TaskReply::Unread { fingerprint: 5, why: "ä".into(), arguments: empty() },
        TaskReply::Unsendable { result: true, why: "why".into() },
        TaskReply::Unsendable { result: false, why: "why".into() },
    ];
    let others = [
        PoolReply::Ready { worker: 1, pid: 4711 },
        PoolReply::StateReset { worker: 1 },
        PoolReply::FunctionChanged { worker: 1, code: 3 },
        PoolReply::Wake,
    ];
    parts.chain(outcomes).map(reply).chain(others).map(written).collect()
}

/// Decodes the bytes as a request of another host, and as a reply of another host.
#[cfg(feature = "net")]
fn forwards(bytes: &[u8]) {
    match read::<ForwardRequest>(bytes) {
        Some(ForwardRequest::Run { args: TaskArgs::Received(many), .. }) => values(&many),
        Some(ForwardRequest::Learn { runner, .. }) => _ = read_function(runner),
        _ => {}
    }
    if let Some(ForwardReply::Outcomes { single: Some(SingleValue::Received(inc)), .. }) = read(bytes) {
        assert!(bytes.ends_with(inc.rest()));
    }
}

#[cfg(feature = "net")]
fn forward_seeds() -> Vec<Vec<u8>> {
    let from = ForwarderId { pool: 1, forwarder: 2 };
    let run = |values: &&[&str]| ForwardRequest::Run {
        from,
        chunk: 7,
        code: 3,
        timeout: Some(std::time::Duration::from_secs(1)),
        most: 1 << 20,
        count: Some(values.len()),
        args: TaskArgs::Packed(PackedRange::of(plain(values))),
    };
    let runner = Closure::from_parts((), |(): &(), (): ()| Runner::new(|x: u64| x + 1));
    let learn = ForwardRequest::Learn { pool: 1, code: 3, runner: FunctionMessage::ToSend(runner) };
    let others = [learn, ForwardRequest::Rest { from, chunk: 7, item: 2, most: 1 << 20 }];
    let empty = || Some(SingleValue::ToSend(Outgoing::default()));
    let outcomes = vec![
        (0, ForwardedOutcome::Values { count: 2, nanos: 5, bytes: vec![1, 2] }),
        (2, ForwardedOutcome::Single),
    ];
    let replies = [
        ForwardReply::UnknownFunction(empty()),
        ForwardReply::Outcomes { outcomes, single: empty(), more: true },
    ];
    let requests = VALUES.iter().map(run).chain(others).map(written);
    requests.chain(replies.map(written)).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_tasks_and_replies_are_read_or_refused() {
        mp_harness::hostile::short(super::TARGETS);
    }
}
