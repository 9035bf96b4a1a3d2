//! Discovery of the served pools of other members, and of their numbers of workers.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mp_core::sync::Ordering;
use mp_core::user_code::catch_panic;
use mp_net::{Cluster, NetError};

use crate::child::message::{LEAVE, WorkerRequest};
use crate::dispatcher::settings::MOST_PROCESSES;
use crate::dispatcher::shared::PoolShared;
use crate::error::PoolError;
use crate::forward::messages::{ForwardReply, ForwardRequest, ServedPoolService};
use crate::forward::places::prefix;

/// Time between two requests for the numbers of workers of the served pools.
const SIZE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum wait for the sizes of served pools.
const SIZE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum wait for the size of a served pool that is not used yet.
const FIRST_SIZE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a served pool that did not answer is asked again.
const RETRY: Duration = Duration::from_secs(2);

/// Starts the thread that finds the served pools of a cluster, for the life of the pool.
///
/// # Errors
/// Returns an error if a thread can't be started, or the system has no random bytes.
pub(crate) fn follow(shared: &Arc<PoolShared>, cluster: &Cluster) -> Result<(), PoolError> {
    let prefix = prefix(shared.settings.name.as_deref());
    let (to, from) = channel();
    let to = Arc::new(to);
    let asks = Arc::downgrade(&to);
    let (own, first) = (cluster.rank(), prefix.clone());
    let names = cluster.follow_names(&prefix, move |mut names| {
        let rank = |name: &str| name.strip_prefix(&first)?.parse::<usize>().ok();
        names.retain(|(name, _)| rank(name).is_some_and(|rank| rank != own));
        // Fails only at the end of the pool.
        _ = to.send(PlaceEvent::Published(names));
    })?;
    shared.places.begin(mp_net::service::random_id()?, MOST_PROCESSES, names);
    let (weak, cluster) = (Arc::downgrade(shared), cluster.clone());
    let (publications, asked) = Default::default();
    let mut search = PlaceSearch { cluster, to: asks, publications, asked };
    let follower = move || update_all(&weak, &mut search, &from);
    let thread = std::thread::Builder::new().name("mp-pool-hosts".into()).spawn(follower);
    thread.map_err(|error| mp_spawn::launch_error("the thread for other hosts", None, error))?;
    Ok(())
}

/// Names of served pools, and the numbers of their publications.
type Publications = Vec<(String, u64)>;

/// Event for the thread that follows the served pools.
enum PlaceEvent {
    /// All current publications.
    Published(Publications),
    /// Reply of a served pool that is not used yet.
    Found(u64, FirstReply),
}

/// First reply of a served pool.
enum FirstReply {
    /// Number of workers of the served pool, and its service.
    Workers(usize, ServedPoolService),
    /// Reason why the served pool is not used.
    Unused(String),
    /// No reply: the served pool is asked again.
    Missing,
}

/// Published pools, and the requests for their numbers of workers.
struct PlaceSearch {
    cluster: Cluster,
    to: Weak<Sender<PlaceEvent>>,
    publications: Publications,
    /// Requests for the number of workers, by the number of the served pool's publication. Contains the time
    /// of the failure if the request has failed.
    asked: HashMap<u64, Option<Instant>>,
}

/// Handles changes of the publications, and of the sizes of the served pools, until the pool ends.
fn update_all(shared: &Weak<PoolShared>, search: &mut PlaceSearch, events: &Receiver<PlaceEvent>) {
    let (mut updated, mut is_complete) = (Instant::now(), true);
    loop {
        let has_places = shared.upgrade().is_some_and(|shared| !shared.places.services().is_empty());
        let wait = match (has_places, is_complete) {
            (true, _) => SIZE_INTERVAL,
            (false, false) => RETRY,
            (false, true) => Duration::MAX,
        };
        let event = match events.recv_timeout(wait) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) if is_complete || updated.elapsed() < RETRY => {
                is_complete &= update_sizes(shared);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => None,
        };
        is_complete = update(shared, search, event.into_iter().chain(events.try_iter()));
        updated = Instant::now();
    }
}

