//! Fuzz targets for this crate's parsers, used by `cargo xtask fuzz` and the unit tests. `calls` reads and
//! runs the stream from a caller to a home. `outcomes` reads the stream from a home to a caller.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use mp_core::message::{Message as QueueMessage, Outgoing};
use mp_queue::{Queue, broadcast, watch};
use mp_reduce::{MessagePack, TypeFingerprint};
use mp_sync::{Barrier, Event, Semaphore};
use prost::Message;
use tokio::sync::mpsc::unbounded_channel;

use crate::config::ClusterConfig;
use crate::home::Home;
use crate::home::channels::{SharedBroadcast, SharedWatch};
use crate::home::object::{SharedObject, SharedQueue};
use crate::home::primitives::{SharedBarrier, SharedEvent, SharedSemaphore};
use crate::home::registry::ClusterRegistry;
use crate::home::session::Session;
use crate::link::NodeIdentity;
use crate::wire::messages::{
    Block, CallList, CallOutcome, CallReply, CallRuns, CallerGreeting, CallerMessage, CallerMessageKind,
    Challenge, HomeMessage, HomeMessageKind, Node, ObjectMethod, Operation, RemoteCall, Value, Welcome,
};
use crate::wire::receive::{Part, StreamEnd, StreamReader};
use crate::wire::send::head_of_data;
use crate::wire::value::ArrivingValues;

/// Fuzz targets. Each has a name, a function that is tested with arbitrary bytes, and a function that returns
/// seeds.
#[allow(
    clippy::type_complexity,
    reason = "the harness defines this type, and only tests depend on the harness"
)]
pub const TARGETS: &[(&str, fn(&[u8]), fn() -> Vec<Vec<u8>>)] =
    &[("calls", calls, call_seeds), ("outcomes", outcomes, outcome_seeds)];

/// Size in bytes of the largest message that the home accepts.
const LARGEST: u64 = 1 << 17;
/// Maximum number of permits of the home's semaphore.
const MOST_PERMITS: u32 = 100;
/// Maximum length in bytes of a message, without its data.
const LONGEST: usize = 1 << 16;

/// Body that arrives in pieces, whose lengths `seed` chooses. If `seed` is 0, there is one piece.
struct PiecewiseBody {
    rest: Bytes,
    seed: u8,
}

impl Body for PiecewiseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = if self.seed == 0 { usize::MAX } else { usize::from(self.seed % 32) };
        self.seed = if self.seed == 0 { 0 } else { self.seed.wrapping_mul(5).wrapping_add(7).max(1) };
        let length = length.min(self.rest.len());
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }
}

fn reader(bytes: &[u8], seed: u8) -> StreamReader {
    let body = PiecewiseBody { rest: Bytes::copy_from_slice(bytes), seed };
    StreamReader::new(tonic::body::Body::new(body), LONGEST)
}

/// Returns the parts of a stream, and the text of the [`StreamEnd`](crate::wire::receive::StreamEnd) after
/// them. All data between two messages are one part.
fn parts<M: Message + Default>(bytes: &[u8], seed: u8) -> (Vec<Part<M>>, String) {
    let (mut from, mut parts) = (reader(bytes, seed), Vec::new());
    loop {
        let part = {
            let mut next = pin!(from.next());
            let Poll::Ready(part) = next.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("the body is pending");
            };
            part
        };
        match (part, parts.last_mut()) {
            (Ok(Part::Data(data)), Some(Part::Data(before))) => {
                *before = [&before[..], &data].concat().into()
            }
            (Ok(part), _) => parts.push(part),
            (Err(end), _) => return (parts, end.to_string()),
        }
    }
}

/// Returns the parts of a stream. Panics if the result depends on the pieces in which the bytes arrive, or if
/// a message changes when it is encoded and decoded again.
fn same_parts<M>(bytes: &[u8], seed: u8) -> Vec<Part<M>>
where
    M: Message + Default + PartialEq + Debug,
{
    let whole = parts::<M>(bytes, 0);
    assert_eq!(parts::<M>(bytes, seed), whole);
    for part in &whole.0 {
        if let Part::Message(message) = part {
            assert_eq!(M::decode(message.encode_to_vec().as_slice()).as_ref(), Ok(message));
        }
    }
    whole.0
}

/// Identity of the home that runs the calls.
// fork: a constant.
static ME: LazyLock<Arc<NodeIdentity>> = LazyLock::new(|| {
    let config = ClusterConfig::new(0, 2, "127.0.0.1:0").largest_message(LARGEST);
    Arc::new(NodeIdentity { config, node: Node { ranks: 2, home: 7, ..Node::default() } })
});

