//! Processes that are killed, or stopped, at their n-th access to shared memory, for every n of a script,
//! while they put and take messages that fit into the slots of their queue.

use std::time::Instant;

use mp::{Arena, Queue, SharedTensor, Tensor};
use mp_core::inject;
use mp_tests::kill::{KILL, STOP, for_every_access, killed, stopped};
use mp_tests::{DEADLINE, Outcome, alone, one_process, signal};
use rustix::process::Signal;

/// Number of messages that a script puts or takes.
const MESSAGES: u64 = 6;
/// Number of the first message that other processes put after the death.
const LATER: u64 = 100;

fn queue() -> Queue<u64> {
    Queue::bounded(8).unwrap()
}

fn fill(queue: &Queue<u64>) {
    assert_eq!(queue.put_many(0..MESSAGES).unwrap() as u64, MESSAGES);
    let stats = Arena::current().unwrap().memory_stats();
    assert_eq!((queue.len() as u64, stats.queued), (MESSAGES, 0), "small messages need no envelopes");
}

fn drain(queue: &Queue<u64>) -> Vec<u64> {
    std::iter::from_fn(|| queue.try_get().ok().flatten()).collect()
}

/// Lets other processes put and take messages after a death. Returns the messages that were in the queue.
fn pass_messages(queue: &Queue<u64>, at: u64) -> Vec<u64> {
    let mut got = Vec::new();
    for n in LATER..LATER + 10 {
        queue.put_timeout(n, DEADLINE).unwrap_or_else(|e| panic!("{e}, at access {at}"));
        got.extend(drain(queue));
    }
    assert_eq!(got.iter().filter(|&&n| n >= LATER).count(), 10, "at access {at}");
    got.retain(|&n| n < LATER);
    got
}

type Script = (Queue<u64>, SharedTensor<u64>, u64, i32);

fn script(at: u64, signal: i32) -> Script {
    (queue(), Tensor::zeros([MESSAGES as usize]).unwrap().share(), at, signal)
}

fn noted(got: &SharedTensor<u64>) -> Vec<u64> {
    (0..MESSAGES).filter(|&n| got.load(n as usize) != 0).collect()
}

/// Puts three messages one by one, and three in a batch.
fn puts(_: usize, (queue, _, at, signal): Script) -> Outcome {
    inject::arm(at, signal);
    (0..3).try_for_each(|n| queue.put(n))?;
    queue.put_many(3..MESSAGES).map_err(|e| e.to_string())?;
    Ok(())
}

fn takes(_: usize, (queue, got, at, signal): Script) -> Outcome {
    inject::arm(at, signal);
    for _ in 0..3 {
        let n = queue.get_timeout(DEADLINE)?.expect("the queue is open");
        got.store(n as usize, 1);
    }
    let mut left = MESSAGES as usize - 3;
    while left > 0 {
        let mut messages = Vec::new();
        left -= queue.get_many_deadline(&mut messages, left, Instant::now() + DEADLINE)?;
        messages.into_iter().for_each(|n| got.store(n as usize, 1));
    }
    Ok(())
}

fn leases(_: usize, (queue, got, at, signal): Script) -> Outcome {
    inject::arm(at, signal);
    for _ in 0..MESSAGES {
        let job = queue.get_lease_timeout(DEADLINE)?.expect("the queue is open");
        got.store(*job as usize, 1);
        job.ack();
    }
    Ok(())
}

#[test]
fn killed_producer_of_small_messages_keeps_order() {
    for_every_access(|at| {
        let script = script(at, KILL);
        let queue = script.0.clone();
        let killed = killed(&one_process(puts, script));
        let got = pass_messages(&queue, at);
        assert!(got.iter().copied().eq(0..got.len() as u64), "killed at access {at}: {got:?}");
        assert!(killed || got.len() as u64 == MESSAGES);
        killed
    });
}

#[test]
fn killed_consumer_of_small_messages_leaks_nothing() {
    for_every_access(|at| {
        let script = script(at, KILL);
        let (queue, got) = (script.0.clone(), script.1.clone());
        fill(&queue);
        let killed = killed(&one_process(takes, script));
        let mut all = noted(&got);
        all.extend(pass_messages(&queue, at));
        let lost = MESSAGES - all.len() as u64;
        all.dedup();
        assert!(all.is_sorted() && all.len() as u64 == MESSAGES - lost, "killed at access {at}: {all:?}");
        // A killed consumer loses the batch that it has taken.
        assert!(lost <= if killed { 3 } else { 0 }, "{lost} lost, killed at access {at}");
        killed
    });
}

