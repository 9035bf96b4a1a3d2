//! Objects that methods return to other members of a cluster. Callers that tests kill are separate processes,
//! like programs on other hosts.
#![cfg(feature = "net")]

mod common;

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{DEADLINE, Gate, Noisy, manager, signal, take};
use mp_manager::{CallError, ClusterProxy, Manager, Methods, Proxy};
use mp_net::{Cluster, ClusterConfig};
use mp_queue::Queue;
use mp_spawn::{Process, closure};
use rustix::process::Signal;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

const LEASE: Duration = Duration::from_secs(1);
/// Variable of a started caller: the address of rank 0.
const FIRST: &str = "MP_MANAGER_TEST_FIRST";

fn config(rank: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, 2, first).lease(LEASE).timeout(Duration::from_secs(20))
}

/// Manager of rank 0 with an object that is published as "noisy".
struct Published {
    cluster: Cluster,
    manager: Manager,
    object: Proxy<Noisy>,
    /// Queue in which dropped objects report their drop.
    dropped: Queue<u32>,
    gate: Gate,
}

impl Published {
    fn new() -> Self {
        let cluster = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
        let manager = manager();
        let (object, dropped) = common::noisy(&manager);
        let (gate, itself) = (Gate::new(), object.clone());
        let slow = gate.clone();
        let methods = Methods::<Noisy>::of("Noisy")
            .method("value", closure!([] |noisy: &mut Noisy| noisy.value))
            .method("add", closure!([] |noisy: &mut Noisy, n: u64| { noisy.value += n; noisy.value }))
            .method_to_object(
                "child",
                "Noisy",
                closure!([] |noisy: &mut Noisy| {
                    Noisy { value: noisy.value + 1, dropped: noisy.dropped.clone() }
                }),
            )
            .method_to_object(
                "slow child",
                "Noisy",
                closure!([slow] |noisy: &mut Noisy| {
                    slow.pass();
                    Noisy { value: noisy.value + 1, dropped: noisy.dropped.clone() }
                }),
            )
            .method_to_proxy("itself", "Noisy", closure!([itself] |_noisy: &mut Noisy| itself.clone()))
            .method_to_object("words", "Words", closure!([] |_noisy: &mut Noisy| vec!["a".to_string()]));
        manager.register(methods).unwrap();
        manager.publish_in(&cluster, "noisy", &object).unwrap();
        Self { cluster, manager, object, dropped, gate }
    }

    fn open(&self) -> (Cluster, ClusterProxy) {
        let second = Cluster::join(&config(1, self.cluster.address())).unwrap();
        let proxy = ClusterProxy::connect(&second, "noisy").unwrap().with_timeout(DEADLINE);
        (second, proxy)
    }

    /// Waits until an object is dropped in the server.
    #[track_caller]
    fn one_is_dropped(&self) {
        assert_eq!(take(&self.dropped), self.manager.server_pid());
    }

    fn none_is_dropped(&self) -> bool {
        self.dropped.is_empty()
    }
}

fn value(object: &ClusterProxy) -> u64 {
    object.call("value", ()).unwrap()
}

#[test]
fn methods_return_objects_to_callers_on_other_hosts() -> Outcome {
    let published = Published::new();
    let (_second, parent) = published.open();
    let child = parent.call_to_object("child", ())?;
    let grandchild = child.call_to_object("child", ())?;
    assert_eq!((child.type_name(), child.timeout(), child.rank()), ("Noisy", Some(DEADLINE), 0));
    assert_eq!((value(&child), value(&grandchild)), (1, 2));
    assert_eq!(grandchild.call::<u64>("add", 10_u64)?, 12);
    let again = parent.call_to_object("itself", ())?;
    assert!(again.is_same_object(&parent) && child.is_same_object(&child.clone()));
    assert!(!child.is_same_object(&parent) && !child.is_same_object(&grandchild));
    drop(again);
    drop(child);
    published.one_is_dropped();
    assert_eq!(value(&grandchild), 12);
    assert!(published.none_is_dropped());

    let error = parent.call_to_object("value", ()).unwrap_err();
    assert!(matches!(&error, CallError::Value { why, .. } if why.contains("`call`")), "{error}");
    let error = parent.call::<u64>("child", ()).unwrap_err();
    assert!(matches!(&error, CallError::Value { why, .. } if why.contains("call_to_object")), "{error}");
    assert!(matches!(parent.call_to_object("words", ()), Err(CallError::NoSuchType { .. })));
    assert!(matches!(parent.call_to_object("shout", ()), Err(CallError::NoSuchMethod { .. })));
    published.manager.register(
        Methods::<Vec<String>>::of("Words")
            .method("first", closure!([] |words: &mut Vec<String>| words[0].clone())),
    )?;
    assert_eq!(parent.call_to_object("words", ())?.call::<String>("first", ())?, "a");
    Ok(())
}

#[test]
fn call_of_a_freed_object_returns_an_error() -> Outcome {
    let published = Published::new();
    let (_second, parent) = published.open();
    let child = parent.call_to_object("child", ())?;
    let other = child.clone();
    child.free()?;
    published.one_is_dropped();
    let error = other.call::<u64>("value", ()).unwrap_err();
    assert!(matches!(&error, CallError::Freed { .. }), "{error}");
    other.free()?;
    assert_eq!(value(&parent), 0);
    parent.free()?;
    published.one_is_dropped();
    let value = closure!([] |noisy: &mut Noisy| noisy.value);
    assert!(matches!(published.object.call(value), Err(CallError::Freed { .. })));
    Ok(())
}

