//! Real processes that are killed or stopped at their n-th access to shared memory, for every n. Some
//! processes claim, advance and release clocks. Other processes store a descriptor in an object, or own an
//! object that was moved to them, or make an object the child of another object and free the child.
#![cfg(all(feature = "inject", not(mp_loom)))]
#![allow(unsafe_code)]

use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mp_core::clocks::{Clock, Clocks, Tick, TickState};
use mp_core::message::{Incoming, Outgoing};
use mp_core::{
    Allocator, Arena, Blocks, Descriptors, EnvelopeTicket, FdSlots, Messages, Promise, Recovery, Structure,
    inject,
};
use mp_harness::{eventually, signal, threads_are};
use rustix::process::Signal;

const WHAT: &str = "MP_CORE_KILLED";
const NAME: &str = "test::Object";

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Sends a line to the test process, without an access to shared memory.
fn report(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\ntold {what}").and_then(|()| out.flush()).unwrap();
}

fn reported(tick: Tick, done: bool) {
    report(&format!("{} {}", tick.raw(), u8::from(done)));
}

/// Uses three clocks: one whose work is done, one with pending work, one whose device is lost.
fn tick(arena: Arena) -> Outcome {
    let next = |clock: &mut Clock, done: bool| -> Outcome {
        let tick = clock.next()?;
        clock.submitted(tick)?;
        reported(tick, false);
        if done {
            clock.complete(tick)?;
            reported(tick, true);
        }
        Ok(())
    };
    let mut clocks = [Clock::claim(arena)?, Clock::claim(arena)?, Clock::claim(arena)?];
    for clock in &mut clocks {
        next(clock, true)?;
    }
    let [done, mut left, mut lost] = clocks;
    drop(done);
    next(&mut left, false)?;
    next(&mut lost, false)?;
    drop(left);
    lost.declare_dead();
    let mut again = Clock::claim(arena)?;
    next(&mut again, true)?;
    next(&mut again, false)?;
    Ok(())
}

fn object(mut message: Incoming, number: u32, exclusive: bool) -> mp_core::Result<Structure> {
    let arrived = message.arrived();
    let hold =
        if exclusive { arrived.take_object_exclusive(number)? } else { arrived.take_object(number)? };
    Structure::open(hold, NAME)
}

/// Receives the object that the test process has sent.
fn received(arena: Arena, ticket: &str, exclusive: bool) -> mp_core::Result<Structure> {
    let ticket: Vec<u8> = ticket.split(',').map(|byte| byte.parse().unwrap()).collect();
    // SAFETY: the test has sent the ticket to this process alone, and does nothing with the envelope except
    // taking it back.
    let mut envelope = unsafe { EnvelopeTicket::from_bytes(&ticket).unwrap().claim(arena) }?;
    let mut message = Incoming::default();
    envelope.open(&mut message)?;
    object(message, 0, exclusive)
}

/// Stores this process's standard error, as a descriptor, in a received object and in a new object.
fn keep(arena: Arena, ticket: &str) -> Outcome {
    let object = received(arena, ticket, false)?;
    object.keep_descriptor(std::io::stderr())?;
    report("kept");
    drop(Descriptors(arena).kept_descriptor(object.mark())?.ok_or("the object keeps no descriptor")?);
    // An object that no other process holds.
    let own = Structure::new(NAME, 1)?;
    own.keep_descriptor(std::io::stderr())?;
    drop(own);
    Ok(())
}

/// Receives an object that no other process holds, moves it into a message, and takes it out again.
fn own(arena: Arena, ticket: &str) -> Outcome {
    let mut object = received(arena, ticket, true)?;
    let mut message = Outgoing::default();
    let number = object.attach_to(message.attached())?;
    let mut envelope = Messages(arena).pack(&mut message, 0)?;
    let mut message = Incoming::default();
    envelope.open(&mut message)?;
    drop(self::object(message, number, true)?);
    Ok(())
}

/// Makes a new object the child of a received object. Moves the child through a message, and gets a handle to
/// the parent from the child.
fn part(arena: Arena, ticket: &str) -> Outcome {
    let whole = received(arena, ticket, false)?;
    let mark = whole.mark();
    let mut part = Structure::new(NAME, 1)?;
    part.set_parent(&whole)?;
    drop(whole);
    let mut message = Outgoing::default();
    let number = part.attach_to(message.attached())?;
    let mut envelope = Messages(arena).pack(&mut message, 0)?;
    let mut message = Incoming::default();
    envelope.open(&mut message)?;
    let part = self::object(message, number, true)?;
    let whole = Messages(arena).parent(part.hold())?;
    assert_eq!((whole.mark(), Allocator(arena).parent_mark(part.hold())?), (mark, mark));
    drop(part);
    drop(whole);
    Ok(())
}

