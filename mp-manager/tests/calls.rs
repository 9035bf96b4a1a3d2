//! Calls: from several processes, concurrent and nested; and their failures.

mod common;

use std::thread;
use std::time::Duration;

use common::{DEADLINE, Gate, made, manager, noisy, take};
use mp_manager::{CallError, Manager, ManagerHandle, Proxy};
use mp_queue::Queue;
use mp_spawn::{Process, RaisedKind, SpawnOptions, closure, start_processes};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[test]
fn processes_and_threads_share_one_manager_object() {
    let manager = manager();
    let numbers = made(&manager, closure!([] || Vec::<u32>::new()));
    let worker = |rank: usize, numbers: Proxy<Vec<u32>>| {
        thread::scope(|threads| {
            for thread in 0..2 {
                let numbers = &numbers;
                threads.spawn(move || {
                    for i in 0..200 {
                        let number = (2 * rank + thread) as u32 * 200 + i;
                        let push = closure!([] |numbers: &mut Vec<u32>, number: u32| {
                            numbers.push(number);
                            numbers.len()
                        });
                        let length = numbers.call_with(push, number).unwrap();
                        assert!((1..=1200).contains(&length));
                    }
                });
            }
        });
        Ok::<_, String>(())
    };
    let workers = start_processes(worker, numbers.clone(), SpawnOptions::nprocs(3)).unwrap();
    workers.join().unwrap();
    let mut all = numbers.call(closure!([] |numbers: &mut Vec<u32>| numbers.clone())).unwrap();
    // The numbers of each caller are in its order.
    for caller in 0..6 {
        let own: Vec<u32> = all.iter().copied().filter(|n| n / 200 == caller).collect();
        assert_eq!(own, (caller * 200..(caller + 1) * 200).collect::<Vec<_>>());
    }
    all.sort_unstable();
    assert_eq!(all, (0..1200).collect::<Vec<_>>());
}

#[test]
fn calls_to_distinct_objects_run_in_parallel() {
    let manager = manager();
    let [first, second] = [(); 2].map(|()| made(&manager, closure!([] || Vec::<u32>::new())));
    let gate = Gate::new();
    thread::scope(|threads| {
        let stop = closure!([gate = gate.clone()] |all: &mut Vec<u32>| { gate.pass(); all.push(1) });
        threads.spawn(|| first.call(stop).unwrap());
        assert_eq!(gate.arrived(), manager.server_pid());
        // The first object waits in its call, so its later calls wait, too. The second object does not wait.
        second.call(closure!([] |all: &mut Vec<u32>| all.push(7))).unwrap();
        let error = first
            .clone()
            .with_timeout(Duration::from_millis(50))
            .call(closure!([] |all: &mut Vec<u32>| all.push(2)))
            .unwrap_err();
        assert!(matches!(error, CallError::TimedOut { .. }), "{error}");
        gate.open(1);
    });
    let all = || closure!([] |all: &mut Vec<u32>| all.clone());
    assert_eq!(
        first.call(all()).unwrap(),
        [1, 2],
        "a call that was sent runs, even if its caller has timed out"
    );
    assert_eq!(second.call(all()).unwrap(), [7]);
}

#[test]
fn method_panic_is_returned_and_the_object_survives() {
    let manager = manager();
    let (object, dropped) = noisy(&manager);
    let other = made(&manager, closure!([] || 5_u64));
    let limit = 3;
    let grow = || {
        closure!([limit] |object: &mut common::Noisy| {
            object.value += 2;
            assert!(object.value < *limit, "{} is too much", object.value);
            object.value
        })
    };
    assert_eq!(object.call(grow()).unwrap(), 2);
    let Err(CallError::Raised(raised)) = object.call(grow()) else { panic!("the closure panics") };
    assert_eq!((raised.kind, raised.message.as_str()), (RaisedKind::Panic, "4 is too much"));
    assert!(raised.location.as_deref().is_some_and(|at| at.contains("calls.rs")), "{raised:?}");
    assert_eq!(raised.who.pid, manager.server_pid());
    assert_eq!(object.call(closure!([] |object: &mut common::Noisy| object.value)).unwrap(), 4);
    assert_eq!(other.call(closure!([] |other: &mut u64| *other)).unwrap(), 5);
    assert!(dropped.is_empty(), "the object was dropped");
    let failed = object.call(closure!([] |_object: &mut common::Noisy| "x".parse::<u8>()));
    let Err(CallError::Raised(raised)) = failed else { panic!("the closure fails") };
    assert_eq!((raised.kind, raised.message.as_str()), (RaisedKind::Error, "invalid digit found in string"));
}

