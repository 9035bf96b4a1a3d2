//! Calls of services.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mp_core::Arena;
use mp_harness::eventually;
use mp_net::service::{NetService, RemoteService, Replying, blocking};
use mp_net::{Cluster, ClusterConfig, NetError};
use mp_tensor::{FrozenTensor, Tensor};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

const DEADLINE: Duration = Duration::from_secs(10);

/// Number of services that the test publishes.
const SERVICES: usize = 3;

/// Service that answers after all services were called. Replies with the number of called services.
struct Meeting(Arc<(Mutex<usize>, Condvar)>);

impl NetService for Meeting {
    type Request = u32;
    type Reply = usize;

    fn serve(self: Arc<Self>, _: u32) -> Replying<usize> {
        Box::pin(async move {
            let meet = move || {
                let (called, changed) = &*self.0;
                let mut called = called.lock().unwrap();
                *called += 1;
                changed.notify_all();
                *changed.wait_timeout_while(called, DEADLINE, |called| *called < SERVICES).unwrap().0
            };
            blocking(meet).await.unwrap_or_default()
        })
    }
}

/// Service that replies with a tensor of zeros, and counts its calls.
struct Zeros(Arc<AtomicUsize>);

impl NetService for Zeros {
    type Request = usize;
    type Reply = FrozenTensor<u8>;

    fn serve(self: Arc<Self>, len: usize) -> Replying<FrozenTensor<u8>> {
        let zeros = Tensor::zeros([len]).unwrap().freeze();
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(zeros))
    }
}

/// Service that replies with the number of received bytes.
struct Lengths;

impl NetService for Lengths {
    type Request = Vec<u8>;
    type Reply = usize;

    fn serve(self: Arc<Self>, bytes: Vec<u8>) -> Replying<usize> {
        Box::pin(std::future::ready(bytes.len()))
    }
}

#[test]
fn too_large_service_reply_is_no_refused_request() -> Outcome {
    let config = |rank, first: &str| ClusterConfig::new(rank, 2, first).largest_message(50_000);
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let second = Cluster::join(&config(1, first.address()))?;
    first.publish_service("zeros", Arc::new(Zeros(Arc::default())))?;
    first.publish_service("lengths", Arc::new(Lengths))?;
    let zeros = RemoteService::<usize, FrozenTensor<u8>>::connect(&second, "zeros")?;
    let unserved = zeros.call(100_000).unwrap_err();
    assert!(unserved.is_served && unserved.request.is_none(), "{unserved:?}");
    let errors = [unserved.error, zeros.call_within(100_000, Some(DEADLINE)).unwrap_err()];
    assert!(errors.iter().all(|error| error.to_string().contains("its reply has")), "{errors:?}");
    let lengths = RemoteService::<Vec<u8>, usize>::connect(&second, "lengths")?;
    let unserved = lengths.call(vec![0; 100_000]).unwrap_err();
    assert!(!unserved.is_served && unserved.request.is_some_and(|request| request.len() == 100_000));
    assert!(matches!(unserved.error, NetError::TooLarge { limit: 50_000, .. }), "{}", unserved.error);
    assert_eq!(lengths.call(vec![0; 10]).unwrap(), 10);
    Ok(())
}

/// A home stores replies until they are received, and limits their number.
#[test]
fn home_of_a_service_forgets_the_reply_to_a_post() -> Outcome {
    let config = |rank, first: &str| ClusterConfig::new(rank, 2, first);
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let second = Cluster::join(&config(1, first.address()))?;
    let called = Arc::<AtomicUsize>::default();
    first.publish_service("zeros", Arc::new(Zeros(Arc::clone(&called))))?;
    let service = RemoteService::<usize, FrozenTensor<u8>>::connect(&second, "zeros")?;
    let blocks = || Arena::current().unwrap().memory_stats().live_blocks;
    let before = blocks();
    (0..10).try_for_each(|_| service.post(100_000))?;
    eventually("all calls are served", || called.load(Ordering::Relaxed) == 10);
    eventually("the replies are freed", || blocks() == before);
    Ok(())
}

#[test]
fn cluster_services_are_called_at_the_same_time() -> Outcome {
    let config = |rank, first: &str| ClusterConfig::new(rank, 2, first);
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let second = Cluster::join(&config(1, first.address()))?;
    let called = Arc::default();
    let mut calls = Vec::new();
    for number in 0..SERVICES {
        let name = format!("service {number}");
        first.publish_service(&name, Arc::new(Meeting(Arc::clone(&called))))?;
        calls.push((RemoteService::<u32, usize>::connect(&second, &name)?, 0));
    }
    let replies = RemoteService::call_all(calls, DEADLINE / 2);
    for reply in replies {
        assert_eq!(reply?, Some(SERVICES));
    }
    Ok(())
}
