//! Future that waits until the pool is not full: see [`room_queue`](crate::dispatcher::room_queue).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mp_core::user_code::UserValue;

use crate::dispatcher::shared::PoolShared;

/// Future that is ready when there is room for a task, or the pool accepts none.
pub(crate) struct RoomFuture {
    shared: Arc<PoolShared>,
    /// Position where the future waits, or has waited.
    position: Option<u64>,
}

impl RoomFuture {
    pub(crate) fn new(shared: &Arc<PoolShared>) -> RoomFuture {
        RoomFuture { shared: Arc::clone(shared), position: None }
    }
}

impl Future for RoomFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.shared.is_full() {
            // Cloning a waker is user code, so it happens without the lock.
            let waker = UserValue::new(context.waker().clone());
            self.position = Some(self.shared.room.wait(self.position, waker));
            // Tasks that were settled before have woken other futures.
            if self.shared.is_full() {
                return Poll::Pending;
            }
        }
        // In a fork of the process that created the pool, nothing is locked.
        if let Some(position) = self.position.take()
            && self.shared.check_owner().is_ok()
        {
            self.shared.room.leave(position);
        }
        Poll::Ready(())
    }
}

impl Drop for RoomFuture {
    fn drop(&mut self) {
        if let Some(position) = self.position
            && self.shared.check_owner().is_ok()
            && !self.shared.room.leave(position)
        {
            self.shared.wake_waiting();
        }
    }
}
