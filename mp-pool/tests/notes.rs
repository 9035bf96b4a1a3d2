//! Notes of tasks while they run.

mod common;

use std::time::Duration;

use common::{DEADLINE, Gate, eventually, got, join, kill, lost};
use mp_pool::{Pool, TaskError, note};
use mp_spawn::closure;

/// Task that notes the numbers from 1 to `number`, and then waits at the gate.
fn noted((gate, number): (Gate, u64)) -> u64 {
    (1..=number).for_each(note);
    gate.pass(number as u32);
    number
}

#[test]
fn lost_and_timed_out_tasks_report_their_note() {
    let pool = Pool::new(1).unwrap();
    let gate = Gate::new();
    // Alone, and in a chunk. The note of one task does not apply to the next task.
    let alone = |number| pool.apply_async(noted, (gate.clone(), number));
    let captured = gate.clone();
    let of_chunk = pool.task_closure(closure!([captured] |number: u64| noted((captured.clone(), number))));
    for (number, expected) in [(9, Some(9)), (0, None)] {
        let (first, second) = (alone(5), alone(number));
        gate.arrived();
        gate.open(1);
        assert_eq!(got(first).unwrap(), 5);
        kill(gate.arrived().1);
        let error = lost(got(second));
        assert_eq!(error.note, expected);
        assert_eq!(error.to_string().contains(", at note 9,"), number == 9, "{error}");

        let results = of_chunk.clone().chunksize(3).map_async([5, number, 6]);
        gate.arrived();
        gate.open(1);
        kill(gate.arrived().1);
        gate.arrived();
        gate.open(1);
        let [first, second, third] = results.results().try_into().unwrap();
        assert_eq!((first.unwrap(), lost(second).note, third.unwrap()), (5, expected, 6));

        let timed = of_chunk.clone().timeout(Duration::from_millis(300)).apply_async(number);
        let Err(TaskError::TimedOut { note, .. }) = got(timed) else { panic!("it waits for ever") };
        assert_eq!(note, expected);
        gate.arrived();
    }
    // A worker without a task has no note, and neither does its replacement.
    let result = alone(3);
    gate.arrived();
    gate.open(1);
    assert_eq!(got(result).unwrap(), 3);
    let result = pool.apply_async(|(): ()| -> u32 { std::process::abort() }, ());
    assert_eq!(lost(got(result)).note, None);
    join(&pool);
    note(7); // No effect: this process is not a worker.
}

#[test]
fn running_tasks_are_listed_with_their_notes() {
    let pool = Pool::new(2).unwrap();
    assert!(pool.running().is_empty());
    let (gate, of_alone) = (Gate::new(), Gate::new());
    let captured = gate.clone();
    let of_chunk = pool.task_closure(closure!([captured] |number: u64| noted((captured.clone(), number))));
    for timeout in [None, Some(Duration::from_secs(600))] {
        let call = of_chunk.clone().chunksize(4);
        let call = if let Some(timeout) = timeout { call.timeout(timeout) } else { call };
        let alone = pool.apply_async(noted, (of_alone.clone(), 1000));
        let (_, first) = of_alone.arrived();
        let chunk = call.map_async([3, 0, 8]);
        let (_, second) = gate.arrived();
        let seen = |pid: u32| {
            let running = pool.running().into_iter().find(|task| task.pid == pid).expect("the task runs");
            assert!(running.running_for < DEADLINE, "{running}");
            (running.task, running.note)
        };
        assert_eq!((seen(first), seen(second)), ((0, Some(1000)), (0, Some(3))));
        assert!(pool.running()[0].to_string().starts_with("worker 0 (pid "), "{:?}", pool.running());
        // The next item of the chunk notes nothing, and the last one does.
        for (task, note) in [(1, None), (2, Some(8))] {
            gate.open(1);
            gate.arrived();
            assert_eq!((seen(first), seen(second)), ((0, Some(1000)), (task, note)));
        }
        gate.open(1);
        assert_eq!(got(chunk).unwrap(), [3, 0, 8]);
        eventually("one task is left", || pool.running().len() == 1);
        of_alone.open(1);
        assert_eq!(got(alone).unwrap(), 1000);
        eventually("no task runs", || pool.running().is_empty());
    }
    join(&pool);
}

#[test]
fn failed_task_reports_its_last_note() {
    let fail = |(numbers, panics): (u64, bool)| {
        (1..=numbers).for_each(note);
        assert!(!panics, "a panic");
        if numbers == 1 { Ok(numbers) } else { Err("an error") }
    };
    let raised = |result: Result<u64, TaskError>| match result {
        Err(TaskError::Raised(raised)) => (raised.message.clone(), raised.note),
        other => panic!("an error was expected: {other:?}"),
    };
    let pool = Pool::new(1).unwrap();
    let all = [(5, false), (0, false), (1, false), (7, true), (0, true), (3, false)];
    let expected = |at: usize| {
        let (numbers, panics) = all[at];
        (if panics { "a panic" } else { "an error" }.to_string(), Some(numbers).filter(|n| *n > 0))
    };
    // Each alone, with and without a time-out; then all in a chunk, with one result.
    for timeout in [None, Some(DEADLINE)] {
        let call = pool.task(fail);
        let call = if let Some(timeout) = timeout { call.timeout(timeout) } else { call };
        for (at, args) in all.into_iter().enumerate().filter(|(at, _)| *at != 2) {
            assert_eq!(raised(got(call.apply_async(args))), expected(at));
        }
        for (at, result) in call.chunksize(6).map_async(all).results().into_iter().enumerate() {
            if at == 2 {
                assert_eq!(result.unwrap(), 1);
            } else {
                assert_eq!(raised(result), expected(at));
            }
        }
    }
    join(&pool);
}
