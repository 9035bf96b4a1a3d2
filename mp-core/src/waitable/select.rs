//! Waiting for several objects in one call.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::os::fd::AsFd;
use std::panic::Location;
use std::sync::LazyLock;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::future::FdWaker;
use super::{NoticedDeaths, WaitPoint, Waitable, reactor};
use crate::blocking::reports::{BlockingCall, Subject, WaitObject, Watch};
use crate::blocking::wait_limit::Wait;
use crate::error::{Error, Result};
use crate::parking::Notices;
use crate::parking::spin::AdaptiveSpin;
use crate::parking::{POLL_INTERVAL, Parking, missed_wakes};
use crate::process::{PerProcess, interrupt, per_process};
use crate::sys::futex;
use crate::sys::readiness;

/// Blocks until at least one of `things` is ready, at most for `timeout` (`None`: without a limit). Returns
/// the indices of the ready things, or an empty list if the time has expired.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use std::time::Duration;
/// use mp_core::{Descriptor, wait};
///
/// // Queues, processes, sockets: whatever is `Waitable`, in one list.
/// let ((a, _other), (b, end)) = (UnixStream::pair()?, UnixStream::pair()?);
/// let (a, b) = (Descriptor(a), Descriptor(b));
/// assert!(wait(&[&a, &b], Some(Duration::from_millis(1)))?.is_empty()); // neither is ready
/// drop(end);
/// assert_eq!(wait(&[&a, &b], None)?, [1]);
/// assert!(wait(&[], None)?.is_empty()); // nothing will ever be ready: returns at once
/// assert!(wait(&[], Some(Duration::from_millis(1)))?.is_empty()); // returns after 1 ms
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nothing is consumed. The caller takes the value of a ready thing by a non-blocking method, for example
/// `try_get`, because another thread or process may take the value first. The list may contain a thing more
/// than once, and other threads and processes may wait for it at the same time.
///
/// # Blocking
/// Spins for a short time first, like all waits; then the thread sleeps. Processes that make things ready
/// check for sleepers, and make a system call only if there is one.
///
/// # When a process dies
/// Things that end with a process become ready when the end of the process is noticed. The parent notices it
/// as soon as the kernel reports it. But it may take up to 50 ms if the process was started alone, returns no
/// value, and ended just after its start. Other waiting processes check every 100 ms. A process that dies or
/// is stopped while it waits can delay the wake-up of other waiters by up to 100 ms.
///
/// # Errors
/// [`Error::Forked`](crate::Error::Forked). [`Error::Os`](crate::Error::Os) if no descriptor or thread is
/// available, which are needed for descriptors together with queues and for more than 128 queues.
#[doc(alias("multiprocessing.connection.wait", "poll", "select"))]
#[track_caller]
pub fn wait(things: &[&dyn Waitable], timeout: Option<Duration>) -> Result<Vec<usize>> {
    let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
    let found = ready(things, |_| true)?;
    let for_ever = things.is_empty() && timeout.is_none();
    if !found.is_empty() || for_ever || timeout == Some(Duration::ZERO) {
        return Ok(found);
    }
    // One spin state for the process, since the set of things differs from call to call.
    static SPIN: PerProcess<LazyLock<AdaptiveSpin>> = per_process!(LazyLock::new(AdaptiveSpin::new));
    // Checking a descriptor takes a system call.
    let in_memory = |thing: &dyn Waitable| thing.wait_point().parking().is_some();
    let words = things.iter().filter(|thing| in_memory(**thing)).count();
    if words > 0
        && let Some(found) = SPIN.look(|| ready(things, in_memory).map(non_empty).transpose())
    {
        return found;
    }
    let asleep = Instant::now();
    let found = if words > 0 && words == things.len() && words <= futex::MOST && futex::can_wait_for_many() {
        wait_on_words(things, deadline)
    } else {
        wait_on_descriptors(things, deadline)
    }?;
    SPIN.slept(asleep);
    Ok(found)
}

