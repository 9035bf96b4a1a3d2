//! Helpers of the tests of supervised processes.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use mp_spawn::{
    GaveUp, Process, ProcessBuilder, ProcessEvent, Restart, SpawnError, Supervised, current_process,
};
use mp_tensor::FrozenTensor;

use super::DEADLINE;

/// Duration longer than any test.
pub const HOUR: Duration = Duration::from_secs(3600);

pub fn at_most(max: u32) -> Restart {
    Restart::OnFailure { max, backoff: Duration::from_millis(1).into() }
}

pub fn after(delay: Duration) -> Restart {
    Restart::OnFailure { max: 9, backoff: delay.into() }
}

/// Adds a channel that receives the events of the process.
pub fn with_events(
    builder: ProcessBuilder<Supervised>,
) -> (ProcessBuilder<Supervised>, Receiver<ProcessEvent>) {
    let (report, events) = channel();
    (builder.on_event(move |event| _ = report.send(event)), events)
}

pub fn supervised(restart: Restart) -> (ProcessBuilder<Supervised>, Receiver<ProcessEvent>) {
    with_events(Process::builder().name("worker").restart(restart))
}

pub fn next(events: &Receiver<ProcessEvent>) -> ProcessEvent {
    events.recv_timeout(DEADLINE).expect("another event")
}

/// Returns all remaining events. The supervision must end within the deadline.
pub fn rest(events: &Receiver<ProcessEvent>) -> Vec<ProcessEvent> {
    let mut all = Vec::new();
    loop {
        match events.recv_timeout(DEADLINE) {
            Ok(event) => all.push(event),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => panic!("it is still supervised: {all:?}"),
        }
    }
}

/// Returns the kinds of events, with the numbers of their starts.
pub fn kinds(events: &[ProcessEvent]) -> Vec<String> {
    let kind = |event: &ProcessEvent| match event {
        ProcessEvent::Started { attempt, .. } => format!("started {attempt}"),
        ProcessEvent::NotStarted { attempt, .. } => format!("not started {attempt}"),
        ProcessEvent::Exited { attempt, error: Some(_), .. } => format!("failed {attempt}"),
        ProcessEvent::Exited { attempt, error: None, .. } => format!("ended {attempt}"),
        ProcessEvent::Restarting { attempt, .. } => format!("next {attempt}"),
        ProcessEvent::GaveUp { .. } => "gave up".to_string(),
        other => format!("{other:?}"),
    };
    events.iter().map(kind).collect()
}

/// Waits until the process waits for its next start.
pub fn until_it_waits(events: &Receiver<ProcessEvent>) {
    while !matches!(next(events), ProcessEvent::Restarting { .. }) {}
}

pub fn until_it_runs(events: &Receiver<ProcessEvent>) -> u32 {
    loop {
        if let ProcessEvent::Started { pid, .. } = next(events) {
            return pid;
        }
    }
}

#[track_caller]
pub fn ended<T>(child: &Process<T>) {
    assert!(child.wait_timeout(DEADLINE), "{child:?}");
}

pub fn gave_up(error: SpawnError) -> GaveUp {
    match error {
        SpawnError::GaveUp(gave_up) => *gave_up,
        other => panic!("unexpected: {other:?}"),
    }
}

/// Returns an error in the first start, and aborts in the second. Then returns the number of the start and
/// the sum of `numbers`.
pub fn flaky(numbers: FrozenTensor<u64>) -> Result<(u32, u64), String> {
    let attempt = current_process().attempt;
    match attempt {
        1 => Err("not yet".to_string()),
        2 => std::process::abort(),
        _ => Ok((attempt, numbers.as_slice().unwrap().iter().sum())),
    }
}
