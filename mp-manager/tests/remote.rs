//! Other programs: connected to a manager's server by address and key, with names for types and methods.
#![cfg(feature = "authkey")]

mod common;

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{
    DEADLINE, Gate, alive, eventually, in_use, kill, made, manager, noisy, signal, take, threads, threads_are,
};
use mp_manager::{CallError, Manager, ManagerError, Methods, RemoteManager, RemoteProxy, no_key};
use mp_queue::{ConnectError, Queue, connect};
use mp_spawn::closure;
use mp_tensor::{FrozenTensor, Tensor};
use rustix::process::Signal;

const KEY: &[u8] = b"a secret";

/// Returns an address that no other test uses.
fn address(test: &str) -> String {
    format!("@mp-manager-{}-{test}", std::process::id())
}

type Words = Vec<String>;

fn words() -> Methods<Words> {
    Methods::<Words>::of("Words")
        .constructor(closure!([] |first: String| vec![first]))
        .method("push", closure!([] |words: &mut Words, word: String| { words.push(word); words.len() }))
        .method("all", closure!([] |words: &mut Words| words.clone()))
        .method("fail", closure!([] |_words: &mut Words| Err::<u32, &str>("as requested")))
        .method("panic", closure!([] |words: &mut Words| -> u32 { words.clear(); panic!("oh") }))
        .method("bytes", closure!([] |_words: &mut Words, n: usize| vec![7_u8; n]))
        .method("frozen", closure!([] |_words: &mut Words| Tensor::<f32>::zeros([3]).unwrap().freeze()))
}

/// Creates a manager that serves `Words`, and a program's connection to it.
fn served(test: &str) -> (Manager, RemoteManager) {
    let manager = manager();
    manager.register(words()).unwrap();
    manager.serve(address(test), KEY).unwrap();
    let remote = RemoteManager::connect(address(test), KEY).unwrap();
    (manager, remote)
}

fn create(remote: &RemoteManager, first: &str) -> RemoteProxy {
    remote.create("Words", first.to_string()).unwrap().with_timeout(DEADLINE)
}

fn all(words: &RemoteProxy) -> Words {
    words.call("all", ()).unwrap()
}

/// Main function of the other program in the tests below. The tests start this test program again with
/// `Command`, so that the two programs share nothing.
#[test]
fn helper_other_program() {
    let Ok(address) = std::env::var("MP_TEST_REMOTE") else { return };
    let remote = RemoteManager::connect(address, KEY).unwrap();
    let words = remote.get("words").unwrap();
    let own = remote.create("Words", "mine".to_string()).unwrap();
    words.call::<usize>("push", format!("from {}", std::process::id())).unwrap();
    own.call::<usize>("push", "more".to_string()).unwrap();
    // Runs until its parent kills it. The parent has a deadline.
    while std::env::var_os("MP_TEST_REMAIN").is_some() {
        thread::park();
    }
}

/// Returns the number of threads of a process whose name is this, or this followed by a number.
fn threads_named(pid: u32, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names
        .filter(|of| {
            of.trim().strip_prefix(name).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
        })
        .count()
}

/// Program that is killed when this value is dropped.
struct Other(std::process::Child);

impl Drop for Other {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn start_other_program(address: &str, remain: bool) -> Other {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "helper_other_program"]).stdout(Stdio::null()).stderr(Stdio::inherit());
    command.env("MP_TEST_REMOTE", address);
    if remain {
        command.env("MP_TEST_REMAIN", "1");
    }
    Other(command.spawn().unwrap())
}

#[test]
fn remote_object_methods_are_called_by_name() {
    let (_manager, remote) = served("names");
    let words = create(&remote, "a");
    assert_eq!(words.call::<usize>("push", "b".to_string()).unwrap(), 2);
    assert_eq!(all(&words), ["a", "b"]);
    assert_eq!(words.type_name(), "Words");
    // The bytes are larger than a socket's buffer, and than the part of a message that is sent in band.
    let bytes: Vec<u8> = words.call("bytes", 5_000_000_usize).unwrap();
    assert!(bytes.len() == 5_000_000 && bytes.iter().all(|byte| *byte == 7));
    let long = "x".repeat(3_000_000);
    assert_eq!(words.call::<usize>("push", long.clone()).unwrap(), 3);
    assert_eq!(all(&words)[2], long);
    assert_eq!(remote.types().unwrap()["Words"], ["push", "all", "fail", "panic", "bytes", "frozen"]);
}

