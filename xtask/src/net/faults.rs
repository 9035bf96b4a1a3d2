//! Faults, and checks of the outcomes that the documentation of `RemoteQueue` promises.

use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::node::{Line, Node, now};
use super::pools;
use super::run::{LEASE, LIMIT, Run, is_error};

/// Indexes of hosts: the home's host, then the host of the disturbed process, then the third host.
pub(super) const HOME: usize = 0;
pub(super) const PEER: usize = 1;
pub(super) const OTHER: usize = 2;

const MIB: usize = 1 << 20;
/// Maximum time in milliseconds until other processes detect that a process was killed.
pub(super) const KILLED: u32 = 100;
/// Time in milliseconds until a silent peer is lost.
pub(super) const SILENT: u32 = LEASE + 500;
/// Credit in MiB of each caller, in runs that check the memory of a home.
const CREDIT: u64 = 16;
/// Memory in MiB of a home without messages, and of its receive buffers.
const OWN_MEMORY: u64 = 60;
/// Maximum number of unanswered puts of `put_many`.
const AHEAD: usize = 4096 + 256;

/// A fault, and the run that makes it.
pub(super) struct Fault {
    pub(super) name: &'static str,
    pub(super) is_long: bool,
    pub(super) run: fn(&mut Run<'_>) -> Result<(), String>,
}

/// All faults.
pub(super) const FAULTS: &[Fault] = &[
    Fault { name: "none", is_long: false, run: |run| exchange(run, MIB, 100) },
    Fault { name: "none, TLS", is_long: false, run: encrypted },
    Fault { name: "100 Mbit/s", is_long: false, run: narrow },
    Fault { name: "5 % of packets lost", is_long: false, run: lossy },
    Fault { name: "home killed", is_long: false, run: kill_home },
    Fault { name: "put killed", is_long: false, run: |run| kill_producer(run, 0) },
    Fault { name: "put_many killed", is_long: false, run: |run| kill_producer(run, 64) },
    Fault { name: "get killed", is_long: false, run: |run| kill_consumers(run, false) },
    Fault { name: "get_lease killed", is_long: false, run: |run| kill_consumers(run, true) },
    Fault {
        name: "home stopped 8 s",
        is_long: false,
        run: |run| interrupt(run, Interruption::HomeStopped, 8, (0, false)),
    },
    Fault {
        name: "home stopped 30 s",
        is_long: true,
        run: |run| interrupt(run, Interruption::HomeStopped, 30, (0, true)),
    },
    Fault {
        name: "callers stopped 4 s",
        is_long: false,
        run: |run| interrupt(run, Interruption::CallersStopped, 4, (0, true)),
    },
    Fault {
        name: "link cut 5 s, get",
        is_long: true,
        run: |run| interrupt(run, Interruption::LinkCut, 5, (0, false)),
    },
    Fault {
        name: "link cut 5 s, get_lease",
        is_long: false,
        run: |run| interrupt(run, Interruption::LinkCut, 5, (0, true)),
    },
    Fault {
        name: "link cut 5 s, grace 10 s, get",
        is_long: false,
        run: |run| interrupt(run, Interruption::LinkCut, 5, (10, false)),
    },
    Fault {
        name: "link cut 5 s, grace 10 s, get_lease",
        is_long: false,
        run: |run| interrupt(run, Interruption::LinkCut, 5, (10, true)),
    },
    Fault {
        name: "one direction cut 5 s",
        is_long: false,
        run: |run| interrupt(run, Interruption::HalfCut, 5, (0, true)),
    },
    Fault { name: "20 connections reset, get", is_long: false, run: |run| reset(run, false) },
    Fault { name: "20 connections reset, get_lease", is_long: false, run: |run| reset(run, true) },
    Fault { name: "home of rank 1 killed", is_long: false, run: restart_home },
    Fault { name: "slow consumer", is_long: false, run: |run| slow(run, 300) },
    Fault { name: "cuts, loss, a stop and a kill", is_long: false, run: |run| bulk(run, 300) },
    Fault { name: "cuts, loss, a stop and a kill, 10,000 MiB", is_long: true, run: |run| bulk(run, 10_000) },
    Fault { name: "objects, home killed", is_long: false, run: |run| wait_for_objects(run, false) },
    Fault { name: "objects, link cut", is_long: false, run: |run| wait_for_objects(run, true) },
    Fault { name: "pool, host killed", is_long: false, run: pools::kill_host },
    Fault { name: "pool, link cut 5 s", is_long: false, run: |run| pools::interrupt(run, false, 5) },
    Fault { name: "pool, host stopped 8 s", is_long: false, run: |run| pools::interrupt(run, true, 8) },
    Fault { name: "pool, worker killed", is_long: false, run: |run| pools::kill_worker(run, 0) },
    Fault { name: "pool, worker killed, retries", is_long: false, run: |run| pools::kill_worker(run, 3) },
    Fault { name: "pool, forwarder killed", is_long: false, run: pools::kill_forwarder },
    Fault { name: "pool, rank 0 killed", is_long: false, run: pools::kill_first_rank },
    Fault { name: "loader, host killed", is_long: false, run: pools::kill_loader_host },
    Fault { name: "training", is_long: false, run: |run| pools::train(run, false) },
    Fault { name: "training, host killed", is_long: false, run: |run| pools::train(run, true) },
    Fault { name: "training, averaged weights", is_long: false, run: pools::average },
    Fault { name: "training, torchrun", is_long: false, run: pools::torchrun },
    Fault { name: "training, mpirun", is_long: false, run: pools::mpirun },
];

/// Exchanges messages by encrypted connections.
fn encrypted(run: &mut Run<'_>) -> Result<(), String> {
    run.is_encrypted = true;
    exchange(run, MIB, 100)?;
    let _home = run.start(HOME, "watch", "")?;
    let other = run.hosts.start(OTHER, "watch", &format!("lease={LEASE} grace=0 limit=60"))?;
    let refused = |line: &Line| line.text.starts_with("failed") && line.text.contains("certificate");
    other.wait("refusal of a member without certificates", LIMIT, |lines| {
        lines.iter().any(refused).then_some(())
    })
}

/// Puts and gets messages, and compares their bytes with the bytes that the link has carried.
fn exchange(run: &mut Run<'_>, size: usize, count: usize) -> Result<(), String> {
    let home = run.start(HOME, "home", &format!("size={size} capacity=16 down={count}"))?;
    let before = run.hosts.bytes(HOME)?;
    let options = format!("size={size} from=0 count={count} threads=4 lost=stop");
    let producer = run.start(PEER, "put", &options)?;
    producer.join(LIMIT)?;
    let between = run.hosts.bytes(HOME)?;
    let consumer = run.start(OTHER, "get", &format!("size={size} threads=4 idle=500"))?;
    consumer.join(LIMIT)?;
    let after = run.hosts.bytes(HOME)?;
    run.drain(&home)?;
    run.count_puts(&home, &[&producer]);
    run.count_gets(&home, &[&consumer]);
    run.at_most(0, 0, 0);
    let (payload, messages) = ((size * count) as u64, 2 * count);
    let all = run.figures.acknowledged;
    run.expect(all == messages, || format!("{all} of {messages} messages were put"));
    for (way, bytes) in [("up", between.0 - before.0), ("down", after.1 - between.1)] {
        let violation = || format!("{way}: the link carried {bytes} bytes for {payload}");
        run.expect(bytes >= payload && bytes <= payload / 10 * 12 + 200_000, violation);
    }
    Ok(())
}

/// Fills a slow link with as many messages as the credits allow, for longer than a lease.
fn narrow(run: &mut Run<'_>) -> Result<(), String> {
    let rate = 100;
    let (size, count) = (4 * MIB, 6);
    run.hosts.limit(HOME, rate)?;
    let since = Instant::now();
    let result = exchange(run, size, count);
    let took = since.elapsed().as_secs_f64();
    run.hosts.limit(HOME, 0)?;
    let least = (2 * size * count * 8) as f64 / f64::from(rate) / 1e6;
    run.expect(took >= least * 0.9, || format!("took {took:.1} s, the link needs {least:.1} s"));
    result
}

fn lossy(run: &mut Run<'_>) -> Result<(), String> {
    lose_packets(run, true)?;
    let result = exchange(run, 16 << 10, 400);
    lose_packets(run, false)?;
    result
}

/// Drops 5 % of the packets that arrive at each host, or none.
fn lose_packets(run: &Run<'_>, is_begin: bool) -> Result<(), String> {
    let rule = is_begin.then_some("iifname eth0 numgen random mod 100 < 5 drop");
    [HOME, PEER, OTHER].iter().try_for_each(|host| run.hosts.filter(*host, rule))
}

/// Checks the peak memory of a drained home, which a number of callers fill.
fn check_memory(run: &mut Run<'_>, callers: u64, capacity: u64) {
    let (peak, most) = (run.figures.peak.unwrap_or(0), callers * CREDIT + capacity + OWN_MEMORY);
    run.expect(peak <= most, || format!("the home used {peak} MiB, at most {most} are expected"));
}

/// Starts a producer of small messages that continues until its input ends.
fn endless(run: &mut Run<'_>, from: usize, options: &str) -> Result<Rc<Node>, String> {
    run.start(PEER, "put", &format!("size=4096 from={from} count=1000000 {options}"))
}

fn kill_home(run: &mut Run<'_>) -> Result<(), String> {
    let home = run.start(HOME, "home", "size=4096 capacity=16")?;
    let watch = run.start(OTHER, "watch", "")?;
    let producer = endless(run, 0, "threads=4 lost=stop")?;
    producer.wait_for("ack", (100, 0), LIMIT)?;
    let killed = home.kill()?;
    let known = producer.wait_for("lost", (1, killed), LIMIT)?;
    run.known("put", killed, known, KILLED);
    let known = watch.wait_for("event lost 0", (1, killed), LIMIT)?;
    run.known("watch", killed, known, KILLED);
    producer.join(LIMIT)?;
    run.count_puts(&home, &[&producer]);
    // Messages that were in the queue are lost with it.
    run.at_most(usize::MAX, 0, 4);
    Ok(())
}

fn kill_producer(run: &mut Run<'_>, many: usize) -> Result<(), String> {
    let home = run.start(HOME, "home", "size=4096 capacity=16")?;
    let watch = run.start(OTHER, "watch", "")?;
    let options = format!("threads=4 lost=stop many={many}");
    let producer = endless(run, 0, &options)?;
    producer.wait_for("ack", (200, 0), LIMIT)?;
    let killed = producer.kill()?;
    let known = watch.wait_for("event lost 1", (1, killed), LIMIT)?;
    run.known("watch", killed, known, KILLED);
    let next = endless(run, 500_000, &options)?;
    next.wait_for("ack", (100, 0), LIMIT)?;
    next.finish(LIMIT)?;
    run.drain(&home)?;
    run.count_puts(&home, &[&producer, &next]);
    run.at_most(0, 0, 4 * many.clamp(1, AHEAD));
    Ok(())
}

/// Kills consumers, each after it has taken some messages.
fn kill_consumers(run: &mut Run<'_>, leases: bool) -> Result<(), String> {
    const KILLS: usize = 3;
    // Each killed consumer had large messages that it had not received completely.
    let (queue, size, threads) = if leases { ("jobs", 4096, 1) } else { ("down", MIB / 2, 8) };
    let home = run.start(HOME, "home", &format!("size={size} capacity=400 {queue}=400"))?;
    let options = format!("size={size} threads={threads} idle=1000 leases={}", u8::from(leases));
    let mut consumers = Vec::new();
    for _ in 0..KILLS {
        let consumer = run.start(PEER, "get", &options)?;
        consumer.wait_for("got", (60, 0), LIMIT)?;
        consumer.kill()?;
        consumers.push(consumer);
    }
    let last = run.start(PEER, "get", &options)?;
    last.join(LIMIT)?;
    consumers.push(last);
    run.drain(&home)?;
    let all: Vec<&Node> = consumers.iter().map(|node| &**node).collect();
    run.count_gets(&home, &all);
    check_leases(run, &all);
    // A message is lost if its receiver is killed before it prints the message's number, which takes
    // microseconds. It arrives again if the home has not recorded that it was received.
    run.at_most(if leases { 0 } else { 2 }, KILLS * threads, 0);
    Ok(())
}

/// Checks that acknowledged messages are not delivered again.
fn check_leases(run: &mut Run<'_>, consumers: &[&Node]) {
    let all = |word| consumers.iter().flat_map(move |node| node.numbers(word));
    for (number, acked) in all("acked") {
        let again = all("got").any(|(other, at)| other == number && at > acked);
        run.expect(!again, || format!("message {number} was delivered after it was acknowledged"));
    }
}

/// Kills the home of objects for which two hosts wait, or cuts its link.
fn wait_for_objects(run: &mut Run<'_>, is_cut: bool) -> Result<(), String> {
    /// Number of waits of each host.
    const WAITS: usize = 7;
    let home = run.start(HOME, "objects", "")?;
    let waiters = [run.start(PEER, "wait", "")?, run.start(OTHER, "wait", "")?];
    // sleep: the waits begin. A wait that begins later has the same outcome.
    sleep(Duration::from_millis(300));
    let begun = if is_cut { now() } else { home.kill()? };
    if is_cut {
        run.hosts.cut(HOME, true)?;
    }
    for waiter in &waiters {
        let known = waiter.wait_for("lost", (WAITS, begun), LIMIT)?;
        run.known(&waiter.name, begun, known, if is_cut { SILENT } else { KILLED });
    }
    if is_cut {
        run.hosts.cut(HOME, false)?;
        home.finish(LIMIT)?;
    }
    waiters.iter().try_for_each(|waiter| waiter.join(LIMIT))
}

/// Fault that begins and ends.
#[derive(Clone, Copy, PartialEq)]
enum Interruption {
    HomeStopped,
    CallersStopped,
    LinkCut,
    /// Packets of the home to its callers are dropped.
    HalfCut,
}

impl Interruption {
    /// Begins or ends the fault.
    fn switch(self, run: &Run<'_>, home: &Node, callers: &[&Node], is_begin: bool) -> Result<(), String> {
        let switch = |node: &Node| if is_begin { node.stop() } else { node.resume() }.map(drop);
        match self {
            Self::HomeStopped => switch(home),
            Self::CallersStopped => callers.iter().try_for_each(|node| switch(node)),
            Self::LinkCut => run.hosts.cut(HOME, is_begin),
            Self::HalfCut => {
                let rule = is_begin.then_some("iifname eth0 drop");
                [PEER, OTHER].iter().try_for_each(|host| run.hosts.filter(*host, rule))
            }
        }
    }
}

/// Interrupts connections for some seconds while messages are put and taken.
fn interrupt(
    run: &mut Run<'_>,
    fault: Interruption,
    seconds: u64,
    (grace, leases): (u32, bool),
) -> Result<(), String> {
    run.grace = grace * 1000;
    let queue = if leases { "jobs" } else { "down" };
    let home = run.start(HOME, "home", &format!("size=4096 capacity=4000 {queue}=200"))?;
    let options = format!("size=4096 threads=2 idle=1000 leases={} pause=10", u8::from(leases));
    let consumer = run.start(OTHER, "get", &options)?;
    let producer = endless(run, 0, "threads=4 lost=next pause=5")?;
    producer.wait_for("ack", (50, 0), LIMIT)?;
    consumer.wait_for("got", (50, 0), LIMIT)?;
    let begun = now();
    fault.switch(run, &home, &[&producer, &consumer], true)?;
    // sleep: the duration of the fault.
    sleep(Duration::from_secs(seconds));
    let ended = now();
    fault.switch(run, &home, &[&producer, &consumer], false)?;
    producer.wait_for("ack", (50, ended), LIMIT)?;
    let continued = producer.wait_for("ack", (1, ended), LIMIT)?;
    consumer.wait_for("got", (50, ended), LIMIT)?;
    producer.finish(LIMIT)?;
    consumer.join(LIMIT)?;
    run.drain(&home)?;
    println!("  calls continued {:.1} s after the end", (continued - ended) as f64 / 1e6);
    let has_grace = grace > 0;
    for (who, node) in [("put", &producer), ("get", &consumer)] {
        match fault {
            _ if has_grace => run.no_loss(node),
            // A caller that was stopped between two calls gets no error.
            Interruption::CallersStopped => {}
            _ => {
                let known = node.lines().iter().find(|line| is_error(&line.text)).map(|line| line.at);
                run.known(who, begun, known.ok_or_else(|| format!("{who}: no call failed"))?, SILENT);
            }
        }
    }
    run.count_puts(&home, &[&producer]);
    run.at_most(0, 0, if has_grace { 0 } else { usize::MAX });
    let in_doubt = run.figures.in_doubt;
    run.count_gets(&home, &[&consumer]);
    check_leases(run, &[&consumer]);
    // Each thread may have received one message that the other consumer receives, too.
    run.at_most(0, if has_grace { 0 } else { 2 }, in_doubt);
    Ok(())
}

/// Resets the connections of a home again and again while messages are put and taken.
fn reset(run: &mut Run<'_>, leases: bool) -> Result<(), String> {
    run.grace = 2000;
    let (queue, size) = if leases { ("jobs", 4096) } else { ("down", 64 << 10) };
    let home = run.start(HOME, "home", &format!("size={size} capacity=600 {queue}=600"))?;
    let options = format!("size={size} threads=4 idle=1000 leases={} pause=10", u8::from(leases));
    let consumer = run.start(OTHER, "get", &options)?;
    let options = if leases { "threads=8 pause=2" } else { "threads=1 many=64" };
    let options = format!("size={size} from=0 count=1000000 lost=stop {options}");
    let producer = run.start(PEER, "put", &options)?;
    let before = home.accepted()?;
    for _ in 0..20 {
        run.hosts.filter(HOME, Some("tcp dport 29500 tcp flags & syn == 0 reject with tcp reset"))?;
        // sleep: the duration of the fault.
        sleep(Duration::from_millis(10));
        run.hosts.filter(HOME, None)?;
        let since = now();
        producer.wait_for("ack", (10, since), LIMIT)?;
    }
    let again = home.accepted()? - before;
    run.expect(again >= 20, || format!("only {again} connections were made again"));
    producer.finish(LIMIT)?;
    consumer.join(LIMIT)?;
    run.drain(&home)?;
    run.no_loss(&producer);
    run.no_loss(&consumer);
    run.count_puts(&home, &[&producer]);
    run.count_gets(&home, &[&consumer]);
    if !leases {
        run.in_order(&home, &producer);
    }
    check_leases(run, &[&consumer]);
    run.at_most(0, 0, 0);
    Ok(())
}

/// Kills a home that is not rank 0, and starts it again.
fn restart_home(run: &mut Run<'_>) -> Result<(), String> {
    let first = run.start(HOME, "watch", "")?;
    for from in [0, 500_000] {
        let home = run.start(PEER, "home", "size=4096 capacity=16")?;
        let options = format!("size=4096 from={from} count=1000000 threads=4 lost=stop");
        let producer = run.start(OTHER, "put", &options)?;
        producer.wait_for("ack", (100, 0), LIMIT)?;
        let killed = home.kill()?;
        run.known("put", killed, producer.wait_for("lost", (1, killed), LIMIT)?, KILLED);
        run.known("watch", killed, first.wait_for("event lost 1", (1, killed), LIMIT)?, KILLED);
        producer.join(LIMIT)?;
        run.count_puts(&home, &[&producer]);
    }
    // Messages that were in a queue are lost with it.
    run.at_most(usize::MAX, 0, 8);
    Ok(())
}

/// Puts faster than the home consumes.
fn slow(run: &mut Run<'_>, count: usize) -> Result<(), String> {
    const CAPACITY: u64 = 4;
    let options = format!("size={MIB} capacity={CAPACITY} pause=10 credit={}", CREDIT * MIB as u64);
    let home = run.start(HOME, "home", &options)?;
    let half = |from| format!("size={MIB} from={from} count={} threads=1 many=100 lost=stop", count / 2);
    let producers = [run.start(PEER, "put", &half(0))?, run.start(OTHER, "put", &half(count / 2))?];
    producers.iter().try_for_each(|producer| producer.join(LIMIT))?;
    run.drain(&home)?;
    run.count_puts(&home, &[&producers[0], &producers[1]]);
    producers.iter().for_each(|producer| run.in_order(&home, producer));
    run.at_most(0, 0, 0);
    check_memory(run, 2, CAPACITY);
    Ok(())
}

/// Puts and gets messages of 1 MiB on two hosts while links are cut and lose packets, the home is stopped,
/// and one producer is killed.
fn bulk(run: &mut Run<'_>, count: usize) -> Result<(), String> {
    const CAPACITY: u64 = 16;
    run.grace = 4000;
    let pace = |milliseconds: usize| milliseconds / count;
    let limit = LIMIT + Duration::from_millis(50) * u32::try_from(count).unwrap_or(u32::MAX);
    let (credit, half) = (CREDIT * MIB as u64, count / 2);
    let options = format!("capacity={CAPACITY} credit={credit} down={half} pause={}", pace(12_000));
    let home = run.start(HOME, "home", &format!("size={MIB} {options}"))?;
    let put =
        |from: usize, end: usize| format!("size={MIB} from={from} count={} threads=2 lost=stop", end - from);
    // The longest pause between two messages is the cut of 3 s.
    let options = format!("size={MIB} threads=1 idle=8000 pause={} rank=3", pace(12_000));
    let consumer = run.start(OTHER, "get", &options)?;
    let steady = run.start(PEER, "put", &put(0, half))?;
    let killed = run.start(OTHER, "put", &put(half, count))?;
    let hold = |milliseconds| {
        // sleep: the duration of a fault.
        sleep(Duration::from_millis(milliseconds));
    };
    let cut_for = |run: &Run<'_>, milliseconds| {
        run.hosts.cut(HOME, true)?;
        hold(milliseconds);
        run.hosts.cut(HOME, false)
    };
    steady.wait_for("ack", (half / 6, 0), limit)?;
    cut_for(run, 500)?;
    killed.wait_for("ack", (half / 3, 0), limit)?;
    killed.kill()?;
    let next = killed.numbers("put").into_iter().map(|(number, _)| number as usize + 1).max().unwrap_or(half);
    // Large enough for the other faults, however many messages the killed process has put.
    let end = count.max(next + half / 2);
    let next = run.start(OTHER, "put", &put(next, end))?;
    let goes_on = || next.wait_for("ack", (half / 10, now()), limit).map(drop);
    goes_on()?;
    lose_packets(run, true)?;
    hold(1000);
    lose_packets(run, false)?;
    goes_on()?;
    home.stop()?;
    hold(3000);
    home.resume()?;
    goes_on()?;
    cut_for(run, 3000)?;
    next.join(limit)?;
    steady.join(limit)?;
    consumer.join(limit)?;
    run.drain(&home)?;
    [&steady, &next, &consumer].iter().for_each(|node| run.no_loss(node));
    run.count_puts(&home, &[&steady, &killed, &next]);
    run.count_gets(&home, &[&consumer]);
    run.at_most(0, 0, 2);
    check_memory(run, 3, 2 * CAPACITY);
    let arrived = run.figures.arrived;
    run.expect(arrived + 2 >= end + half, || format!("{arrived} of {} messages arrived", end + half));
    Ok(())
}
