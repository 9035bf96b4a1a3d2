//! Other programs that reach a manager's server over TCP, and options of the sockets.
#![cfg(feature = "authkey")]

mod common;

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{DEADLINE, eventually, kill, manager};
use mp_manager::{CallError, Manager, ManagerError, Methods, RemoteManager, RemoteProxy, no_key};
use mp_queue::{Address, ConnectError, SocketOptions};
use mp_spawn::{Process, closure, current_process};

const KEY: &[u8] = b"a secret";
const ADDRESS: &str = "MP_TEST_REMOTE_TCP";

type Words = Vec<String>;

fn any_port() -> Address {
    Address::tcp((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

fn words(manager: &Manager) {
    let words = Methods::<Words>::of("Words")
        .constructor(closure!([] |first: String| vec![first]))
        .method("push", closure!([] |words: &mut Words, word: String| { words.push(word); words.len() }))
        .method("bytes", closure!([] |_words: &mut Words, n: usize| vec![7_u8; n]));
    manager.register(words).unwrap();
}

/// Creates a manager, the address that it serves, and a program's connection to it.
fn served() -> (Manager, Address, RemoteManager) {
    let manager = manager();
    words(&manager);
    let address = manager.serve(any_port(), KEY).unwrap();
    let remote = RemoteManager::connect(&address, KEY).unwrap().with_timeout(DEADLINE);
    (manager, address, remote)
}

fn create(remote: &RemoteManager) -> RemoteProxy {
    remote.create("Words", "first".to_string()).unwrap()
}

/// Main function of the other program in the tests below. The tests start this test program again with
/// `Command`, so that the two programs share nothing.
#[test]
fn helper_other_program() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let remote = RemoteManager::connect(Address::tcp(&*address).unwrap(), KEY).unwrap();
    let shared = remote.get("shared").unwrap();
    let _own = create(&remote);
    shared.call::<usize>("push", std::process::id().to_string()).unwrap();
    // Runs until its parent kills it. The parent has a deadline.
    loop {
        std::thread::park();
    }
}

/// Program that is killed when this value is dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn killed_tcp_program_releases_its_objects() {
    let (manager, address, _remote) = served();
    let shared = manager.create(Words::new).unwrap().with_timeout(DEADLINE);
    manager.publish("shared", &shared).unwrap();
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", manager.server_pid())).unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.starts_with("object-")).count()
    };
    eventually("what was registered and published", || threads() == 1);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "helper_other_program"]).env(ADDRESS, address.to_string()).stdout(Stdio::null());
    let other = Other(command.spawn().unwrap());
    let all = || shared.call(closure!([] |words: &mut Words| words.clone())).unwrap();
    eventually("the other program has called", || all() == [other.0.id().to_string()]);
    assert_eq!(threads(), 2, "the other program has its own object");
    kill(other.0.id());
    eventually("the object is freed", || threads() == 1);
}

#[test]
fn killed_manager_server_ends_calls_over_tcp() {
    let (manager, address, remote) = served();
    let words = create(&remote);
    assert_eq!(words.call::<usize>("push", "second".to_string()).unwrap(), 2);
    kill(manager.server_pid());
    let error = words.call::<usize>("push", "third".to_string()).unwrap_err();
    assert!(error.is_server_gone(), "{error}");
    let error = RemoteManager::connect(address, KEY).unwrap_err();
    // The kernel closes the dead server's sockets one after the other.
    assert!(matches!(error, ManagerError::Connect(ConnectError::Io { .. } | ConnectError::Gone)), "{error}");
}

#[test]
fn proxy_is_sent_with_its_tcp_address() {
    let (_manager, _, remote) = served();
    current_process().set_authkey(KEY);
    let words = create(&remote);
    let push = |words: RemoteProxy| words.call::<usize>("push", "from a child".to_string());
    assert_eq!(Process::spawn(push, words.clone()).unwrap().join().unwrap(), 2);
    assert_eq!(words.call::<usize>("push", "from here".to_string()).unwrap(), 3);
}

