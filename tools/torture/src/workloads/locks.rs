//! Workload with locks and other synchronization, which all workers use concurrently.

use std::time::Duration;

use mp::sync::{AcquireError, BarrierError, LockGuard};
use mp::{
    Barrier, BoundedSemaphore, Condition, Event, Lock, LockError, Once, RLock, RwLock, Semaphore,
    SharedTensor, Tensor,
};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::{Op, Row};
use crate::random::Random;
use crate::workloads::work::LONG;

/// Time-out of waits whose condition might never be fulfilled.
const SHORT: Duration = Duration::from_millis(20);
const PERMITS: u32 = 2;
const PARTIES: u32 = 2;
/// Number of once cells in each round. Only the first calls of each cell are of interest.
const ONCES: usize = 24;
/// Number of locks that are taken in pairs.
const PAIRED: usize = 3;
/// Longest time for which a pair of locks is held, in milliseconds. Several such times exceed 100 ms, after
/// which a waiter checks for deadlocks.
const HELD: u64 = 40;

/// Objects that the workers of a group share. A lock with two words detects torn data, because the words are
/// changed one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Locks {
    lock: Lock<[u64; 2]>,
    /// Mark of the worker that holds `lock`, or that held `lock` when it died.
    inside: SharedTensor<u64>,
    rlock: RLock<[u64; 2]>,
    rwlock: RwLock<[u64; 2]>,
    semaphore: Semaphore,
    tokens: Lock<u64>,
    more: Condition,
    /// Reentrant lock that a worker holds twice while it waits on the condition `called`.
    desk: RLock<u64>,
    called: Condition,
    barrier: Barrier,
    /// Number of actions at the barrier, and number of passes.
    passed: SharedTensor<u64>,
    event: Event,
    bounded: BoundedSemaphore,
    onces: Vec<Once>,
    /// Locks that all workers take in this order, followed by `book`.
    ordered: Vec<Lock<u64>>,
    book: RwLock<u64>,
    /// Locks that workers take in any order.
    unordered: Vec<Lock<u64>>,
    /// For each once cell, the mark of the worker that initializes the cell or died during the
    /// initialization, and the number of completed initializations.
    did: SharedTensor<u64>,
}

impl Locks {
    pub(crate) fn new() -> mp::AnyResult<Self> {
        Ok(Self {
            lock: Lock::new([0; 2])?,
            inside: Tensor::zeros([1])?.share(),
            rlock: RLock::new([0; 2])?,
            rwlock: RwLock::new([0; 2])?,
            semaphore: Semaphore::with_limit(PERMITS, PERMITS)?,
            tokens: Lock::new(0)?,
            more: Condition::new()?,
            desk: RLock::new(0)?,
            called: Condition::new()?,
            barrier: Barrier::new(PARTIES)?,
            passed: Tensor::zeros([2])?.share(),
            event: Event::new()?,
            bounded: BoundedSemaphore::new(PERMITS)?,
            onces: (0..ONCES).map(|_| Once::new()).collect::<Result<_, _>>()?,
            ordered: (0..PAIRED).map(|_| Lock::new(0)).collect::<Result<_, _>>()?,
            book: RwLock::new(0)?,
            unordered: (0..PAIRED).map(|_| Lock::new(0)).collect::<Result<_, _>>()?,
            did: Tensor::zeros([2 * ONCES])?.share(),
        })
    }