/// Receives a child object and drops it. This process never has a handle to the child's parent.
fn leave(arena: Arena, ticket: &str) -> Outcome {
    drop(received(arena, ticket, false)?);
    Ok(())
}

/// Reads the descriptor kept by an object that this process doesn't hold.
fn look(arena: Arena, mark: &str) -> Outcome {
    match Descriptors(arena).kept_descriptor(mark.parse()?)? {
        Some(kept) => report(&inode(kept).to_string()),
        None => report("none"),
    }
    Ok(())
}

/// Returns the inode number of a file.
fn inode(file: impl AsFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_ino
}

/// Not a test: the program of the child processes.
#[test]
fn helper_process_accesses_shared_objects() {
    let Ok(what) = std::env::var(WHAT) else { return };
    let [what, at, signal, ticket] = what.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let parcel: OwnedFd = rustix::io::dup(std::io::stdin()).unwrap();
    // SAFETY: the test's arena, sent by it.
    let arena = unsafe { Arena::attach(parcel) }.unwrap();
    inject::arm(at.parse().unwrap(), signal.parse().unwrap());
    let done = match what {
        "tick" => tick(arena),
        "keep" => keep(arena, ticket),
        "own" => own(arena, ticket),
        "look" => look(arena, ticket),
        "part" => part(arena, ticket),
        "leave" => leave(arena, ticket),
        other => panic!("{other}"),
    };
    inject::arm(u64::MAX, 0);
    // Runs no destructors, so the process does not release its handles.
    std::process::exit(if done.is_ok() { 0 } else { 3 });
}

/// Returns a lock that makes the tests run one at a time, because they count the objects in the arena.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Process {
    child: Child,
    /// Reading end of the pipe that is the process's standard error.
    kept: PipeReader,
}

fn start(what: &str, at: u64, signal: Signal, ticket: Option<EnvelopeTicket>) -> Process {
    let ticket =
        ticket.map_or_else(String::new, |ticket| ticket.to_bytes().map(|byte| byte.to_string()).join(","));
    start_with(what, at, signal, &ticket)
}

fn start_with(what: &str, at: u64, signal: Signal, ticket: &str) -> Process {
    let (kept, writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&kept, rustix::fs::OFlags::NONBLOCK).unwrap();
    // SAFETY: the file is passed to a child that attaches it.
    let parcel = unsafe { Arena::current().unwrap().fd() }.unwrap().try_clone_to_owned().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["helper_process_accesses_shared_objects", "--exact", "--nocapture"])
        .env(WHAT, format!("{what} {at} {} {ticket}", signal.as_raw()))
        .stdin(parcel)
        .stdout(Stdio::piped())
        .stderr(writer)
        .spawn()
        .unwrap();
    Process { child, kept }
}

impl Process {
    /// Waits until the process is stopped or has ended. Returns `true` if it has ended.
    fn stops_or_ends(&mut self) -> bool {
        let mut ended = false;
        eventually("the process stops or ends", || {
            ended = self.child.try_wait().unwrap().is_some();
            ended || threads_are(self.child.id(), 'T')
        });
        ended
    }

    /// Waits for the end of the process. Returns the lines that the process has sent, and `true` if it was
    /// killed.
    fn end(&mut self) -> (Vec<String>, bool) {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let status = self.child.wait().unwrap();
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        assert!(killed || status.code() == Some(0), "{status:?}: {text}");
        let lines = text.lines().filter_map(|line| line.split_once("told ")).map(|(_, what)| what.to_owned());
        (lines.collect(), killed)
    }

    /// Returns `true` if the process's standard error is closed in all processes and objects.
    fn nothing_is_kept(&mut self) -> bool {
        let mut text = Vec::new();
        self.kept.read_to_end(&mut text).is_ok()
    }
}

/// Calls `round` with the number of an access, from 1 on, until a process ends before that access, so that
/// `round` returns `false`. Panics if this number is not greater than `least`.
fn for_every_access(least: u64, mut round: impl FnMut(u64) -> bool) {
    let end = mp_harness::some_of(1..3000).find(|&at| !round(at)).expect("fewer than 3000 accesses");
    assert!(end > least, "the script ended after {end} accesses");
    println!("{end} accesses");
}

fn wait_reclaimed(what: &str, mut so: impl FnMut() -> bool) {
    eventually(what, || {
        Arena::current().unwrap().reclaim().unwrap();
        so()
    });
}