/// Blocks like [`wait()`], and returns the index of one ready thing, chosen with equal probability. Returns
/// `None` if the time has expired.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use mp_core::{Descriptor, select};
///
/// let (a, b) = UnixStream::pair()?;
/// assert_eq!(select(&[&Descriptor(&a), &Descriptor(&b)], Some(std::time::Duration::ZERO))?, None);
/// drop(a);
/// assert_eq!(select(&[&Descriptor(&b)], None)?, Some(0)); // the end of the stream can be read
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A thing that is always ready does not starve the others: of `n` things that are always ready, each is
/// chosen about every `n`-th time.
///
/// # Errors
/// The same as for [`wait()`].
#[track_caller]
pub fn select(things: &[&dyn Waitable], timeout: Option<Duration>) -> Result<Option<usize>> {
    let found = wait(things, timeout)?;
    Ok(match found.len() as u64 {
        0 => None,
        n => found.get((random() % n) as usize).copied(),
    })
}

/// Returns a pseudo-random number, not suitable for secrets. The generator is seeded like the standard
/// library's hash maps.
fn random() -> u64 {
    use std::cell::Cell;
    thread_local!(static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0) | 1));
    STATE.with(|state| {
        // xorshift64*.
        let mut x = state.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        state.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    })
}

fn non_empty(found: Vec<usize>) -> Option<Vec<usize>> {
    (!found.is_empty()).then_some(found)
}

/// Returns the indices of the ready things, among those for which `wanted` returns `true`.
fn ready(things: &[&dyn Waitable], wanted: impl Fn(&dyn Waitable) -> bool) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for (i, &thing) in things.iter().enumerate().filter(|(_, thing)| wanted(**thing)) {
        if let Some(parking) = thing.wait_point().parking() {
            parking.arena().me()?;
        }
        if thing.is_ready() {
            found.push(i);
        }
    }
    Ok(found)
}

/// Checks all things again, after this thread was announced at them. If a thing is ready, wakes another
/// sleeper at that thing: this thread may have received the wake-up of that sleeper.
fn recheck(things: &[&dyn Waitable]) -> Result<Option<Vec<usize>>> {
    let found = ready(things, |_| true)?;
    if !found.is_empty() {
        // Before this thread wakes others.
        missed_wakes::found();
    }
    for &i in &found {
        if let Some(parking) = things[i].wait_point().parking() {
            parking.wake_one();
        }
    }
    Ok(non_empty(found))
}

/// Timer for the work that each wait repeats once per poll interval.
struct RecoveryTimer {
    deaths: NoticedDeaths,
    next: Instant,
}

impl RecoveryTimer {
    fn of(things: &[&dyn Waitable]) -> Self {
        let arena = parkings(things).next().map(|parking| parking.arena());
        let deaths = NoticedDeaths(arena.map(|arena| (arena, Notices(arena).noticed())));
        Self { deaths, next: Instant::now() + POLL_INTERVAL }
    }

    /// Checks and repairs the things after deaths of other processes, if a poll interval has passed or a
    /// death was noticed. Once per poll interval, also reclaims dead members. Uses the clock, not the result
    /// of a sleep, because signals may end sleeps early.
    fn if_due(&mut self, things: &[&dyn Waitable]) -> Result<()> {
        let news = self.deaths.update();
        let due = Instant::now() >= self.next;
        if due {
            self.deaths.reclaim_if_due()?;
            self.next = Instant::now() + POLL_INTERVAL;
        }
        if due || news {
            // The result is not used: the next check finds the ready things again.
            things.iter().for_each(|thing| _ = thing.is_ready_recheck());
        }
        Ok(())
    }
}

/// Returns the parking words of the things that have one. A thing may have another word in the next call.
fn parkings<'a>(things: &'a [&dyn Waitable]) -> impl Iterator<Item = Parking> + 'a {
    things.iter().filter_map(|thing| thing.wait_point().parking())
}

/// Maximum number of things described in a report.
const SHOWN: usize = 8;