/// Asks the served pools for their numbers of workers, and starts or ends forwarders. Returns `false` if the
/// caller has to repeat the call.
fn update_sizes(shared: &Weak<PoolShared>) -> bool {
    let asked = shared.upgrade().map(|shared| (shared.places.services(), shared.settings.kind.clone()));
    // No handle of the pool is held during the calls, so that the pool can end.
    let Some((services, kind)) = asked else { return true };
    let (publications, services): (Vec<u64>, Vec<_>) = services.into_iter().unzip();
    let size = |(publication, reply)| match reply {
        Ok(Some(ForwardReply::Size(workers))) => Some((publication, workers)),
        // The pool has ended, and is still published.
        Ok(Some(ForwardReply::Ended)) => Some((publication, 0)),
        // The cluster reports a lost member.
        _ => None,
    };
    let request = || ForwardRequest::Size { kind: kind.clone() };
    let calls = services.into_iter().map(|service| (service, request()));
    let replies = ServedPoolService::call_all(calls, SIZE_TIMEOUT);
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

/// Adds new served pools, removes unpublished ones, and starts or ends forwarders. Returns `false` if the
/// caller has to repeat the call.
fn update(
    shared: &Weak<PoolShared>,
    search: &mut PlaceSearch,
    events: impl Iterator<Item = PlaceEvent>,
) -> bool {
    let (mut added, mut unused) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            PlaceEvent::Published(publications) => search.publications = publications,
            PlaceEvent::Found(number, FirstReply::Missing) => {
                search.asked.insert(number, Some(Instant::now()));
            }
            PlaceEvent::Found(number, FirstReply::Workers(workers, service)) => {
                added.push((number, workers, service));
            }
            PlaceEvent::Found(_, FirstReply::Unused(why)) => unused.push(why),
        }
    }
    let publications = &search.publications;
    let is_published = |number: &u64| publications.iter().any(|(_, other)| other == number);
    added.retain(|(number, ..)| is_published(number));
    search.asked.retain(|number, _| is_published(number));
    let Some(shared) = shared.upgrade() else { return true };
    for why in unused {
        mp_core::waits::publish_report(&format!("mp: {}: {why}\n", shared.settings.pool_name()));
    }
    let resizing = shared.places.resizing();
    let all = shared.places.update(publications, added);
    let mut is_complete = shared.set_all_workers(all);
    drop(resizing);
    search.ask_new(&shared);
    is_complete &= search.asked.values().all(Option::is_none);
    // Calls user code.
    shared.feed();
    is_complete || !shared.state.lock().is_open()
}

impl PlaceSearch {
    /// Asks new served pools for their numbers of workers. All are asked concurrently, because a pool may not
    /// answer.
    fn ask_new(&mut self, shared: &PoolShared) {
        // `None` if the pool has ended.
        let Some(to) = self.to.upgrade() else { return };
        for (name, number) in &self.publications {
            let number = *number;
            let is_due = |asked: &Option<Instant>| asked.is_some_and(|missing| missing.elapsed() >= RETRY);
            if !self.asked.get(&number).is_none_or(is_due) {
                continue;
            }
            let (to, cluster, name) = (to.clone(), self.cluster.clone(), name.clone());
            let kind = shared.settings.kind.clone();
            let ask = move || {
                // After a panic, the served pool is asked again.
                let reply = catch_panic(|| first_reply(&cluster, &name, kind));
                // Fails only at the end of the pool.
                _ = to.send(PlaceEvent::Found(number, reply.unwrap_or(FirstReply::Missing)));
            };
            let thread = std::thread::Builder::new().name("mp-pool-host".into()).spawn(ask);
            self.asked.insert(number, thread.err().map(|_| Instant::now()));
        }
    }
}

/// Connects to a served pool, and asks for its number of workers.
fn first_reply(cluster: &Cluster, name: &str, kind: String) -> FirstReply {
    let service = match ServedPoolService::connect_now(cluster, name) {
        Ok(service) => service,
        Err(error @ NetError::WrongType { .. }) => {
            return FirstReply::Unused(format!(
                "a served pool is not used, because its program is another build ({error}). Start all hosts \
                 with the same build"
            ));
        }
        // The member may be gone, or answer later.
        Err(_) => return FirstReply::Missing,
    };
    let (place, request) = (service.place(), ForwardRequest::Size { kind: kind.clone() });
    FirstReply::Unused(match service.call_within(request, Some(FIRST_SIZE_TIMEOUT)) {
        Ok(Some(ForwardReply::Size(workers))) => return FirstReply::Workers(workers, service),
        Ok(Some(ForwardReply::OtherKind(theirs))) => {
            let text = |kind: String| if kind.is_empty() { "no state".into() } else { kind };
            let (theirs, ours) = (text(theirs), text(kind));
            format!("the pool of {place} is not used: its workers have {theirs}, and here they have {ours}")
        }
        Ok(Some(ForwardReply::Ended)) => format!("the pool of {place} has ended"),
        Ok(Some(_)) => format!("{place} gave a wrong answer"),
        Ok(None) | Err(_) => return FirstReply::Missing,
    })
}

impl PoolShared {
    /// Sets the number of workers of all hosts. Returns `false` if that failed.
    fn set_all_workers(&self, all: usize) -> bool {
        match self.set_workers(all) {
            Ok(()) => _ = self.move_workers(),
            // A closed pool still replaces workers, but their number does not grow.
            Err(PoolError::Closed { .. }) => self.lower_workers(all),
            Err(_) => return false,
        }
        true
    }

    /// Asks surplus processes of each place to end, if the place has more processes than its target. Their
    /// slots become free for processes of other places. Returns `false` if a process could not be asked.
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
