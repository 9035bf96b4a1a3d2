//! Objects that other members of a cluster call. Members that tests kill or stop are separate processes with
//! their own arena and manager, like programs on other hosts.
#![cfg(feature = "net")]

mod common;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{DEADLINE, alive, eventually, manager, signal};
use mp_harness::members::{Member, argument, ready, wait_for_end};
use mp_harness::{OtherBuild, skip};
use mp_manager::{CallError, ClusterProxy, Manager, Methods, Proxy};
use mp_net::{Cluster, ClusterConfig, NetError, RemoteQueue};
use mp_queue::Queue;
use mp_spawn::{Process, closure};
use mp_tensor::Tensor;
use rustix::process::Signal;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;
type Words = Vec<String>;

const LEASE: Duration = Duration::from_secs(1);

fn config(rank: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, 2, first).lease(LEASE).timeout(Duration::from_secs(20))
}

/// Returns both members of a cluster, in this process.
fn members() -> (Cluster, Cluster) {
    let first = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
    let second = Cluster::join(&config(1, first.address())).unwrap();
    (first, second)
}

fn words() -> Methods<Words> {
    Methods::<Words>::of("Words")
        .method("push", closure!([] |words: &mut Words, word: String| { words.push(word); words.len() }))
        .method("all", closure!([] |words: &mut Words| words.clone()))
        .method("fail", closure!([] |_words: &mut Words| Err::<u32, &str>("as requested")))
        .method("panic", closure!([] |_words: &mut Words| -> u32 { panic!("oh") }))
        .method("bytes", closure!([] |_words: &mut Words, n: usize| vec![7_u8; n]))
        .method("frozen", closure!([] |_words: &mut Words| Tensor::<f32>::zeros([3]).unwrap().freeze()))
        .method("wait", closure!([] |_words: &mut Words| thread::park_timeout(DEADLINE)))
        .method_to_object("open", "Other", closure!([] |words: &mut Words| words.push("opened".into())))
}

/// Creates a manager with an object that is published as "words".
fn published(cluster: &Cluster) -> (Manager, Proxy<Words>) {
    let manager = manager();
    manager.register(words()).unwrap();
    let object = manager.create(Words::new).unwrap().with_timeout(DEADLINE);
    manager.publish_in(cluster, "words", &object).unwrap();
    (manager, object)
}

fn opened(cluster: &Cluster) -> ClusterProxy {
    ClusterProxy::connect(cluster, "words").unwrap().with_timeout(DEADLINE)
}

/// Starts rank 1, and returns it with the process id of its manager's server.
fn start(first: &Cluster) -> (Member, u32) {
    let (member, server) = Member::start("", first.address());
    (member, server.parse().unwrap())
}

#[test]
#[ignore = "the program of the member that other tests start"]
fn started_member() {
    let cluster = Cluster::join(&config(1, &argument())).unwrap();
    let (manager, _object) = published(&cluster);
    ready(manager.server_pid());
    wait_for_end();
}

#[test]
fn object_is_called_from_another_host() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (_member, _) = start(&first);
    let words = opened(&first);
    assert_eq!((words.type_name(), words.rank()), ("Words", 1));
    assert!(format!("{words:?}").starts_with("ClusterProxy(Words of rank 1 ("), "{words:?}");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let words = words.clone();
            thread::spawn(move || {
                (0..50).try_for_each(|i| words.call::<usize>("push", format!("{thread} {i}")).map(drop))
            })
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join().unwrap())?;
    let all: Words = words.call("all", ())?;
    assert_eq!(all.len(), 200);
    for thread in 0..4 {
        let of_thread = all.iter().filter(|word| word.starts_with(&format!("{thread} ")));
        assert!(of_thread.cloned().eq((0..50).map(|i| format!("{thread} {i}"))), "order of thread {thread}");
    }
    let large: Vec<u8> = words.call("bytes", 9_000_000_usize)?;
    assert!(large.len() == 9_000_000 && large.iter().all(|byte| *byte == 7));
    let large = words.call::<usize>("push", "x".repeat(9_000_000))?;
    assert_eq!(large, 201);
    Ok(())
}

