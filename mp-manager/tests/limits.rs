//! Calls of a server without free descriptors.

mod common;

use std::fs;
use std::io::{PipeReader, Read, Write, pipe};
use std::thread;

use common::{eventually, made, manager};
use mp_manager::Proxy;
use mp_reduce::Fd;
use mp_spawn::closure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the number of voluntary sleeps of an object's thread.
fn sleeps(server: u32, object: &str) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{server}/task")).unwrap().map(|task| task.unwrap().path());
    let is = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == object)
    };
    let task = tasks.into_iter().find(is).expect("the object's thread");
    let status = fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Prevents the server from opening more descriptors, or restores its limit.
fn limit(limits: &Proxy<Option<Rlimit>>, few: bool) {
    let set = closure!([] |before: &mut Option<Rlimit>, few: bool| {
        let now = *before.get_or_insert_with(|| getrlimit(Resource::Nofile));
        let limit = if few { Rlimit { current: Some(3), ..now } } else { now };
        setrlimit(Resource::Nofile, limit).map_err(std::io::Error::from)
    });
    limits.call_with(set, few).unwrap();
}

#[test]
fn object_call_sleeps_until_descriptors_are_available() {
    let manager = manager();
    let limits = made(&manager, closure!([] || None::<Rlimit>));
    let lines = made(&manager, closure!([] || Vec::<String>::new()));
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(b"a line").unwrap();
    drop(writer);
    let read = closure!([] |lines: &mut Vec<String>, from: Fd<PipeReader>| {
        let (mut from, mut line) = (from, String::new());
        from.0.read_to_string(&mut line).map(|_| lines.push(line))
    });
    // The server receives the code of the call, and then a call with a descriptor.
    let (empty, end) = pipe().unwrap();
    drop(end);
    lines.call_with(read.clone(), Fd(empty)).unwrap();
    limit(&limits, true);
    thread::scope(|threads| {
        let call = threads.spawn(|| lines.call_with(read, Fd(reader)));
        eventually("the call is in flight", || common::in_use().1 > 0);
        let before = sleeps(lines.server_pid(), "object-1");
        eventually("the thread sleeps between its attempts", || {
            sleeps(lines.server_pid(), "object-1") > before + 8
        });
        assert!(!call.is_finished());
        limit(&limits, false);
        call.join().unwrap().unwrap();
    });
    let got = lines.call(closure!([] |lines: &mut Vec<String>| lines.clone())).unwrap();
    assert_eq!(got, ["", "a line"]);
    manager.shutdown(common::DEADLINE).unwrap();
}

/// The caller is another program, and the server can't accept its connection.
#[cfg(feature = "authkey")]
#[test]
fn object_call_times_out_if_server_lacks_descriptors() {
    use std::time::Duration;

    use mp_manager::{CallError, Methods, RemoteManager};

    let manager = manager();
    let limits = made(&manager, closure!([] || None::<Rlimit>));
    let methods = Methods::<u64>::of("Number").constructor(closure!([] |n: u64| n));
    manager.register(methods.method("value", closure!([] |n: &mut u64| *n))).unwrap();
    let address = format!("@mp-manager-limits-{}", std::process::id());
    manager.serve(&*address, b"a secret").unwrap();
    let remote = RemoteManager::connect(&*address, b"a secret").unwrap();
    limit(&limits, false);
    limit(&limits, true);
    let error = remote.clone().with_timeout(Duration::from_millis(50)).create("Number", 3_u64).unwrap_err();
    limit(&limits, false);
    let text = error.to_string();
    assert!(matches!(error, CallError::TimedOut { sent: false, .. }), "{text}");
    assert!(text.contains("was not sent within 50ms") && text.contains("files open"), "{text}");
    let number = remote.with_timeout(common::DEADLINE).create("Number", 4_u64).unwrap();
    assert_eq!(number.call::<u64>("value", ()).unwrap(), 4);
}
