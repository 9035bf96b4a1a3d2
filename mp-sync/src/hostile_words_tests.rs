//! Hostile words in shared structures: every operation returns, and none panics.

use std::sync::mpsc;
use std::time::Duration;

use mp_core::mem::HeapMem;
use mp_core::mem::{Mem, Word, run};
use mp_core::words::Member;
use mp_core::{Error, LockError};

use crate::shared::Shared;
use crate::steps::rwlock::{AddRead, Enter, EnterOutcome, Leave, Readers};
use crate::steps::slot::Slots;
use crate::{Barrier, BoundedSemaphore, Condition, Event, Lock, Once, RLock, RwLock, Semaphore};

/// Pseudo-random numbers with a fixed seed.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn garbage(&mut self) -> u64 {
        let any = self.next();
        match self.next() % 4 {
            0 => any,
            1 => any % 8,
            2 => u64::MAX - any % 8,
            _ => any & any >> 32,
        }
    }
}

/// Creates a structure, uses it, overwrites some of its words, and uses it again, `rounds` times.
fn scrambled<T>(rounds: u32, make: impl Fn() -> T, shared: impl Fn(&T) -> &Shared, using: impl Fn(&T)) {
    let mut numbers = RandomNumbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..rounds {
        let made = make();
        using(&made);
        for _ in 0..1 + numbers.next() % 4 {
            let shared = shared(&made);
            shared.store(numbers.next() % shared.len(), numbers.garbage());
            using(&made);
        }
    }
}

fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        _ = done.send(());
    });
    assert_ne!(ended.recv_timeout(Duration::from_secs(60)), Err(mpsc::RecvTimeoutError::Timeout), "a hang");
    thread.join().expect("no operation panics");
}

const AT_ONCE: Duration = Duration::ZERO;

#[test]
fn rlock_with_overwritten_depth_is_malformed() {
    let lock = RLock::new(5_u64).unwrap();
    let first = lock.lock().unwrap();
    // A foreign process overwrote the depth: a second guard would release the lock of the first.
    lock.shared.store(3, 0);
    assert!(matches!(lock.try_lock(), Err(LockError::Failed(Error::Malformed(_)))));
    drop(first);
}

#[test]
fn locks_survive_arbitrary_words_in_shared_memory() {
    within_a_minute(|| {
        let using = |lock: &RLock<u64>| {
            let first = lock.try_lock();
            drop(lock.try_lock());
            drop(first);
            drop(lock.recover_timeout(AT_ONCE));
        };
        scrambled(300, || RLock::new(5_u64).unwrap(), |s| &s.shared, using);
        let using = |lock: &RwLock<u64>| {
            let first = lock.try_read();
            drop((lock.try_read(), lock.try_write()));
            drop(first);
            drop(lock.try_write());
            drop(lock.recover_timeout(AT_ONCE));
        };
        scrambled(300, || RwLock::with_readers(5_u64, 3).unwrap(), |s| &s.shared, using);
        let using = |once: &Once| _ = once.try_call_once(|_| {});
        scrambled(300, || Once::new().unwrap(), |s| &s.shared, using);
    });
}

#[test]
fn semaphore_to_barrier_survive_arbitrary_words() {
    within_a_minute(|| {
        let using = |permits: &Semaphore| {
            let permit = permits.try_acquire();
            _ = (permits.available(), permits.add_permits(1), permits.release());
            drop(permit);
        };
        scrambled(300, || Semaphore::with_limit(2, 4).unwrap(), |s| &s.0.shared, using);
        let using = |permits: &BoundedSemaphore| {
            permits.try_acquire().into_iter().for_each(crate::Permit::keep);
            _ = permits.release();
        };
        scrambled(300, || BoundedSemaphore::new(2).unwrap(), |s| &s.0.shared, using);
        let using = |event: &Event| {
            _ = (event.set(), event.is_set(), event.clear(), event.wait_timeout(AT_ONCE));
        };
        scrambled(300, || Event::new().unwrap(), |s| &s.shared, using);
        let lock = Lock::new(0_u64).unwrap();
        let using = move |condition: &Condition| {
            _ = condition.notify(2);
            _ = condition.notify_all();
            drop(condition.wait_timeout(lock.lock().expect("no process dies"), AT_ONCE));
        };
        scrambled(300, || Condition::with_waiters(3).unwrap(), |s| &s.shared, using);
        let using = |barrier: &Barrier| {
            _ = (
                barrier.n_waiting(),
                barrier.wait_timeout(AT_ONCE),
                barrier.wait_then_timeout(AT_ONCE, || ()),
            );
            let enrolled = barrier.enroll();
            _ = (barrier.abort(), barrier.reset());
            drop(enrolled);
        };
        scrambled(300, || Barrier::new(2).unwrap(), |s| &s.shared, using);
        scrambled(300, || Barrier::new(1).unwrap(), |s| &s.shared, using);
    });
}

/// A foreign process overwrote a recursion count. The count saturates instead of wrapping to zero, which
/// would admit a writer during a read.
#[test]
fn overwritten_rwlock_read_count_saturates() {
    let m = HeapMem::new(8);
    let readers = Readers {
        slots: Slots { used: Word::at(0), first: Word::at(8), limit: 2 },
        extra_reads: Word::at(24),
    };
    let me = Member::new(1, 1);
    let EnterOutcome::Reading(seen) = run(Enter::new(Word::at(56), readers, me, 7), &m) else {
        panic!("no thread writes")
    };
    m.store(Word::at(24), u64::MAX);
    assert_eq!(run(AddRead::new(readers, me, 7), &m), Some(seen));
    assert!(!run(Leave::new(readers, seen), &m), "the thread has another read");
}
