//! Objects of another program's server: time limits, objects returned by methods, and handles sent to other
//! processes.
#![cfg(feature = "authkey")]

mod common;

use std::thread;
use std::time::Duration;

use common::served::{KEY, Served};
use common::{
    DEADLINE, Gate, Noisy, eventually, in_use, kill, made, manager, signal, take, threads, threads_are,
};
use mp_manager::{CallError, Methods, Proxy, RemoteManager, RemoteProxy};
use mp_queue::{ConnectError, Queue};
use mp_spawn::{Process, closure};
use rustix::process::Signal;

fn noisy(dropped: &Queue<u32>, gate: &Gate) -> Methods<Noisy> {
    let (reported, stop) = (dropped.clone(), gate.clone());
    let slow = gate.clone();
    Methods::<Noisy>::of("Noisy")
        .constructor(closure!([reported, stop] |value: u64| {
            if value == 0 { stop.pass() }
            Noisy { value, dropped: reported.clone() }
        }))
        .method("value", closure!([] |noisy: &mut Noisy| noisy.value))
        .method("add", closure!([] |noisy: &mut Noisy, n: u64| { noisy.value += n; noisy.value }))
        .method_to_object(
            "child",
            "Noisy",
            closure!([] |noisy: &mut Noisy| Noisy { value: noisy.value + 1, dropped: noisy.dropped.clone() }),
        )
        .method_to_object(
            "slow child",
            "Noisy",
            closure!([slow] |noisy: &mut Noisy| {
                slow.pass();
                Noisy { value: noisy.value + 1, dropped: noisy.dropped.clone() }
            }),
        )
        .try_method_to_object(
            "no child",
            "Noisy",
            closure!([] |noisy: &mut Noisy| -> Result<Noisy, String> { Err(format!("{} has \
                                                                                    none", noisy.value)) }),
        )
        .method_to_object("words", "Words", closure!([] |_noisy: &mut Noisy| vec!["a".to_string()]))
}

fn served(test: &str) -> Served {
    Served::new(test, noisy)
}

fn value(object: &RemoteProxy) -> u64 {
    object.call("value", ()).unwrap()
}

#[test]
fn timed_out_remote_create_leaves_no_object() {
    let served = served("create");
    let hasty = served.remote.clone().with_timeout(Duration::from_millis(20));
    assert_eq!((hasty.timeout(), served.remote.timeout()), (Some(Duration::from_millis(20)), Some(DEADLINE)));
    let error = hasty.create("Noisy", 0_u64).unwrap_err();
    let CallError::TimedOut { call, address, server, .. } = &error else { panic!("{error}") };
    assert_eq!((&*call.closure, &*call.object), ("constructor", "Noisy"));
    assert_eq!(*server, served.manager.server_pid());
    let text = error.to_string();
    assert!(address.is_some() && text.contains(&served.address) && text.contains("20ms"), "{text}");
    served.gate.arrived();
    assert!(served.dropped.is_empty());
    served.gate.open(1);
    // The object is created too late, so it is freed. The program's session continues.
    served.one_is_dropped();
    let object = served.create(5);
    assert_eq!((value(&object), object.timeout()), (5, Some(DEADLINE)));
}

#[test]
fn get_and_names_use_the_timeout_of_the_handle() {
    let served = served("get");
    let object =
        made(&served.manager, closure!([] || Noisy { value: 4, dropped: Queue::unbounded().unwrap() }));
    served.manager.publish("four", &object).unwrap();
    assert_eq!(value(&served.remote.get("four").unwrap()), 4);
    signal(served.manager.server_pid(), Signal::STOP);
    eventually("the process is stopped", || threads_are(served.manager.server_pid(), 'T'));
    let hasty = served.remote.clone().with_timeout(Duration::from_millis(20));
    let of = |error: CallError| match error {
        CallError::TimedOut { call, address: Some(address), .. } => {
            format!("{} {} {address}", call.closure, call.object)
        }
        error => panic!("{error}"),
    };
    assert_eq!(of(hasty.get("four").unwrap_err()), format!("RemoteManager::get four {}", served.address));
    assert_eq!(of(hasty.types().unwrap_err()), format!("names RemoteManager {}", served.address));
    assert_eq!(of(hasty.objects().unwrap_err()), format!("names RemoteManager {}", served.address));
    signal(served.manager.server_pid(), Signal::CONT);
    assert_eq!(value(&served.remote.get("four").unwrap()), 4);
}

