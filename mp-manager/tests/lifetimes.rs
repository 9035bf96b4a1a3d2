//! Lifetimes of objects.

mod common;

use std::time::Duration;

use common::{DEADLINE, Gate, Noisy, eventually, kill, made, manager, noisy, take, threads};
use mp_manager::{CallError, Proxy};
use mp_queue::Queue;
use mp_spawn::{Process, closure};

fn value(object: &Proxy<Noisy>) -> Result<u64, CallError> {
    object.call(closure!([] |object: &mut Noisy| object.value))
}

#[test]
fn drop_of_the_last_proxy_frees_the_object() {
    let manager = manager();
    let (object, dropped) = noisy(&manager);
    let (first, second) = (object.clone(), object);
    value(&first).unwrap();
    drop(first);
    // A child receives the object, and ends.
    let child = Process::spawn(|object: Proxy<Noisy>| value(&object), second.clone()).unwrap();
    assert_eq!(child.join().unwrap(), 0);
    assert_eq!(value(&second).unwrap(), 0);
    assert!(dropped.is_empty());
    drop(second);
    assert_eq!(take(&dropped), manager.server_pid(), "the object is dropped in the server");
}

#[test]
fn death_of_the_last_holder_frees_the_object() {
    let manager = manager();
    let (object, dropped) = noisy(&manager);
    let gate = Gate::new();
    let hold = |(object, gate): (Proxy<Noisy>, Gate)| {
        value(&object).unwrap();
        gate.pass();
        drop(object);
    };
    let child = Process::spawn(hold, (object, gate.clone())).unwrap();
    assert_eq!(gate.arrived(), child.pid());
    assert!(dropped.is_empty());
    kill(child.pid());
    assert_eq!(take(&dropped), manager.server_pid());
    assert!(child.join().is_err());
}

#[test]
fn proxy_in_a_message_keeps_the_object() {
    let manager = manager();
    let (object, dropped) = noisy(&manager);
    let queue = Queue::bounded(1).unwrap();
    queue.put(object).unwrap();
    let object = take(&queue);
    assert_eq!(value(&object).unwrap(), 0);
    drop((object, queue));
    take(&dropped);
}

/// Object with a proxy to itself.
struct Ring {
    own: Option<Proxy<Ring>>,
    _noisy: Noisy,
}

#[test]
fn object_call_dropping_its_last_proxy_completes() {
    let manager = manager();
    let (dropped, gate) = (Queue::unbounded().unwrap(), Gate::new());
    let reported = dropped.clone();
    let make =
        closure!([reported] || Ring { own: None, _noisy: Noisy { value: 0, dropped: reported.clone() } });
    let ring = made(&manager, make);
    ring.call_with(closure!([] |ring: &mut Ring, own: Proxy<Ring>| ring.own = Some(own)), ring.clone())
        .unwrap();
    let waits_no_longer = ring.with_timeout(Duration::from_millis(1));
    let forget = closure!([gate = gate.clone()] |ring: &mut Ring| { gate.pass(); ring.own = None; });
    assert!(matches!(waits_no_longer.call(forget), Err(CallError::TimedOut { .. })));
    gate.arrived();
    drop(waits_no_longer);
    assert!(dropped.is_empty());
    gate.open(1);
    assert_eq!(take(&dropped), manager.server_pid());
}

#[test]
fn call_to_a_freed_object_is_an_error() {
    let manager = manager();
    let (object, dropped) = noisy(&manager);
    let early = closure!([] |object: &mut Noisy| object.value = 1);
    object.call(early).unwrap();
    object.free().unwrap();
    assert_eq!(dropped.try_get().unwrap(), Some(manager.server_pid()), "dropped before the return");
    object.free().unwrap();
    assert!(matches!(value(&object), Err(CallError::Freed { .. })));
    let there = |object: Proxy<Noisy>| value(&object).map_err(|error| error.to_string());
    let child = Process::spawn(there, object).unwrap();
    assert!(child.join().unwrap_err().to_string().contains("after the object was freed"));
}

#[test]
fn panicking_object_drop_affects_no_other_object() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in the drop");
        }
    }
    let manager = manager();
    let other = made(&manager, closure!([] || 3_u8));
    let [first, second] = [(); 2].map(|()| made(&manager, closure!([] || Bomb)));
    let before = threads(manager.server_pid());
    drop(first);
    eventually("the object's thread ends", || threads(manager.server_pid()) < before);
    second.free().unwrap();
    assert_eq!(other.call(closure!([] |other: &mut u8| *other)).unwrap(), 3);
    manager.shutdown(DEADLINE).unwrap();
}
