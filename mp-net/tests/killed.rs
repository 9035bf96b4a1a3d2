//! Members that are killed or stopped, in processes with arenas of their own.

mod members;

use std::future::Future;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use members::{LEASE, config};
use mp_harness::members::{Member, argument, part, ready, wait_for_end};
use mp_harness::{eventually, signal, threads_are};
use mp_net::{Cluster, ClusterEvent, RemoteQueue};
use mp_queue::Queue;
use mp_tensor::Tensor;
use rustix::process::Signal;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

#[test]
#[ignore = "the program of the members that other tests start"]
fn started_member() {
    match part().unwrap().as_str() {
        "home" => {
            let cluster = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
            let queue = Queue::<Tensor<u8>>::bounded(1).unwrap();
            cluster.publish("tensors", &queue).unwrap();
            ready(cluster.address());
            wait_for_end();
        }
        part => {
            let cluster = Cluster::join(&config(1, &argument())).unwrap();
            let queue = RemoteQueue::<u32>::connect(&cluster, "numbers").unwrap();
            let lease = (part == "leaseholder").then(|| queue.get_lease().unwrap().unwrap());
            if part == "waiter" {
                let mut waiting = Box::pin(queue.get_async());
                // The first poll sends the call.
                assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                assert!(queue.is_empty().unwrap(), "the home has received the call");
                ready("waiting");
                wait_for_end();
                return drop(waiting);
            }
            ready(format_args!("{:?}", lease.as_deref()));
            wait_for_end();
        }
    }
}

#[test]
fn lease_of_a_killed_member_returns() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let events = first.events();
    let queue = Queue::<u32>::bounded(4)?;
    queue.put(7)?;
    first.publish("numbers", &queue)?;
    let (member, line) = Member::start("leaseholder", first.address());
    assert_eq!(line, "Some(7)");
    assert!(queue.try_get().unwrap_err().is_empty(), "the message is leased");
    drop(member);
    let again = queue.get_lease_timeout(Duration::from_secs(10))?.expect("it is open");
    assert_eq!((*again, again.deliveries()), (7, 2));
    again.ack();
    eventually("the loss is reported", || {
        events.try_iter().any(|event| matches!(event, ClusterEvent::Lost(member) if member.rank == 1))
    });
    Ok(())
}

#[test]
fn waiting_get_of_a_killed_member_takes_no_message() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let queue = Queue::<u32>::bounded(4)?;
    first.publish("numbers", &queue)?;
    let (member, _) = Member::start("waiter", first.address());
    drop(member);
    eventually("the member is lost", || first.members().len() == 1);
    queue.put(8)?;
    assert_eq!(queue.get_timeout(Duration::from_secs(10))?, Some(8));
    Ok(())
}

#[test]
fn message_sent_to_a_killed_member_returns_to_queue() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let queue = Queue::<u32>::bounded(4)?;
    first.publish("numbers", &queue)?;
    let (member, _) = Member::start("waiter", first.address());
    signal(member.id(), Signal::STOP);
    eventually("the member is stopped", || threads_are(member.id(), 'T'));
    queue.put(8)?;
    eventually("the message is taken", || queue.is_empty());
    drop(member);
    assert_eq!(queue.get_timeout(Duration::from_secs(10))?, Some(8));
    Ok(())
}

#[test]
fn put_returns_the_value_if_the_home_is_killed() -> Outcome {
    let (home, address) = Member::start("home", "");
    let cluster = Cluster::join(&config(1, &address))?;
    let remote = RemoteQueue::<Tensor<u8>>::connect(&cluster, "tensors")?;
    remote.put(Tensor::full([10], 1)?)?;
    let waiting = std::thread::spawn({
        let remote = remote.clone();
        move || remote.put(Tensor::full([3 << 20], 2).unwrap()).map_err(Box::new)
    });
    eventually("the tensor is sent", || mp_net::copied_bytes().0 >= 3 << 20);
    let since = Instant::now();
    drop(home);
    let error = waiting.join().unwrap().unwrap_err();
    let known = since.elapsed();
    let lost = error.peer_lost().expect("the home was killed").clone();
    assert!(lost.in_doubt && lost.rank == 0, "{lost}");
    assert!(known < LEASE, "known after {known:?}");
    let value = error.into_value();
    assert!(value.len() == 3 << 20 && value.iter().all(|byte| byte == 2));
    let error = remote.put(value).unwrap_err();
    assert!(error.peer_lost().is_some_and(|lost| !lost.in_doubt), "{error}");
    Ok(())
}

#[test]
fn stopped_home_is_lost_until_it_resumes() -> Outcome {
    let (home, address) = Member::start("home", "");
    let cluster = Cluster::join(&config(1, &address))?;
    let remote = RemoteQueue::<Tensor<u8>>::connect(&cluster, "tensors")?;
    assert_eq!(remote.len()?, 0);
    signal(home.id(), Signal::STOP);
    eventually("the home is stopped", || threads_are(home.id(), 'T'));
    let since = Instant::now();
    let error = remote.put(Tensor::full([10], 1)?).unwrap_err();
    let known = since.elapsed();
    assert!(error.peer_lost().is_some_and(|lost| lost.in_doubt), "{error}");
    assert!(known < LEASE + Duration::from_millis(500), "known after {known:?}");
    signal(home.id(), Signal::CONT);
    eventually("the home answers again", || remote.len().is_ok());
    assert!(remote.len()? <= 1, "the message was put once or not at all");
    Ok(())
}
