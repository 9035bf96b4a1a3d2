//! Objects that call each other: closing a cycle is an error of the closing call, and other calls are not
//! affected.

mod common;

use std::thread;
use std::time::Duration;

use common::{DEADLINE, Gate, made, manager, take};
use mp_manager::{CallError, Proxy};
use mp_queue::Queue;
use mp_spawn::closure;

type Answer = Result<u32, CallError>;

#[test]
fn object_call_closing_a_cycle_names_waiting_calls() {
    let manager = manager();
    let [first, second, third] = [(); 3].map(|()| made(&manager, closure!([] || 7_u32)));
    // The first object calls the second, the second calls the third, and the third calls the first, which
    // would wait for itself.
    let back = closure!([first = first.clone()] |_own: &mut u32| {
        Ok::<Answer, String>(first.call(closure!([] |n: &mut u32| *n)))
    });
    let on = closure!([third = third.clone(), back] |_own: &mut u32| {
        Ok::<Answer, String>(third.call(back.clone()).and_then(|answer| answer))
    });
    let error = first
        .call(closure!([second = second.clone(), on] |_own: &mut u32| {
            Ok::<Answer, String>(second.call(on.clone()).and_then(|answer| answer))
        }))
        .unwrap()
        .unwrap_err();
    let CallError::Cycle { call, waiting } = &error else { panic!("{error}") };
    assert!(call.location.file.ends_with("call_cycles.rs"), "{error}");
    assert_eq!(waiting.len(), 2, "{error}");
    assert!(waiting.iter().all(|call| call.location.file.ends_with("call_cycles.rs")), "{error}");
    assert!(error.to_string().contains("would wait for itself"), "{error}");
    // All objects continue, alone and through the others.
    for shelf in [&first, &second, &third] {
        assert_eq!(shelf.call(closure!([] |n: &mut u32| { *n += 1; *n })).unwrap(), 8);
    }
    let through = closure!([third = third.clone()] |_own: &mut u32| {
        Ok::<Answer, String>(third.call(closure!([] |n: &mut u32| *n)))
    });
    assert_eq!(first.call(through).unwrap().unwrap(), 8);
}

#[test]
fn timed_out_object_call_closes_no_call_cycle() {
    let manager = manager();
    let [first, second] = [(); 2].map(|()| made(&manager, closure!([] || 7_u32)));
    let gate = Gate::new();
    let stopped = gate.clone();
    thread::scope(|scope| {
        scope.spawn(|| second.call(closure!([stopped] |_own: &mut u32| stopped.pass())).unwrap());
        assert_eq!(gate.arrived(), manager.server_pid());
        // The first object waits for the second, which is in a call, and times out.
        let soon = second.clone().with_timeout(Duration::from_millis(20));
        let error = first
            .call(closure!([soon] |_own: &mut u32| {
                Ok::<Answer, String>(soon.call(closure!([] |n: &mut u32| *n)))
            }))
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, CallError::TimedOut { .. }), "{error}");
        gate.open(1);
    });
    let back = closure!([first = first.clone()] |_own: &mut u32| {
        Ok::<Answer, String>(first.call(closure!([] |n: &mut u32| *n)))
    });
    assert_eq!(second.call(back).unwrap().unwrap(), 7);
}