#[test]
fn other_program_finds_published_objects() {
    let (manager, _remote) = served("published");
    let words = made(&manager, closure!([] || Words::new()));
    manager.publish("words", &words).unwrap();
    assert!(start_other_program(&address("published"), false).0.wait().unwrap().success());
    let all = words.call(closure!([] |words: &mut Words| words.clone())).unwrap();
    assert!(all.len() == 1 && all[0].starts_with("from "), "{all:?}");
    assert!(manager.unpublish("words").unwrap() && !manager.unpublish("words").unwrap());
    let error = _remote.get("words").unwrap_err();
    assert!(matches!(&error, CallError::NoSuchObject { name, known } if name == "words" && known.is_empty()));
}

#[test]
fn killed_program_releases_its_remote_objects() {
    let (manager, remote) = served("killed");
    let words = made(&manager, closure!([] || Words::new()));
    manager.publish("words", &words).unwrap();
    // Counts threads of objects and of connections. One connection keeps this program's session alive.
    let now = || ["object-", "connection"].map(|name| threads_named(manager.server_pid(), name));
    eventually("the manager has one object and one connection", || now() == [1, 1]);
    let other = start_other_program(&address("killed"), true);
    eventually("the other program has an object and two connections", || now() == [2, 3]);
    eventually("the other program adds a word", || {
        words.call(closure!([] |words: &mut Words| words.len())).unwrap() == 1
    });
    drop(other);
    eventually("the object is freed", || now() == [1, 1]);
    assert!(remote.objects().unwrap().contains_key("words"), "other programs are still connected");
}

#[test]
fn last_remote_handle_drop_frees_the_object() {
    let manager = manager();
    let (noisy, dropped) = noisy(&manager);
    let reported = dropped.clone();
    type Noisy = common::Noisy;
    let methods = Methods::<Noisy>::of("Noisy")
        .constructor(closure!([reported] || Noisy { value: 3, dropped: reported.clone() }))
        .method("value", closure!([] |noisy: &mut Noisy| noisy.value));
    manager.register(methods).unwrap();
    manager.publish("first", &noisy).unwrap();
    manager.serve(address("handles"), KEY).unwrap();
    let remote = RemoteManager::connect(address("handles"), KEY).unwrap();

    let own = remote.create("Noisy", ()).unwrap();
    let (first, again) = (remote.get("first").unwrap(), remote.get("first").unwrap());
    assert!(first.is_same_object(&again) && !first.is_same_object(&own));
    let copy = own.clone();
    drop(own);
    assert_eq!(copy.call::<u64>("value", ()).unwrap(), 3);
    assert_eq!(dropped.len(), 0);
    drop(copy);
    assert_eq!(take(&dropped), manager.server_pid());

    // Two handles of this program, one name and the proxy: dropping the last of them frees the object.
    drop((noisy, first));
    assert!(manager.unpublish("first").unwrap());
    assert_eq!(again.call::<u64>("value", ()).unwrap(), 0);
    drop(again);
    assert_eq!(take(&dropped), manager.server_pid());
}

#[test]
fn remote_errors_and_panics_are_returned_to_caller() {
    let (_manager, remote) = served("errors");
    let words = create(&remote, "a");
    let error = words.call::<u32>("fail", ()).unwrap_err();
    assert!(matches!(&error, CallError::Raised(raised) if raised.message == "as requested"), "{error}");
    let error = words.call::<u32>("panic", ()).unwrap_err();
    assert!(matches!(&error, CallError::Raised(raised) if raised.message == "oh"), "{error}");
    assert!(all(&words).is_empty(), "the object remains as the panic left it");

    let error = words.call::<u32>("cut", ()).unwrap_err();
    let CallError::NoSuchMethod { call, known } = &error else { panic!("{error}") };
    assert_eq!((&*call.closure, &*call.object), ("cut", "Words"));
    assert!(call.location.file.ends_with("remote.rs") && known.contains(&"push".to_string()), "{error}");
    let error = remote.create("Numbers", ()).unwrap_err();
    assert!(matches!(&error, CallError::NoSuchType { known, .. } if known == &["Words"]), "{error}");

    // The arguments and results have other types than the method declares.
    let error = words.call::<usize>("push", 7_u64).unwrap_err();
    assert!(error.undecodable().is_some() && matches!(error, CallError::Arguments { .. }), "{error}");
    let error = remote.create("Words", (1, 2)).unwrap_err();
    assert!(error.undecodable().is_some() && matches!(error, CallError::Arguments { .. }), "{error}");
    let error = words.call::<u8>("all", ()).unwrap_err();
    assert!(matches!(error, CallError::Value { .. }), "{error}");
    assert!(all(&words).is_empty(), "the connection remains usable");
}

