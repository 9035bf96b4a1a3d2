//! Threads that sleep on shared words for other threads of this process: for tasks, and for callers that
//! sleep in `poll`.
//!
//! Private to the process, except for the sleepers bits of the words that the threads sleep on.
//!
//! | state of an entry | changed by |
//! |---|---|
//! | idle | its owner: announces itself at the word, adds the entry with the value read → watched |
//! | watched | its owner → idle; the thread, when the word differs from that value, or when the object is ready after a poll interval: removes it, then wakes its owner → idle |
//!
//! A wake-up can be lost if it happens between the removal of an entry and the time when the thread stops
//! sleeping on the word. As after the death of a sleeper, the other waiters then check after a poll interval.
//!
//! The owner checks the object again between adding the entry and going to sleep. So it does not matter when
//! the thread reads the entry: a word that has changed since then differs from the value in the entry.
//!
//! A raw `fork` copies no thread. Only members add and remove entries, so a copy never uses the lock.

use std::collections::HashMap;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{NoticedDeaths, SharedWaitable, no_thread};
use crate::arena::Arena;
use crate::error::Result;
use crate::parking::Notices;
use crate::parking::{POLL_INTERVAL, Parking, missed_wakes};
use crate::process::mutex::Mutex;
use crate::process::user_code::{catch_panic, drop_caught};
use crate::process::{PerProcess, per_process};
use crate::sync::shared::{AtomicU32, Ordering};
use crate::sys::futex;

/// Maximum number of words of one thread. The thread also sleeps on its control word, and on the word that
/// counts deaths.
const MOST: usize = futex::MOST - 2;
/// Minimum and maximum pause between two checks, if the kernel can't sleep on several words.
const PAUSES: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(4));

struct WordWaiter {
    id: u64,
    what: Option<SharedWaitable>,
    waker: Waker,
}

/// All entries of one word.
struct WordGroup {
    arena: Arena,
    word: &'static AtomicU32,
    expected: u32,
    /// Number of deaths that were noticed in the arena when the first entry was added.
    noticed: u32,
    waiting: Vec<WordWaiter>,
}

impl WordGroup {
    fn has_changed(&self) -> bool {
        self.word.load(Ordering::Acquire) != self.expected
    }
}

/// State of one thread: its control word, and its groups by the addresses of their words.
struct ReactorThread {
    control: &'static AtomicU32,
    groups: HashMap<usize, WordGroup>,
}

/// Makes the thread with this control word check its groups again. Called without the lock, because the
/// thread first acquires the lock.
fn notify(control: &AtomicU32) {
    control.fetch_add(1, Ordering::Release);
    futex::wake(control, 1);
}

struct Reactor {
    threads: Vec<ReactorThread>,
    next_id: u64,
}

static REACTOR: PerProcess<Mutex<Reactor>> =
    per_process!(Mutex::new(Reactor { threads: Vec::new(), next_id: 0 }));

impl Reactor {
    /// Returns the thread that watches a word. If no thread does, returns a thread that can watch another
    /// word, and starts it if necessary.
    fn thread_for(&mut self, key: usize) -> Result<&mut ReactorThread> {
        let has = |t: &ReactorThread| t.groups.contains_key(&key);
        let found = self.threads.iter().position(has);
        let i = match found.or_else(|| self.threads.iter().position(|t| t.groups.len() < MOST)) {
            Some(i) => i,
            None => {
                let i = self.threads.len();
                // Leaked, because the thread never ends.
                let control: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
                let thread = std::thread::Builder::new().name("mp-reactor".into());
                thread.spawn(move || work(i, control)).map_err(no_thread)?;
                self.threads.push(ReactorThread { control, groups: HashMap::new() });
                i
            }
        };
        Ok(&mut self.threads[i])
    }

    /// Removes and returns an entry, if it still exists. If this was the last entry of the word, also returns
    /// the control word of the thread that watches it.
    fn take(&mut self, key: usize, id: u64) -> Option<(WordWaiter, Option<&'static AtomicU32>)> {
        let thread = self.threads.iter_mut().find(|t| t.groups.contains_key(&key))?;
        let group = thread.groups.get_mut(&key)?;
        let at = group.waiting.iter().position(|w| w.id == id)?;
        let taken = group.waiting.swap_remove(at);
        let last = group.waiting.is_empty();
        if last {
            thread.groups.remove(&key);
        }
        Some((taken, last.then_some(thread.control)))
    }
}

/// Entry of a waiter in the list of a word. Dropping this value removes the entry.
pub(super) struct WordEntry {
    parking: Parking,
    id: Option<u64>,
}

impl WordEntry {
    /// Creates an entry that is not watched yet.
    pub(super) fn at(parking: Parking) -> Self {
        Self { parking, id: None }
    }

    pub(super) fn parking(&self) -> Parking {
        self.parking
    }

