//! Main loop of the engine: accepts connections, detects deaths of clients, runs work and answers calls.
//!
//! A process has one connection for its lifetime, and one connection for the calls of each thread. When the
//! first connection ends, the kernel has closed all descriptors of the process.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use crate::codes;
use crate::engine::Engine;
use crate::engine::calls::{CallOutcome, Completion, orders};
use crate::engine::goal::Goal;
use crate::engine::process::Process;
use crate::engine::profile::{Config, visible};
use crate::wire::{self, Call, INLINE, Reply, Request, Value};

/// Largest number of pieces of work that run between two polls of the connections.
const ROUND: usize = 64;
/// Interval at which a word of host memory is read while a stream waits for the word.
const WORD_POLL_INTERVAL: Duration = Duration::from_micros(200);

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    process: Option<u64>,
    /// `true` for the lifetime connection of a process.
    is_life: bool,
    /// Call of the connection's thread that waits for a goal.
    waiting: Option<PendingWait>,
}

#[derive(Debug)]
struct PendingWait {
    context: u64,
    goal: Goal,
    then: Completion,
}

/// Runs a session in a folder, until standard input ends.
///
/// # Errors
/// Invalid settings, with their names, and errors of system calls.
pub fn run(folder: &Path) -> io::Result<()> {
    let config = Config::from_env().map_err(io::Error::other)?;
    let mut engine = Engine::new(config, folder)?;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    bind(&listener, &SocketAddrUnix::new(folder.join("engine"))?)?;
    listen(&listener, 128)?;
    println!("ready");
    io::stdout().flush()?;
    let mut connections: BTreeMap<u64, Connection> = BTreeMap::new();
    let (mut next, mut has_more) = (0, false);
    loop {
        let events = wait(&engine, &listener, &connections, has_more)?;
        if events.input_ended {
            return Ok(());
        }
        let gone = |number: &usize| events.exports.contains(number);
        let mut at = 0;
        engine.exports.retain(|_| {
            at += 1;
            !gone(&(at - 1))
        });
        if events.listener
            && let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC)
        {
            next += 1;
            connections.insert(next, Connection { socket, process: None, is_life: false, waiting: None });
        }
        for number in events.connections {
            let Some(connection) = connections.get_mut(&number) else { continue };
            if !serve(&mut engine, number, connection) {
                if let (true, Some(process)) = (connection.is_life, connection.process) {
                    engine.gone(process);
                }
                connections.remove(&number);
            }
        }
        engine.end_processes();
        engine.report_stuck();
        has_more = progress(&mut engine, &mut connections);
    }
}

/// Result of a poll: the sources that have an event.
#[derive(Default)]
struct PollEvents {
    listener: bool,
    input_ended: bool,
    connections: Vec<u64>,
    exports: Vec<usize>,
}

fn wait(
    engine: &Engine,
    listener: &OwnedFd,
    connections: &BTreeMap<u64, Connection>,
    has_more: bool,
) -> io::Result<PollEvents> {
    let input = io::stdin();
    let mut polled =
        vec![PollFd::new(listener, PollFlags::IN), PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    polled.extend(connections.values().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)));
    // The kernel always polls for errors.
    polled.extend(engine.exports.iter().map(|export| PollFd::new(&export.end, PollFlags::empty())));
    let time = if has_more { Some(Duration::ZERO) } else { idle_time(engine, connections) };
    let time = time.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(1),
        tv_nsec: time.subsec_nanos().into(),
    });
    rustix::io::retry_on_intr(|| poll(&mut polled, time.as_ref()))?;
    let is_set = |entry: &PollFd<'_>| !entry.revents().is_empty();
    let mut events = PollEvents { listener: is_set(&polled[0]), ..PollEvents::default() };
    if is_set(&polled[1]) {
        events.input_ended = rustix::io::read(&input, &mut [0; 64]).map_or(true, |bytes| bytes == 0);
    }
    let ready = polled[2..].iter().map(is_set);
    let (first, rest): (Vec<_>, Vec<_>) = ready.enumerate().partition(|(i, _)| *i < connections.len());
    events.connections =
        connections.keys().zip(first).filter(|(_, (_, set))| *set).map(|(number, _)| *number).collect();
    events.exports = rest.into_iter().filter(|(_, set)| *set).map(|(i, _)| i - connections.len()).collect();
    Ok(events)
}

/// Returns the time for which the loop may sleep if no call arrives.
fn idle_time(engine: &Engine, connections: &BTreeMap<u64, Connection>) -> Option<Duration> {
    let end = engine.next_end().map(|at| at.saturating_duration_since(Instant::now()));
    let waits = |waiting: &PendingWait| !matches!(waiting.goal, Goal::HostCall(_));
    let waited_for = connections.values().any(|connection| connection.waiting.as_ref().is_some_and(waits));
    let due = engine.streams.values().filter_map(|stream| stream.queue.front()).map(|first| first.since);
    let due = due.min().map(|since| engine.config.lazy.saturating_sub(since.elapsed()));
    let work = if waited_for { Some(WORD_POLL_INTERVAL) } else { due.map(|due| due.max(WORD_POLL_INTERVAL)) };
    [end, work].into_iter().flatten().min()
}