#[test]
fn shared_memory_arguments_and_results_are_refused() {
    let (_manager, remote) = served("memory");
    let words = create(&remote, "a");
    let error = words.call::<FrozenTensor<f32>>("frozen", ()).unwrap_err();
    assert!(matches!(&error, CallError::Value { why, .. } if why.contains("tensor")), "{error}");
    let queue = Queue::<u8>::unbounded().unwrap();
    let error = words.call::<usize>("push", queue).unwrap_err();
    assert!(matches!(&error, CallError::Arguments { why, .. } if why.contains("queue")), "{error}");
    assert_eq!(all(&words), ["a"]);
}

#[test]
fn duplicate_published_object_names_are_refused() {
    let (manager, remote) = served("once");
    let raised = |result: Result<(), CallError>| match result {
        Err(CallError::Raised(raised)) => raised.message,
        other => panic!("{other:?}"),
    };
    assert!(raised(manager.register(words())).contains("already"));
    let twice = Methods::<u8>::of("u8")
        .method("get", closure!([] |n: &mut u8| *n))
        .method("get", closure!([] |n: &mut u8| *n));
    assert!(raised(manager.register(twice)).contains("two methods"));
    let number = made(&manager, closure!([] || 7_u8));
    assert!(raised(manager.publish("number", &number)).contains("register the type"));
    manager.register(Methods::<u8>::of("u8")).unwrap();
    manager.publish("number", &number).unwrap();
    assert!(raised(manager.publish("number", &number)).contains("unpublish"));
    assert!(raised(manager.serve(address("once"), KEY).map(drop)).contains("another Listener"));
    // Without a constructor, only the program that owns the manager can create the object.
    let error = remote.create("u8", ()).unwrap_err();
    assert!(matches!(error, CallError::NoSuchMethod { .. }), "{error}");
    assert_eq!(remote.objects().unwrap()["number"], "u8");
}

#[test]
fn serve_with_an_empty_key_is_refused() {
    let manager = manager();
    let error = manager.serve(address("empty"), "").unwrap_err().to_string();
    assert!(error.contains("no_key()"), "{error}");
    let error = RemoteManager::connect(address("empty"), no_key()).unwrap_err();
    assert!(matches!(&error, ManagerError::Connect(ConnectError::Io { .. })), "the server listens: {error}");
    manager.serve(address("empty"), no_key()).unwrap();
    RemoteManager::connect(address("empty"), no_key()).unwrap();
}

#[test]
fn wrong_key_and_wrong_address_are_connect_errors() {
    let (_manager, _remote) = served("key");
    let refused = |address: String, key: &[u8]| RemoteManager::connect(address, key).unwrap_err();
    let error = refused(address("key"), b"another");
    assert!(matches!(&error, ManagerError::Connect(ConnectError::KeyMismatch { .. })), "{error}");
    let error = refused(address("key"), b"");
    assert!(matches!(&error, ManagerError::Connect(ConnectError::EmptyKey)), "{error}");
    let error = RemoteManager::connect(address("key"), no_key()).unwrap_err();
    assert!(matches!(&error, ManagerError::Connect(_) | ManagerError::Incompatible(_)), "{error}");
    let error = refused(address("nowhere"), KEY);
    assert!(matches!(&error, ManagerError::Connect(ConnectError::Io { .. })), "{error}");
    // A listener that is not a manager's server.
    let listener = mp_queue::SocketOptions::new().authkey(KEY).listen(&*address("other")).unwrap();
    let other = thread::spawn(move || listener.accept().unwrap().send("hello".to_string()).unwrap());
    let error = refused(address("other"), KEY);
    assert!(matches!(&error, ManagerError::Incompatible(_)), "{error}");
    other.join().unwrap();
}