    /// Returns `true` if the entry is for this word.
    pub(super) fn is_at(&self, parking: Parking) -> bool {
        std::ptr::eq(self.parking.futex(), parking.futex())
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self.parking.futex()).addr()
    }

    /// Announces a sleeper, and registers the waker to be woken once, when the word changes. The caller
    /// checks the object again after this call. With `what`, the waker is also woken if that object is ready
    /// after a poll interval. Without `what`, the caller has to check once per poll interval.
    pub(super) fn watch(&mut self, what: Option<&SharedWaitable>, waker: &Waker) -> Result<()> {
        self.parking.arena().me()?;
        let announced = self.parking.announce() as u32;
        let key = self.key();
        let mut changed = Vec::new();
        // No waker is cloned or dropped under the lock: that may run code that waits for the lock.
        let (mut waker, what) = (waker.clone(), what.cloned());
        let mut reactor = REACTOR.lock();
        reactor.next_id += 1;
        let fresh = reactor.next_id;
        let thread = reactor.thread_for(key)?;
        let group = thread.groups.entry(key).or_insert_with(|| WordGroup {
            arena: self.parking.arena(),
            word: self.parking.futex(),
            expected: announced,
            noticed: Notices(self.parking.arena()).noticed(),
            waiting: Vec::new(),
        });
        let is_new = group.waiting.is_empty();
        let before = match self.id.and_then(|id| group.waiting.iter_mut().find(|w| w.id == id)) {
            Some(mine) => {
                std::mem::swap(&mut mine.waker, &mut waker);
                Some((waker, what))
            }
            None => {
                group.waiting.push(WordWaiter { id: fresh, what, waker });
                self.id = Some(fresh);
                None
            }
        };
        let moved = group.expected != announced;
        if moved {
            // Waiters that read an earlier value must check again.
            group.expected = announced;
            let id = self.id;
            let (mine, others) =
                std::mem::take(&mut group.waiting).into_iter().partition(|w| Some(w.id) == id);
            group.waiting = mine;
            changed = others;
        }
        let control = (is_new || moved).then_some(thread.control);
        drop(reactor);
        if let Some(control) = control {
            notify(control);
        }
        drop(before);
        wake(changed);
        Ok(())
    }
}

impl Drop for WordEntry {
    fn drop(&mut self) {
        if let Some(id) = self.id
            && self.parking.arena().is_here()
        {
            let taken = REACTOR.lock().take(self.key(), id);
            if let Some((_, Some(control))) = taken {
                notify(control);
            }
        }
    }
}

/// Wakes the waiters. Called without the lock. A waker is user code: its panic must not end this thread.
fn wake(waiting: Vec<WordWaiter>) {
    for WordWaiter { waker, what, .. } in waiting {
        drop_caught(what);
        catch_panic(|| waker.wake());
    }
}

/// Main function of the `i`-th thread.
fn work(i: usize, control: &'static AtomicU32) {
    let mut next_look = Instant::now() + POLL_INTERVAL;
    let mut pause = PAUSES.0;
    let mut deaths = NoticedDeaths::default();
    loop {
        let mut words = Vec::with_capacity(futex::MOST);
        let mut changed = Vec::new();
        let seen = control.load(Ordering::Acquire);
        if let Some(thread) = REACTOR.lock().threads.get_mut(i) {
            thread.groups.retain(|_, group| {
                let stays = !group.has_changed();
                if stays {
                    deaths.0.get_or_insert((group.arena, group.noticed));
                    words.push((group.word, group.expected));
                } else {
                    changed.append(&mut group.waiting);
                }
                stays
            });
        }
        if !changed.is_empty() {
            pause = PAUSES.0;
            wake(changed);
            continue;
        }
        if words.is_empty() {
            // No words: sleeps until an entry is added.
            futex::wait(control, seen, Duration::from_secs(3600));
            next_look = Instant::now() + POLL_INTERVAL;
            continue;
        }
        if futex::can_wait_for_many() {
            words.push((control, seen));
            words.extend(deaths.word());
            futex::wait_for_any(&words, Some(POLL_INTERVAL));
        } else {
            futex::wait(control, seen, pause);
            pause = (pause * 2).min(PAUSES.1);
        }
        let news = deaths.update();
        let due = Instant::now() >= next_look;
        if due || news {
            check_words(i, news, &deaths);
        }
        if due {
            next_look = Instant::now() + POLL_INTERVAL;
        }
    }
}

/// Reclaims dead members if a poll interval has passed since the last reclaim, and wakes waiters whose
/// objects are ready although no process has woken these waiters. Called once per poll interval, and after a
/// death was noticed (`news` is `true`). Callers that sleep in `poll` check their objects themselves. They
/// are only woken if `news` is `true`.
fn check_words(i: usize, news: bool, deaths: &NoticedDeaths) {
    let (mut watched, mut callers) = (Vec::new(), Vec::new());
    if let Some(thread) = REACTOR.lock().threads.get_mut(i) {
        for (&key, group) in &thread.groups {
            let slept_on = (group.word, group.expected);
            let whats = group.waiting.iter().filter_map(|w| Some((key, w.id, slept_on, w.what.clone()?)));
            watched.extend(whats);
        }
        if news {
            thread.groups.retain(|_, group| {
                callers.extend(group.waiting.extract_if(.., |w| w.what.is_none()));
                !group.waiting.is_empty()
            });
        }
    }
    wake(callers);
    // Can't fail in a thread of a member.
    _ = deaths.reclaim_if_due();
    for (key, id, slept_on, what) in watched {
        let is_ready = catch_panic(|| what.is_ready_recheck()).unwrap_or(true);
        if is_ready {
            let taken = REACTOR.lock().take(key, id);
            if !news {
                missed_wakes::count(deaths.word().into_iter().chain([slept_on]));
            }
            wake(taken.into_iter().map(|(waiting, _)| waiting).collect());
        }
        // This may drop the last reference to the object.
        drop_caught(what);
    }
}
