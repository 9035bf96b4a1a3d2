//! Work with small messages: one `u64` each.
//!
//! # Safety
//! `getrusage` writes to a structure on the stack.

use std::time::Duration;

use super::{Link, Plan, now};
use crate::Result;

/// First message of the child, sent when it is ready.
const READY: u64 = 0x5EAD_1E55;
/// Last message of the parent.
const BYE: u64 = u64::MAX;

/// Time for which each side lets the other side fall asleep in `rtt_asleep`. It is longer than a waiter
/// should spin. It is shorter than the time after which an idle (virtual) processor enters a deeper sleep
/// (200 µs with Linux' `haltpoll`), so the figure shows system calls and the scheduler, not power states.
const LULL: Duration = Duration::from_micros(50);

fn expect(what: &str, wanted: u64, got: u64) -> Result<()> {
    if wanted == got {
        return Ok(());
    }
    Err(format!("wrong result: {what} should be {wanted}, but is {got}").into())
}

/// Measures `rtt_awake`: sends a number and waits for its successor, about `full` times. Returns the time of
/// one round trip in ns.
///
/// # Errors
/// Returns an error for a wrong answer, or the link's error.
pub(crate) fn round_trips(link: &mut impl Link, plan: &Plan, full: u64) -> Result<f64> {
    expect("the child's greeting", READY, link.receive()?)?;
    let time = plan.batches(full).time(|number| {
        link.send(number)?;
        expect("an answer", number + 1, link.receive()?)
    })?;
    link.send(BYE)?;
    Ok(time)
}

/// Runs the other process of `rtt_awake`.
///
/// # Errors
/// Returns the link's error.
pub(crate) fn answer_round_trips(link: &mut impl Link) -> Result<()> {
    link.send(READY)?;
    loop {
        match link.receive()? {
            BYE => return Ok(()),
            number => link.send(number + 1)?,
        }
    }
}

/// Measures `rtt_asleep`. Each message contains the time at which it was sent, and each sender spins until
/// the other side must have fallen asleep. The time of a round trip is the time of both messages, without the
/// spinning. A round trip counts only if both sides slept, according to the kernel's count of voluntary
/// context switches: waking a side that was preempted before it fell asleep is cheaper.
///
/// Returns NaN if fewer than one round trip in 20 counts: the machine is then too busy to let a waiter sleep.
///
/// # Errors
/// Returns an error for times that run backwards, or the link's error.
pub(crate) fn sleepy_round_trips(link: &mut impl Link, plan: &Plan, full: u64) -> Result<f64> {
    expect("the child's greeting", READY, link.receive()?)?;
    let batches = plan.batches(full);
    let mut times = Vec::new();
    let trips = batches.count * batches.each;
    for number in 0..batches.warm_up + trips {
        lull();
        link.send(now())?;
        let awake = voluntary_switches();
        let answer = link.receive()?;
        let back = since(answer >> HOP_BITS, now())?;
        let there = (answer >> 1) & MAX_HOP;
        let both_slept = answer & 1 == 1 && voluntary_switches() > awake;
        if number >= batches.warm_up && both_slept {
            times.push((there + back) as f64);
        }
    }
    link.send(BYE)?;
    if (times.len() as u64) < trips.div_ceil(20) {
        return Ok(f64::NAN);
    }
    Ok(crate::stats::median(&times))
}

/// Layout of an answer in `rtt_asleep`: one bit that is set if the child slept, the duration of the message
/// to the child in ns (up to 8 ms), and the time of the answer (40 bits of the clock, which wrap every 18
/// minutes).
const HOP_BITS: u32 = 24;
const CLOCK_BITS: u32 = 64 - HOP_BITS;
const MAX_HOP: u64 = (1 << (HOP_BITS - 1)) - 1;

/// Runs the other process of `rtt_asleep`.
///
/// # Errors
/// Returns an error for times that run backwards, or the link's error.
pub(crate) fn answer_sleepy_round_trips(link: &mut impl Link) -> Result<()> {
    link.send(READY)?;
    loop {
        let awake = voluntary_switches();
        let sent = link.receive()?;
        if sent == BYE {
            return Ok(());
        }
        let there = since(sent, now())?.min(MAX_HOP);
        let slept = u64::from(voluntary_switches() > awake);
        lull();
        link.send((now() << HOP_BITS) | (there << 1) | slept)?;
    }
}

/// Returns nanoseconds from `start` to `end`, of which only the lower 40 bits count.
fn since(start: u64, end: u64) -> Result<u64> {
    let time = end.wrapping_sub(start) & (u64::MAX >> HOP_BITS);
    // More than half of the range is a negative time.
    if time >> (CLOCK_BITS - 1) != 0 {
        return Err(format!("wrong result: a message came before it was sent ({end} < {start})").into());
    }
    Ok(time)
}

fn lull() {
    let start = now();
    while now() - start < LULL.as_nanos() as u64 {
        std::hint::spin_loop();
    }
}

/// Returns the number of voluntary sleeps of this thread so far.
fn voluntary_switches() -> u64 {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place to write to; the call keeps no pointer.
    let status = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(status, 0, "getrusage can't fail with these arguments");
    usage.ru_nvcsw as u64
}

/// Measures `one_way_1p1c` in the consumer, which requests a number of messages and checks that each arrives
/// once and in order. The clock starts when the first tenth has arrived. Returns messages per second.
///
/// # Errors
/// Returns an error if a message is lost, repeated or out of order, or the link's error.
pub(crate) fn consume(link: &mut impl Link, plan: &Plan, full: u64) -> Result<f64> {
    expect("the child's greeting", READY, link.receive()?)?;
    let wanted = plan.repetitions(full);
    let warm_up = wanted / 10;
    link.send(wanted)?;
    for number in 0..warm_up {
        expect("a message", number, link.receive()?)?;
    }
    let start = now();
    for number in warm_up..wanted {
        expect("a message", number, link.receive()?)?;
    }
    let time = now() - start;
    link.send(BYE)?;
    Ok((wanted - warm_up) as f64 * 1e9 / time as f64)
}

/// Runs the other process of `one_way_1p1c`, the producer.
///
/// # Errors
/// Returns the link's error.
pub(crate) fn produce(link: &mut impl Link) -> Result<()> {
    link.send(READY)?;
    let wanted = link.receive()?;
    for number in 0..wanted {
        link.send(number)?;
    }
    expect("the last message", BYE, link.receive()?)
}
