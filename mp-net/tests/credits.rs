//! Bytes of unanswered puts. The test counts bytes of its process, so it is alone in this file.

use mp_harness::eventually;
use mp_net::{Cluster, ClusterConfig, RemoteQueue};
use mp_queue::Queue;
use mp_tensor::Tensor;

#[test]
fn unanswered_puts_stay_within_the_credits() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let config = |rank, first: &str| ClusterConfig::new(rank, 2, first).credits(100, 1 << 20);
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let second = Cluster::join(&config(1, first.address()))?;
    let queue = Queue::<Tensor<u8>>::bounded(1)?;
    first.publish("tensors", &queue)?;
    let remote = RemoteQueue::<Tensor<u8>>::connect(&second, "tensors")?;
    let putting = std::thread::spawn({
        let remote = remote.clone();
        move || {
            remote.put_many((0..5).map(|i| Tensor::full([1 << 20], i).unwrap())).map_err(|e| e.error.forget())
        }
    });
    eventually("the queue is full", || queue.len() == 1);
    // After this reply, the home has received everything that was sent before.
    assert_eq!(remote.len()?, 1);
    let sent = mp_net::copied_bytes().0;
    assert!(sent < 3 << 20, "{sent} bytes are sent: one tensor is put, and one waits for room");
    for i in 0..5 {
        assert!(queue.get()?.unwrap().iter().all(|byte| byte == i));
    }
    assert_eq!(putting.join().unwrap()?, 5);
    Ok(())
}