fn check_ticks(reported: &[String], pid: u32, at: u64) {
    let clocks = Clocks(Arena::current().unwrap());
    let ticks: Vec<(Tick, bool)> = reported
        .iter()
        .map(|line| {
            let (raw, done) = line.split_once(' ').unwrap();
            (Tick::from_raw(raw.parse().unwrap()).unwrap(), done == "1")
        })
        .collect();
    for &(tick, _) in &ticks {
        let done = ticks.contains(&(tick, true));
        let state = clocks.state(tick);
        let died = matches!(state, TickState::Died { pid: named } if named.is_none_or(|named| named == pid));
        assert!(
            state == TickState::Complete || (died && !done),
            "{tick:?} is {state:?}, killed at access {at} after it reported {reported:?}"
        );
        // A device that waits for the tick is released.
        let reached = clocks.done(tick.clock()).wrapping_sub(tick.value()).cast_signed() >= 0;
        assert!(reached, "a device waits for {tick:?}, killed at access {at}");
    }
}

#[test]
fn killed_clock_owner_leaves_no_pending_tick() {
    let _alone = alone();
    let clocks = Clocks(Arena::current().unwrap());
    for_every_access(60, |at| {
        let mut process = start("tick", at, Signal::KILL, None);
        let (reported, killed) = process.end();
        wait_reclaimed("the clocks of the process end", || clocks.owned() == 0);
        check_ticks(&reported, process.child.id(), at);
        assert!(killed || reported.len() == 11, "{reported:?}");
        killed
    });
}

/// The clocks of a stopped owner still belong to it, and other processes use other clocks.
#[test]
fn clocks_work_while_another_owner_is_stopped() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    for_every_access(60, |at| {
        let mut process = start("tick", at, Signal::STOP, None);
        let pid = process.child.id();
        let ended = process.stops_or_ends();
        let mut mine = Clock::claim(arena).unwrap();
        for _ in 0..2 {
            let tick = mine.next().unwrap();
            mine.submitted(tick).unwrap();
            arena.reclaim().unwrap();
            assert_eq!(Clocks(arena).state(tick), TickState::Pending, "stopped at access {at}");
            mine.complete(tick).unwrap();
            assert_eq!(Clocks(arena).state(tick), TickState::Complete, "stopped at access {at}");
        }
        drop(mine);
        if !ended {
            signal(pid, Signal::KILL);
        }
        let (reported, _) = process.end();
        wait_reclaimed("the clocks of the process end", || Clocks(arena).owned() == 0);
        check_ticks(&reported, pid, at);
        !ended
    });
}

/// Returns a promise of a message with an object of this process. The process that is started next claims the
/// message.
fn promised(object: &mut Structure, exclusive: bool) -> Promise {
    let mut message = Outgoing::default();
    if exclusive {
        object.attach_to(message.attached()).unwrap();
    } else {
        message.attached().attach_object(object.hold()).unwrap();
    }
    Promise::new(Messages(Arena::current().unwrap()).pack(&mut message, 0).unwrap())
}

#[test]
fn kept_descriptor_survives_a_kill_at_every_access() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    for_every_access(60, |at| {
        let mut object = Structure::new(NAME, 1).unwrap();
        let promise = promised(&mut object, false);
        let mut process = start("keep", at, Signal::KILL, Some(promise.ticket()));
        let (reported, killed) = process.end();
        wait_reclaimed("the process is reclaimed", || arena.members().len() == 1);
        // After the end of the process, the descriptor can be copied any number of times.
        for _ in 0..3 {
            match Descriptors(arena).kept_descriptor(object.mark()).unwrap() {
                Some(kept) => std::fs::File::from(kept).write_all(b"x").unwrap(),
                None => {
                    assert!(reported.is_empty() && killed, "{reported:?} was kept, killed at access {at}")
                }
            }
        }
        let mark = object.mark();
        drop(promise);
        drop(object);
        assert!(Descriptors(arena).kept_descriptor(mark).unwrap().is_none());
        eventually("the descriptor is closed everywhere", || process.nothing_is_kept());
        assert_eq!(
            (FdSlots(arena).descriptors_in_locker().unwrap(), FdSlots(arena).compartments_in_use()),
            (0, 0),
            "at {at}"
        );
        killed
    });
}

/// A process reads the descriptor kept by an object while the object is freed and the next object gets its
/// block and its compartment.
#[test]
fn kept_descriptor_of_a_freed_object_is_not_found() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    let keeps = || {
        let (file, object) = (std::io::pipe().unwrap().0, Structure::new(NAME, 1).unwrap());
        object.keep_descriptor(&file).unwrap();
        (object, inode(file))
    };
    let mut places = Vec::new();
    for_every_access(5, |at| {
        let (object, file) = keeps();
        let place = object.hold().block();
        let mut process = start_with("look", at, Signal::STOP, &object.mark().to_string());
        let ended = process.stops_or_ends();
        drop(object);
        let (next, _) = keeps();
        places.push((place, next.hold().block()));
        if !ended {
            signal(process.child.id(), Signal::CONT);
        }
        let (reported, _) = process.end();
        assert!(
            reported == ["none"] || reported == [file.to_string()],
            "{reported:?}, stopped at access {at}"
        );
        wait_reclaimed("the process is reclaimed", || arena.members().len() == 1);
        !ended
    });
    assert!(places.iter().any(|(one, next)| one == next), "no object got the previous block: {places:?}");
}