#[test]
fn object_created_after_a_timeout_is_released() {
    let served = served("late");
    let before = threads(served.manager.server_pid());
    let mut late = 0;
    for micros in (0..400).step_by(2) {
        let hasty = served.remote.clone().with_timeout(Duration::from_micros(micros));
        match hasty.create("Noisy", 1_u64) {
            Ok(object) => drop(object),
            Err(CallError::TimedOut { .. }) => late += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(late > 0, "no call was late");
    // Each object and each connection has a thread. Idle connections remain open.
    let object = served.create(3);
    eventually("all objects are freed", || objects(served.manager.server_pid()) == 1);
    assert_eq!(value(&object), 3);
    drop(object);
    eventually("nothing is left", || threads(served.manager.server_pid()) <= before + 1);
}

/// Returns the number of threads of a server's objects, without those created by registering and serving.
fn objects(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("object-")).count()
}

#[test]
fn remote_methods_return_objects_as_handles() {
    let served = served("methods");
    let parent = served.create(1);
    let child = parent.call_to_object("child", ()).unwrap();
    let grandchild = child.call_to_object("child", ()).unwrap();
    assert_eq!((child.type_name(), child.timeout()), ("Noisy", Some(DEADLINE)));
    assert_eq!((value(&child), value(&grandchild)), (2, 3));
    assert!(!child.is_same_object(&parent) && child.is_same_object(&child.clone()));
    drop(parent);
    served.one_is_dropped();
    assert_eq!(child.call::<u64>("add", 5_u64).unwrap(), 7);
    drop(child);
    served.one_is_dropped();
    assert_eq!(value(&grandchild), 3);
    grandchild.free().unwrap();
    served.one_is_dropped();
}

#[test]
fn remote_method_returns_an_object_or_a_value() {
    let served = served("either");
    let parent = served.create(1);
    let error = parent.call_to_object("no child", ()).unwrap_err();
    assert!(matches!(&error, CallError::Raised(raised) if raised.message == "1 has none"), "{error}");
    let error = parent.call_to_object("nothing", ()).unwrap_err();
    assert!(matches!(&error, CallError::NoSuchMethod { .. }), "{error}");
    // In both cases the method is not called.
    let error = parent.call_to_object("add", 4_u64).unwrap_err();
    assert!(matches!(&error, CallError::Value { why, .. } if why.contains("a value")), "{error}");
    let error = parent.call::<u64>("slow child", ()).unwrap_err();
    assert!(matches!(&error, CallError::Value { why, .. } if why.contains("call_to_object")), "{error}");
    assert_eq!(value(&parent), 1);
    // The type of the object is not registered yet.
    let error = parent.call_to_object("words", ()).unwrap_err();
    assert!(matches!(&error, CallError::NoSuchType { name, .. } if name == "Words"), "{error}");
    let register = |methods| served.manager.register(methods);
    let error = register(Methods::<u8>::of("Words").method("get", closure!([] |n: &mut u8| *n)));
    assert!(matches!(error, Err(CallError::Raised(raised)) if raised.message.contains("`words` of `Noisy`")));
    let words = Methods::<Vec<String>>::of("Words");
    served
        .manager
        .register(words.method("all", closure!([] |words: &mut Vec<String>| words.clone())))
        .unwrap();
    let words = parent.call_to_object("words", ()).unwrap();
    assert_eq!(words.call::<Vec<String>>("all", ()).unwrap(), ["a"]);
    // The opposite order: the type of the returned object was registered first.
    let wrong = Methods::<u16>::of("Wrong").method_to_object("noisy", "Noisy", closure!([] |n: &mut u16| *n));
    let error = served.manager.register(wrong).unwrap_err();
    assert!(
        matches!(&error, CallError::Raised(raised) if raised.message.contains("`noisy` of `Wrong`")),
        "{error}"
    );
}

#[test]
fn remote_method_returns_an_existing_object() {
    let served = served("there");
    let (dropped, other) = (served.dropped.clone(), manager());
    let kept = made(&served.manager, closure!([dropped] || Noisy { value: 9, dropped: dropped.clone() }));
    let foreign: Proxy<Noisy> = {
        let dropped = served.dropped.clone();
        made(&other, closure!([dropped] || Noisy { value: 8, dropped: dropped.clone() }))
    };
    let find = closure!([kept = kept.clone(), foreign] |_n: &mut u32, own: bool| {
        Ok::<Proxy<Noisy>, String>(if own { kept.clone() } else { foreign.clone() })
    });
    let index = Methods::<u32>::of("Index").constructor(closure!([] || 0_u32));
    served.manager.register(index.method_to_proxy("find", "Noisy", find)).unwrap();
    let index = served.remote.create("Index", ()).unwrap();
    let [first, second] = [(); 2].map(|()| index.call_to_object("find", true).unwrap());
    assert!(first.is_same_object(&second));
    assert_eq!(first.call::<u64>("add", 1_u64).unwrap(), 10);
    drop(first);
    assert_eq!(value(&second), 10, "the second handle keeps the object");
    assert_eq!(kept.call(closure!([] |noisy: &mut Noisy| noisy.value)).unwrap(), 10);
    let error = index.call_to_object("find", false).unwrap_err();
    assert!(matches!(&error, CallError::Value { why, .. } if why.contains("another manager")), "{error}");
    assert!(served.dropped.is_empty());
}

#[test]
fn killed_program_releases_returned_remote_objects() {
    let served = served("killed");
    let program = |(address, gate): (String, Gate)| -> Result<(), String> {
        let remote = RemoteManager::connect(address, KEY).map_err(|error| error.to_string())?;
        let parent = remote.create("Noisy", 1_u64).unwrap();
        let _child = parent.call_to_object("child", ()).unwrap();
        parent.call_to_object("slow child", ()).map(drop).map_err(|error| error.to_string())?;
        gate.pass();
        Ok(())
    };
    let program = Process::spawn(program, (served.address.clone(), served.gate.clone())).unwrap();
    served.gate.arrived();
    program.kill().unwrap();
    served.one_is_dropped(); // the child
    served.gate.open(1);
    served.one_is_dropped();
    served.one_is_dropped();
    let hasty = served.create(1).with_timeout(Duration::from_millis(20));
    assert!(matches!(hasty.call_to_object("slow child", ()), Err(CallError::TimedOut { .. })));
    served.gate.arrived();
    served.gate.open(1);
    served.one_is_dropped();
    assert_eq!(value(&hasty.clone().with_timeout(DEADLINE)), 1);
}

#[test]
fn remote_object_handle_is_sent_to_another_process() {
    let served = served("sent");
    let object = served.create(1);
    let child = |object: RemoteProxy| -> Result<RemoteProxy, CallError> {
        object.call::<u64>("add", 1_u64)?;
        // The child creates an object, and returns it to this process only.
        object.call_to_object("child", ())
    };
    let made = Process::spawn(child, object.clone()).unwrap().join().unwrap();
    assert_eq!((value(&object), value(&made)), (2, 3), "the objects remain after the child has ended");
    assert_eq!((made.type_name(), made.timeout()), ("Noisy", Some(DEADLINE)));
    drop(object);
    served.one_is_dropped();
    assert_eq!(made.call::<u64>("add", 1_u64).unwrap(), 4);
    drop(made);
    served.one_is_dropped();
}

#[test]
fn remote_handle_in_a_message_keeps_the_object() {
    let served = served("way");
    let queue = Queue::unbounded().unwrap();
    queue.put(served.create(7)).unwrap();
    // A received handle is sent again, and then by two processes at the same time.
    let again = take(&queue);
    queue.put(again.clone()).unwrap();
    queue.put(again).unwrap();
    let [first, second] = [take(&queue), take(&queue)];
    assert!(first.is_same_object(&second) && served.dropped.is_empty());
    assert_eq!(first.call::<u64>("add", 1_u64).unwrap(), 8);
    drop(first);
    assert_eq!(value(&second), 8);
    drop(second);
    served.one_is_dropped();
    // A share that no process receives is released with its message.
    queue.put(served.create(7)).unwrap();
    assert!(served.dropped.is_empty());
    drop(queue);
    served.one_is_dropped();
}

#[test]
fn concurrent_first_calls_share_one_handle() {
    let served = served("first");
    let queue = Queue::unbounded().unwrap();
    queue.put(served.create(1)).unwrap();
    let object = take(&queue);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| assert!(object.call::<u64>("add", 1_u64).unwrap() > 1)));
        }
    });
    assert_eq!(value(&object), 41);
    drop(object);
    served.one_is_dropped();
}

