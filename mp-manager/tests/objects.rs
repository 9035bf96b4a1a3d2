//! Calls whose results become objects of the server.

mod common;

use std::thread;
use std::time::Duration;

use common::{DEADLINE, Gate, Noisy, eventually, in_use, kill, made, manager, noisy, take, threads};
use mp_manager::{CallError, Manager, Proxy};
use mp_queue::Queue;
use mp_spawn::{Process, StateClosure, closure};

type Lines = std::vec::IntoIter<String>;

/// Calls `parent` to create a `Noisy` whose value exceeds the value of `parent` by one.
fn child(parent: &Proxy<Noisy>) -> Result<Proxy<Noisy>, CallError> {
    parent.call_to_object(bear(None), ())
}

fn bear(gate: Option<Gate>) -> StateClosure<Noisy, (), Noisy> {
    closure!([gate] |parent: &mut Noisy| {
        if let Some(gate) = gate { gate.pass() }
        Noisy { value: parent.value + 1, dropped: parent.dropped.clone() }
    })
}

fn value(object: &Proxy<Noisy>) -> Result<u64, CallError> {
    object.call(closure!([] |object: &mut Noisy| object.value))
}

#[test]
fn unsendable_result_stays_as_a_server_object() {
    let manager = manager();
    let text = made(&manager, closure!([] || "a\nb\nc".to_string()));
    let from = 1_usize;
    let open = closure!([from] |text: &mut String, most: usize| {
        text.lines().map(String::from).skip(*from).take(most).collect::<Vec<_>>().into_iter()
    });
    let lines: Proxy<Lines> = text.call_to_object(open, 1).unwrap();
    assert_eq!((lines.timeout(), lines.server_pid()), (Some(DEADLINE), manager.server_pid()));
    // The new object is independent.
    text.free().unwrap();
    let next = || lines.call(closure!([] |lines: &mut Lines| lines.next())).unwrap();
    assert_eq!((next(), next()), (Some("b".to_string()), None));
    // A process can receive the proxy like any other.
    let child = |lines: Proxy<Lines>| lines.call(closure!([] |lines: &mut Lines| lines.len()));
    assert_eq!(Process::spawn(child, lines).unwrap().join().unwrap(), 0);
}

#[test]
fn returned_object_runs_concurrently_with_its_parent() {
    let manager = manager();
    let (parent, _dropped) = noisy(&manager);
    let [first, second] = [child(&parent), child(&parent)].map(Result::unwrap);
    assert!(!first.is_same_object(&second) && !first.is_same_object(&parent));
    let gate = Gate::new();
    thread::scope(|threads| {
        let stop = closure!([gate = gate.clone()] |_parent: &mut Noisy| gate.pass());
        let busy = threads.spawn(|| parent.call(stop));
        gate.arrived();
        assert_eq!((value(&first).unwrap(), value(&second).unwrap()), (1, 1));
        gate.open(1);
        busy.join().unwrap().unwrap();
    });
    // The parent may call the new object, and that call may create another object.
    let ask = closure!([] |_parent: &mut Noisy, first: Proxy<Noisy>| value(&child(&first)?));
    assert_eq!(parent.call_with(ask, first).unwrap(), 2);
}

#[test]
fn last_proxy_drop_frees_a_returned_object() {
    let manager = manager();
    let (parent, dropped) = noisy(&manager);
    let first = child(&parent).unwrap();
    let queue = Queue::bounded(1).unwrap();
    queue.put(first).unwrap();
    assert_eq!(value(&take(&queue)).unwrap(), 1);
    assert_eq!(take(&dropped), manager.server_pid());
    // The last proxy belongs to a process that ends.
    let gate = Gate::new();
    let hold = |(parent, gate): (Proxy<Noisy>, Gate)| {
        let _own = child(&parent).unwrap();
        gate.pass();
    };
    let holder = Process::spawn(hold, (parent.clone(), gate.clone())).unwrap();
    gate.arrived();
    assert!(dropped.is_empty());
    kill(holder.pid());
    assert_eq!(take(&dropped), manager.server_pid());
    assert!(holder.join().is_err());
    assert_eq!(value(&parent).unwrap(), 0);
}

