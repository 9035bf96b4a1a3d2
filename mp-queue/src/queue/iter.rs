//! Iterator over the messages of a queue. The iterator is a named type instead of a closure, so that reports
//! of long waits name the caller of `next`.

use mp_core::Message;

use crate::error::GetError;
use crate::queue::Queue;

/// Iterator over the messages of a queue.
pub(super) struct QueueMessages<'a, T: Message>(pub(super) &'a Queue<T>);

impl<T: Message> Iterator for QueueMessages<'_, T> {
    type Item = Result<T, GetError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.get().transpose()
    }
}