/// Reads the bytes of a caller's stream, and runs the calls in them. The home has one object of each kind.
fn calls(bytes: &[u8]) {
    let Some((seed, bytes)) = bytes.split_first() else { return };
    same_parts::<CallerMessage>(bytes, *seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let queue = Queue::<u64>::bounded(2).expect("memory for a queue");
    let home = Home::new(Some(ClusterRegistry::new(2)));
    let permits = Semaphore::with_limit(1, MOST_PERMITS).expect("memory for a semaphore");
    let (newest, value) = watch::channel(1_u64).expect("memory for a watch channel");
    let (news, messages) = broadcast::channel::<u64>(2).expect("memory for a broadcast channel");
    news.send(2).expect("a receiver");
    let objects: [(&str, Arc<dyn SharedObject>); 6] = [
        ("numbers", Arc::new(SharedQueue::new(&queue))),
        ("event", Arc::new(SharedEvent(Event::new().expect("memory for an event")))),
        ("permits", Arc::new(SharedSemaphore::Growing(permits.clone()))),
        ("step", Arc::new(SharedBarrier::new(Barrier::new(2).expect("memory for a barrier")))),
        ("newest", Arc::new(SharedWatch(value))),
        ("news", Arc::new(SharedBroadcast(messages))),
    ];
    for (name, object) in objects {
        assert!(home.add(name, object));
    }
    runtime.block_on(async {
        let session = Session::new(Node { rank: 1, home: 9, ..Node::default() }, LARGEST);
        let (to, mut replies) = unbounded_channel();
        let stream = session.begin_stream(to).expect("a new session");
        let end = home.take(&ME, &session, stream, &mut reader(bytes, *seed)).await;
        assert!(!matches!(end, StreamEnd::Failed { .. }), "{end}");
        assert!(session.end_stream(stream) && session.end_unless_resumed(stream));
        while let Ok(packet) = replies.try_recv() {
            let message = HomeMessage::decode(packet.message).expect("a message of the home");
            assert!(matches!(message.kind, Some(HomeMessageKind::Reply(_))));
        }
    });
    home.close();
    assert!(queue.len() <= 2 && permits.available() <= MOST_PERMITS as usize);
    drop((newest, news));
}

/// Reads the bytes of a home's stream, and decodes the values of the replies in them.
fn outcomes(bytes: &[u8]) {
    let Some((seed, bytes)) = bytes.split_first() else { return };
    let mut arriving: Option<ArrivingValues> = None;
    for part in same_parts::<HomeMessage>(bytes, *seed) {
        let arrived = match (part, arriving.take()) {
            (Part::Data(data), Some(mut values)) => match values.write(&data) {
                Ok(_) => values,
                Err(_) => return,
            },
            (Part::Message(HomeMessage { kind: Some(HomeMessageKind::Reply(reply)) }), None) => {
                let Ok(values) = ArrivingValues::new(reply.values, LARGEST) else { return };
                values
            }
            _ => return,
        };
        if arrived.are_whole() {
            arrived.finish().for_each(drop);
        } else {
            arriving = Some(arrived);
        }
    }
}

fn frame(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    [&[0], (body.len() as u32).to_be_bytes().as_slice(), &body].concat()
}

fn data(bytes: &[u8]) -> Vec<u8> {
    [&head_of_data(bytes.len()), bytes].concat()
}

/// Returns an encoded number in the format of a message of a queue, with attachments of these sizes in bytes.
fn value(sizes: &[u64]) -> Value {
    let mut out = Outgoing::default();
    QueueMessage::encode::<MessagePack>(&mut 7_u64, &mut out).expect("a number");
    let block = |(i, bytes): (usize, &u64)| Block { bytes: *bytes, frozen: i > 0, element: i as u32 };
    Value { bytes: out.written().to_vec(), blocks: sizes.iter().enumerate().map(block).collect() }
}

fn call(id: u64, operation: Operation, change: impl FnOnce(&mut RemoteCall)) -> Vec<u8> {
    let mut call = RemoteCall { id, object: 1, wait: Some(0), ..RemoteCall::default() };
    call.set_operation(operation);
    change(&mut call);
    frame(&CallerMessage { kind: Some(CallerMessageKind::Call(call)) })
}

fn call_seeds() -> Vec<Vec<u8>> {
    let other = |kind| frame(&CallerMessage { kind: Some(kind) });
    let node = Node { rank: 1, ranks: 2, host: "b".into(), pid: 3, home: 9, ..Node::default() };
    let greeting =
        CallerGreeting { nonce: vec![1; 32], from: Some(node.clone()), ..CallerGreeting::default() };
    let put = |id, sizes: &[u64]| call(id, Operation::Put, |call| call.values = vec![value(sizes); 2]);
    let queue = [
        vec![0],
        call(1, Operation::Open, |call| {
            (call.name, call.number) = ("numbers".into(), TypeFingerprint::<u64>::new().get());
        }),
        put(2, &[]),
        put(3, &[]),
        put(4, &[]),
        call(5, Operation::Lease, |_| {}),
        call(6, Operation::Get, |call| (call.wait, call.number) = (None, 2)),
        call(7, Operation::Get, |call| call.wait = Some(1)),
        call(8, Operation::GiveBack, |call| call.number = 5),
        call(9, Operation::Acknowledge, |call| call.number = 5),
        call(10, Operation::Len, |_| {}),
        other(CallerMessageKind::Received(CallList { ids: vec![2, 3, 6] })),
        other(CallerMessageKind::Cancel(7)),
        other(CallerMessageKind::Wanted(CallRuns::new(vec![10]))),
        call(11, Operation::Close, |_| {}),
        other(CallerMessageKind::Finished(true)),
    ];
    let members = [
        vec![9],
        call(1, Operation::Join, |call| call.member = Some(node.clone())),
        call(2, Operation::Publish, |call| (call.member, call.name) = (Some(node.clone()), "a".into())),
        call(3, Operation::Find, |call| call.name = "a".into()),
        call(4, Operation::Watch, |_| {}),
        call(5, Operation::Withdraw, |call| (call.member, call.name) = (Some(node.clone()), "a".into())),
        call(6, Operation::Leave, |call| call.member = Some(node.clone())),
        call(7, Operation::Nothing, |_| {}),
    ];
    let method = |id, object, method, number| {
        call(id, Operation::Wait, |call| {
            (call.object, call.number) = (object, number);
            call.set_method(method);
        })
    };
    let subscribe = |id, object| call(id, Operation::Subscribe, |call| call.object = object);
    let methods = [
        vec![5],
        method(1, 2, ObjectMethod::WaitSet, 0),
        method(2, 2, ObjectMethod::Set, 0),
        method(3, 2, ObjectMethod::IsSet, 0),
        method(4, 2, ObjectMethod::Clear, 0),
        method(5, 3, ObjectMethod::Acquire, 0),
        method(6, 3, ObjectMethod::AddPermits, 70),
        method(7, 3, ObjectMethod::Available, 0),
        call(8, Operation::GiveBack, |call| call.number = 5),
        call(9, Operation::Call, |call| {
            (call.object, call.number, call.wait) = (4, u64::MAX, None);
            call.set_method(ObjectMethod::Arrive);
        }),
        method(10, 4, ObjectMethod::Arrive, 1),
        method(11, 4, ObjectMethod::Waiting, 0),
        method(12, 4, ObjectMethod::Parties, 0),
        method(13, 4, ObjectMethod::Abort, 0),
        method(14, 4, ObjectMethod::IsBroken, 0),
        method(15, 4, ObjectMethod::Reset, 0),
        subscribe(16, 5),
        subscribe(17, 6),
        method(18, 7, ObjectMethod::Next, 0),
        method(19, 7, ObjectMethod::Next, 1),
        method(20, 8, ObjectMethod::Next, 0),
        call(21, Operation::GiveBack, |call| call.number = 17),
    ];
    let attached =
        [vec![3], put(1, &[3000, 0, 64]), data(&[1; 3000]), data(&[2; 60]), data(&[3; 4]), put(2, &[])];
    let greeting = [vec![1], other(CallerMessageKind::Hello(greeting))];
    [&queue[..], &members, &methods, &attached, &greeting].map(<[_]>::concat).to_vec()
}

fn outcome_seeds() -> Vec<Vec<u8>> {
    let frame = |kind| frame(&HomeMessage { kind: Some(kind) });
    let node = Node { rank: 1, ranks: 2, host: "b".into(), address: "b:1".into(), ..Node::default() };
    let reply = |values| {
        let members = vec![node.clone(), Node::default()];
        let text = "why".to_owned();
        let outcome = CallOutcome::Done.into();
        let reply = CallReply {
            id: 1,
            outcome,
            number: 1 << 40,
            text,
            values,
            members,
            size: 3,
            ..CallReply::default()
        };
        frame(HomeMessageKind::Reply(reply))
    };
    let challenge = Challenge { version: 1, nonce: vec![7; 32], needs_key: true };
    let welcome =
        Welcome { refusal: "no".into(), proof: vec![1; 32], from: Some(node.clone()), ..Welcome::default() };
    let several = reply(vec![value(&[]), value(&[100, 9]), value(&[])]);
    let values = [vec![5], several, data(&[1; 100]), data(&[2; 9]), reply(Vec::new())];
    let greetings =
        [vec![0], frame(HomeMessageKind::Challenge(challenge)), frame(HomeMessageKind::Welcome(welcome))];
    [&values[..], &greetings].map(<[_]>::concat).to_vec()
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_network_streams_are_read_or_refused() {
        mp_harness::hostile::short(super::TARGETS);
    }
}