/// Servers on two hosts may have the same process id, and number their objects equally.
#[test]
fn objects_of_two_servers_have_distinct_numbers() {
    let object = || {
        let (_manager, _, remote) = served();
        let shown = format!("{:?}", create(&remote));
        shown.split_once("object ").unwrap().1.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_ne!(object(), object());
}

#[test]
fn server_beyond_loopback_requires_a_key() {
    let manager = manager();
    let all = || Address::tcp("0.0.0.0:0").unwrap();
    let error = manager.serve(all(), no_key()).unwrap_err().to_string();
    assert!(error.contains("an authentication key is required"), "{error}");
    let error = RemoteManager::connect(all(), no_key()).unwrap_err();
    assert!(matches!(error, ManagerError::Connect(ConnectError::KeyRequired { .. })), "{error}");
    manager.serve(all(), KEY).unwrap();
    let open = manager.serve(any_port(), no_key()).unwrap();
    assert_eq!(RemoteManager::connect(open, no_key()).unwrap().server_pid(), manager.server_pid());
}

#[test]
fn tcp_socket_options_apply_to_server_and_client() {
    let manager = manager();
    words(&manager);
    let error = manager.serve(any_port(), SocketOptions::new()).unwrap_err().to_string();
    assert!(error.contains("key is empty"), "{error}");
    let options = SocketOptions::new().authkey(KEY).max_message(4_000);
    let address = manager.serve(any_port(), &options).unwrap();
    let small = RemoteManager::connect(&address, &options).unwrap().with_timeout(DEADLINE);
    let words = create(&small);
    // Limits of the client and the server.
    let error = words.call::<usize>("push", "x".repeat(5_000)).unwrap_err();
    assert!(matches!(&error, CallError::Arguments { why, .. } if why.contains("max_message")), "{error}");
    let error = words.call::<Vec<u8>>("bytes", 5_000_usize).unwrap_err();
    assert!(matches!(&error, CallError::Value { why, .. } if why.contains("max_message")), "{error}");
    assert_eq!(words.call::<Vec<u8>>("bytes", 3_000_usize).unwrap(), [7; 3_000]);
    // This listener never answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let short = Duration::from_millis(50);
    let hasty = SocketOptions::new().authkey(KEY).handshake_timeout(short);
    let error = RemoteManager::connect(silent.local_addr().unwrap(), hasty).unwrap_err();
    let ManagerError::Connect(ConnectError::TimedOut(after)) = &error else { panic!("{error}") };
    assert_eq!(*after, short);
}

#[test]
fn zero_tcp_handshake_timeout_ends_at_once() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = silent.local_addr().unwrap();
    for time in [Duration::ZERO, Duration::from_nanos(1)] {
        let options = SocketOptions::new().authkey(KEY).handshake_timeout(time);
        let connects = std::thread::spawn(move || RemoteManager::connect(at, options).map(drop));
        eventually("connecting ends", || connects.is_finished());
        let error = connects.join().unwrap().unwrap_err();
        let ManagerError::Connect(ConnectError::TimedOut(after)) = &error else { panic!("{error}") };
        assert_eq!(*after, time);
    }
}

#[test]
fn proxy_is_sent_with_its_message_limits() {
    let manager = manager();
    words(&manager);
    let address = manager.serve(any_port(), KEY).unwrap();
    current_process().set_authkey(KEY);
    let options = SocketOptions::new().authkey(KEY).max_message(4_000);
    let words = create(&RemoteManager::connect(address, options).unwrap().with_timeout(DEADLINE));
    let push = |words: RemoteProxy| match words.call::<usize>("push", "x".repeat(5_000)) {
        Err(CallError::Arguments { why, .. }) => why,
        other => format!("{other:?}"),
    };
    let why = Process::spawn(push, words).unwrap().join().unwrap();
    assert!(why.contains("max_message"), "{why}");
}
