//! Reports of waits for a pool. A separate program, because the hook is global to the process.

mod common;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Gate, eventually, got, join, signal, stop_at, stopped};
use mp_core::waits::{on_report, report_hangs_after, report_waits_after};
use mp_pool::Pool;
use rustix::process::Signal;

static SAID: Mutex<Vec<(String, bool)>> = Mutex::new(Vec::new());

/// Returns the next report that contains all of these parts.
#[track_caller]
fn said(parts: &[&str]) -> String {
    let mut found = None;
    eventually(&parts.join(", "), || {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        found = said
            .iter()
            .map(|(text, _)| text)
            .find(|text| parts.iter().all(|part| text.contains(part)))
            .cloned();
        found.is_some()
    });
    found.unwrap()
}

/// Guard that ends all waits if the test fails. Without the guard, the failed test would wait for the waiting
/// threads forever.
struct Ends<'a>(&'a Gate, Option<u32>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.into_iter().for_each(|pid| signal(pid, Signal::CONT));
            self.0.open(2);
        }
    }
}

#[test]
fn wait_report_names_task_and_worker() {
    on_report(|text, hang| {
        SAID.lock().unwrap_or_else(PoisonError::into_inner).push((text.to_owned(), hang));
    });
    report_waits_after(Some(Duration::from_millis(300)));
    report_hangs_after(Some(Duration::from_millis(300)));
    let pool = Pool::builder().processes(2).name("resize").max_waiting(3).build().unwrap();
    assert!(format!("{pool:?}").starts_with("Pool(\"resize\", 2 workers"), "{pool:?}");
    assert!(pool.metrics().to_string().starts_with("pool \"resize\": 0 running, "), "{}", pool.metrics());
    let gate = Gate::new();
    let stream = pool.stream(stop_at);
    stream.push((gate.clone(), 7)).unwrap();
    let (_, pid) = gate.arrived();
    let result = pool.apply_async(stop_at, (gate.clone(), 8));
    let (_, other) = gate.arrived();
    signal(pid, Signal::STOP);
    eventually("the worker is stopped", || stopped(pid));
    let its = |pid: u32| format!("(pid {pid}): task 0, for ");
    std::thread::scope(|scope| {
        let _ends = Ends(&gate, Some(pid));
        let waits = [
            scope.spawn(|| drop(stream.next())),
            scope.spawn(|| result.wait()),
            scope.spawn(|| {
                let tasks = [(); 2].map(|()| pool.apply_async(|x: u32| x, 1));
                tasks.into_iter().for_each(|task| _ = got(task));
            }),
        ];
        let next = said(&["pool \"resize\": 1 task, 0 of them done, 0 results not taken", &its(pid)]);
        assert!(next.contains(&format!("pid {pid} (")) && next.contains("stopped by a signal"), "{next}");
        let get = said(&["pool \"resize\": 1 task, 0 of them done; worker", &its(other)]);
        assert!(!get.contains(&its(pid)), "a task of another call: {get}");
        assert!(get.contains(&format!("pid {other} (resize-")), "{get}");
        said(&["pool \"resize\", for room for one more task: 3 wait", &its(pid), &its(other)]);
        signal(pid, Signal::CONT);
        gate.open(2);
        waits.into_iter().for_each(|wait| wait.join().unwrap());
    });
    // A join reports its wait, too.
    let last = pool.apply_async(stop_at, (gate.clone(), 1));
    gate.arrived();
    std::thread::scope(|scope| {
        let _ends = Ends(&gate, None);
        let ends = scope.spawn(|| join(&pool));
        said(&["pool \"resize\", for its end: 1 task; worker", ": task 0, for "]);
        gate.open(1);
        ends.join().unwrap();
    });
    got(last).unwrap();
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let called_hangs: Vec<_> = said.iter().filter(|(_, hang)| *hang).collect();
    assert!(called_hangs.is_empty(), "{called_hangs:?}");
}
