//! Iterators over messages. Their `next` is the caller's place in reports, so they are no closures.

use mp_core::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::GetError;
use crate::queue::Queue;
use crate::queue::channel::Receiver;
use crate::queue::joinable::JoinableQueue;
use crate::queue::lease::Lease;

/// Iterator over the messages of a queue.
pub(super) struct Messages<'a, T: Message>(pub(super) &'a Queue<T>);

impl<T: Message> Iterator for Messages<'_, T> {
    type Item = Result<T, GetError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.get().transpose()
    }
}

/// Iterator over the messages of a channel.
pub(super) struct ChannelMessages<'a, T>(pub(super) &'a Receiver<T>);

impl<T: Message> Iterator for ChannelMessages<'_, T> {
    type Item = Result<T, GetError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        match self.0.recv() {
            Err(GetError::Disconnected) => None,
            got => Some(got),
        }
    }
}

/// Iterator over the tasks of a queue.
pub(super) struct Tasks<'a, T: Serialize + DeserializeOwned + 'static>(pub(super) &'a JoinableQueue<T>);

impl<T: Serialize + DeserializeOwned + 'static> Iterator for Tasks<'_, T> {
    type Item = Result<Lease<T>, GetError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.get().transpose()
    }
}
