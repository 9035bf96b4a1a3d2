//! Roles `objects` and `wait`: objects of each kind, and a process that waits for all of them.

use std::error::Error;

use mp_manager::{CallError, ClusterProxy, Manager, Methods};
use mp_net::{
    NetError, RemoteAcquireError, RemoteBarrier, RemoteBarrierError, RemoteBroadcast, RemoteEvent,
    RemoteGetError, RemoteQueue, RemoteRecvError, RemoteSemaphore, RemoteWatch,
};
use mp_queue::{Queue, broadcast, watch};
use mp_spawn::closure;
use mp_sync::{Barrier, Event, Semaphore};

use crate::options::Options;
use crate::{RoleResult, join, say, wait_for_end_of_input};

/// Publishes objects whose waits never succeed. Returns when the input ends.
pub(crate) fn serve(options: &Options) -> RoleResult {
    let cluster = join(options)?;
    let (event, permits, step) = (Event::new()?, Semaphore::new(0)?, Barrier::new(100)?);
    cluster.publish("event", &event)?;
    cluster.publish("permits", &permits)?;
    cluster.publish("step", &step)?;
    let ((_newest, values), (_news, messages)) = (watch::channel(7_u32)?, broadcast::channel::<u32>(4)?);
    cluster.publish("newest", &values)?;
    cluster.publish("news", &messages)?;
    let queue = Queue::<u32>::bounded(1)?;
    cluster.publish("queue", &queue)?;
    let manager = Manager::start()?;
    let wait = closure!([] |number: &mut u32| {
        // sleep: a call that only a fault ends.
        std::thread::sleep(std::time::Duration::from_secs(600));
        *number
    });
    manager.register(Methods::<u32>::of("Number").method("wait", wait))?;
    manager.publish_in(&cluster, "number", &manager.create(|| 0_u32)?)?;
    say!("ready");
    wait_for_end_of_input()
}

/// Outcome of a wait: `true` if it has failed because the home was lost.
type WaitOutcome = Result<bool, Box<dyn Error + Send + Sync>>;

/// Reports whether an error is the loss of the home.
macro_rules! is_lost {
    ($result:expr, $error:ident) => {
        match $result {
            Err($error::PeerLost(_)) => Ok(true),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(false),
        }
    };
}

/// Waits for each object in a thread, and reports the ends of the waits.
pub(crate) fn run(options: &Options) -> RoleResult {
    let cluster = join(options)?;
    let event = RemoteEvent::connect(&cluster, "event")?;
    let permits = RemoteSemaphore::connect(&cluster, "permits")?;
    let step = RemoteBarrier::connect(&cluster, "step")?;
    let newest = RemoteWatch::<u32>::connect(&cluster, "newest")?;
    let news = RemoteBroadcast::<u32>::connect(&cluster, "news")?;
    let queue = RemoteQueue::<u32>::connect(&cluster, "queue")?;
    let number = ClusterProxy::connect(&cluster, "number")?;
    let waits: [(&str, &(dyn Fn() -> WaitOutcome + Sync)); 7] = [
        ("event", &|| is_lost!(event.wait(), NetError)),
        ("semaphore", &|| is_lost!(permits.acquire(), RemoteAcquireError)),
        ("barrier", &|| is_lost!(step.wait(), RemoteBarrierError)),
        ("watch", &|| is_lost!(newest.wait_changed(), RemoteRecvError)),
        ("broadcast", &|| is_lost!(news.recv(), RemoteRecvError)),
        ("queue", &|| is_lost!(queue.get(), RemoteGetError)),
        ("manager", &|| is_lost!(number.call::<u32>("wait", ()), CallError)),
    ];
    std::thread::scope(|scope| {
        for (name, wait) in waits {
            scope.spawn(move || match wait() {
                Ok(true) => say!("lost {name}"),
                Ok(false) => say!("failed {name}: the wait has ended"),
                Err(error) => say!("failed {name}: {error}"),
            });
        }
        say!("ready");
    });
    Ok(())
}