#[test]
fn sender_and_receiver_deaths_release_the_object() {
    let served = served("deaths");
    let (queue, gate) = (Queue::<RemoteProxy>::unbounded().unwrap(), Gate::new());
    let sender = |(queue, gate, address): (Queue<RemoteProxy>, Gate, String)| -> Result<(), String> {
        let remote = RemoteManager::connect(address, KEY).map_err(|error| error.to_string())?;
        queue.put(remote.create("Noisy", 1_u64).unwrap()).map_err(|error| error.to_string())?;
        let _other = remote.create("Noisy", 2_u64).unwrap();
        gate.pass();
        Ok(())
    };
    let sender = Process::spawn(sender, (queue.clone(), gate.clone(), served.address.clone())).unwrap();
    gate.arrived();
    sender.kill().unwrap();
    served.one_is_dropped(); // the object of the killed sender
    let object = take(&queue);
    assert_eq!(value(&object), 1, "the object in the message remains");

    // First a receiver that has not called the object, then a receiver that has.
    for calls in [false, true] {
        let receiver = move |(queue, gate): (Queue<RemoteProxy>, Gate)| {
            let object = queue.get_timeout(DEADLINE).unwrap().unwrap();
            if object.timeout() == Some(Duration::from_secs(1)) {
                value(&object);
            }
            gate.pass();
            drop(object);
        };
        let sent = served.create(5).with_timeout(if calls { Duration::from_secs(1) } else { DEADLINE });
        queue.put(sent).unwrap();
        let receiver = Process::spawn(receiver, (queue.clone(), gate.clone())).unwrap();
        gate.arrived();
        assert!(served.dropped.is_empty());
        receiver.kill().unwrap();
        served.one_is_dropped();
    }
    assert_eq!(value(&object), 1);
}

