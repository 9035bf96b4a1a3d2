//! Relays while there is too little memory. The test limits the memory of its process, so it is alone in this
//! file.

use std::sync::atomic::{AtomicU64, Ordering};

use mp_core::{Arena, ArenaOptions};
use mp_harness::{DEADLINE, eventually};
use mp_net::{Cluster, ClusterConfig, RemoteBroadcast, RemoteRecvError, RemoteWatch};
use mp_queue::{broadcast, watch};
use mp_tensor::{FrozenTensor, Tensor};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;
type Value = Option<FrozenTensor<u8>>;

const BYTES: usize = 8 << 20;

/// Number of warnings that relays have logged.
static WARNINGS: AtomicU64 = AtomicU64::new(0);

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().contains("are missed") {
            WARNINGS.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// Allocates all memory except less than 1 MiB.
fn fill() -> Vec<Tensor<u8>> {
    let all = |bytes| std::iter::from_fn(move || Tensor::zeros([bytes]).ok());
    all(BYTES).chain(all(1 << 20)).collect()
}

#[test]
fn relays_of_channels_survive_exhausted_memory() -> Outcome {
    Arena::configure(ArenaOptions::new().size(64 << 20))?;
    log::set_logger(&Logger)?;
    log::set_max_level(log::LevelFilter::Warn);
    let config = |rank, first: &str| ClusterConfig::new(rank, 2, first);
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let second = Cluster::join(&config(1, first.address()))?;
    let (values, newest) = watch::channel(Value::None)?;
    let (news, messages) = broadcast::channel::<Value>(4)?;
    first.publish("newest", &newest)?;
    first.publish("news", &messages)?;
    let newest = RemoteWatch::<Value>::connect(&second, "newest")?;
    let messages = RemoteBroadcast::<Value>::connect(&second, "news")?;

    let value = Tensor::<u8>::full([BYTES], 7)?.freeze();
    let filled = fill();
    news.send(Some(value.clone()))?;
    news.send(None)?;
    let missed = messages.recv_timeout(DEADLINE).map(|value| value.is_some());
    assert!(matches!(missed, Err(RemoteRecvError::Lagged(1))), "{missed:?}");
    assert!(messages.recv_timeout(DEADLINE)?.is_none());
    let before = WARNINGS.load(Ordering::Relaxed);
    assert_eq!(before, 1);
    values.send(Some(value.clone()))?;
    eventually("the value is missed", || WARNINGS.load(Ordering::Relaxed) > before);
    drop(filled);
    newest.wait_changed_timeout(DEADLINE)?;
    assert!(newest.borrow()?.iter().any(|value| value[[BYTES - 1]] == 7));
    news.send(Some(value))?;
    assert!(messages.recv_timeout(DEADLINE)?.is_some_and(|value| value[[0]] == 7));
    Ok(())
}