#[test]
fn killed_or_timed_out_caller_leaves_no_object() {
    let manager = manager();
    let (parent, dropped) = noisy(&manager);
    let gate = Gate::new();
    let before = threads(manager.server_pid());
    let calls = |(parent, gate): (Proxy<Noisy>, Gate)| parent.call_to_object(bear(Some(gate)), ()).map(drop);
    let caller = Process::spawn(calls, (parent.clone(), gate.clone())).unwrap();
    gate.arrived();
    kill(caller.pid());
    assert!(caller.join().is_err());
    gate.open(1);
    assert_eq!(take(&dropped), manager.server_pid(), "the new object of a killed caller is freed");

    let hasty = parent.clone().with_timeout(Duration::from_millis(10));
    let error = hasty.call_to_object(bear(Some(gate.clone())), ()).unwrap_err();
    assert!(matches!(&error, CallError::TimedOut { call, .. } if call.object.contains("Noisy")), "{error}");
    gate.arrived();
    gate.open(1);
    assert_eq!(take(&dropped), manager.server_pid());
    assert_eq!(value(&parent).unwrap(), 0);
    eventually("the threads of objects end", || threads(manager.server_pid()) <= before);
}

#[test]
fn failed_object_call_creates_no_returned_object() {
    let manager = manager();
    let parent = made(&manager, closure!([] || 1_u8));
    let fail = closure!([] |n: &mut u8| if *n > 0 { Err("there is none") } else { Ok(vec![*n]) });
    let before = threads(manager.server_pid());
    let error = parent.try_call_to_object(fail, ()).unwrap_err();
    assert!(matches!(&error, CallError::Raised(raised) if raised.message == "there is none"), "{error}");
    let panics = closure!([] |n: &mut u8| -> Vec<u8> { *n = 0; panic!("oh") });
    let error = parent.call_to_object(panics, ()).unwrap_err();
    assert!(matches!(&error, CallError::Raised(raised) if raised.message == "oh"), "{error}");
    assert!(threads(manager.server_pid()) <= before);
    let fail = closure!([] |n: &mut u8| if *n > 0 { Err("there is none") } else { Ok(vec![*n]) });
    let made = parent.try_call_to_object(fail, ()).unwrap();
    assert_eq!(made.call(closure!([] |made: &mut Vec<u8>| made.len())).unwrap(), 1);
    parent.free().unwrap();
    let error = parent.call_to_object(closure!([] |n: &mut u8| *n), ()).unwrap_err();
    assert!(matches!(error, CallError::Freed { .. }), "{error}");
}

#[test]
fn manager_shutdown_drops_returned_objects() {
    let manager = manager();
    let (parent, dropped) = noisy(&manager);
    let own = child(&parent).unwrap();
    let server = manager.server_pid();
    manager.shutdown(DEADLINE).unwrap();
    assert_eq!([take(&dropped), take(&dropped)], [server; 2]);
    assert!(value(&own).unwrap_err().is_server_gone());
}

#[test]
fn many_returned_objects_leave_no_resources() {
    let manager = Manager::start().unwrap();
    let (parent, dropped) = noisy(&manager);
    let round = || drop(child(&child(&parent).unwrap()).unwrap());
    round();
    let reported = || (0..2).for_each(|_| assert_eq!(take(&dropped), manager.server_pid()));
    reported();
    eventually("the first objects are freed", || threads(manager.server_pid()) <= 2);
    let before = in_use();
    for _ in 0..20 {
        round();
        reported();
    }
    let no_more = |(a, b, c): (u64, u64, u64)| a <= before.0 && b <= before.1 && c <= before.2;
    eventually("nothing is left", || no_more(in_use()) && threads(manager.server_pid()) <= 2);
    assert_eq!(value(&parent).unwrap(), 0);
}
