//! Served pools of other members that come and go.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mp_net::Cluster;

use crate::child::message::{LEAVE, WorkerRequest};
use crate::dispatcher::settings::MOST_PROCESSES;
use crate::dispatcher::shared::PoolShared;
use crate::error::PoolError;
use crate::forward::messages::{ForwardReply, ForwardRequest, ServedPoolService};
use crate::forward::places::prefix;

/// Time after which a served pool that did not answer is asked again.
const RETRY: Duration = Duration::from_secs(2);

/// Follows the served pools of a cluster, for the life of the pool.
///
/// # Errors
/// If a thread can't be started, or the system has no random bytes.
pub(crate) fn follow(shared: &Arc<PoolShared>, cluster: &Cluster) -> Result<(), PoolError> {
    let prefix = prefix(shared.settings.name.as_deref());
    let (to, from) = channel();
    let own = format!("{prefix}{}", cluster.rank());
    let names = cluster.follow_names(&prefix, move |mut names| {
        names.retain(|(name, _)| *name != own);
        // Fails only at the end of the pool.
        _ = to.send(names);
    })?;
    shared.places.begin(mp_net::service::random_id()?, MOST_PROCESSES, names);
    let (weak, cluster) = (Arc::downgrade(shared), cluster.clone());
    let follower = move || update_all(&weak, &cluster, &from);
    let thread = std::thread::Builder::new().name("mp-pool-hosts".into()).spawn(follower);
    thread.map_err(|error| mp_spawn::launch_error("the thread for other hosts", None, error))?;
    Ok(())
}

/// Names of served pools, and the numbers of their homes.
type ServedNames = Vec<(String, u64)>;

/// Handles changes of the names until the pool ends.
fn update_all(shared: &Weak<PoolShared>, cluster: &Cluster, changes: &Receiver<ServedNames>) {
    let (mut names, mut refused, mut is_complete) = (Vec::new(), HashSet::new(), true);
    loop {
        names = match changes.recv_timeout(if is_complete { Duration::MAX } else { RETRY }) {
            Ok(changed) => changed,
            Err(RecvTimeoutError::Timeout) => names,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Only the last change counts.
        names = changes.try_iter().last().unwrap_or(names);
        let Some(shared) = shared.upgrade() else { return };
        is_complete = update(&shared, cluster, &names, &mut refused).unwrap_or_else(|error| {
            shared.log_hosts(&error.to_string());
            true
        });
    }
}

/// Adds new places, removes those that are gone, and starts or ends forwarders. Returns `false` if a served
/// pool could not be asked.
fn update(
    shared: &Arc<PoolShared>,
    cluster: &Cluster,
    names: &ServedNames,
    refused: &mut HashSet<(String, u64)>,
) -> Result<bool, PoolError> {
    let (mut added, mut is_complete) = (Vec::new(), true);
    refused.retain(|name| names.contains(name));
    for name in names {
        if refused.contains(name) || shared.places.has(name) {
            continue;
        }
        let kind = &shared.settings.kind;
        let request = ForwardRequest::Size { kind: kind.clone() };
        let found = ServedPoolService::connect(cluster, &name.0)
            .and_then(|service| Ok((service.call(request).map_err(|e| e.error)?, service)));
        match found {
            Ok((ForwardReply::Size(workers), service)) => added.push((name.clone(), workers, service)),
            Ok((ForwardReply::OtherKind(theirs), service)) => {
                refused.insert(name.clone());
                let (pool, place) = (shared.settings.pool_name(), service.place());
                let text = |kind: &str| if kind.is_empty() { "no state".into() } else { kind.to_owned() };
                mp_core::waits::publish_report(&format!(
                    "mp: {pool}: the pool of {place} is not used: its workers have {}, and here they have \
                     {}\n",
                    text(&theirs),
                    text(kind)
                ));
            }
            Ok((_, service)) => {
                refused.insert(name.clone());
                shared.log_hosts(&format!("{} gave a wrong answer", service.place()));
            }
            // It may be gone, or answer later.
            Err(error) => {
                is_complete = false;
                shared.log_hosts(&error.to_string());
            }
        }
    }
    shared.set_workers(shared.places.update(names, added))?;
    shared.move_workers();
    Ok(is_complete)
}

impl PoolShared {
    /// Asks processes of places that have too many to end. Others are started in their slots.
    pub(crate) fn move_workers(&self) {
        let mut state = self.state.lock();
        let wanted = state.wanted;
        let mut counts: Vec<(Option<u64>, usize)> = Vec::new();
        for worker in state.workers.iter_mut().take(wanted).filter(|worker| worker.process.is_some()) {
            let place = worker.place;
            let at = counts.iter().position(|(other, _)| *other == place).unwrap_or(counts.len());
            if at == counts.len() {
                counts.push((place, 0));
            }
            counts[at].1 += 1;
            if counts[at].1 > self.places.target(place)
                && worker.ready
                && let Ok(packed) = self.packed(WorkerRequest::Forget { code: LEAVE })
            {
                worker.ask_to_leave(packed);
            }
        }
    }

    fn log_hosts(&self, why: &str) {
        #[cfg(feature = "log")]
        mp_core::user_code::catch_panic(
            || log::warn!(target: "mp::pool", "{}: {why}", self.settings.pool_name()),
        );
        #[cfg(not(feature = "log"))]
        let _ = why;
    }
}
