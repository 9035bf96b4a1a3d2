//! Queue of the futures that wait until the pool is not full.
//!
//! Each future has a position in a queue, under which its waker is stored. When tasks are settled, as many
//! wakers are woken as there is room for, in the order of the queue. If another caller takes the room first,
//! the woken future returns to its position. If a future is dropped after it was woken, the wake-up is passed
//! on.

use std::collections::BTreeMap;
use std::task::Waker;

use mp_core::mutex::Mutex;
use mp_core::user_code::{UserValue, catch_panic};

/// Queue of the futures that wait for room.
#[derive(Debug, Default)]
pub(crate) struct RoomQueue(Mutex<RoomWaiters>);

#[derive(Debug, Default)]
struct RoomWaiters {
    /// Next position; grows during the life of the pool.
    next: u64,
    waiting: BTreeMap<u64, UserValue<Waker>>,
}

impl RoomQueue {
    /// Wakes the next `room` futures. The caller must hold no lock, because a waker is user code.
    pub(crate) fn wake(&self, room: usize) {
        for _ in 0..room {
            let Some((_, waker)) = self.0.lock().waiting.pop_first() else { return };
            catch_panic(|| waker.into_inner().map(Waker::wake));
        }
    }

    /// Wakes all waiting futures. The caller must hold no lock.
    pub(crate) fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        waiting.into_values().for_each(|waker| _ = catch_panic(|| waker.into_inner().map(Waker::wake)));
    }

    /// Stores a waker at `position`, or at the end of the queue if `position` is `None`. Returns the
    /// position.
    pub(super) fn wait(&self, position: Option<u64>, waker: UserValue<Waker>) -> u64 {
        // The previous waker is dropped without the lock.
        let (position, _before) = {
            let mut line = self.0.lock();
            let position = position.unwrap_or(line.next);
            line.next = line.next.max(position + 1);
            (position, line.waiting.insert(position, waker))
        };
        position
    }

    /// Removes the waker at a position. Returns `true` if the waker was still stored.
    pub(super) fn leave(&self, position: u64) -> bool {
        let waker = self.0.lock().waiting.remove(&position);
        waker.is_some()
    }
}