#[test]
fn moved_object_is_freed_after_its_owner_is_killed() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    for_every_access(30, |at| {
        let mut object = Structure::new(NAME, 1).unwrap();
        let mark = object.mark();
        let promise = promised(&mut object, true);
        assert!(object.is_empty() && object.hold().is_nowhere() && Blocks(arena).lives(mark));
        let (_, killed) = start("own", at, Signal::KILL, Some(promise.ticket())).end();
        wait_reclaimed("the process is reclaimed", || arena.members().len() == 1);
        drop(promise);
        assert!(!Blocks(arena).lives(mark), "killed at access {at}");
        killed
    });
}

/// Returns the number of allocated bytes in the arena.
fn in_use() -> u64 {
    Arena::current().unwrap().memory_stats().allocated
}

/// The test runs twice: with and without a handle to the parent object in this process.
#[test]
fn set_parent_killed_at_every_access_leaks_nothing() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    for held_here in [true, false] {
        let before = in_use();
        for_every_access(60, |at| {
            let mut whole = Structure::new(NAME, 1).unwrap();
            let (mark, promise) = (whole.mark(), promised(&mut whole, false));
            let whole = Some(whole).filter(|_| held_here);
            let (_, killed) = start("part", at, Signal::KILL, Some(promise.ticket())).end();
            wait_reclaimed("the process is reclaimed", || arena.members().len() == 1);
            drop(promise);
            if let Some(whole) = whole {
                let holders = whole.holders();
                let left = (holders.processes.len(), holders.messages, holders.children);
                assert_eq!(left, (1, 0, 0), "killed at access {at}");
            }
            assert!(!Blocks(arena).lives(mark), "killed at access {at}");
            assert_eq!(in_use(), before, "killed at access {at}");
            killed
        });
    }
}

/// A process is stopped while it makes a child of an object. Meanwhile, this process releases its handle to
/// the parent object.
#[test]
fn set_parent_stopped_at_every_access_succeeds() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    let before = in_use();
    for_every_access(60, |at| {
        let mut whole = Structure::new(NAME, 1).unwrap();
        let (mark, promise) = (whole.mark(), promised(&mut whole, false));
        let mut process = start("part", at, Signal::STOP, Some(promise.ticket()));
        let ended = process.stops_or_ends();
        drop(whole);
        arena.reclaim().unwrap();
        if !ended {
            signal(process.child.id(), Signal::CONT);
        }
        let (_, killed) = process.end();
        assert!(!killed, "the process was killed, stopped at access {at}");
        drop(promise);
        wait_reclaimed("the process is reclaimed", || arena.members().len() == 1);
        assert!(!Blocks(arena).lives(mark) && in_use() == before, "stopped at access {at}");
        !ended
    });
}

#[test]
fn child_block_freed_by_killed_holder_leaks_nothing() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    let before = in_use();
    for_every_access(20, |at| {
        // The whole is in another slab than the part: the process never had a block in that slab.
        let whole = Structure::new(NAME, 4000).unwrap();
        let mut part = Structure::new(NAME, 1).unwrap();
        part.set_parent(&whole).unwrap();
        let (marks, promise) = ([whole.mark(), part.mark()], promised(&mut part, false));
        drop((whole, part));
        assert!(marks.iter().all(|mark| Blocks(arena).lives(*mark)), "the message holds both");
        let (_, killed) = start("leave", at, Signal::KILL, Some(promise.ticket())).end();
        wait_reclaimed("the process is reclaimed", || arena.members().len() == 1);
        drop(promise);
        assert!(!marks.iter().any(|mark| Blocks(arena).lives(*mark)), "killed at access {at}");
        assert_eq!(in_use(), before, "killed at access {at}");
        killed
    });
}

/// The hook for deaths runs once after a process has died, and does not run if no process has died.
#[test]
fn on_deaths_hook_runs_once_after_each_death() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let _alone = alone();
    let arena = Arena::current().unwrap();
    Recovery::on_deaths(|| _ = CALLS.fetch_add(1, Ordering::SeqCst));
    arena.reclaim().unwrap();
    let before = CALLS.load(Ordering::SeqCst);
    arena.reclaim().unwrap();
    assert_eq!(CALLS.load(Ordering::SeqCst), before, "no process has died");
    let (_, killed) = start("tick", 1, Signal::KILL, None).end();
    assert!(killed);
    wait_reclaimed("the process is reclaimed", || arena.members().len() == 1);
    assert_eq!(CALLS.load(Ordering::SeqCst), before + 1);
}
