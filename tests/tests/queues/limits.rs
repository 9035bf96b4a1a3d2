//! Limits on the number of messages, of one queue and of all queues together: the numbers in the
//! documentation of `Queue`, in a small arena.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use mp::memory::ArenaOptions;
use mp::queue::broadcast;
use mp::{Arena, Error, PutError, Queue, QueueOptions, SpawnOptions, start_processes};
use mp_core::{Messages, inject};
use mp_tests::block_on::block_on;
use mp_tests::kill::{for_every_access, killed};
use mp_tests::{DEADLINE, Outcome, alone, eventually, give, one_process, take};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of messages for which the arena is configured.
const MESSAGES: u32 = 1024;
/// Number of messages, out of [`MESSAGES`], that are reserved for queues with few messages.
const KEPT: u32 = MESSAGES / 8;
/// Number of reserved messages for each queue.
const SHARE: usize = 16;
const SIZE: u64 = 1 << 30;

/// Returns the arena of this test program.
fn arena() -> Arena {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| Arena::configure(ArenaOptions::new().size(SIZE).messages(MESSAGES)).unwrap());
    let arena = Arena::current().unwrap();
    assert_eq!((arena.size(), arena.most_messages()), (SIZE, MESSAGES));
    arena
}

/// Runs a test in a separate thread. The end of that thread returns the envelopes that it has kept, before
/// the next test begins.
fn in_a_thread(test: impl FnOnce() + Send + 'static) {
    let _alone = alone();
    // Threads of the library that read results of processes of an earlier test also keep envelopes until they
    // end.
    eventually("threads return the envelopes that they keep", || {
        Arena::get().is_none_or(|arena| Messages(arena).on_their_way(0, 0).owned == 0)
    });
    if let Err(panic) = thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Returns a message that doesn't fit into a slot.
fn large(n: usize) -> Vec<usize> {
    vec![n; 20]
}

/// Returns the block number that a queue's `Debug` prints.
fn block_of<T: mp::Message>(queue: &Queue<T>) -> u32 {
    let text = format!("{queue:?}");
    text.rsplit("block ").next().unwrap().trim_end_matches(')').parse().unwrap()
}

/// Puts messages until the queue refuses one. Returns the number of messages put and the error.
fn fill(queue: &Queue<Vec<usize>>) -> (usize, PutError<Vec<usize>>) {
    let mut put = 0;
    loop {
        // The put never waits. The deadline ends a test that fails.
        match queue.put_timeout(large(put), DEADLINE) {
            Ok(()) => put += 1,
            Err(error) => return (put, error),
        }
    }
}

fn drain<T: mp::Message>(queue: &Queue<T>) -> usize {
    std::iter::from_fn(|| queue.try_get().ok().flatten()).count()
}

/// Puts all messages that can be in flight into one queue, except the reserved ones.
fn crowd() -> (Queue<Vec<usize>>, usize, PutError<Vec<usize>>) {
    let crowd = Queue::unbounded().unwrap();
    let (put, error) = fill(&crowd);
    (crowd, put, error)
}

#[test]
fn unbounded_queue_of_small_messages_has_a_limit() {
    in_a_thread(|| {
        arena();
        let queue = Queue::<u8>::unbounded().unwrap();
        assert_eq!(queue.capacity(), MESSAGES as usize);
        assert_eq!(queue.put_many((0..MESSAGES).map(|n| n as u8)).unwrap(), MESSAGES as usize);
        let error = queue.put_timeout(7, DEADLINE).unwrap_err();
        let PutError::Failed { value: 7, error } = error else { panic!("{error:?}") };
        let mp::message::MessageError::Memory(Error::TooManyMessages(who)) = &error else {
            panic!("{error}")
        };
        assert_eq!((who.asked, who.asked_has), (block_of(&queue), u64::from(MESSAGES)));
        assert!(error.to_string().contains("MP_ARENA_MESSAGES"), "{error}");
        assert_eq!(queue.try_get().unwrap(), Some(0));
        queue.try_put(7).unwrap();
        assert_eq!(drain(&queue), MESSAGES as usize);
    });
}

#[test]
fn message_limit_error_names_processes_and_counts() {
    in_a_thread(|| {
        arena();
        let other = Queue::unbounded().unwrap();
        (0..100).for_each(|n| other.put(large(n)).unwrap());
        let (crowd, put, error) = crowd();
        let PutError::Failed { value, error } = error else { panic!("{error:?}") };
        assert_eq!(value, large(put), "the value is returned");
        let mp::message::MessageError::Memory(Error::TooManyMessages(who)) = &error else {
            panic!("{error}")
        };
        assert_eq!((who.limit, who.kept), (MESSAGES, KEPT));
        assert_eq!((who.asked, who.asked_has), (block_of(&crowd), put as u64));
        let named: Vec<_> = who.queues.iter().map(|q| (q.block, q.messages)).collect();
        assert_eq!(named, [(block_of(&crowd), put as u64), (block_of(&other), 100)]);
        assert!(who.queues.iter().all(|q| q.pids == [std::process::id()]), "{who:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("{put} are in the queue in block {}", who.asked)), "{text}");
        // All messages except the reserved ones, and except envelopes that threads keep for their next
        // messages.
        let most = (MESSAGES - KEPT) as usize + SHARE - 100;
        assert!((most - 200..=most).contains(&put), "{put} of {most}");
        assert_eq!((drain(&crowd), drain(&other)), (put, 100));
    });
}

/// Returns the results of all processes.
fn results<T: mp::Message>(context: mp::ProcessContext<T>) -> Vec<T> {
    context.results().unwrap().into_iter().map(Result::unwrap).collect()
}

fn length(_: usize, text: String) -> mp::AnyResult<usize> {
    Ok(text.len())
}

#[test]
fn full_queue_leaves_others_their_share() {
    in_a_thread(|| {
        arena();
        let (crowd, put, _) = crowd();
        // One share belongs to the crowd's queue, and one is left for the process below.
        let queues = (KEPT as usize / SHARE) - 2;
        let others: Vec<Queue<Vec<usize>>> =
            (0..queues).map(|_| Queue::bounded(4 * SHARE).unwrap()).collect();
        for (i, queue) in others.iter().enumerate() {
            for n in 0..SHARE {
                queue.try_put(large(n)).unwrap_or_else(|e| panic!("message {n} of queue {i}: {e}"));
            }
            let error = queue.try_put(large(SHARE)).unwrap_err();
            assert!(matches!(&error, PutError::Full(value) if *value == large(SHARE)), "{error:?}");
        }
        // Small messages are in their slots.
        let small = Queue::bounded(1).unwrap();
        small.try_put(5_u64).unwrap();
        // The arguments of processes find room as well.
        let text = "x".repeat(10_000);
        let context = one_process(length, text);
        assert_eq!(results(context), [10_000]);
        // Messages that are only forwarded take no room from other queues.
        for _ in 0..3 * SHARE {
            let value = take(&others[0]);
            others[0].try_put(value).unwrap();
        }
        assert_eq!(others.iter().map(drain).sum::<usize>(), queues * SHARE);
        assert_eq!(drain(&crowd), put);
    });
}

/// Value that puts a message into another queue while it is written.
struct Relay {
    into: Queue<Vec<usize>>,
    written: Arc<AtomicUsize>,
}

impl Serialize for Relay {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.written.fetch_add(1, Ordering::Relaxed);
        assert!(matches!(self.into.try_put(large(0)), Err(PutError::Full(_))), "more than the queue's share");
        large(1).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Relay {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("it is not received"))
    }
}

#[test]
fn nested_put_is_not_counted_for_the_outer_value() {
    in_a_thread(|| {
        arena();
        let _crowd = crowd();
        let into = Queue::bounded(MESSAGES as usize).unwrap();
        while into.try_put(large(0)).is_ok() {}
        let had = into.len();
        assert!((1..=2 * SHARE).contains(&had), "{had}");
        let (queue, written) = (Queue::bounded(4).unwrap(), Arc::new(AtomicUsize::new(0)));
        assert!(queue.try_put(Relay { into: into.clone(), written: written.clone() }).is_ok());
        assert_eq!((into.len(), queue.len(), written.load(Ordering::Relaxed)), (had, 1, 1));
    });
}

#[test]
fn put_beyond_the_limit_waits_in_a_bounded_queue() {
    in_a_thread(|| {
        arena();
        let (crowd, put, _) = crowd();
        let queue = Queue::bounded(4 * SHARE).unwrap();
        (0..SHARE).for_each(|n| queue.try_put(large(n)).unwrap());
        let waits = |queue: &Queue<_>| {
            let error = queue.put_timeout(large(0), Duration::from_millis(20)).unwrap_err();
            assert!(error.is_full(), "{error:?}");
        };
        waits(&queue);
        // The put continues when a message is taken out of the same queue,
        let producer = queue.clone();
        let waiting = thread::spawn(move || producer.put_timeout(large(16), DEADLINE).unwrap());
        assert_eq!(take(&queue), large(0));
        waiting.join().unwrap();
        waits(&queue);
        // or out of another queue, also as a future.
        let producer = queue.clone();
        let waiting = thread::spawn(move || {
            let mut value = Some(large(17));
            block_on(producer.put_async_from(&mut value)).unwrap();
            producer.put_timeout(large(18), DEADLINE).unwrap();
            let rest = (19..30).map(large);
            producer.put_many_timeout(rest, DEADLINE).unwrap();
        });
        assert_eq!(drain(&crowd), put);
        waiting.join().unwrap();
        (1..30).for_each(|n| assert_eq!(take(&queue), large(n)));
    });
}

#[test]
fn waiting_put_ends_when_the_queue_is_closed() {
    in_a_thread(|| {
        arena();
        let (crowd, put, _) = crowd();
        let queue = Queue::bounded(4 * SHARE).unwrap();
        (0..SHARE).for_each(|n| queue.try_put(large(n)).unwrap());
        let producer = queue.clone();
        let waiting = thread::spawn(move || producer.put_timeout(large(16), DEADLINE).unwrap_err());
        queue.close();
        let error = waiting.join().unwrap();
        assert!(matches!(&error, PutError::Closed(value) if *value == large(16)), "{error:?}");
        assert_eq!((drain(&queue), drain(&crowd)), (SHARE, put));
    });
}

/// Returns the length of the longest text that needs only an envelope.
fn longest(queue: &Queue<String>) -> usize {
    let blocks = || Arena::current().unwrap().memory_stats().live_blocks;
    let longest = (100..300).rfind(|&len| {
        let before = blocks();
        give(queue, "x".repeat(len));
        let more = blocks() - before;
        assert_eq!(take(queue).len(), len);
        more == 0
    });
    longest.unwrap()
}

#[test]
fn longest_inline_message_fits_one_envelope() {
    in_a_thread(|| {
        arena();
        // A text of that length has three bytes before it.
        assert_eq!(longest(&Queue::bounded(1).unwrap()) + 3, 216);
        assert_eq!(longest(&QueueOptions::new().capacity(1).bytes(1 << 20).create().unwrap()) + 3, 200);
    });
}

fn puts(_: usize, (queue, at): (Queue<Vec<usize>>, u64)) -> Outcome {
    inject::arm(at, 9);
    (0..3).try_for_each(|n| queue.put(large(n)).map_err(|e| e.to_string().into()))
}

/// A killed process had reserved envelopes from the share. Other processes can use these envelopes again.
#[test]
fn envelope_share_of_a_killed_producer_is_reused() {
    let test = || {
        arena();
        for_every_access(a_process_is_killed);
    };
    if let Err(panic) = thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

fn a_process_is_killed(at: u64) -> bool {
    let queue = Queue::bounded(4 * SHARE).unwrap();
    let (crowd, put, _) = crowd();
    let context = one_process(puts, (queue.clone(), at));
    let killed = killed(&context);
    Arena::current().unwrap().reclaim().unwrap();
    let got = drain(&queue);
    assert!(got <= 3 && (killed || got == 3), "{got} of 3, killed at access {at}");
    (0..SHARE).for_each(|n| give(&queue, large(n)));
    assert!(queue.try_put(large(SHARE)).unwrap_err().is_full(), "killed at access {at}");
    assert_eq!((drain(&queue), drain(&crowd)), (SHARE, put), "killed at access {at}");
    killed
}

fn limits_of_this_process(_: usize, _: ()) -> mp::AnyResult<(u64, u32, bool)> {
    let refused = Arena::configure(ArenaOptions::new().messages(2048)).is_err();
    let arena = Arena::current()?;
    Ok((arena.size(), arena.most_messages(), refused))
}

#[test]
fn children_inherit_the_arena_size() {
    in_a_thread(|| {
        arena();
        let options = SpawnOptions::nprocs(2).env("MP_ARENA_MESSAGES", "1024").env("MP_ARENA_SIZE", "128M");
        let context = start_processes(limits_of_this_process, (), options).unwrap();
        assert_eq!(results(context), [(SIZE, MESSAGES, true); 2]);
        let error = Arena::configure(ArenaOptions::new()).unwrap_err();
        assert!(error.to_string().contains("has an arena already"), "{error}");
    });
}

/// Entry of the program that the test below runs.
#[test]
fn helper_with_an_environment() {
    let Ok(asked) = std::env::var("HOW_MUCH_FITS") else { return };
    if asked == "configured" {
        Arena::configure(ArenaOptions::new().messages(3000)).unwrap();
    }
    match Arena::current() {
        Ok(arena) => println!("has {} {}", arena.size() >> 20, arena.most_messages()),
        Err(error) => println!("has {error}"),
    }
}

#[test]
fn environment_variable_sets_the_arena_size() {
    let program = |asked: &str, variables: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "helper_with_an_environment", "--nocapture"]).env("HOW_MUCH_FITS", asked);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let said = text.lines().find_map(|line| line.split("has ").nth(1)).map(str::to_owned);
        said.unwrap_or_else(|| panic!("{text}"))
    };
    let sized = [("MP_ARENA_SIZE", "256M"), ("MP_ARENA_MESSAGES", "8K")];
    assert_eq!(program("", &sized), "256 8192");
    assert_eq!(program("configured", &sized), "256 3072", "the program's configuration has priority");
    // The defaults, if neither the program nor the environment sets them.
    assert_eq!(program("", &[("MP_ARENA_SIZE", "64G")]), "65536 1048576");
    assert_eq!(program("", &[("MP_ARENA_SIZE", "32G")]), "32768 524288");
    assert_eq!(program("", &[("MP_ARENA_SIZE", "64G"), ("MP_ARENA_MESSAGES", "15728640")]), "65536 15728640");
    let wrong = program("", &[("MP_ARENA_SIZE", "much")]);
    assert!(wrong.contains("MP_ARENA_SIZE=\"much\"") && wrong.contains("64M"), "{wrong}");
    let few = program("", &[("MP_ARENA_MESSAGES", "5")]);
    assert!(few.contains("5 messages") && few.contains("1024 to 15728640"), "{few}");
}

/// Broadcast messages stay in the channel, so no receiver makes room, and the sender does not wait for
/// envelopes.
#[test]
fn broadcast_beyond_the_limit_is_an_error() {
    in_a_thread(|| {
        arena();
        let (crowd, ..) = crowd();
        let (sender, receiver) = broadcast::channel(MESSAGES as usize / 2).unwrap();
        let error = (0..MESSAGES as usize).find_map(|n| sender.send(large(n)).err());
        let Some(PutError::Full(refused)) = error else { panic!("{error:?}") };
        assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), large(0));
        assert!(drain(&crowd) > 0);
        sender.send(refused).unwrap();
    });
}