/// A leased message survives the death of its consumer, even if it was put as a small message.
#[test]
fn small_leased_message_survives_a_killed_consumer() {
    for_every_access(|at| {
        let script = script(at, KILL);
        let (queue, got) = (script.0.clone(), script.1.clone());
        fill(&queue);
        let killed = killed(&one_process(leases, script));
        Arena::current().unwrap().reclaim().unwrap();
        let mut all = noted(&got);
        let done = all.len();
        all.extend(pass_messages(&queue, at));
        // Up to two messages may be delivered again: one from its envelope, and one from its slot.
        let again = all.len() - MESSAGES as usize;
        assert!(again <= if killed { 2 } else { 0 }, "{again} again, killed at access {at} with {done} done");
        all.sort_unstable();
        all.dedup();
        assert!(all.into_iter().eq(0..MESSAGES), "killed at access {at}");
        killed
    });
}

fn stop_at_every_access<F: Fn(usize, Script) -> Outcome + Copy + Send + 'static>(work: F, put: bool) {
    for_every_access(|at| {
        let script = script(at, STOP);
        let (queue, got) = (script.0.clone(), script.1.clone());
        if !put {
            fill(&queue);
        }
        let context = one_process(work, script);
        let (pid, ended) = (context.pids()[0], !stopped(&context));
        let mut all = Vec::new();
        if !ended {
            all = pass_messages(&queue, at);
            // The consumer waits for the rest of its messages.
            (0..if put { 0 } else { MESSAGES }).for_each(|_| queue.put(MESSAGES - 1).unwrap());
            signal(pid, Signal::CONT);
            assert!(!killed(&context));
        }
        all.extend(drain(&queue));
        all.extend(noted(&got));
        all.sort_unstable();
        all.dedup();
        assert!(all.into_iter().eq(0..MESSAGES), "stopped at access {at}");
        !ended
    });
}

#[test]
fn stopped_producer_of_small_messages_delays_no_other() {
    stop_at_every_access(puts, true);
}

#[test]
fn stopped_consumer_of_small_messages_delays_no_other() {
    stop_at_every_access(takes, false);
}

/// At first, small messages are in their slots. After a consumer has leased, they are in envelopes, because
/// only envelopes can be leased.
#[test]
fn small_messages_move_to_envelopes_for_leases() {
    let _alone = alone();
    let queued = || Arena::current().unwrap().memory_stats().queued;
    let queue = Queue::bounded(8).unwrap();
    let before = queued();
    queue.put(1_u64).unwrap();
    assert_eq!(queued(), before, "no consumer has leased yet");
    queue.get().unwrap();
    queue.put(2).unwrap();
    assert_eq!((queue.len(), queued()), (1, before));
    let job = queue.get_lease().unwrap().expect("the small message");
    assert_eq!((*job, job.deliveries()), (2, 1));
    let held = queued();
    queue.put(3).unwrap();
    assert_eq!(queued(), held + 1, "a consumer leases");
    drop(job);
    let again = queue.get_lease().unwrap().expect("the lease has returned the message");
    assert_eq!((*again, again.deliveries()), (2, 2));
    again.ack();
    assert_eq!(queue.get().unwrap(), Some(3));
}

#[test]
fn only_small_messages_are_sent_without_envelope() {
    fn there_and_back<T: mp::Message + Clone + PartialEq + std::fmt::Debug>(value: T, small: bool) {
        let queued = || Arena::current().unwrap().memory_stats().queued;
        let queue = Queue::bounded(2).unwrap();
        queue.put(value.clone()).unwrap();
        assert_eq!(queue.get().unwrap().as_ref(), Some(&value));
        let before = queued();
        queue.put(value.clone()).unwrap();
        assert_eq!(queued() == before, small, "{value:?}");
        assert_eq!(queue.get().unwrap(), Some(value));
    }
    let _alone = alone();
    there_and_back((), true);
    there_and_back(u64::MAX, true);
    there_and_back(-1.5_f64, true);
    there_and_back(i128::MAX, false);
    there_and_back("12345678".to_string(), true);
    there_and_back("123456789".to_string(), false);
    there_and_back(Some((1_u8, true, 'x')), true);
    there_and_back((u64::MAX, u64::MAX), false);
    there_and_back(Vec::<String>::new(), true);
    // A consumer leases before any message was taken in another way.
    let queue = Queue::bounded(2).unwrap();
    queue.put(5_u64).unwrap();
    let job = queue.get_lease().unwrap().expect("the small message");
    assert_eq!((*job, job.deliveries()), (5, 1));
    job.ack();
}