    /// Runs random operations until the round has ended.
    pub(crate) fn work(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        while !row.over() {
            match random.below(14) {
                0..3 => self.exclusive(row)?,
                3 => self.twice(row)?,
                4 => self.read_or_write(row, random)?,
                5 => {
                    row.note(Op::Acquire, self.semaphore.available() as u64);
                    let permit = self.semaphore.acquire_timeout(LONG)?;
                    if random.percent(30) {
                        permit.keep();
                        self.semaphore.release()?;
                    }
                }
                6 => self.tokens(row, random)?,
                7 => self.desk(row, random)?,
                8 => self.meet(row)?,
                9 => {
                    row.note(Op::Acquire, self.bounded.available() as u64);
                    let permit = self.bounded.acquire_timeout(LONG)?;
                    if random.percent(30) {
                        permit.keep();
                        self.bounded.release()?;
                    }
                }
                10 => self.once(row, random.below(ONCES as u64) as usize)?,
                11 => self.in_order(row, random)?,
                12 => self.in_any_order(row, random)?,
                _ => {
                    row.note(Op::Event, self.event.is_set().into());
                    match random.below(3) {
                        0 => _ = self.event.set()?,
                        1 => _ = self.event.clear()?,
                        _ => _ = self.event.wait_timeout(SHORT)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn exclusive(&self, row: &Row) -> mp::AnyResult<()> {
        row.note(Op::Lock, 0);
        let (me, inside) = (row.mark(), &self.inside);
        let mut pair = match self.lock.lock_timeout(LONG) {
            Ok(pair) => {
                if let Err(other) = inside.compare_exchange(0, 0, me) {
                    return Err(format!("torn: {me:#x} has the lock, but {other:#x} is inside").into());
                }
                if pair[0] != pair[1] {
                    return Err(format!("torn: {:?} under a lock, and no holder died", *pair).into());
                }
                pair
            }
            Err(LockError::OwnerDied { pid, .. }) => {
                row.note(Op::Recover, pid.into());
                let mut pair = self.lock.recover_timeout(LONG)?;
                inside.store(0, me);
                pair[1] = pair[0];
                pair
            }
            Err(error) => return Err(error.into()),
        };
        pair[0] += 1;
        if inside.load(0) != me {
            return Err(format!("torn: {me:#x} has the lock, and {:#x} came in", inside.load(0)).into());
        }
        pair[1] += 1;
        inside.store(0, 0);
        Ok(())
    }

    fn twice(&self, row: &Row) -> mp::AnyResult<()> {
        row.note(Op::Relock, 0);
        let outer = match self.rlock.lock_timeout(LONG) {
            Err(LockError::OwnerDied { .. }) => {
                let pair = self.rlock.recover_timeout(LONG)?;
                pair.set([pair.get()[0]; 2]);
                pair
            }
            other => other?,
        };
        let inner = self.rlock.lock_timeout(LONG)?;
        let [a, b] = inner.get();
        if a != b {
            return Err(format!("torn: {a} and {b} under a lock that one has twice").into());
        }
        inner.set([a + 1, b]);
        drop(outer);
        inner.set([a + 1, b + 1]);
        Ok(())
    }

    fn read_or_write(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        if random.percent(70) {
            row.note(Op::Read, 0);
            match self.rwlock.read_timeout(LONG) {
                Ok(pair) if pair[0] != pair[1] => {
                    return Err(format!("torn: {:?} is read, and no writer died", *pair).into());
                }
                Ok(_) => return Ok(()),
                Err(LockError::OwnerDied { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        row.note(Op::Write, 0);
        let mut pair = match self.rwlock.write_timeout(LONG) {
            Err(LockError::OwnerDied { .. }) => self.rwlock.recover_timeout(LONG)?,
            Ok(pair) if pair[0] != pair[1] => {
                return Err(format!("torn: {:?} is written, and no writer died", *pair).into());
            }
            other => other?,
        };
        pair[0] += 1;
        pair[1] = pair[0];
        Ok(())
    }

    /// Takes two locks of `ordered` and then `book`, in the common order. These waits have no time-out, so
    /// they are checked for deadlocks, and must not report one.
    fn in_order(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        let one = random.below(PAIRED as u64 - 1) as usize;
        let other = one + 1 + random.below((PAIRED - 1 - one) as u64) as usize;
        row.note(Op::Pair, (10 * one + other) as u64);
        let alarm = |e: LockError| match e {
            LockError::Deadlock(_) => {
                format!("torn: a false alarm, of locks that all take in one order: {e}")
            }
            other => other.to_string(),
        };
        let _one = locked(&self.ordered[one]).map_err(alarm)?;
        let _other = locked(&self.ordered[other]).map_err(alarm)?;
        if random.percent(50) {
            match self.book.read() {
                Err(LockError::OwnerDied { .. }) => drop(self.book.recover().map_err(alarm)?),
                other => drop(other.map_err(alarm)?),
            }
        } else {
            let mut book = match self.book.write() {
                Err(LockError::OwnerDied { .. }) => self.book.recover().map_err(alarm)?,
                other => other.map_err(alarm)?,
            };
            *book += 1;
        }
        hold(random);
        Ok(())
    }

    /// Takes two locks of `unordered`, in any order. In a deadlock, one of the waiters gets the error.
    fn in_any_order(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        let one = random.below(PAIRED as u64) as usize;
        let other = (one + 1 + random.below(PAIRED as u64 - 1) as usize) % PAIRED;
        row.note(Op::Pair, (100 + 10 * one + other) as u64);
        let _one = match locked(&self.unordered[one]) {
            // This thread has no other lock, so no thread waits for this thread.
            Err(LockError::Deadlock(cycle)) => return Err(format!("torn: a false alarm: {cycle}").into()),
            other => other?,
        };
        hold(random);
        match locked(&self.unordered[other]) {
            Ok(_other) => hold(random),
            Err(LockError::Deadlock(cycle)) => {
                row.note(Op::Deadlock, cycle.steps.len() as u64);
                if cycle.steps[0].pid != std::process::id() || !(2..=PAIRED).contains(&cycle.steps.len()) {
                    return Err(format!("torn: a deadlock of others: {cycle}").into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Adds a token and notifies a waiter, or waits for a token.
    fn tokens(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        let mut tokens = match self.tokens.lock_timeout(LONG) {
            Err(LockError::OwnerDied { .. }) => self.tokens.recover_timeout(LONG)?,
            other => other?,
        };
        if random.percent(50) {
            row.note(Op::Notify, *tokens);
            *tokens += 1;
            self.more.notify_one()?;
            return Ok(());
        }
        row.note(Op::WaitFor, *tokens);
        match self.more.wait_for_timeout(tokens, SHORT, |tokens| *tokens > 0) {
            Ok((mut tokens, true)) => *tokens -= 1,
            // The holder of the lock may be stopped when the time expires.
            Ok((_, false)) | Err(LockError::OwnerDied { .. } | LockError::Held { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Waits on a condition or notifies it, like [`tokens`](Self::tokens), while holding a second guard of
    /// the same lock. The second guard must stay valid.
    fn desk(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        let outer = match self.desk.lock_timeout(LONG) {
            Err(LockError::OwnerDied { .. }) => self.desk.recover_timeout(LONG)?,
            other => other?,
        };
        if random.percent(50) {
            row.note(Op::Notify, outer.get());
            outer.set(outer.get() + 1);
            self.called.notify_one()?;
            return Ok(());
        }
        row.note(Op::WaitFor, outer.get());
        let inner = self.desk.lock_timeout(LONG)?;
        match self.called.wait_for_timeout(inner, SHORT, |tokens| tokens.get() > 0) {
            Ok((tokens, true)) => {
                drop(tokens);
                let before = outer.get();
                outer.set(before - 1);
                match self.desk.try_lock() {
                    Ok(again) if again.get() + 1 == before => {}
                    Ok(again) => return Err(format!("torn: {before} - 1 is {}", again.get()).into()),
                    Err(error) => return Err(error.into()),
                }
            }
            // The call still returns the lock.
            Ok((_, false)) | Err(LockError::OwnerDied { .. }) => outer.set(outer.get()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn meet(&self, row: &Row) -> mp::AnyResult<()> {
        row.note(Op::Barrier, self.barrier.n_waiting() as u64);
        match self.barrier.wait_then_timeout(SHORT, || _ = self.passed.fetch_add(0, 1)) {
            Ok(number) if number < PARTIES as usize => {
                let passed = self.passed.fetch_add(1, 1) + 1;
                match self.passed.load(0) {
                    acted if passed <= acted * u64::from(PARTIES) => Ok(()),
                    acted => {
                        Err(format!("torn: passed {passed} times, and only {acted} acted before").into())
                    }
                }
            }
            Ok(number) => Err(format!("torn: number {number} of {PARTIES} at a barrier").into()),
            Err(BarrierError::Failed(error)) => Err(error.into()),
            Err(error) if error.is_broken() => Ok(self.barrier.reset()?),
            Err(_) => Ok(()),
        }
    }

    /// Initializes once cell `i`, unless another worker has done so. Checks that initializations don't
    /// overlap, and are repeated only after a worker died during an initialization.
    fn once(&self, row: &Row, i: usize) -> mp::AnyResult<()> {
        row.note(Op::Once, i as u64);
        let (me, did, doer, times) = (row.mark(), &self.did, 2 * i, 2 * i + 1);
        let mut wrong = None;
        self.onces[i].call_once_timeout(LONG, |state| {
            if state.died().is_some() {
                did.store(doer, me);
            } else if let Err(other) = did.compare_exchange(doer, 0, me) {
                wrong = Some(format!("torn: {me:#x} is to do {i}, and {other:#x} does it"));
            } else if did.load(times) > 0 {
                wrong = Some(format!("duplicated: {i} is done again, and no worker died"));
            }
            // Many signals hit a worker at this point.
            std::thread::yield_now();
            did.fetch_add(times, 1);
            if did.load(doer) != me {
                wrong = Some(format!("torn: {me:#x} does {i}, and so does {:#x}", did.load(doer)));
            }
            did.store(doer, 0);
        })?;
        match wrong {
            Some(wrong) => Err(wrong.into()),
            None if did.load(times) == 0 => Err(format!("torn: {i} is done, and no worker did it").into()),
            None => Ok(()),
        }
    }

    /// Checks, after all workers have ended, that all locks are available and have no holders or waiters of
    /// dead workers.
    pub(crate) fn settle(&self) -> mp::AnyResult<()> {
        let hang = |what: &str, error: &dyn std::fmt::Display| format!("hang: {what} at the end: {error}");
        let left = |what: &str, n: usize| format!("leaked: {n} {what}");
        const ENOUGH: Duration = Duration::from_secs(20);
        for (what, end) in [
            ("the lock", self.lock.recover_timeout(ENOUGH).map(drop)),
            ("the lock that one may have twice", self.rlock.recover_timeout(ENOUGH).map(drop)),
            ("the lock of readers and writers", self.rwlock.recover_timeout(ENOUGH).map(drop)),
            ("the lock of the tokens", self.tokens.recover_timeout(ENOUGH).map(drop)),
            ("the lock of the desk", self.desk.recover_timeout(ENOUGH).map(drop)),
            ("the book", self.book.recover_timeout(ENOUGH).map(drop)),
        ] {
            end.map_err(|e| hang(what, &e))?;
        }
        for lock in self.ordered.iter().chain(&self.unordered) {
            drop(lock.recover_timeout(ENOUGH).map_err(|e| hang("a lock of a pair", &e))?);
        }
        let all = [0, 1].map(|_| self.semaphore.acquire_timeout(ENOUGH));
        for permit in all {
            drop(permit.map_err(|e| hang("a permit", &e))?);
        }
        let all = [0, 1].map(|_| self.bounded.acquire_timeout(ENOUGH));
        for permit in all {
            drop(permit.map_err(|e| hang("a permit of a bounded semaphore", &e))?);
        }
        match (self.bounded.available(), self.bounded.release()) {
            (2, Err(AcquireError::NotKept)) => {}
            (n, end) => return Err(left(&format!("permits, of two; a release: {end:?}"), n).into()),
        }
        for once in &self.onces {
            once.call_once_timeout(ENOUGH, |_| ()).map_err(|e| hang("what is done once", &e))?;
        }
        match (self.semaphore.available(), self.more.waiting() + self.called.waiting()) {
            (2, 0) => Ok(()),
            (2, n) => Err(left("places of waiters at a condition", n).into()),
            (n, _) => Err(left("permits, of two", n).into()),
        }
    }
}

/// Takes a lock without a time-out. If its owner has died, recovers the lock.
fn locked(lock: &Lock<u64>) -> Result<LockGuard<'_, u64>, LockError> {
    let mut guard = match lock.lock() {
        Err(LockError::OwnerDied { .. }) => lock.recover()?,
        other => other?,
    };
    *guard += 1;
    Ok(guard)
}

/// Sleeps for a while in some cases, while the caller holds a lock.
fn hold(random: &mut Random) {
    if random.percent(30) {
        // sleep: other workers wait long enough to check for deadlocks
        std::thread::sleep(Duration::from_millis(random.below(HELD)));
    }
}