#[test]
fn object_call_errors_are_returned_to_other_hosts() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (_member, _) = start(&first);
    let words = opened(&first);
    let raised = |method| match words.call::<u32>(method, ()).unwrap_err() {
        CallError::Raised(raised) => raised.message,
        other => panic!("{other}"),
    };
    assert_eq!((&*raised("fail"), &*raised("panic")), ("as requested", "oh"));
    match words.call::<u32>("shout", 1_u8).unwrap_err() {
        CallError::NoSuchMethod { call, known } => {
            assert!(call.location.file.ends_with("cluster.rs") && call.closure == "shout", "{call}");
            assert_eq!(known.len(), 8);
        }
        other => panic!("{other}"),
    }
    let error = words.call::<usize>("push", 7_u64).unwrap_err();
    assert!(matches!(&error, CallError::Arguments { undecodable: Some(_), .. }), "{error}");
    let error = words.call::<usize>("push", Tensor::<f32>::zeros([3])?.freeze()).unwrap_err();
    assert!(matches!(&error, CallError::Arguments { undecodable: None, .. }), "{error}");
    let error = words.call::<u32>("all", ()).unwrap_err();
    assert!(matches!(&error, CallError::Value { undecodable: Some(_), .. }), "{error}");
    for method in ["frozen", "open"] {
        let error = words.call::<u32>(method, ()).unwrap_err();
        assert!(matches!(&error, CallError::Value { undecodable: None, .. }), "{error}");
    }
    let all: Words = words.call("all", ())?;
    assert!(all.is_empty());
    Ok(())
}

#[test]
fn remote_object_messages_above_limits_are_refused() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0").largest_message(100_000))?;
    let second = Cluster::join(&config(1, first.address()).largest_message(50_000))?;
    let (_manager, _object) = published(&first);
    let words = opened(&second);
    let error = words.call::<usize>("push", "x".repeat(100_000)).unwrap_err();
    assert!(matches!(&error, CallError::Arguments { undecodable: None, .. }), "{error}");
    let error = words.call::<Vec<u8>>("bytes", 60_000_usize).unwrap_err();
    assert!(
        matches!(&error, CallError::Cluster { why } if why.contains("this process accepts 50000")),
        "{error}"
    );
    assert_eq!(words.call::<Vec<u8>>("bytes", 40_000_usize)?.len(), 40_000);
    Ok(())
}

#[test]
fn lost_home_ends_object_calls_within_the_lease() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (member, server) = start(&first);
    let words = opened(&first);
    let waiting = words.clone();
    let waiting = thread::spawn(move || waiting.call::<()>("wait", ()).unwrap_err());
    // Another call waits, because this call runs.
    eventually("the call waits", || {
        let second = words.clone().with_timeout(Duration::from_millis(20)).call::<Words>("all", ());
        matches!(second, Err(CallError::TimedOut { server: pid, sent: true, .. }) if pid == server)
    });
    let since = Instant::now();
    drop(member);
    match waiting.join().unwrap() {
        CallError::PeerLost(lost) => assert!(lost.rank == 1 && lost.in_doubt, "{lost}"),
        other => panic!("{other}"),
    }
    let error = words.call::<Words>("all", ()).unwrap_err();
    assert!(error.to_string().contains("rank 1 ("), "{error}");
    assert!(since.elapsed() < 2 * LEASE, "{:?}", since.elapsed());
    eventually("the server ends with its owner", || !alive(server));
    Ok(())
}

#[test]
fn stopped_home_of_objects_is_lost_within_the_lease() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (member, _) = start(&first);
    let words = opened(&first);
    signal(member.id(), Signal::STOP);
    let since = Instant::now();
    let error = words.call::<Words>("all", ()).unwrap_err();
    let known = since.elapsed();
    assert!(matches!(error, CallError::PeerLost(_)), "{error}");
    assert!(known < 2 * LEASE, "known after {known:?}");
    Ok(())
}

