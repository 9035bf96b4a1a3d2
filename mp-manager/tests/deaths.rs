//! Deaths of the server, its owner and its callers.

mod common;

use std::thread;
use std::time::Duration;

use common::{DEADLINE, Gate, Noisy, alive, eventually, kill, made, manager, signal, take, threads_are};
use mp_manager::{CallError, Manager, ManagerError, Proxy};
use mp_queue::Queue;
use mp_spawn::{Process, closure};
use rustix::process::Signal;

#[test]
fn manager_server_death_is_an_error_for_all_callers() {
    let manager = manager();
    let busy = made(&manager, closure!([] || 0_u32));
    let gate = Gate::new();
    let waiting = |(object, gate): (Proxy<u32>, Gate)| {
        let stop = closure!([gate] |_object: &mut u32| gate.pass());
        Ok::<_, String>(matches!(object.call(stop), Err(CallError::ServerGone { .. })))
    };
    let callers = [(); 2].map(|()| Process::spawn(waiting, (busy.clone(), gate.clone())).unwrap());
    let server = gate.arrived(); // one call runs, and the other waits for its turn
    let handle = manager.handle();
    thread::scope(|threads| {
        let own = threads.spawn(|| busy.call(closure!([] |object: &mut u32| *object)));
        kill(server);
        assert!(matches!(own.join().unwrap(), Err(CallError::ServerGone { server: gone }) if gone == server));
    });
    for caller in callers {
        assert!(caller.wait_timeout(DEADLINE), "{caller:?} still waits");
        assert!(caller.join().unwrap(), "the caller got another result");
    }
    // All later calls are refused.
    let error = busy.call(closure!([] |object: &mut u32| *object)).unwrap_err();
    assert!(error.is_server_gone() && error.to_string().contains(&server.to_string()), "{error}");
    assert!(busy.free().unwrap_err().is_server_gone());
    assert!(handle.create(|| 1).unwrap_err().is_server_gone());
    let error = manager.shutdown(Duration::ZERO).unwrap_err();
    assert!(matches!(&error, ManagerError::Server(_)) && error.to_string().contains("SIGKILL"), "{error}");
}

#[test]
fn server_death_at_the_first_object_call_is_reported() {
    // The caller's sender of answers is still in the object's channel, so the channel of answers never ends.
    let manager = manager();
    let object = made(&manager, closure!([] || 0_u32));
    let gate = Gate::new();
    thread::scope(|threads| {
        let stop = closure!([gate = gate.clone()] |_object: &mut u32| gate.pass());
        let first = threads.spawn(|| object.call(stop));
        let server = gate.arrived();
        let through = Queue::bounded(1).unwrap();
        through.put(object.clone()).unwrap();
        let received = take(&through);
        let second = threads.spawn(move || received.call(closure!([] |object: &mut u32| *object)));
        eventually("the requests are in flight", || common::in_use().1 > 0);
        kill(server);
        assert!(first.join().unwrap().unwrap_err().is_server_gone());
        assert!(second.join().unwrap().unwrap_err().is_server_gone());
    });
}

#[test]
fn caller_killed_in_a_call_affects_no_other_caller() {
    let manager = manager();
    let object = made(&manager, closure!([] || Vec::<u32>::new()));
    let gate = Gate::new();
    let calling = |(object, gate): (Proxy<Vec<u32>>, Gate)| {
        let stop = closure!([gate] |all: &mut Vec<u32>| { gate.pass(); all.push(1); });
        object.call(stop)
    };
    let caller = Process::spawn(calling, (object.clone(), gate.clone())).unwrap();
    gate.arrived();
    kill(caller.pid());
    assert!(caller.join().is_err());
    gate.open(1);
    let all = object.call(closure!([] |all: &mut Vec<u32>| all.clone())).unwrap();
    assert_eq!(all, [1], "the call of the killed caller has run");
    // The call of another process reclaims the dead caller's memory.
    let another = Process::spawn(
        |object: Proxy<Vec<u32>>| object.call(closure!([] |all: &mut Vec<u32>| all.len())),
        object,
    );
    assert_eq!(another.unwrap().join().unwrap(), 1);
}