#[test]
fn failing_object_constructor_is_an_error() {
    let manager = manager();
    let Err(CallError::Raised(raised)) = manager.create(|| -> u8 { panic!("no luck") }) else {
        panic!("the constructor panics")
    };
    assert_eq!(raised.message, "no luck");
    let why = "no file".to_string();
    let Err(CallError::Raised(raised)) = manager.try_create::<u8, _>(closure!([why] || Err(why.clone())))
    else {
        panic!("the constructor fails")
    };
    assert_eq!(raised.message, "no file");
    assert_eq!(manager.create(|| 1).unwrap().call(closure!([] |one: &mut i32| *one)).unwrap(), 1);
}

#[test]
fn late_object_answer_after_a_timeout_is_dropped() {
    let manager = manager();
    let object = made(&manager, closure!([] || 0_u32));
    let gate = Gate::new();
    let hasty = object.clone().with_timeout(Duration::from_millis(20));
    let stop = closure!([gate = gate.clone()] |_object: &mut u32| { gate.pass(); 1_u32 });
    let line = line!() + 1;
    let Err(CallError::TimedOut { call, timeout, server, address, sent }) = hasty.call(stop) else {
        panic!("the call waits")
    };
    assert_eq!((timeout, server), (Duration::from_millis(20), manager.server_pid()));
    assert_eq!((call.location.line, &*call.object), (line, "u32"));
    assert!(
        call.location.file.ends_with("calls.rs") && call.closure.contains("late_object_answer"),
        "{call}"
    );
    let said = CallError::TimedOut { call, timeout, server, address, sent }.to_string();
    assert!(said.contains("late_object_answer") && said.contains(&format!("calls.rs:{line}")), "{said}");
    gate.arrived();
    gate.open(1);
    for _ in 0..3 {
        assert_eq!(object.call(closure!([] |_object: &mut u32| 2_u32)).unwrap(), 2);
        assert_eq!(
            hasty.clone().with_timeout(DEADLINE).call(closure!([] |_object: &mut u32| 3_u32)).unwrap(),
            3
        );
    }
}

/// Object that has a proxy of another object, and calls it.
struct Outer {
    inner: Option<Proxy<Vec<u32>>>,
}

#[test]
fn manager_objects_hold_and_call_other_objects() {
    let manager = manager();
    let inner = made(&manager, closure!([] || Vec::<u32>::new()));
    let outer = made(&manager, closure!([] || Outer { inner: None }));
    let keep = closure!([] |outer: &mut Outer, inner: Proxy<Vec<u32>>| outer.inner = Some(inner));
    outer.call_with(keep, inner.clone()).unwrap();
    drop(inner); // the outer one has it
    let push = closure!([] |outer: &mut Outer, number: u32| -> Result<usize, CallError> {
        let inner = outer.inner.as_ref().expect("it was given");
        let push = closure!([] |all: &mut Vec<u32>, number: u32| { all.push(number); all.len() });
        inner.call_with(push, number)
    });
    assert_eq!(outer.call_with(push.clone(), 7).unwrap(), 1);
    assert_eq!(outer.call_with(push, 8).unwrap(), 2);
    // A proxy can be a result.
    let inner = outer.call(closure!([] |outer: &mut Outer| outer.inner.clone())).unwrap().unwrap();
    assert_eq!(inner.call(closure!([] |all: &mut Vec<u32>| all.clone())).unwrap(), [7, 8]);
    // An object can create others.
    let made = outer
        .call_with(
            closure!([] |_outer: &mut Outer, manager: ManagerHandle| manager.create(|| String::from("new"))),
            manager.handle(),
        )
        .unwrap();
    assert_eq!(made.call(closure!([] |text: &mut String| text.clone())).unwrap(), "new");
}

#[test]
fn object_calling_itself_gets_an_error() {
    let manager = manager();
    let object = made(&manager, closure!([] || 1_u32));
    let nested = closure!([own = object.clone()] |_object: &mut u32| {
        matches!(own.call(closure!([] |object: &mut u32| *object)), Err(CallError::OwnObject { .. }))
    });
    assert!(object.call(nested).unwrap());
    assert_eq!(object.call(closure!([] |object: &mut u32| *object)).unwrap(), 1);
}

/// Number whose encoding fails for 99 and panics above 100. Decoding fails for odd numbers.
#[derive(Debug)]
struct Even(u32);

impl mp_core::message::PlainOutcome for Even {}

impl Serialize for Even {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        assert!(self.0 <= 100, "too large to be written");
        if self.0 == 99 { Err(serde::ser::Error::custom("99 is not written")) } else { self.0.serialize(s) }
    }
}

