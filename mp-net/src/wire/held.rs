//! A message whose memory a stream reads while the message is sent.

use std::fmt;
use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_core::mutex::Mutex;
use tokio::sync::oneshot;

use crate::wire::messages::Value;

/// A message that was taken out of a queue or channel, and whose attachments are being sent.
pub(crate) trait HeldSource: Send + Sync {
    /// Returns the memory of an attachment.
    fn memory(&self, attachment: usize) -> &[u8];
    /// Gives the message back to its queue.
    fn give_back(self: Box<Self>);
}

/// Owner of the memory of a [`HeldMessage`].
enum Source {
    /// Encoded values.
    Values(Vec<Outgoing>),
    /// Messages of a queue, in their order.
    Taken(Vec<Box<dyn HeldSource>>),
}

/// Action that ends the use of the message, performed when the last reference is dropped.
enum Release {
    Reclaim(Box<dyn FnOnce(Vec<Outgoing>) + Send>),
    /// Gives back all messages except the first `n`. The field is `n`.
    GiveBack(usize),
}

/// Messages that are being sent. The stream keeps references while it reads the memory of the attachments. So
/// the messages are [reclaimed](Self::reclaim) or [given back](Self::give_back) only after the last reference
/// is dropped. Without `reclaim` and `give_back`, the messages are dropped with the last reference.
pub(crate) struct HeldMessage {
    source: Option<Source>,
    /// Index in `sizes` of the first attachment of each message.
    firsts: Vec<usize>,
    sizes: Vec<u64>,
    release: Mutex<Option<Release>>,
}

impl fmt::Debug for HeldMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldMessage").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

impl HeldMessage {
    fn new(source: Source, firsts: Vec<usize>, sizes: Vec<u64>) -> Arc<Self> {
        Arc::new(Self { source: Some(source), firsts, sizes, release: Mutex::new(None) })
    }

    /// Wraps an encoded value, whose attachments have these sizes in bytes.
    pub(crate) fn value(value: Outgoing, sizes: Vec<u64>) -> Arc<Self> {
        Self::new(Source::Values(vec![value]), vec![0], sizes)
    }

    /// Wraps encoded values with the attachments of `heads`, whose sizes in bytes are `sizes`.
    pub(crate) fn values(values: Vec<Outgoing>, heads: &[Value], sizes: Vec<u64>) -> Arc<Self> {
        Self::new(Source::Values(values), firsts(heads), sizes)
    }

    /// Wraps messages of a queue with the attachments of `heads`, whose sizes in bytes are `sizes`.
    pub(crate) fn taken(messages: Vec<Box<dyn HeldSource>>, heads: &[Value], sizes: Vec<u64>) -> Arc<Self> {
        Self::new(Source::Taken(messages), firsts(heads), sizes)
    }

    /// Returns the memory of an attachment.
    pub(crate) fn memory(&self, attachment: usize) -> &[u8] {
        let index = self.firsts.partition_point(|first| *first <= attachment).saturating_sub(1);
        let attachment = attachment - self.firsts.get(index).unwrap_or(&0);
        let memory = match &self.source {
            Some(Source::Values(values)) => values.get(index).map(|value| value.relayed_bytes(attachment)),
            Some(Source::Taken(messages)) => messages.get(index).map(|message| message.memory(attachment)),
            None => None,
        };
        memory.unwrap_or_default()
    }

    /// Returns the sizes of the attachments in bytes.
    pub(crate) fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    fn release_as(&self, release: Release) {
        *self.release.lock() = Some(release);
    }

    /// Blocks until no stream reads the encoded values, and returns them.
    pub(crate) fn reclaim(self: Arc<Self>) -> Vec<Outgoing> {
        let (to, from) = std::sync::mpsc::sync_channel(1);
        self.release_as(Release::Reclaim(Box::new(move |value| _ = to.send(value))));
        drop(self);
        from.recv().unwrap_or_default()
    }

    /// Returns the encoded values after the last stream has read them.
    pub(crate) async fn reclaim_async(self: Arc<Self>) -> Vec<Outgoing> {
        let (to, from) = oneshot::channel();
        self.release_as(Release::Reclaim(Box::new(move |value| _ = to.send(value))));
        drop(self);
        from.await.unwrap_or_default()
    }

    /// Gives the messages back to their queue after the last stream has read them.
    pub(crate) fn give_back(self: Arc<Self>) {
        self.give_back_after(0);
    }

    /// Gives back the messages after the first `kept`, like [`give_back`](Self::give_back). Drops the first
    /// `kept` messages.
    pub(crate) fn give_back_after(self: Arc<Self>, kept: usize) {
        self.release_as(Release::GiveBack(kept));
    }
}

impl Drop for HeldMessage {
    fn drop(&mut self) {
        let release = self.release.get_mut().take();
        match (release, self.source.take()) {
            (Some(Release::Reclaim(reclaim)), Some(Source::Values(values))) => reclaim(values),
            (Some(Release::GiveBack(kept)), Some(Source::Taken(messages))) => {
                messages.into_iter().skip(kept).for_each(|message| message.give_back());
            }
            _ => {}
        }
    }
}

/// Returns the index of the first attachment of each message.
fn firsts(heads: &[Value]) -> Vec<usize> {
    let first = |next: &mut usize, head: &Value| Some(std::mem::replace(next, *next + head.blocks.len()));
    heads.iter().scan(0, first).collect()
}