#[test]
fn stopped_server_is_awaited_for_the_proxy_timeout() {
    let manager = manager();
    let object = made(&manager, closure!([] || 0_u32));
    let add = || closure!([] |object: &mut u32| { *object += 1; *object });
    assert_eq!(object.call(add()).unwrap(), 1);
    signal(manager.server_pid(), Signal::STOP);
    eventually("the process is stopped", || threads_are(manager.server_pid(), 'T'));
    let hasty = object.clone().with_timeout(Duration::from_millis(30));
    assert!(matches!(hasty.call(add()), Err(CallError::TimedOut { .. })));
    signal(manager.server_pid(), Signal::CONT);
    assert_eq!(object.call(add()).unwrap(), 3, "the call that timed out was not withdrawn");
}

#[test]
fn death_of_its_owner_ends_the_manager_server() {
    let through = Queue::bounded(1).unwrap();
    let owner = |through: Queue<Proxy<u32>>| {
        let manager = Manager::start().unwrap();
        let object = manager.create(|| 4_u32).unwrap();
        through.put(object).unwrap();
        loop {
            thread::park();
        }
    };
    let owner = Process::spawn(owner, through.clone()).unwrap();
    let object: Proxy<u32> = take(&through).with_timeout(DEADLINE);
    let get = || object.call(closure!([] |object: &mut u32| *object));
    assert_eq!(get().unwrap(), 4);
    kill(owner.pid());
    assert!(owner.join().is_err());
    eventually("the server ends", || !alive(object.server_pid()));
    assert!(get().unwrap_err().is_server_gone());
}

#[test]
fn object_in_an_unread_answer_is_freed() {
    let manager = manager();
    let (noisy, dropped) = common::noisy(&manager);
    let gate = Gate::new();
    let slow = gate.clone();
    let work = |(noisy, slow): (Proxy<Noisy>, Gate)| {
        let child = closure!([slow] |noisy: &mut Noisy| {
            slow.pass();
            Noisy { value: 1, dropped: noisy.dropped.clone() }
        });
        drop(noisy.call_to_object(child, ()));
    };
    let worker = Process::spawn(work, (noisy.clone(), slow)).unwrap();
    gate.arrived();
    signal(worker.pid(), Signal::STOP);
    eventually("the process is stopped", || threads_are(worker.pid(), 'T'));
    gate.open(1);
    // This call is answered after the call of the stopped process.
    assert_eq!(noisy.call(closure!([] |noisy: &mut Noisy| noisy.value)).unwrap(), 0);
    assert!(dropped.is_empty());
    kill(worker.pid());
    assert_eq!(take(&dropped), manager.server_pid());
}

#[test]
fn sent_object_call_of_an_ended_caller_runs() {
    let manager = manager();
    let object = made(&manager, closure!([] || 0_u32));
    let through = Queue::bounded(2).unwrap();
    [(); 2].into_iter().for_each(|()| through.put(object.clone()).unwrap());
    let [known, new]: [Proxy<u32>; 2] = [(); 2].map(|()| take(&through));
    known.call(closure!([] |object: &mut u32| *object += 1)).unwrap();
    let gate = Gate::new();
    thread::scope(|threads| {
        let stop = closure!([gate = gate.clone()] |_object: &mut u32| gate.pass());
        let busy = threads.spawn(|| object.call(stop));
        gate.arrived();
        let first = threads.spawn(|| new.call(closure!([] |object: &mut u32| *object)));
        eventually("the requests are in flight", || common::in_use().1 > 0);
        // When the object handles the first request of the new caller, `known` has stopped waiting.
        let late = known.with_timeout(Duration::from_millis(20));
        let error = late.call(closure!([] |object: &mut u32| *object += 10)).unwrap_err();
        assert!(matches!(error, CallError::TimedOut { sent: true, .. }), "{error}");
        gate.open(1);
        busy.join().unwrap().unwrap();
        first.join().unwrap().unwrap();
    });
    assert_eq!(object.call(closure!([] |object: &mut u32| *object)).unwrap(), 11);
}