#[test]
fn object_of_another_build_is_called() -> Outcome {
    let Some(other) = OtherBuild::new() else {
        skip("the linker writes no build-id");
        return Ok(());
    };
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let _member = Member::start_program(other.path(), "", first.address());
    let words = opened(&first);
    assert_eq!(words.call::<usize>("push", "a".to_string())?, 1);
    assert_eq!(words.call::<Words>("all", ())?, ["a"]);
    Ok(())
}

#[test]
fn timeout_ends_a_call_of_a_stopped_home() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0").lease(Duration::from_secs(20)))?;
    let (member, _) = start(&first);
    let words = opened(&first);
    signal(member.id(), Signal::STOP);
    let since = Instant::now();
    let late = words.clone().with_timeout(Duration::from_millis(50));
    let error = late.call::<usize>("push", "late".to_string()).unwrap_err();
    assert!(matches!(&error, CallError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("with `Words of rank 1 ("), "{error}");
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    let unsent = words.clone().with_timeout(Duration::ZERO).call::<usize>("push", "unsent".to_string());
    assert!(matches!(unsent, Err(CallError::TimedOut { sent: false, .. })));
    signal(member.id(), Signal::CONT);
    assert_eq!(words.call::<usize>("push", "next".to_string())?, 2, "a sent call is not withdrawn");
    Ok(())
}

#[test]
fn ended_manager_and_withdrawn_name_are_call_errors() -> Outcome {
    let (first, second) = members();
    let (manager, object) = published(&first);
    let words = opened(&second);
    assert_eq!(words.call::<usize>("push", "a".to_string())?, 1);
    assert!(matches!(manager.publish_in(&second, "words", &object), Err(CallError::Cluster { .. })));
    first.withdraw("words")?;
    let error = words.call::<Words>("all", ()).unwrap_err();
    assert!(matches!(&error, CallError::Cluster { why } if why.contains("withdrawn")), "{error}");

    manager.publish_in(&first, "words", &object)?;
    let words = opened(&second);
    assert_eq!(words.call::<Words>("all", ())?, ["a"]);
    let waiting = words.clone();
    let waiting = thread::spawn(move || waiting.call::<()>("wait", ()).unwrap_err());
    eventually("the call waits", || {
        words.clone().with_timeout(Duration::from_millis(20)).call::<Words>("all", ()).is_err()
    });
    _ = manager.shutdown(Duration::ZERO);
    assert!(waiting.join().unwrap().is_server_gone());
    assert!(words.call::<Words>("all", ()).unwrap_err().is_server_gone());
    Ok(())
}

#[test]
fn killed_server_ends_a_call_that_it_has_not_read() -> Outcome {
    let (first, second) = members();
    let (manager, _object) = published(&first);
    let words = opened(&second);
    signal(manager.server_pid(), Signal::STOP);
    let waiting = words.clone();
    let waiting = thread::spawn(move || waiting.call::<Words>("all", ()).unwrap_err());
    let late = words.with_timeout(Duration::from_millis(100)).call::<Words>("all", ()).unwrap_err();
    assert!(matches!(&late, CallError::TimedOut { .. }), "{late}");
    signal(manager.server_pid(), Signal::KILL);
    let error = waiting.join().unwrap();
    assert!(error.is_server_gone(), "{error}");
    Ok(())
}

#[test]
fn cluster_proxy_of_another_kind_or_type_is_refused() -> Outcome {
    let (first, second) = members();
    let (manager, _object) = published(&first);
    let numbers = Queue::<u64>::bounded(4)?;
    first.publish("numbers", &numbers)?;
    let error = ClusterProxy::connect(&second, "numbers").unwrap_err();
    assert!(matches!(error, NetError::WrongType { .. }), "{error}");
    let error = RemoteQueue::<u64>::connect(&second, "words").unwrap_err();
    assert!(matches!(error, NetError::WrongType { .. }), "{error}");
    let unregistered = manager.create(|| 7_u8)?;
    let error = manager.publish_in(&first, "number", &unregistered).unwrap_err();
    assert!(matches!(&error, CallError::Raised(raised) if raised.message.contains("register")), "{error}");
    Ok(())
}

