//! Locks, and what else synchronises, in all hands at once.

use std::time::Duration;

use mp::sync::{AcquireError, BarrierError};
use mp::{
    Barrier, BoundedSemaphore, Condition, Event, Lock, LockError, Once, RLock, RwLock, Semaphore,
    SharedTensor, Tensor,
};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::{Op, Row};
use crate::random::Random;
use crate::workloads::work::LONG;

/// Not for something that another worker surely does.
const SHORT: Duration = Duration::from_millis(20);
const PERMITS: u32 = 2;
const PARTIES: u32 = 2;
/// Things that are done once in each round: the first calls of each matter.
const ONCES: usize = 24;

/// What the workers of a group share. Of each pair, one half is changed after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Locks {
    lock: Lock<[u64; 2]>,
    /// The worker that is inside of the lock, or was when it died.
    inside: SharedTensor<u64>,
    rlock: RLock<[u64; 2]>,
    rwlock: RwLock<[u64; 2]>,
    semaphore: Semaphore,
    tokens: Lock<u64>,
    more: Condition,
    /// With a lock that one has twice while one waits.
    desk: RLock<u64>,
    called: Condition,
    barrier: Barrier,
    /// How often a party has acted at the barrier, and how often one of the parties has passed it.
    passed: SharedTensor<u64>,
    event: Event,
    bounded: BoundedSemaphore,
    onces: Vec<Once>,
    /// Of each of them, the worker that does it, or did when it died, and how often it was done.
    did: SharedTensor<u64>,
}

impl Locks {
    pub(crate) fn new() -> mp::AnyResult<Self> {
        Ok(Self {
            lock: Lock::new([0; 2])?,
            inside: Tensor::zeros(&[1])?.share(),
            rlock: RLock::new([0; 2])?,
            rwlock: RwLock::new([0; 2])?,
            semaphore: Semaphore::with_limit(PERMITS, PERMITS)?,
            tokens: Lock::new(0)?,
            more: Condition::new()?,
            desk: RLock::new(0)?,
            called: Condition::new()?,
            barrier: Barrier::new(PARTIES)?,
            passed: Tensor::zeros(&[2])?.share(),
            event: Event::new()?,
            bounded: BoundedSemaphore::new(PERMITS)?,
            onces: (0..ONCES).map(|_| Once::new()).collect::<Result<_, _>>()?,
            did: Tensor::zeros(&[2 * ONCES])?.share(),
        })
    }

    /// Does one after the other, at random, until the round is over.
    pub(crate) fn work(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        while !row.over() {
            match random.below(12) {
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

    /// Adds a token and tells one, or waits for one.
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
            // The holder of the lock when the time is over may be stopped.
            Ok((_, false)) | Err(LockError::OwnerDied { .. } | LockError::Held { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// As [`tokens`](Self::tokens), with another guard of the same lock, which is good before and after.
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
            // It comes back with the lock all the same.
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

    /// Does something once, unless another worker has; one after the other, and again only where one died
    /// doing it.
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
            // Some are met here.
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

    /// When no other process has them: all can be had, and nothing of dead ones is left in them.
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
        ] {
            end.map_err(|e| hang(what, &e))?;
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