/// An object that has answered a call can call the caller at once, before the caller has read the answer.
#[test]
fn answered_object_call_closes_no_call_cycle() {
    let manager = manager();
    let asked: Queue<()> = Queue::unbounded().unwrap();
    let [asker, asked_one] = [(); 2].map(|()| made(&manager, closure!([] || 7_u32)));
    let value = |shelf: &Proxy<u32>| shelf.call(closure!([] |n: &mut u32| *n));
    for round in 0..300 {
        thread::scope(|scope| {
            let seen = asked.clone();
            let ask = closure!([asked_one = asked_one.clone(), seen] |_own: &mut u32| {
                let seen = seen.clone();
                Ok::<Answer, String>(asked_one.call(closure!([seen] |n: &mut u32| {
                    seen.put(()).map_err(|error| error.to_string())?;
                    Ok::<u32, String>(*n)
                })))
            });
            let asking = scope.spawn(|| asker.call(ask).unwrap());
            // While `asked_one` sends its answer, the next request makes it call `asker`, which had asked.
            take(&asked);
            let back = closure!([asker = asker.clone()] |_own: &mut u32| {
                Ok::<Answer, String>(asker.call(closure!([] |n: &mut u32| *n)))
            });
            assert_eq!(asked_one.call(back).unwrap().unwrap(), 7, "round {round}");
            assert_eq!(asking.join().unwrap().unwrap(), 7, "round {round}");
        });
    }
    assert_eq!(value(&asker).unwrap(), 7);
}

/// A constructor runs in the thread of the object that it creates, and its caller waits for the constructor.
#[test]
fn constructor_calling_its_waiting_object_errors() {
    let manager = manager();
    let object = made(&manager, closure!([] || 7_u32));
    let make = closure!([handle = manager.handle(), object = object.clone()] |_own: &mut u32| {
        let maker = closure!([object = object.clone()] || object.call(closure!([] |n: &mut u32| *n)));
        let made = handle.try_create(maker);
        Ok::<String, String>(made.map_or_else(|error| error.to_string(), |_| "it was made".into()))
    });
    let said = object.call(make).unwrap();
    assert!(said.contains("would wait for itself"), "{said}");
    // A constructor that calls another object succeeds.
    let other = made(&manager, closure!([] || 8_u32));
    let make = closure!([handle = manager.handle(), other] |_own: &mut u32| {
        let maker = closure!([other = other.clone()] || other.call(closure!([] |n: &mut u32| *n)));
        handle.try_create(maker).map(|made| made.call(closure!([] |n: &mut u32| *n)))
    });
    assert_eq!(object.call(make).unwrap().unwrap(), 8);
}

/// A cycle through another process is not detected: a time-out ends it, and the error names the call.
#[test]
fn call_cycle_through_another_process_times_out() {
    let manager = manager();
    let object = made(&manager, closure!([] || 7_u32)).with_timeout(Duration::from_millis(50));
    let ask = closure!([object = object.clone()] |_own: &mut u32| {
        let worker = |object: Proxy<u32>| {
            object.call(closure!([] |n: &mut u32| *n)).map_err(|error| error.to_string())
        };
        let process = mp_spawn::Process::spawn(worker, object.clone()).map_err(|error| error.to_string())?;
        Ok::<Result<u32, String>, String>(process.join().map_err(|error| error.to_string()))
    });
    let said = object.clone().with_timeout(DEADLINE).call(ask).unwrap().unwrap_err();
    assert!(said.contains("had no answer within 50ms") && said.contains("call_cycles.rs"), "{said}");
}

#[test]
fn ended_wait_closes_no_call_cycle() {
    let manager = manager();
    let (gate, seen) = (Gate::new(), Queue::<Result<u32, String>>::unbounded().unwrap());
    let (first, second) = (made(&manager, closure!([] || 1_u32)), made(&manager, closure!([] || 2_u32)));
    let hasty = second.with_timeout(Duration::from_millis(10));
    let captured = (gate.clone(), seen.clone());
    let ask = closure!([captured] |_n: &mut u32, hasty: Proxy<u32>, own: Proxy<u32>| {
        let (gate, seen) = captured;
        // The first object's wait has ended, while the other object still runs the call.
        let stop = closure!([gate = gate.clone(), seen = seen.clone()] |_n: &mut u32, first: Proxy<u32>| {
            gate.pass();
            let back = first.call(closure!([] |n: &mut u32| *n));
            _ = seen.put(back.map_err(|error| error.to_string()));
        });
        hasty.call_with(stop, own).is_err()
    });
    assert!(first.call_with(ask, (hasty, first.clone())).unwrap());
    gate.arrived();
    gate.open(1);
    assert_eq!(take(&seen), Ok(1));
}
