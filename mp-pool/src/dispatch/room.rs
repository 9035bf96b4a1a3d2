//! Futures that wait until not too many tasks wait.
//!
//! Each has a place in a line, under which its waker stands while it waits. Where tasks are settled, as many wakers are taken
//! out, the longest waiting first, as there is room for. One that is woken and finds that another caller was quicker comes back
//! to its place; one that is dropped after it was woken passes that on.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use mp_core::mutex::Mutex;
use mp_core::user_code::{Apart, caught};

use crate::dispatch::shared::Shared;

/// The futures that wait for room.
#[derive(Debug, Default)]
pub(crate) struct RoomLine(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    /// The next place; counts as long as the pool lives.
    next: u64,
    waiting: BTreeMap<u64, Apart<Waker>>,
}

impl RoomLine {
    /// Lets the next `room` futures look. No lock may be held: a waker is code of the user.
    pub(crate) fn wake(&self, room: usize) {
        for _ in 0..room {
            let Some((_, waker)) = self.0.lock().waiting.pop_first() else { return };
            caught(|| waker.into_inner().map(Waker::wake));
        }
    }

    /// Lets all futures look that wait now. No lock may be held.
    pub(crate) fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        waiting.into_values().for_each(|waker| _ = caught(|| waker.into_inner().map(Waker::wake)));
    }

    /// At this place, or behind all others.
    fn wait(&self, place: Option<u64>, waker: Apart<Waker>) -> u64 {
        // What was there is dropped without the lock.
        let (place, _before) = {
            let mut line = self.0.lock();
            let place = place.unwrap_or(line.next);
            line.next = line.next.max(place + 1);
            (place, line.waiting.insert(place, waker))
        };
        place
    }

    /// Whether it was still waiting.
    fn leave(&self, place: u64) -> bool {
        let waker = self.0.lock().waiting.remove(&place);
        waker.is_some()
    }
}

/// Is there when there is room for a task, or the pool takes none.
pub(crate) struct UntilRoom {
    shared: Arc<Shared>,
    /// Where it waits, or has waited.
    place: Option<u64>,
}

impl UntilRoom {
    pub(crate) fn new(shared: &Arc<Shared>) -> UntilRoom {
        UntilRoom { shared: Arc::clone(shared), place: None }
    }
}

impl Future for UntilRoom {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.shared.is_full() {
            // Without a lock: cloning is code of the user.
            let waker = Apart::new(context.waker().clone());
            self.place = Some(self.shared.room.wait(self.place, waker));
            // What was settled before that has woken others.
            if self.shared.is_full() {
                return Poll::Pending;
            }
        }
        // In a copy of the process that made the pool, nothing is locked.
        if let Some(place) = self.place.take()
            && self.shared.check_owner().is_ok()
        {
            self.shared.room.leave(place);
        }
        Poll::Ready(())
    }
}

impl Drop for UntilRoom {
    fn drop(&mut self) {
        if let Some(place) = self.place
            && self.shared.check_owner().is_ok()
            && !self.shared.room.leave(place)
        {
            self.shared.wake_waiting();
        }
    }
}
