use serde_json::{Value, json};

use super::*;
use crate::hang_proof::confirm;

fn wait(thread: u32, object: u32, waited: u64, checks: u64) -> Value {
    json!({
        "thread": {"id": thread, "name": "main"}, "call": "lock", "kind": "lock", "object": object,
        "processes": [], "more_processes": false, "place": null, "waited_ms": waited, "since_ms": waited,
        "checks": checks, "forever": true, "steady": true, "ended_by_holders": true,
        "ended_by": "has a handle to it", "advice": "",
    })
}

fn process(pid: u32, wait: &Value) -> Value {
    json!({
        "pid": pid, "member": "m", "name": "", "state": "running", "parent": 1, "blocks": 0, "bytes": 0,
        "waits": [wait], "other_threads": [],
    })
}

fn lock(block: u32, owner: u32) -> Value {
    let holders = json!({"processes": [10, 20], "messages": 0});
    json!({
        "block": block, "kind": "lock", "name": "", "holders": holders,
        "owner": {"pid": owner, "thread": owner},
    })
}

/// Returns a program with two processes in a cycle: each waits for a lock that the other process owns.
/// `checks` contains the number of checks of the condition for each process.
fn cycle(checks: [u64; 2]) -> Snapshot {
    let processes = [process(10, &wait(10, 2, 7, checks[0])), process(20, &wait(20, 1, 8, checks[1]))];
    let memory = json!({
        "size": 0, "reserved": 0, "allocated": 0, "cached": 0, "blocks": 0, "queued": 0,
        "queued_bytes": 0, "deaths": 0,
    });
    let snapshot = json!({
        "arena": "0", "version": "0", "taken_ms": 0, "processes": processes, "queues": [],
        "objects": [lock(1, 10), lock(2, 20)], "memory": memory, "changed": 0,
    });
    serde_json::from_value(snapshot).unwrap()
}

/// Returns `true` if the snapshot `second` proves that the hang in the snapshot `first` can't end.
fn is_proved(first: &Snapshot, mut second: Snapshot) -> bool {
    confirm(&mut second, first);
    explain(&second, &[10]).hangs
}

#[test]
fn lock_cycle_is_proved_by_two_checks_of_each_thread() {
    let first = cycle([5, 9]);
    let found = explain(&first, &[10]);
    assert!(found.hangs && found.to_string().contains("holds it: 10 (in lock)"), "{found}");
    assert!(is_proved(&first, cycle([7, 11])));
    assert!(!is_proved(&first, cycle([7, 10])), "the check may have begun before the first snapshot");
}

#[test]
fn advice_of_why_excludes_waits_outside_the_cycle() {
    let mut snapshot = cycle([5, 9]);
    snapshot.processes[0].waits[0].advice = "Was a guard kept?".into();
    let mut join = wait(5, 0, 7, 5);
    (join["call"], join["processes"], join["advice"]) = (json!("join"), json!([10]), json!("Close it."));
    snapshot.processes.push(serde_json::from_value(process(5, &join)).unwrap());
    let found = explain(&snapshot, &[5]);
    assert_eq!(found.conclusion(), format!("{CIRCLE}\nWas a guard kept?\n"));
}

#[test]
fn wait_that_no_process_can_end_is_not_a_cycle() {
    let mut snapshot = cycle([5, 9]);
    snapshot.objects[1].owner = None;
    snapshot.objects[1].holders.processes = vec![10];
    let found = explain(&snapshot, &[10]);
    assert!(found.to_string().contains("no other process has a handle to it"), "{found}");
    assert_eq!(found.conclusion(), format!("{ALONE}\n"));
    // A process that waits for the waiting process doesn't make it a cycle.
    let mut join = wait(5, 0, 7, 5);
    (join["call"], join["processes"]) = (json!("join"), json!([10]));
    snapshot.processes.push(serde_json::from_value(process(5, &join)).unwrap());
    assert_eq!(explain(&snapshot, &[5]).conclusion(), format!("{ALONE}\n"));
}

#[test]
fn why_shows_processes_with_the_same_wait_on_one_line() {
    let mut snapshot = cycle([5, 9]);
    let mut join = wait(5, 0, 7, 5);
    let ranks = [30, 31, 32, 33];
    (join["call"], join["processes"]) = (json!("join"), json!(ranks));
    let processes = ranks.map(|rank| process(rank, &wait(rank, 2, 1000 * u64::from(rank), 5)));
    let mut all = vec![process(5, &join)];
    all.extend(processes);
    snapshot.processes.extend(all.into_iter().map(|its| serde_json::from_value(its).unwrap()));
    let text = explain(&snapshot, &[5]).to_string();
    let line = "  └ 4 processes, 30 to 33: lock of lock (#2) for 30 s ";
    assert!(text.contains(line), "{text}");
    // A process that owns the lock, and waits for it in another thread, is described separately.
    snapshot.objects[1].owner = serde_json::from_value(json!({"pid": 30, "thread": 99})).unwrap();
    let text = explain(&snapshot, &[5]).to_string();
    assert!(text.contains("thread 99 of this process holds it"), "{text}");
    assert!(text.contains("31, 32, 33: lock") && text.contains("holds it: 30"), "{text}");
}

#[test]
fn why_explains_a_hang_of_many_processes_in_time() {
    let mut snapshot = cycle([5, 9]);
    let pids: Vec<u32> = (100..700).collect();
    let all = pids.iter().map(|pid| process(*pid, &wait(*pid, 1, 7, 5)));
    snapshot.processes = all.map(|its| serde_json::from_value(its).unwrap()).collect();
    snapshot.objects[0].owner = None;
    snapshot.objects[0].holders.processes.clone_from(&pids);
    let began = std::time::Instant::now();
    assert!(explain(&snapshot, &pids).hangs);
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn lock_cycle_changed_between_checks_is_not_proved() {
    let first = cycle([5, 9]);
    let changed = |change: fn(&mut Snapshot)| {
        let mut second = cycle([7, 11]);
        change(&mut second);
        is_proved(&first, second)
    };
    assert!(!changed(|second| second.processes[1].waits[0].since_ms += 1), "another wait");
    assert!(!changed(|second| second.objects[0].holders.messages = 1), "a handle in a message");
    assert!(!changed(|second| second.processes[1].other_threads = None), "unknown threads");
    assert!(!changed(|second| second.processes[0].state = ProcessState::Stopped), "a stopped process");
}
