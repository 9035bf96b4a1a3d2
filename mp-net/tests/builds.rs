//! Members whose programs are different builds.

mod members;

use members::config;
use mp_harness::members::{Member, ready, wait_for_end};
use mp_harness::{OtherBuild, skip};
use mp_net::{Cluster, NetError, RemoteBroadcast, RemoteQueue, RemoteRecvError, RemoteWatch};
use mp_queue::{Queue, broadcast, watch};
use serde::{Deserialize, Serialize};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A type whose fields another build may have in another order.
#[derive(Serialize, Deserialize)]
struct Area {
    width: u32,
    height: u32,
}

#[test]
#[ignore = "the program of the members that other tests start"]
fn started_member() {
    let cluster = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
    let (areas, numbers) = (Queue::<Area>::bounded(4).unwrap(), Queue::<Vec<f32>>::bounded(4).unwrap());
    cluster.publish("areas", &areas).unwrap();
    cluster.publish("numbers", &numbers).unwrap();
    let (_newest, values) = watch::channel(Area { width: 1, height: 2 }).unwrap();
    cluster.publish("newest", &values).unwrap();
    let (_news, messages) = broadcast::channel::<Option<Area>>(4).unwrap();
    cluster.publish("news", &messages).unwrap();
    ready(cluster.address());
    wait_for_end();
}

fn is_other_build(error: Option<&NetError>) {
    let Some(error @ NetError::WrongType { .. }) = error else { panic!("unexpected: {error:?}") };
    let text = error.to_string();
    assert!(text.contains("different builds") && text.contains("#[message(name = \"…\")]"), "{text}");
}

#[test]
fn message_types_of_another_build_are_refused() -> Outcome {
    let Some(other) = OtherBuild::new() else {
        skip("the linker writes no build-id");
        return Ok(());
    };
    let (_home, address) = Member::start_program(other.path(), "home", "");
    let cluster = Cluster::join(&config(1, &address))?;
    is_other_build(RemoteQueue::<Area>::connect(&cluster, "areas").err().as_ref());
    let cause = |error: Option<RemoteRecvError>| match error {
        Some(RemoteRecvError::Failed(error)) => Some(error),
        _ => None,
    };
    is_other_build(cause(RemoteWatch::<Area>::connect(&cluster, "newest").err()).as_ref());
    is_other_build(cause(RemoteBroadcast::<Option<Area>>::connect(&cluster, "news").err()).as_ref());
    let error = RemoteQueue::<String>::connect(&cluster, "areas").unwrap_err().to_string();
    assert!(!error.contains("different builds"), "{error}");
    // Types of the standard library are the same in all builds.
    let numbers = RemoteQueue::<Vec<f32>>::connect(&cluster, "numbers")?;
    numbers.put(vec![1.5])?;
    assert_eq!(numbers.get()?, Some(vec![1.5]));
    Ok(())
}

#[test]
fn message_types_of_this_build_are_exchanged() -> Outcome {
    let (_home, address) = Member::start("home", "");
    let cluster = Cluster::join(&config(1, &address))?;
    let areas = RemoteQueue::<Area>::connect(&cluster, "areas")?;
    areas.put(Area { width: 3, height: 4 })?;
    let area = areas.get()?.expect("it is open");
    assert_eq!((area.width, area.height), (3, 4));
    assert_eq!(RemoteWatch::<Area>::connect(&cluster, "newest")?.borrow()?.height, 2);
    Ok(())
}