#[test]
fn invalid_bytes_at_server_end_only_their_connection() {
    let manager = manager();
    manager.register(words()).unwrap();
    manager.serve(address("bytes"), no_key()).unwrap();
    let remote = RemoteManager::connect(address("bytes"), no_key()).unwrap();
    let words = create(&remote, "a");
    let strange = connect(&*address("bytes")).unwrap();
    strange.send("hello".to_string()).unwrap();
    eventually("the connection is closed", || strange.is_disconnected());
    assert_eq!(all(&words), ["a"]);
}

#[test]
fn threads_call_a_remote_object_concurrently() {
    let (_manager, remote) = served("threads");
    let words = create(&remote, "first");
    thread::scope(|scope| {
        for thread in 0..4 {
            let words = &words;
            scope.spawn(move || {
                for i in 0..50 {
                    words.call::<usize>("push", format!("{thread} {i}")).unwrap();
                }
            });
        }
    });
    let all = all(&words);
    assert_eq!(all.len(), 201);
    for thread in 0..4 {
        let own: Vec<_> = all.iter().filter_map(|word| word.strip_prefix(&format!("{thread} "))).collect();
        assert_eq!(own, (0..50).map(|i| i.to_string()).collect::<Vec<_>>());
    }
}

#[test]
fn late_remote_result_after_a_timeout_is_dropped() {
    let manager = manager();
    let gate = Gate::new();
    let stop = gate.clone();
    let methods = Methods::<u32>::of("Number")
        .constructor(closure!([] || 5_u32))
        .method("wait", closure!([stop] |n: &mut u32| { stop.pass(); *n += 1; *n }))
        .method("get", closure!([] |n: &mut u32| *n));
    manager.register(methods).unwrap();
    manager.serve(address("late"), KEY).unwrap();
    let remote = RemoteManager::connect(address("late"), KEY).unwrap();
    let number = remote.create("Number", ()).unwrap();
    let soon = number.clone().with_timeout(Duration::from_millis(20));
    let error = soon.call::<u32>("wait", ()).unwrap_err();
    assert!(matches!(&error, CallError::TimedOut { call, .. } if call.closure == "wait"), "{error}");
    assert_eq!(gate.arrived(), manager.server_pid());
    gate.open(1);
    assert_eq!(number.with_timeout(DEADLINE).call::<u32>("get", ()).unwrap(), 6, "not the late result");
}

#[test]
fn remote_call_to_a_dead_server_is_an_error() {
    let (manager, remote) = served("gone");
    let words = create(&remote, "a");
    kill(manager.server_pid());
    let error = words.call::<Words>("all", ()).unwrap_err();
    assert!(error.is_server_gone(), "{error}");
    // A call that needs a new connection.
    let error = remote.create("Words", "b".to_string()).unwrap_err();
    assert!(error.is_server_gone(), "{error}");

    let (manager, remote) = served("gone");
    let words = create(&remote, "a");
    manager.shutdown(DEADLINE).unwrap();
    assert!(words.call::<Words>("all", ()).unwrap_err().is_server_gone());
    drop((words, remote));
}

#[test]
fn call_to_a_freed_remote_object_is_an_error() {
    let (_manager, remote) = served("freed");
    let words = create(&remote, "a");
    words.free().unwrap();
    words.free().unwrap();
    let error = words.call::<Words>("all", ()).unwrap_err();
    assert!(matches!(&error, CallError::Freed { call } if call.closure == "all"), "{error}");
}

#[test]
fn object_of_another_manager_is_not_published() {
    let (first, _remote) = served("foreign");
    let second = manager();
    let words = made(&second, closure!([] || Words::new()));
    let error = first.publish("words", &words).unwrap_err();
    assert!(
        matches!(&error, CallError::Raised(raised) if raised.message.contains("another manager")),
        "{error}"
    );
    first.register(Methods::<Words>::of("Others")).unwrap();
    let own = made(&first, closure!([] || Words::new()));
    let error = first.publish("words", &own).unwrap_err();
    assert!(
        matches!(&error, CallError::Raised(raised) if raised.message.contains("several names")),
        "{error}"
    );
}