impl<'de> Deserialize<'de> for Even {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(d)?;
        if number % 2 == 0 { Ok(Even(number)) } else { Err(serde::de::Error::custom("it is odd")) }
    }
}

#[test]
fn unencodable_data_is_an_error_of_its_object_call() {
    let manager = manager();
    let object = made(&manager, closure!([] || 0_u32));
    let give =
        |number| object.call_with(closure!([] |object: &mut u32, even: Even| *object = even.0), Even(number));
    give(2).unwrap();
    let error = give(99).unwrap_err();
    assert!(
        matches!(&error, CallError::Arguments { why, .. } if why.contains("99 is not written")),
        "{error}"
    );
    let error = give(101).unwrap_err();
    assert!(matches!(&error, CallError::Arguments { why, .. } if why.contains("too large")), "{error}");
    let error = give(3).unwrap_err();
    assert!(error.to_string().contains("it is odd"), "{error}");
    assert!(error.undecodable().is_some_and(|undecodable| undecodable.bytes().ends_with(&[3])), "{error}");
    let captured = object.call(closure!([odd = Even(5)] |object: &mut u32| *object = odd.0));
    assert!(captured.unwrap_err().to_string().contains("it is odd"));
    let get =
        |number: u32| object.call_with(closure!([] |_object: &mut u32, number: u32| Even(number)), number);
    assert_eq!(get(4).unwrap().0, 4);
    for (number, why) in [(99, "99 is not written"), (101, "too large"), (7, "it is odd")] {
        let error = get(number).unwrap_err();
        assert!(matches!(&error, CallError::Value { why: found, .. } if found.contains(why)), "{error}");
    }
    assert_eq!(object.call(closure!([] |object: &mut u32| *object)).unwrap(), 2);
}

/// Value that is serialized as a proxy of one type, and deserialized as a proxy of another type.
struct Disguised(Option<Proxy<u32>>, Option<Proxy<String>>);

impl Serialize for Disguised {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Disguised {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Disguised(None, Option::deserialize(d)?))
    }
}

#[test]
fn proxy_of_another_type_is_refused() {
    let manager = manager();
    let object = made(&manager, closure!([] || 6_u32));
    let through = Queue::bounded(1).unwrap();
    through.put(Disguised(Some(object.clone()), None)).map_err(|_| ()).unwrap();
    let text = take(&through).1.unwrap();
    let error = text.call(closure!([] |text: &mut String| text.len())).unwrap_err();
    assert!(matches!(&error, CallError::WrongType { found, .. } if found == "u32"), "{error}");
    assert_eq!(object.call(closure!([] |object: &mut u32| *object)).unwrap(), 6);
}

#[test]
fn large_captures_and_arguments_round_trip() {
    let manager = manager();
    let object = made(&manager, closure!([] || Vec::<String>::new()));
    let long = "x".repeat(300_000);
    object.call(closure!([long = long.clone()] |all: &mut Vec<String>| all.push(long.clone()))).unwrap();
    let add = closure!([] |all: &mut Vec<String>, text: String| all.push(text));
    object.call_with(add, long.clone()).unwrap();
    let all = object.call(closure!([] |all: &mut Vec<String>| all.clone())).unwrap();
    assert!(all == [long.clone(), long]);
}

#[test]
fn manager_of_a_child_process_serves_its_children() {
    let child = |(): ()| {
        let manager = Manager::start().map_err(|error| error.to_string())?;
        let object = made(&manager, closure!([] || 1_u32));
        let add = |object: Proxy<u32>| object.call(closure!([] |object: &mut u32| { *object += 1; *object }));
        Process::spawn(add, object).and_then(|child| child.join()).map_err(|error| error.to_string())
    };
    let child = Process::spawn(child, ()).unwrap();
    assert!(child.wait_timeout(DEADLINE), "{child:?}");
    assert_eq!(child.join().unwrap(), 2);
}

#[test]
fn each_object_call_receives_its_own_captures() {
    let manager = manager();
    let all = made(&manager, closure!([] || Vec::<String>::new()));
    for word in ["a", "b", "a longer one, which is no short message any more"] {
        let word = word.to_string();
        all.call(closure!([word] |all: &mut Vec<String>| all.push(word.clone()))).unwrap();
    }
    for _ in 0..2 {
        all.call(closure!([] |all: &mut Vec<String>| all.push("none".into()))).unwrap();
    }
    let all = all.call(closure!([] |all: &mut Vec<String>| all.clone())).unwrap();
    assert_eq!(all, ["a", "b", "a longer one, which is no short message any more", "none", "none"]);
}
