//! Writing of a stream: the messages of a channel become frames in a body of HTTP/2.

use crate::sync::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body, Frame};
use prost::Message;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::wire::held::HeldMessage;
use crate::wire::{CHUNK, DATA};

/// Length in bytes from which a frame of HTTP/2 gets no further small messages.
const FULL: usize = 32 << 10;
/// Maximum size in bytes of an attachment that is copied into a shared frame. A larger attachment is read
/// in place, and has its own frame.
const COPIED: u64 = 4 << 10;

/// An encoded message to send, and the message whose attachments follow it.
pub(crate) struct StreamPacket {
    pub(crate) message: Bytes,
    /// Message whose attachments are sent after `message`.
    pub(crate) memory: Option<Arc<HeldMessage>>,
}

impl StreamPacket {
    /// Encodes a message without attachments.
    pub(crate) fn of(message: &impl Message) -> Self {
        Self { message: message.encode_to_vec().into(), memory: None }
    }
}

/// Part of an attachment's memory. Keeps the message of the attachment alive.
struct AttachedSlice {
    of: Arc<HeldMessage>,
    attachment: usize,
    range: Range<usize>,
}

impl AsRef<[u8]> for AttachedSlice {
    fn as_ref(&self) -> &[u8] {
        self.of.memory(self.attachment).get(self.range.clone()).unwrap_or_default()
    }
}

/// Number of bytes of attachments that streams of this process have sent. Attachments larger than [`COPIED`]
/// are not copied by this library.
// fork: a count, which a child continues.
pub(crate) static SENT: AtomicU64 = AtomicU64::new(0);

/// Body of a stream. Ends when all senders of its channel are dropped.
pub(crate) struct FrameBody {
    from: UnboundedReceiver<StreamPacket>,
    /// Frames that are sent next: memory of attachments, and the heads of messages of data.
    next: VecDeque<Bytes>,
}

impl FrameBody {
    pub(crate) fn new(from: UnboundedReceiver<StreamPacket>) -> Self {
        Self { from, next: VecDeque::new() }
    }

    /// Appends a message, and prepares the frames with the memory of its attachments.
    fn append(&mut self, packet: &StreamPacket, to: &mut BytesMut) {
        to.put_u8(0);
        to.put_u32(packet.message.len() as u32);
        to.put_slice(&packet.message);
        let Some(of) = &packet.memory else { return };
        for (attachment, &bytes) in of.sizes().iter().enumerate() {
            SENT.fetch_add(bytes, Ordering::Relaxed);
            if bytes <= COPIED && to.len() < FULL && self.next.is_empty() {
                if bytes > 0 {
                    put_head_of_data(bytes as usize, to);
                    to.put_slice(of.memory(attachment).get(..bytes as usize).unwrap_or_default());
                }
                continue;
            }
            let mut at = 0;
            while at < bytes as usize {
                let end = (at + CHUNK).min(bytes as usize);
                match self.next.is_empty() {
                    true => put_head_of_data(end - at, to),
                    false => self.next.push_back(head_of_data(end - at)),
                }
                self.next.push_back(Bytes::from_owner(AttachedSlice {
                    of: of.clone(),
                    attachment,
                    range: at..end,
                }));
                at = end;
            }
        }
    }
}

/// Returns the head of a gRPC frame with this number of bytes of data.
pub(crate) fn head_of_data(bytes: usize) -> Bytes {
    let mut head = BytesMut::with_capacity(16);
    put_head_of_data(bytes, &mut head);
    head.freeze()
}

/// Appends the head of a gRPC frame with this number of bytes of data.
fn put_head_of_data(bytes: usize, to: &mut BytesMut) {
    to.put_u8(0);
    to.put_u32((1 + prost::length_delimiter_len(bytes) + bytes) as u32);
    to.put_u8(DATA);
    // The result is ignored: the buffer grows, so the length always fits.
    _ = prost::encode_length_delimiter(bytes, to);
}

impl Body for FrameBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        if let Some(data) = self.next.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Poll::Ready(packet) = self.from.poll_recv(cx) else { return Poll::Pending };
        let Some(mut packet) = packet else { return Poll::Ready(None) };
        let mut bytes = BytesMut::with_capacity(packet.message.len() + 64);
        loop {
            self.append(&packet, &mut bytes);
            if !self.next.is_empty() || bytes.len() >= FULL {
                break;
            }
            match self.from.try_recv() {
                Ok(another) => packet = another,
                Err(_) => break,
            }
        }
        Poll::Ready(Some(Ok(Frame::data(bytes.freeze()))))
    }
}
