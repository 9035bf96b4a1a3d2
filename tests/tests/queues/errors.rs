//! Failures of a queue. Each is an error that names the request and the actual state, returns the value if
//! there is one, and changes nothing. The arena of this test program has 256 MiB.
#![allow(unsafe_code)]

use mp::message::MessageError;
use mp::{Arena, Connection, Error, FrozenTensor, GetError, PutError, Queue, Tensor, pipe};
use mp_core::Envelopes;
use mp_core::mem::Mem;
use mp_core::words::{Holder, Owner};
use mp_tests::limits::arena_of;
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, eventually_in_use, give, in_use, join, next, one_process, send,
    take, threads_are,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MIB: usize = 1 << 20;

/// Returns the arena of this test program.
fn arena() -> Arena {
    arena_of(256 << 20)
}

#[test]
fn message_larger_than_the_arena_is_an_error() {
    let _alone = alone();
    arena();
    let queue = Queue::bounded(2).unwrap();
    let before = in_use();
    let error = queue.put("x".repeat(300 * MIB)).unwrap_err();
    let text = error.to_string();
    let PutError::Failed { value, error: MessageError::Memory(error) } = error else {
        panic!("{text}");
    };
    assert!(value.len() == 300 * MIB && value.ends_with('x'), "the value is returned");
    match error {
        Error::OutOfMemory { asked, left, .. } => assert!(asked >= 300 << 20 && left < asked, "{text}"),
        Error::ArenaFull { asked, limit, .. } => assert!(asked >= 300 << 20 && limit < asked, "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!((queue.len(), in_use()), (0, before));
    give(&queue, "short".to_string());
    assert_eq!(take(&queue), "short");
}

/// Queue that is written as a queue of numbers, and read as a queue of texts.
struct Misread(Queue<u64>);

impl Serialize for Misread {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Misread {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Queue::<String>::deserialize(d).map(|_| unreachable!("it is one of numbers"))
    }
}

fn misreads(_: usize, (queues, pipe, said): (Queue<Misread>, Connection, Queue<String>)) -> Outcome {
    match queues.get_timeout(DEADLINE) {
        Err(error @ GetError::Failed(_)) => send(&said, error.to_string())?,
        _ => return Err("a queue of another type was accepted".into()),
    }
    match pipe.recv_timeout::<Queue<String>>(DEADLINE) {
        Err(error @ GetError::Failed(MessageError::TypeMismatch { .. })) => send(&said, error.to_string()),
        other => Err(format!("{other:?}").into()),
    }
}

#[test]
fn queue_of_another_type_is_refused_by_the_receiver() {
    let _alone = alone();
    arena();
    let (queues, said) = (Queue::bounded(1).unwrap(), Queue::bounded(2).unwrap());
    let (here, there) = pipe().unwrap();
    let context = one_process(misreads, (queues.clone(), there, said.clone()));
    let numbers = Queue::<u64>::bounded(1).unwrap();
    give(&queues, Misread(numbers.clone()));
    let text = take(&said);
    assert!(text.contains("u64") && text.contains("String"), "both types are named: {text}");
    here.send(numbers.clone()).unwrap();
    let text = take(&said);
    assert!(text.contains("u64") && text.contains("String"), "both types are named: {text}");
    join(&context).unwrap();
    // The queue is unchanged.
    give(&numbers, 5);
    assert_eq!(take(&numbers), 5);
}

type Rows = Queue<FrozenTensor<u64>>;

fn put_two(_: usize, (queue, large): (Rows, Queue<String>)) -> Outcome {
    arena();
    send(&queue, Tensor::full([1000], 1)?.freeze())?;
    // This put blocks while no memory is left.
    send(&queue, Tensor::full([1000], 2)?.freeze())?;
    match Tensor::<u64>::zeros([40 * MIB / 8]) {
        Err(Error::OutOfMemory { .. } | Error::ArenaFull { .. }) => {}
        other => return Err(format!("there is no room for that: {other:?}").into()),
    }
    match queue.put_timeout(Tensor::full([1], 3)?.freeze(), DEADLINE) {
        Ok(()) => {}
        Err(error) => return Err(error.to_string().into()),
    }
    match large.put("y".repeat(40 * MIB)) {
        Err(PutError::Failed { value, .. }) if value.len() == 40 * MIB => Ok(()),
        other => Err(format!("there is no room for that message: {other:?}").into()),
    }
}

#[test]
fn messages_in_flight_arrive_in_a_full_arena() {
    let _alone = alone();
    arena();
    let before = in_use();
    {
        let (queue, large) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
        let args = (queue.clone(), large.clone());
        let context = one_process(put_two, args);
        eventually("the producer waits in its second put", || {
            queue.is_full() && threads_are(context.pids()[0], 'S')
        });
        let mut all = Vec::new();
        while let Ok(tensor) = Tensor::<u8>::zeros([20 * MIB]) {
            all.push(tensor);
        }
        // Messages in flight need no additional memory.
        for n in 1..=3 {
            let tensor = take(&queue);
            assert!(tensor.iter().all(|v| v == n), "{tensor}");
        }
        join(&context).unwrap();
        assert!(all.len() >= 6 && large.is_empty());
    }
    eventually("all memory is released", || {
        arena().reclaim().unwrap();
        in_use() == before
    });
}

/// Attachments whose number decides where they are listed: in the envelope, in a block next to its
/// attachment, or in a block with the list of attachments.
type Attached = (Vec<FrozenTensor<u64>>, Vec<u8>);

fn refused(_: usize, (queue, said): (Queue<Attached>, Queue<String>)) -> Outcome {
    match queue.get_timeout(DEADLINE) {
        Err(error @ GetError::Failed(MessageError::Memory(Error::Version { theirs: 9, .. }))) => {
            send(&said, error.to_string())?;
        }
        other => return Err(format!("{other:?}").into()),
    }
    // The next message can be read.
    match next(&queue)? {
        Some((tensors, bytes)) => send(&said, format!("{} {}", tensors.len(), bytes.len())),
        None => Err("closed".into()),
    }
}

#[test]
fn message_of_another_wire_version_is_refused() {
    let _alone = alone();
    let arena = arena();
    for (tensors, bytes) in [(1, 0), (1, 100_000), (200, 0), (200, 100_000), (0, 10), (0, 100_000)] {
        let before = in_use();
        {
            let (queue, said) = (Queue::<Attached>::bounded(2).unwrap(), Queue::bounded(2).unwrap());
            let message = || {
                let tensors = (0..tensors).map(|i| Tensor::full([100], i).unwrap().freeze());
                (tensors.collect::<Vec<_>>(), vec![1; bytes])
            };
            give(&queue, message());
            // SAFETY: only the version of the single message in flight is changed, while no other thread
            // reads it.
            let m = unsafe { arena.words() };
            let queued = |e: &u32| {
                Owner::unpack(m.load(Envelopes(arena).owner_words().of(*e))).holder == Holder::Queued
            };
            let mut on_their_way = Envelopes(arena).envelopes_in_use(0).filter(queued);
            let (Some(e), None) = (on_their_way.next(), on_their_way.next()) else {
                panic!("there is one message")
            };
            let meta = Envelopes(arena).meta_words().of(e);
            m.store(meta, m.load(meta) & !(0xff << 24) | 9 << 24);
            give(&queue, message());

            let context = one_process(refused, (queue.clone(), said.clone()));
            let text = take(&said);
            assert!(text.contains("wire version of a message is 9, this build has"), "{text}");
            assert_eq!(take(&said), format!("{tensors} {bytes}"));
            join(&context).unwrap();
        }
        // All attachments are released as well.
        eventually_in_use(before, "all memory is released");
    }
}

#[test]
fn message_of_a_refused_wire_version_is_released() {
    let _alone = alone();
    let arena = arena();
    let before = in_use();
    for round in 0..3 {
        let queue = Queue::<Attached>::bounded(1).unwrap();
        give(&queue, (vec![Tensor::full([100], 1).unwrap().freeze(); 2], vec![1; 100_000]));
        // SAFETY: as above.
        let m = unsafe { arena.words() };
        let queued =
            |e: &u32| Owner::unpack(m.load(Envelopes(arena).owner_words().of(*e))).holder == Holder::Queued;
        let e = Envelopes(arena).envelopes_in_use(0).find(queued).expect("there is one message");
        let meta = Envelopes(arena).meta_words().of(e);
        m.store(meta, m.load(meta) & !(0xff << 24) | 9 << 24);
        match round {
            0 => {
                let error = queue.get_lease().unwrap_err();
                let GetError::Failed(MessageError::Memory(Error::Version { theirs: 9, .. })) = error else {
                    panic!("{error}")
                };
            }
            1 => drop(queue.get().unwrap_err()),
            // The message is dropped with the queue.
            _ => {}
        }
    }
    eventually_in_use(before, "all memory is released");
}
