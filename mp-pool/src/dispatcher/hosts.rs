//! Served pools of other members that come and go.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mp_core::sync::Ordering;
use mp_net::{Cluster, NetError};

use crate::child::message::{LEAVE, WorkerRequest};
use crate::dispatcher::settings::MOST_PROCESSES;
use crate::dispatcher::shared::PoolShared;
use crate::error::PoolError;
use crate::forward::messages::{ForwardReply, ForwardRequest, ServedPoolService};
use crate::forward::places::prefix;

/// Time between two questions for the numbers of workers of the served pools.
const SIZE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum wait for the sizes of served pools.
const SIZE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum wait for the size of a served pool that is not used yet.
const FIRST_SIZE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a served pool that did not answer is asked again.
const RETRY: Duration = Duration::from_secs(2);

/// Follows the served pools of a cluster, for the life of the pool.
///
/// # Errors
/// If a thread can't be started, or the system has no random bytes.
pub(crate) fn follow(shared: &Arc<PoolShared>, cluster: &Cluster) -> Result<(), PoolError> {
    let prefix = prefix(shared.settings.name.as_deref());
    let (to, from) = channel();
    let (own, first) = (cluster.rank(), prefix.clone());
    let names = cluster.follow_names(&prefix, move |mut names| {
        let rank = |name: &str| name.strip_prefix(&first)?.parse::<usize>().ok();
        names.retain(|(name, _)| rank(name).is_some_and(|rank| rank != own));
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

/// Names of served pools, and the numbers of their publications.
type Publications = Vec<(String, u64)>;

/// Handles changes of the publications, and of the sizes of the served pools, until the pool ends.
fn update_all(shared: &Weak<PoolShared>, cluster: &Cluster, changes: &Receiver<Publications>) {
    let (mut publications, mut refused) = (Vec::new(), HashSet::new());
    let (mut updated, mut is_complete) = (Instant::now(), true);
    loop {
        let has_places = shared.upgrade().is_some_and(|shared| !shared.places.services().is_empty());
        let wait = match (has_places, is_complete) {
            (true, _) => SIZE_INTERVAL,
            (false, false) => RETRY,
            (false, true) => Duration::MAX,
        };
        match changes.recv_timeout(wait) {
            // Only the last change counts.
            Ok(changed) => publications = changes.try_iter().last().unwrap_or(changed),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) if is_complete || updated.elapsed() < RETRY => {
                is_complete &= update_sizes(shared);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        is_complete = update(shared, cluster, &publications, &mut refused);
        updated = Instant::now();
    }
}

/// Asks served pools for their numbers of workers. Returns their replies.
fn ask_sizes(
    services: Vec<ServedPoolService>,
    kind: &str,
    timeout: Duration,
) -> Vec<Result<Option<ForwardReply>, NetError>> {
    let request = || ForwardRequest::Size { kind: kind.to_owned() };
    ServedPoolService::call_all(services.into_iter().map(|service| (service, request())), timeout)
}

/// Asks the served pools for their numbers of workers, and starts or ends forwarders. Returns `false` if this
/// has to be tried again.
fn update_sizes(shared: &Weak<PoolShared>) -> bool {
    let asked = shared.upgrade().map(|shared| (shared.places.services(), shared.settings.kind.clone()));
    // Without a handle of the pool, which may end meanwhile.
    let Some((services, kind)) = asked else { return true };
    let (publications, services): (Vec<u64>, Vec<_>) = services.into_iter().unzip();
    let size = |(publication, reply)| match reply {
        Ok(Some(ForwardReply::Size(workers))) => Some((publication, workers)),
        // It is still published.
        Ok(Some(ForwardReply::Ended)) => Some((publication, 0)),
        // A member that is lost will be reported.
        _ => None,
    };
    let replies = ask_sizes(services, &kind, SIZE_TIMEOUT);
    let sizes: Vec<(u64, usize)> = publications.into_iter().zip(replies).filter_map(size).collect();
    let Some(shared) = shared.upgrade() else { return true };
    let resizing = shared.places.resizing();
    if !shared.places.set_sizes(&sizes) {
        return true;
    }
    let is_complete = shared.set_all_workers(shared.places.all_workers());
    drop(resizing);
    shared.feed();
    is_complete || !shared.state.lock().is_open()
}

/// Adds new places, removes those that are gone, and starts or ends forwarders. Returns `false` if this has
/// to be tried again.
fn update(
    shared: &Weak<PoolShared>,
    cluster: &Cluster,
    publications: &Publications,
    refused: &mut HashSet<u64>,
) -> bool {
    let (mut added, mut unused, mut is_complete) = (Vec::new(), Vec::new(), true);
    refused.retain(|number| publications.iter().any(|(_, other)| other == number));
    let found = shared.upgrade().map(|shared| {
        let is_new = |(_, number): &&_| !refused.contains(number) && !shared.places.has(*number);
        let found: Vec<&(String, u64)> = publications.iter().filter(is_new).collect();
        (found, shared.settings.kind.clone())
    });
    // Without a handle of the pool, which may end meanwhile.
    let Some((found, kind)) = found else { return true };
    let (mut numbers, mut services) = (Vec::new(), Vec::new());
    for (name, number) in found {
        match ServedPoolService::connect_now(cluster, name) {
            Ok(service) => {
                numbers.push(*number);
                services.push(service);
            }
            Err(error @ NetError::WrongType { .. }) => {
                let why = format!("a served pool is not used, because its program is another build: {error}");
                unused.push((*number, why));
            }
            // The member may be gone, or answer later.
            Err(_) => is_complete = false,
        }
    }
    let replies = ask_sizes(services.clone(), &kind, FIRST_SIZE_TIMEOUT);
    for ((number, service), reply) in numbers.into_iter().zip(services).zip(replies) {
        let place = service.place();
        let why = match reply {
            Ok(Some(ForwardReply::Size(workers))) => {
                added.push((number, workers, service));
                continue;
            }
            Ok(Some(ForwardReply::OtherKind(theirs))) => {
                let text = |kind: &str| if kind.is_empty() { "no state".into() } else { kind.to_owned() };
                let (theirs, ours) = (text(&theirs), text(&kind));
                format!(
                    "the pool of {place} is not used: its workers have {theirs}, and here they have {ours}"
                )
            }
            Ok(Some(ForwardReply::Ended)) => format!("the pool of {place} has ended"),
            Ok(Some(_)) => format!("{place} gave a wrong answer"),
            // It is asked again.
            Ok(None) | Err(_) => {
                is_complete = false;
                continue;
            }
        };
        unused.push((number, why));
    }
    let Some(shared) = shared.upgrade() else { return true };
    for (number, why) in unused {
        refused.insert(number);
        mp_core::waits::publish_report(&format!("mp: {}: {why}\n", shared.settings.pool_name()));
    }
    let resizing = shared.places.resizing();
    let all = shared.places.update(publications, added);
    is_complete &= shared.set_all_workers(all);
    drop(resizing);
    // Calls user code.
    shared.feed();
    is_complete || !shared.state.lock().is_open()
}

impl PoolShared {
    /// Sets the number of workers of all hosts. Returns `false` if that failed.
    fn set_all_workers(&self, all: usize) -> bool {
        match self.set_workers(all) {
            Ok(()) => _ = self.move_workers(),
            // A closed pool still replaces workers, but gets no more of them.
            Err(PoolError::Closed { .. }) => self.lower_workers(all),
            Err(_) => return false,
        }
        true
    }

    /// Asks processes of places that have too many to end. Others are started in their slots. Returns `false`
    /// if one could not be asked.
    pub(crate) fn move_workers(&self) -> bool {
        let mut state = self.state.lock();
        let wanted = state.wanted;
        let (mut counts, mut is_complete): (Vec<(Option<u64>, usize)>, bool) = (Vec::new(), true);
        let workers = state.workers.iter_mut().take(wanted);
        for worker in workers.filter(|worker| worker.process.is_some() && worker.is_staying()) {
            let place = worker.place;
            let at = counts.iter().position(|(other, _)| *other == place).unwrap_or(counts.len());
            if at == counts.len() {
                counts.push((place, 0));
            }
            counts[at].1 += 1;
            if counts[at].1 > self.places.target(place) {
                let leave = || self.packed(WorkerRequest::Forget { code: LEAVE }).ok();
                is_complete &= worker.ready && leave().is_some_and(|packed| worker.ask_to_leave(packed));
            }
        }
        is_complete
    }

    /// Lowers the number of workers of a closed pool.
    fn lower_workers(&self, workers: usize) {
        let Ok(messages) = mp_core::Arena::current().map(|arena| arena.most_messages()) else { return };
        let mut state = self.state.lock();
        if workers < state.wanted && state.is_serving() {
            state.resize(workers, messages, Instant::now());
            self.wanted.store(workers, Ordering::Relaxed);
        }
        drop(state);
        self.dismiss_surplus();
        self.wake_thread();
    }
}