#[test]
fn receiver_of_a_remote_handle_proves_its_key() {
    let served = served("key");
    let object = served.create(1);
    let child = |object: RemoteProxy| -> Result<u64, String> {
        match object.call::<u64>("value", ()) {
            Err(CallError::Connect(error)) if matches!(*error, ConnectError::KeyMismatch { .. }) => {}
            other => return Err(format!("{other:?}")),
        }
        object.with_authkey(KEY).call::<u64>("add", 1_u64).map_err(|error| error.to_string())
    };
    let stranger = Process::builder().authkey(b"another");
    assert_eq!(stranger.spawn(child, object.clone()).unwrap().join().unwrap(), 2);
}

#[test]
fn unsendable_remote_handle_is_returned() {
    let mut served = served("not-sent");
    let (queue, object) = (Queue::unbounded().unwrap(), served.create(1));
    // The handle would be sent over a socket, to a program without this program's memory.
    let error = object.call::<u64>("add", object.clone()).unwrap_err();
    assert!(matches!(error, CallError::Arguments { .. }), "{error}");
    queue.put(object.clone()).unwrap();
    kill(served.manager.server_pid());
    eventually("the object is gone", || object.call::<u64>("value", ()).is_err());
    let error = queue.put(object.clone()).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    let received = take(&queue);
    assert!(received.call::<u64>("value", ()).unwrap_err().is_server_gone());
    // Another server at the same address makes no difference.
    queue.put(received).unwrap();
    served.manager = manager();
    served.manager.register(noisy(&served.dropped, &served.gate)).unwrap();
    served.manager.serve(&*served.address, KEY).unwrap();
    let others = RemoteManager::connect(&*served.address, KEY).unwrap();
    let _others = [(); 2].map(|()| others.create("Noisy", 8_u64).unwrap());
    assert!(take(&queue).call::<u64>("value", ()).unwrap_err().is_server_gone());
    assert!(object.call::<u64>("value", ()).unwrap_err().is_server_gone());
}

#[test]
fn sent_and_dropped_handles_leave_no_resources() {
    let served = served("leaks");
    let (object, queue) = (served.create(1), Queue::unbounded().unwrap());
    let round = || {
        queue.put(object.clone()).unwrap();
        let other = take(&queue);
        drop(other.call_to_object("child", ()).unwrap());
        served.one_is_dropped();
        queue.put(other).unwrap();
        drop(take(&queue));
    };
    round();
    eventually("the first round is over", || threads(served.manager.server_pid()) <= 5);
    let before = in_use();
    (0..10).for_each(|_| round());
    let no_more = |(a, b, c): (u64, u64, u64)| a <= before.0 && b <= before.1 && c <= before.2;
    eventually("nothing is left", || no_more(in_use()) && threads(served.manager.server_pid()) <= 5);
    assert_eq!(value(&object), 1);
}