/// Describes the awaited things, for reports.
fn subject(things: &[&dyn Waitable]) -> Subject {
    let described: Vec<_> = things.iter().take(SHOWN).filter_map(|thing| thing.description()).collect();
    let state = match (things.len(), &described[..]) {
        (1, [one]) => one.clone(),
        (1, _) => "one thing".to_owned(),
        (n, []) => format!("{n} things"),
        (n, non_empty) => format!("{n} things: {}", non_empty.join(", ")),
    };
    Subject::other(BlockingCall::Many, WaitObject::Other, state)
}

/// Waits until one of the things is ready. Each iteration calls `announce`, checks the things, and calls
/// `sleep` with the result of `announce` and the present time. If `recheck_first` is `false`, the first
/// iteration does not check the things.
#[track_caller]
fn wait_by<S>(
    things: &[&dyn Waitable],
    deadline: Option<Instant>,
    recheck_first: bool,
    mut announce: impl FnMut(&RecoveryTimer) -> Result<S>,
    sleep: impl Fn(S, Instant) -> Result<()>,
) -> Result<Vec<usize>> {
    let limit = deadline.map_or(Wait::Forever, Wait::Until);
    let mut watch = Watch::new(Instant::now(), limit, Location::caller());
    let mut timer = RecoveryTimer::of(things);
    let mut rechecks = recheck_first;
    loop {
        let announced = announce(&timer)?;
        if rechecks && let Some(found) = recheck(things)? {
            return Ok(found);
        }
        rechecks = true;
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(Vec::new());
        }
        if interrupt::should_end_waits() {
            return Err(Error::Interrupted);
        }
        watch.record_poll(now, || subject(things));
        sleep(announced, now)?;
        timer.if_due(things)?;
    }
}

/// Waits for things with parking words only. The caller itself sleeps on the words.
#[track_caller]
fn wait_on_words(things: &[&dyn Waitable], deadline: Option<Instant>) -> Result<Vec<usize>> {
    missed_wakes::forget();
    let announce = |timer: &RecoveryTimer| {
        let words = parkings(things).map(|parking| (parking.futex(), parking.announce() as u32));
        // The word for deaths is last: if the list is too long for the kernel, only this word is left out,
        // and a death is noticed after a poll interval.
        Ok(words.chain(timer.deaths.word()).collect())
    };
    let sleep = |words: Vec<_>, now| {
        let left = deadline.map_or(POLL_INTERVAL, |d| d.saturating_duration_since(now));
        if !futex::wait_for_any(&words, Some(left.min(POLL_INTERVAL))) && left >= POLL_INTERVAL {
            missed_wakes::through(words);
        } else {
            missed_wakes::forget();
        }
        Ok(())
    };
    wait_by(things, deadline, true, announce, sleep)
}

/// Waits for things with descriptors, with parking words, or some of each. The caller sleeps in `poll`. The
/// reactor sleeps on the words, and wakes the caller by an eventfd.
#[track_caller]
fn wait_on_descriptors(things: &[&dyn Waitable], deadline: Option<Instant>) -> Result<Vec<usize>> {
    let has_words = parkings(things).next().is_some();
    let bell = has_words.then(FdWaker::new).transpose()?;
    let waker = bell.clone().map_or(Waker::noop().clone(), Waker::from);
    let places: Vec<WaitPoint<'_>> = things.iter().map(|thing| thing.wait_point()).collect();
    let bell_fd = bell.iter().map(|bell| (bell.0.as_fd(), false));
    let fds: Vec<_> = bell_fd.chain(places.iter().filter_map(WaitPoint::descriptor)).collect();
    let mut watched: Vec<reactor::WordEntry> = parkings(things).map(reactor::WordEntry::at).collect();
    let announce = |_: &RecoveryTimer| {
        bell.iter().for_each(|bell| bell.0.clear());
        for (entry, parking) in watched.iter_mut().zip(parkings(things)) {
            if !entry.is_at(parking) {
                *entry = reactor::WordEntry::at(parking);
            }
            entry.watch(None, &waker)?;
        }
        Ok(())
    };
    let sleep = |(), now| {
        let next = now + POLL_INTERVAL;
        readiness::poll(&fds, Some(deadline.map_or(next, |d| d.min(next)))).map(drop)
    };
    wait_by(things, deadline, has_words, announce, sleep)
}
