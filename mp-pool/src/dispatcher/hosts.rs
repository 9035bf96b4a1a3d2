//! Served pools of other members that come and go.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};

use mp_net::Cluster;

use crate::child::message::{LEAVE, WorkerRequest};
use crate::dispatcher::settings::MOST_PROCESSES;
use crate::dispatcher::shared::PoolShared;
use crate::error::PoolError;
use crate::forward::messages::{ForwardReply, ForwardRequest, ServedPoolService};
use crate::forward::places::prefix;

/// Follows the served pools of a cluster, for the life of the pool.
///
/// # Errors
/// If a thread can't be started, or the system has no random bytes.
pub(crate) fn follow(shared: &Arc<PoolShared>, cluster: &Cluster) -> Result<(), PoolError> {
    let prefix = prefix(shared.settings.name.as_deref());
    let (to, from) = channel();
    let own = format!("{prefix}{}", cluster.rank());
    let names = cluster.follow_names(&prefix, move |mut names| {
        names.retain(|name| *name != own);
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

/// Handles changes of the names until the pool ends.
fn update_all(shared: &Weak<PoolShared>, cluster: &Cluster, changes: &Receiver<Vec<String>>) {
    while let Ok(mut names) = changes.recv() {
        // Only the last change counts.
        names = changes.try_iter().last().unwrap_or(names);
        let Some(shared) = shared.upgrade() else { return };
        if let Err(error) = update(&shared, cluster, &names) {
            shared.log_hosts(&error.to_string());
        }
    }
}

/// Adds new places, removes those that are gone, and starts or ends forwarders.
fn update(shared: &Arc<PoolShared>, cluster: &Cluster, names: &[String]) -> Result<(), PoolError> {
    let mut added = Vec::new();
    for name in names.iter().filter(|name| !shared.places.has(name)) {
        let kind = &shared.settings.kind;
        let request = ForwardRequest::Size { kind: kind.clone() };
        let found = ServedPoolService::connect(cluster, name)
            .and_then(|service| Ok((service.call(request).map_err(|e| e.error)?, service)));
        match found {
            Ok((ForwardReply::Size(workers), service)) => added.push((name.clone(), workers, service)),
            Ok((ForwardReply::OtherKind(theirs), service)) => {
                let (pool, place) = (shared.settings.pool_name(), service.place());
                let text = |kind: &str| if kind.is_empty() { "no state".into() } else { kind.to_owned() };
                mp_core::waits::publish_report(&format!(
                    "mp: {pool}: the pool of {place} is not used: its workers have {}, and here they have \
                     {}\n",
                    text(&theirs),
                    text(kind)
                ));
            }
            Ok(_) => shared.log_hosts(&format!("{name:?} gave a wrong answer")),
            // It may have gone again.
            Err(error) => shared.log_hosts(&error.to_string()),
        }
    }
    shared.set_workers(shared.places.update(names, added))?;
    shared.move_workers();
    Ok(())
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