/// Creates an object whose calls wait until the gate is opened. The object reports its drop.
fn waiting(manager: &Manager, test: &str) -> (Gate, Queue<u32>) {
    let (gate, dropped) = (Gate::new(), Queue::unbounded().unwrap());
    let (stop, reported) = (gate.clone(), dropped.clone());
    let methods = Methods::<common::Noisy>::of("Noisy")
        .constructor(closure!([reported] || common::Noisy { value: 3, dropped: reported.clone() }))
        .method("wait", closure!([stop] |_noisy: &mut common::Noisy| stop.pass()))
        .method("value", closure!([] |noisy: &mut common::Noisy| noisy.value));
    manager.register(methods).unwrap();
    manager.serve(address(test), KEY).unwrap();
    (gate, dropped)
}

#[test]
fn timed_out_remote_calls_leave_no_threads() {
    let manager = manager();
    let (gate, _dropped) = waiting(&manager, "busy");
    let remote = RemoteManager::connect(address("busy"), KEY).unwrap();
    let busy = remote.create("Noisy", ()).unwrap().with_timeout(Duration::from_millis(10));
    assert!(busy.call::<()>("wait", ()).is_err());
    gate.arrived();
    for _ in 0..20 {
        assert!(matches!(busy.call::<u64>("value", ()).unwrap_err(), CallError::TimedOut { .. }));
    }
    // The connection that keeps the session alive remains.
    eventually("the threads of connections end", || threads_named(manager.server_pid(), "connection") == 1);
    gate.open(1);
    assert_eq!(busy.with_timeout(DEADLINE).call::<u64>("value", ()).unwrap(), 3);
}

#[test]
fn program_killed_in_a_call_releases_other_objects() {
    let manager = manager();
    let (gate, dropped) = waiting(&manager, "ends");
    let program = |address: String| -> Result<(), String> {
        let remote = RemoteManager::connect(address, KEY).map_err(|error| error.to_string())?;
        let objects = [(); 2].map(|()| remote.create("Noisy", ()).unwrap());
        objects[0].call::<()>("wait", ()).map_err(|error| error.to_string())
    };
    let program = mp_spawn::Process::spawn(program, address("ends")).unwrap();
    gate.arrived();
    assert_eq!(dropped.len(), 0);
    program.kill().unwrap();
    assert_eq!(take(&dropped), manager.server_pid(), "the object without a running call is dropped first");
    gate.open(1);
    assert_eq!(take(&dropped), manager.server_pid());
}

#[test]
fn stopped_server_is_awaited_for_the_call_timeout() {
    let (manager, remote) = served("stopped");
    let words = create(&remote, "a");
    signal(manager.server_pid(), Signal::STOP);
    eventually("the process is stopped", || threads_are(manager.server_pid(), 'T'));
    for _ in 0..2 {
        // The second call needs its own connection, which the server does not accept.
        let error =
            words.clone().with_timeout(Duration::from_millis(100)).call::<Words>("all", ()).unwrap_err();
        assert!(matches!(error, CallError::TimedOut { .. }), "{error}");
    }
    thread::scope(|scope| {
        let waits = scope.spawn(|| all(&words));
        signal(manager.server_pid(), Signal::CONT);
        assert_eq!(waits.join().unwrap(), ["a"]);
    });
}

#[test]
fn ended_programs_leave_no_resources_at_the_server() {
    let (manager, remote) = served("leaks");
    let words = create(&remote, "a");
    let round = || {
        let remote = RemoteManager::connect(address("leaks"), KEY).unwrap();
        let own = create(&remote, "b");
        own.call::<usize>("push", "c".to_string()).unwrap();
        _ = own.call::<u32>("fail", ());
    };
    round();
    eventually("the first round is over", || threads(manager.server_pid()) <= 5);
    let (before, threads_before) = (in_use(), threads(manager.server_pid()));
    (0..20).for_each(|_| round());
    // Resources of the first round may remain a little longer.
    let no_more = |(a, b, c): (u64, u64, u64)| a <= before.0 && b <= before.1 && c <= before.2;
    eventually("nothing is left", || no_more(in_use()) && threads(manager.server_pid()) <= threads_before);
    assert_eq!(all(&words), ["a"]);
    assert!(alive(manager.server_pid()));
}
