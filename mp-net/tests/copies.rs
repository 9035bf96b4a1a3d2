//! Number of copies of a tensor between hosts. The test counts bytes of its process, so it is alone in this
//! file.

use mp_net::{Cluster, ClusterConfig, RemoteQueue};
use mp_queue::Queue;
use mp_tensor::Tensor;

#[test]
fn tensor_is_copied_once_on_each_side() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    const BYTES: u64 = 5 << 20;
    let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
    let queue = Queue::<Tensor<u8>>::bounded(4)?;
    cluster.publish("tensors", &queue)?;
    let remote = RemoteQueue::<Tensor<u8>>::connect(&cluster, "tensors")?;
    remote.put(Tensor::full([BYTES as usize], 3)?)?;
    assert_eq!(mp_net::copied_bytes(), (BYTES, BYTES), "bytes copied from the arena, and into it");
    let tensor = remote.get()?.expect("the queue is open");
    assert_eq!(mp_net::copied_bytes(), (2 * BYTES, 2 * BYTES));
    assert!(tensor.iter().all(|byte| byte == 3));
    Ok(())
}