#[test]
fn object_returned_after_a_timeout_is_freed() -> Outcome {
    let published = Published::new();
    let (_second, parent) = published.open();
    let hasty = parent.with_timeout(Duration::from_secs(2));
    let call = thread::spawn(move || hasty.call_to_object("slow child", ()).unwrap_err());
    published.gate.arrived();
    let error = call.join().unwrap();
    assert!(matches!(&error, CallError::TimedOut { .. }), "{error}");
    assert!(published.none_is_dropped());
    published.gate.open(1);
    published.one_is_dropped();
    Ok(())
}

#[test]
fn withdrawn_name_frees_returned_objects() -> Outcome {
    let published = Published::new();
    let (_second, parent) = published.open();
    let child = parent.call_to_object("child", ())?;
    published.cluster.withdraw("noisy")?;
    published.one_is_dropped();
    assert!(matches!(child.call::<u64>("value", ()), Err(CallError::Cluster { .. })));
    Ok(())
}

#[test]
#[ignore = "the program of the caller that another test starts"]
fn started_caller() {
    let cluster = Cluster::join(&config(1, &std::env::var(FIRST).unwrap())).unwrap();
    let parent = ClusterProxy::connect(&cluster, "noisy").unwrap();
    let children = [(); 3].map(|()| parent.call_to_object("child", ()).unwrap());
    println!("\nit has {}", children.iter().map(value).sum::<u64>());
    _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn objects_of_a_killed_caller_are_freed() -> Outcome {
    let published = Published::new();
    let mut caller: Child = Command::new(std::env::current_exe()?)
        .args(["--exact", "started_caller", "--ignored", "--nocapture"])
        .env(FIRST, published.cluster.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(caller.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "it has 3"));
    assert!(published.none_is_dropped());
    signal(caller.id(), Signal::KILL);
    caller.wait()?;
    (0..3).for_each(|_| published.one_is_dropped());
    assert!(published.none_is_dropped());
    let value = closure!([] |noisy: &mut Noisy| noisy.value);
    assert_eq!(published.object.call(value)?, 0, "the published object remains");
    Ok(())
}

#[test]
fn worker_requests_its_own_handle_of_an_object() -> Outcome {
    let published = Published::new();
    let (_second, parent) = published.open();
    let child = parent.call_to_object("child", ())?;
    let (found, go) = (Queue::<u64>::unbounded()?, Queue::<u64>::unbounded()?);
    let work = |(child, found, go): (ClusterProxy, Queue<u64>, Queue<u64>)| {
        found.put(value(&child)).unwrap();
        go.get_timeout(DEADLINE).unwrap();
        found.put(value(&child)).unwrap();
        thread::park_timeout(DEADLINE);
        drop(child);
    };
    let worker = Process::spawn(work, (child.clone(), found.clone(), go.clone()))?;
    assert_eq!(take(&found), 1);
    drop(child);
    // The home serves this call after it has released the dropped handle.
    assert_eq!(value(&parent), 0);
    go.put(0)?;
    assert_eq!(take(&found), 1);
    assert!(published.none_is_dropped());
    worker.kill()?;
    published.one_is_dropped();
    // The next handle arrives after its object was freed.
    let child = parent.call_to_object("child", ())?;
    let late = |(child, go): (ClusterProxy, Queue<u64>)| {
        go.get_timeout(DEADLINE).unwrap();
        matches!(child.call::<u64>("value", ()), Err(CallError::Freed { .. }))
    };
    let worker = Process::spawn(late, (child.clone(), go.clone()))?;
    drop(child);
    published.one_is_dropped();
    go.put(0)?;
    assert!(worker.join()?);
    Ok(())
}

/// Number of times that a captured value was encoded or decoded in this process.
static ENCODED: AtomicU64 = AtomicU64::new(0);
static DECODED: AtomicU64 = AtomicU64::new(0);

/// Captured value that counts how often it is encoded and decoded.
#[derive(Clone)]
struct Counted(u64);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ENCODED.fetch_add(1, Ordering::Relaxed);
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DECODED.fetch_add(1, Ordering::Relaxed);
        u64::deserialize(deserializer).map(Counted)
    }
}

#[test]
fn closure_captures_are_encoded_only_to_register() -> Outcome {
    let cluster = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let manager = manager();
    let by = Counted(5);
    let add = closure!([by] |sum: &mut u64| { *sum += by.0; *sum });
    manager.register(Methods::<u64>::of("Sum").method("add", add))?;
    let encoded = ENCODED.load(Ordering::Relaxed);
    assert!(encoded > 0);
    manager.publish_in(&cluster, "sum", &manager.create(|| 1_u64)?)?;
    let sum = ClusterProxy::connect(&cluster, "sum")?.with_timeout(DEADLINE);
    assert_eq!([sum.call::<u64>("add", ())?, sum.call("add", ())?], [6, 11]);
    assert_eq!((ENCODED.load(Ordering::Relaxed), DECODED.load(Ordering::Relaxed)), (encoded, 0));
    Ok(())
}