#[test]
fn published_object_lives_until_it_is_withdrawn() -> Outcome {
    let (first, second) = members();
    let manager = manager();
    let (noisy, dropped) = common::noisy(&manager);
    let value = closure!([] |noisy: &mut common::Noisy| noisy.value);
    manager.register(Methods::<common::Noisy>::of("Noisy").method("value", value))?;
    manager.publish_in(&first, "noisy", &noisy)?;
    drop(noisy);
    let remote = ClusterProxy::connect(&second, "noisy")?.with_timeout(DEADLINE);
    assert_eq!(remote.call::<u64>("value", ())?, 0);
    assert!(dropped.try_get().is_err_and(|error| error.is_empty()));
    first.withdraw("noisy")?;
    assert_eq!(common::take(&dropped), manager.server_pid());
    Ok(())
}

#[test]
fn worker_calls_an_object_through_a_sent_handle() -> Outcome {
    let (first, second) = members();
    let (_manager, object) = published(&first);
    let words = opened(&second);
    let push = |words: ClusterProxy| {
        assert_eq!(words.timeout(), Some(DEADLINE));
        words.call::<usize>("push", "from a worker".to_string())
    };
    assert_eq!(Process::spawn(push, words.clone())?.join()?, 1);
    assert_eq!(object.call(closure!([] |words: &mut Words| words.clone()))?, ["from a worker"]);
    Ok(())
}

/// Relays connections to `to`, breaks each connection after some bytes, and counts the breaks. Returns at a
/// connection for which nothing listens at `to`.
fn relay(listener: &TcpListener, to: &str, broken: &Arc<AtomicU64>) {
    for (client, limit) in
        listener.incoming().map_while(Result::ok).zip((10_000..30_000).step_by(777).cycle())
    {
        let Ok(server) = TcpStream::connect(to) else { return };
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let broken = broken.clone();
            thread::spawn(move || {
                let (mut buffer, mut sum) = ([0; 4096], 0);
                while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                    sum += bytes;
                    let part = if sum > limit { bytes / 2 } else { bytes };
                    if to.write_all(&buffer[..part]).is_err() || sum > limit {
                        broken.fetch_add((sum > limit).into(), Ordering::Relaxed);
                        break;
                    }
                }
                _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
    }
}

#[test]
fn broken_connections_repeat_no_object_call() -> Outcome {
    let (relaying, free) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    let (here, there) = (relaying.local_addr()?.to_string(), free.local_addr()?.to_string());
    drop(free);
    let grace = |config: ClusterConfig| config.grace(Duration::from_secs(20));
    let first = Cluster::join(&grace(config(0, "127.0.0.1:0")))?;
    let second = Cluster::join(&grace(config(1, first.address())).listen(&there).advertise(&here))?;
    let broken = Arc::new(AtomicU64::new(0));
    let relaying = {
        let broken = broken.clone();
        thread::spawn(move || relay(&relaying, &there, &broken))
    };
    let (_manager, object) = published(&second);
    let words = opened(&first);
    let mut calls = 0;
    let until = Instant::now() + DEADLINE;
    while broken.load(Ordering::Relaxed) < 5 {
        assert!(Instant::now() < until, "{calls} calls");
        calls += 1;
        assert_eq!(words.call::<usize>("push", format!("{calls}"))?, calls);
    }
    let all = object.call(closure!([] |words: &mut Words| words.clone()))?;
    assert!(all.into_iter().eq((1..=calls).map(|call| format!("{call}"))));
    drop((second, words, first));
    eventually("the relay ends", || {
        _ = TcpStream::connect(&here);
        relaying.is_finished()
    });
    Ok(())
}