/// Receives a call, and answers it or adds it to the waiting calls. Returns `false` if the connection has
/// ended.
fn serve(engine: &mut Engine, number: u64, connection: &mut Connection) -> bool {
    let Ok(Some((request, file))) = wire::receive::<Request>(&connection.socket) else { return false };
    let answer = match (&request.call, connection.process) {
        (Call::Hello { pid, visible: wanted }, None) => {
            let devices = visible(&engine.config.devices, wanted.as_deref());
            let Ok(life) = connection.socket.try_clone() else { return false };
            engine.next += 1;
            let process = engine.next;
            engine.processes.insert(process, Process::new(process, *pid, devices.clone(), life));
            (connection.process, connection.is_life) = (Some(process), true);
            Ok(CallOutcome::Now(Value::Hello { process, devices }, None))
        }
        (Call::Attach { process }, None) if engine.processes.contains_key(process) => {
            connection.process = Some(*process);
            Ok(CallOutcome::Now(Value::None, None))
        }
        // Only the session itself makes these calls.
        (Call::Stats | Call::Lose { .. }, None) => engine.call(0, number, request, file),
        (_, None) => Err(codes::NOT_INITIALIZED),
        (_, Some(process)) => {
            let context = request.context;
            match engine.call(process, number, request, file) {
                Ok(CallOutcome::Later(goal, then)) => {
                    connection.waiting = Some(PendingWait { context, goal, then });
                    return true;
                }
                answer => answer,
            }
        }
    };
    reply(connection, answer)
}

fn reply(connection: &Connection, answer: Result<CallOutcome, u32>) -> bool {
    let (reply, file) = match answer {
        Ok(CallOutcome::Now(value, file)) => (Reply { code: codes::SUCCESS, value }, file),
        Ok(CallOutcome::Later(..)) => (Reply { code: codes::UNKNOWN, value: Value::None }, None),
        Err(code) => (Reply { code, value: Value::None }, None),
    };
    wire::send(connection.socket.as_fd(), &reply, file.as_ref().map(AsFd::as_fd)).is_ok()
}

/// Runs work for which hosts wait, or whose delay has passed. Answers calls whose goal is reached. Returns
/// `true` if more work may be ready.
fn progress(engine: &mut Engine, connections: &mut BTreeMap<u64, Connection>) -> bool {
    let mut ran = true;
    for _ in 0..ROUND {
        answer_all(engine, connections);
        let goals: Vec<Goal> =
            connections.values().filter_map(|c| c.waiting.as_ref()).map(|w| w.goal.clone()).collect();
        let chosen = engine.random(goals.len());
        let mut order = goals[chosen..].iter().chain(&goals[..chosen]);
        ran = order.any(|goal| engine.run_piece(Some(goal))) || engine.run_piece(None);
        if !ran {
            break;
        }
    }
    answer_all(engine, connections);
    ran
}

fn answer_all(engine: &mut Engine, connections: &mut BTreeMap<u64, Connection>) {
    for connection in connections.values_mut() {
        let Some(waiting) = &connection.waiting else { continue };
        let process = connection.process.and_then(|process| engine.processes.get(&process));
        let lost = process
            .and_then(|process| process.contexts.get(&waiting.context))
            .and_then(|context| context.lost);
        if lost.is_none() && !engine.is_reached(&waiting.goal) {
            continue;
        }
        let Some(waiting) = connection.waiting.take() else { continue };
        let context = waiting.context;
        if !matches!(&waiting.then, Completion::Call(_, call, _) if !orders(call)) {
            engine.observe(&waiting.goal);
        }
        let answer = match (lost, waiting.then) {
            (Some(code), _) => Err(code),
            (None, Completion::Nothing) => Ok(CallOutcome::Now(Value::None, None)),
            (None, Completion::Answer(answer)) => bytes(&answer.borrow()),
            (None, Completion::HostCall) => {
                let owner = connection.process.and_then(|process| engine.processes.get_mut(&process));
                match owner.and_then(|owner| Some((owner.host_calls.pop_front()?, owner))) {
                    Some((call, owner)) => {
                        let pair = Value::Pair(call.function, call.data);
                        owner.host_call = Some(call);
                        Ok(CallOutcome::Now(pair, None))
                    }
                    None => Err(codes::DEINITIALIZED),
                }
            }
            (None, Completion::Call(caller, call, file)) => engine.make_call(&caller, *call, file),
        };
        let answer = match answer {
            Ok(CallOutcome::Later(goal, then)) => {
                connection.waiting = Some(PendingWait { context, goal, then });
                continue;
            }
            answer => answer,
        };
        // If the reply fails, the connection has ended, which is detected next.
        _ = reply(connection, answer);
    }
}

/// Returns the answer with the bytes of a copy. Long data is in a file, whose descriptor is attached.
fn bytes(all: &[u8]) -> Result<CallOutcome, u32> {
    if all.len() <= INLINE {
        return Ok(CallOutcome::Now(Value::Bytes(all.to_vec()), None));
    }
    let file = || -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("mp-cuda-sim", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(file);
        file.write_all(all)?;
        Ok(file.into())
    };
    Ok(CallOutcome::Now(Value::File, Some(file().map_err(|_| codes::OUT_OF_MEMORY)?)))
}
