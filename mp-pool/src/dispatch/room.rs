//! Futures that wait until the pool is not full.
//!
//! Each future has a position in a queue, under which its waker is stored. When tasks are settled, as many
//! wakers are woken as there is room for, in the order of the queue. If another caller takes the room first,
//! the woken future returns to its position. If a future is dropped after it was woken, the wake-up is passed
//! on.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use mp_core::mutex::Mutex;
use mp_core::user_code::{UserValue, catch_panic};

use crate::dispatch::shared::Shared;

/// Queue of the futures that wait for room.
#[derive(Debug, Default)]
pub(crate) struct RoomLine(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    /// Next position; grows during the life of the pool.
    next: u64,
    waiting: BTreeMap<u64, UserValue<Waker>>,
}

impl RoomLine {
    /// Wakes the next `room` futures. No lock may be held: a waker is user code.
    pub(crate) fn wake(&self, room: usize) {
        for _ in 0..room {
            let Some((_, waker)) = self.0.lock().waiting.pop_first() else { return };
            catch_panic(|| waker.into_inner().map(Waker::wake));
        }
    }

    /// Wakes all futures that wait now. No lock may be held.
    pub(crate) fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        waiting.into_values().for_each(|waker| _ = catch_panic(|| waker.into_inner().map(Waker::wake)));
    }

    /// Stores a waker at its position, or at the end.
    fn wait(&self, place: Option<u64>, waker: UserValue<Waker>) -> u64 {
        // The previous waker is dropped without the lock.
        let (place, _before) = {
            let mut line = self.0.lock();
            let place = place.unwrap_or(line.next);
            line.next = line.next.max(place + 1);
            (place, line.waiting.insert(place, waker))
        };
        place
    }

    /// Removes a waker. Returns `true` if it was still waiting.
    fn leave(&self, place: u64) -> bool {
        let waker = self.0.lock().waiting.remove(&place);
        waker.is_some()
    }
}

/// Future that is ready when there is room for a task, or the pool accepts none.
pub(crate) struct UntilRoom {
    shared: Arc<Shared>,
    /// Position where the future waits, or has waited.
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
            // Cloning a waker is user code, so it happens without the lock.
            let waker = UserValue::new(context.waker().clone());
            self.place = Some(self.shared.room.wait(self.place, waker));
            // Tasks that were settled before have woken other futures.
            if self.shared.is_full() {
                return Poll::Pending;
            }
        }
        // In a fork of the process that created the pool, nothing is locked.
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
