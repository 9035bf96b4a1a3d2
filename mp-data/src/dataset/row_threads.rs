//! Additional threads of a worker that write rows at the same time as the thread that makes the batch. The
//! threads are reused by later batches.
//!
//! | state of the work | changed by | next state |
//! |---|---|---|
//! | none | the caller of `run` | posted |
//! | posted, and up to `wanted` threads may begin with it | a thread, which decrements `wanted` and increments `active` | posted |
//! | posted | the caller, after its own call of the function | none: no further thread begins, and the caller waits for the `active` threads |
//!
//! The caller does not wait for a thread that wakes after the caller's own call: the thread finds no work.
//! This is common on a busy machine.
//!
//! # Safety
//! A row thread outlives `run`, but calls a function that borrows from the stack of the caller of `run`.
//! `std::thread::scope` can't express this, because its borrow lasts until the threads end. The borrow is
//! sound because
//! - the reference is in the state only from the first lock in `run` until its `WorkGuard` is dropped, also
//!   when the caller's own call unwinds;
//! - a thread copies the reference and increments `active` under one lock, and decrements `active` after its
//!   call has returned or panicked;
//! - `WorkGuard` removes the reference and then waits until `active` is 0, so no call outlives the borrow;
//! - the function is `Sync`, and threads get nothing else from the caller.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mp_core::mutex::{Condvar, Mutex};

use crate::fork_local::ForkLocal;

/// Function that the caller and the row threads call concurrently.
type RowWork<'w> = &'w (dyn Fn() + Sync);

/// Row threads, started on demand.
#[derive(Default)]
pub(crate) struct RowThreads {
    shared: Arc<RowThreadsShared>,
    /// Process that started the threads. A forked copy of that process has no row threads, and does not wait
    /// for locks that row threads held during the fork.
    owner: ForkLocal<()>,
}

#[derive(Default)]
struct RowThreadsShared {
    state: Mutex<WorkState>,
    begin: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct WorkState {
    /// Number of row threads that were started.
    threads: usize,
    /// `true` while a call of `run` that posted work has not returned.
    running: bool,
    work: Option<RowWork<'static>>,
    wanted: usize,
    active: usize,
    /// `true` if the threads must end.
    stopping: bool,
}

impl RowThreadsShared {
    /// Loop of a row thread: runs posted work until the threads must end.
    fn serve(&self) {
        let mut state = self.state.lock();
        while !state.stopping {
            let Some(work) = state.work.filter(|_| state.wanted > 0) else {
                self.begin.wait(&mut state);
                continue;
            };
            state.wanted -= 1;
            state.active += 1;
            drop(state);
            // `Context` catches panics of rows, so other panics are ignored here.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
                mp_core::user_code::drop_payload(payload);
            }
            state = self.state.lock();
            state.active -= 1;
            if state.active == 0 {
                self.ended.notify_all();
            }
        }
    }
}

/// Removes the work when dropped, and waits for the threads that run it.
struct WorkGuard<'s>(&'s RowThreadsShared);

impl Drop for WorkGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.work, state.wanted) = (None, 0);
        while state.active > 0 {
            self.0.ended.wait(&mut state);
        }
        state.running = false;
    }
}

impl RowThreads {
    /// Calls the function in this thread, and concurrently in up to `others` row threads that wake soon
    /// enough. Returns after all of these calls.
    ///
    /// # Panics
    /// Panics if the call in this thread panics.
    pub(crate) fn run(&self, others: usize, work: RowWork<'_>) {
        if self.owner.is_forked() {
            return work();
        }
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if std::mem::replace(&mut state.running, true) {
            // The row threads are busy with work of another thread, or with work that has called `run` again.
            drop(state);
            return work();
        }
        while state.threads < others {
            let theirs = Arc::clone(shared);
            let named = std::thread::Builder::new().name("mp-data-row".into());
            if named.spawn(move || theirs.serve()).is_err() {
                // The system has no more threads: the existing threads and the caller run the work.
                break;
            }
            state.threads += 1;
        }
        // SAFETY: the borrow outlives each use, since `WorkGuard` is dropped before this function returns or
        // unwinds, and no thread runs the function after that.
        state.work = Some(unsafe { std::mem::transmute::<RowWork<'_>, RowWork<'static>>(work) });
        state.wanted = others;
        drop(state);
        let _at_end = WorkGuard(shared);
        (0..others).for_each(|_| shared.begin.notify_one());
        work();
    }
}

impl Drop for RowThreads {
    fn drop(&mut self) {
        if self.owner.is_forked() {
            return;
        }
        self.shared.state.lock().stopping = true;
        self.shared.begin.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};

    use mp_core::sync::Ordering;
    use mp_core::sync::shared::AtomicU64;

    use super::*;

    /// Calls a function in this thread and in up to `others` row threads. Returns the ids of these threads.
    /// Each call waits until all calls have begun.
    fn called(threads: &RowThreads, others: usize) -> HashSet<String> {
        let (all, seen) = (Barrier::new(others + 1), Mutex::new(HashSet::new()));
        threads.run(others, &|| {
            all.wait();
            seen.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
        });
        seen.into_inner().unwrap()
    }

    #[test]
    fn row_threads_are_reused_and_added_on_demand() {
        let threads = RowThreads::default();
        let first = called(&threads, 3);
        assert_eq!(first.len(), 4);
        for _ in 0..100 {
            assert_eq!(called(&threads, 3), first);
        }
        let more = called(&threads, 5);
        assert!(more.len() == 6 && more.is_superset(&first));
    }

    #[test]
    fn panic_of_a_row_thread_leaves_threads_usable() {
        let threads = RowThreads::default();
        let (mine, ended) = (std::thread::current().id(), AtomicU64::new(0));
        for here in [true, false] {
            let all = Barrier::new(3);
            let ran = catch_unwind(AssertUnwindSafe(|| {
                threads.run(2, &|| {
                    all.wait();
                    let panics = (std::thread::current().id() == mine) == here;
                    ended.fetch_add(1, Ordering::SeqCst);
                    assert!(!panics, "on purpose");
                });
            }));
            assert_eq!(ran.is_err(), here);
        }
        assert_eq!(ended.into_inner(), 6);
        assert_eq!(called(&threads, 2).len(), 3);
    }

    #[test]
    fn nested_row_run_is_executed_by_its_caller() {
        let (threads, count) = (RowThreads::default(), AtomicU64::new(0));
        let (mine, all) = (std::thread::current().id(), Barrier::new(2));
        threads.run(1, &|| {
            all.wait();
            if std::thread::current().id() != mine {
                // The caller's own call of the function ends first, and then the work is removed.
                mp_harness::eventually("the work is removed", || threads.shared.state.lock().work.is_none());
            }
            threads.run(7, &|| _ = count.fetch_add(1, Ordering::SeqCst));
        });
        assert_eq!((count.into_inner(), threads.shared.state.lock().threads), (2, 1));
    }

    #[test]
    fn forked_copy_runs_rows_in_its_only_thread() {
        let threads = RowThreads::default();
        assert_eq!(called(&threads, 1).len(), 2);
        let shared = Arc::clone(&threads.shared);
        let threads = RowThreads { shared: Arc::clone(&shared), owner: ForkLocal::default().into_forked() };
        // Simulates a fork while a thread of the original process held the lock.
        let _held = shared.state.lock();
        let count = AtomicU64::new(0);
        threads.run(3, &|| _ = count.fetch_add(1, Ordering::SeqCst));
        assert_eq!(count.into_inner(), 1);
        drop(threads);
    }
}
