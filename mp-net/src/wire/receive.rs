//! Reading of a stream: a body of HTTP/2 is split into messages and data.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Buf, Bytes};
use http_body::Body;
use prost::Message;

use crate::wire::{DATA, HEAD};

/// Reason why a stream ended.
#[derive(thiserror::Error)]
pub(crate) enum StreamEnd {
    /// The caller has finished.
    #[error("it has finished")]
    Finished,
    /// The other side closed the stream, or its process ended or was silent.
    #[error("the connection was closed")]
    Closed,
    /// The connection failed.
    #[error("{cause}")]
    Failed {
        cause: String,
        /// `true` if the other side was silent for the lease.
        timed_out: bool,
    },
    /// Bytes that are invalid in this protocol.
    #[error("invalid bytes were received: {0}")]
    Malformed(&'static str),
}

mp_core::readable_debug!(StreamEnd);

/// Returns the text of the innermost cause of an error.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    text
}

/// Message or data that were read from a stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Part<M> {
    /// A message.
    Message(M),
    /// Data that belong to the last message.
    Data(Bytes),
}

/// State between two pieces of a body.
enum ParserState {
    /// Reading the head of a frame.
    Head,
    /// Reading the first byte of a message of this length.
    Kind(usize),
    /// Reading a message of which this number of bytes is unread.
    Message { left: usize },
    /// Reading the length of data, in a message of which this number of bytes is unread.
    DataLength { left: usize },
    /// Reading data of which this number of bytes is unread.
    Data { left: usize },
}

/// Parser that splits a body into messages and data. The result doesn't depend on the sizes of the pieces in
/// which the body arrives.
pub(crate) struct FrameParser {
    state: ParserState,
    /// Bytes of the head, length or message that is being read.
    read: Vec<u8>,
    /// Maximum length in bytes of a message, without data.
    longest: usize,
}

impl FrameParser {
    pub(crate) fn new(longest: usize) -> Self {
        Self { state: ParserState::Head, read: Vec::new(), longest }
    }

    /// Removes the next message or piece of data from the front of `from`. Returns `None` if `from` is used
    /// up.
    ///
    /// # Errors
    /// [`StreamEnd::Malformed`].
    pub(crate) fn next<M: Message + Default>(
        &mut self,
        from: &mut Bytes,
    ) -> Result<Option<Part<M>>, StreamEnd> {
        while !from.is_empty() {
            match self.state {
                ParserState::Head => {
                    self.fill(from, HEAD);
                    if let &[compressed, a, b, c, d] = self.read.as_slice() {
                        if compressed != 0 {
                            return Err(StreamEnd::Malformed("a compressed frame"));
                        }
                        self.read.clear();
                        match u32::from_be_bytes([a, b, c, d]) as usize {
                            0 => return Err(StreamEnd::Malformed("an empty message")),
                            length => self.state = ParserState::Kind(length),
                        }
                    }
                }
                ParserState::Kind(length) if from[0] == DATA => {
                    from.advance(1);
                    self.state = ParserState::DataLength { left: length - 1 };
                }
                ParserState::Kind(length) if length > self.longest => {
                    return Err(StreamEnd::Malformed("a message above the limit"));
                }
                ParserState::Kind(length) => self.state = ParserState::Message { left: length },
                ParserState::Message { left } => {
                    let whole = self.read.len() + left;
                    self.fill(from, whole);
                    if self.read.len() < whole {
                        self.state = ParserState::Message { left: whole - self.read.len() };
                        continue;
                    }
                    self.state = ParserState::Head;
                    let message = M::decode(self.read.as_slice());
                    self.read.clear();
                    if self.read.capacity() > 1 << 16 {
                        self.read = Vec::new();
                    }
                    let invalid = |_| StreamEnd::Malformed("a message that can't be decoded");
                    return Ok(Some(Part::Message(message.map_err(invalid)?)));
                }
                ParserState::DataLength { left } => {
                    let Some(less) = left.checked_sub(1) else {
                        return Err(StreamEnd::Malformed("data without a length"));
                    };
                    let byte = from.get_u8();
                    self.read.push(byte);
                    self.state = ParserState::DataLength { left: less };
                    if byte < 0x80 {
                        let length = prost::decode_length_delimiter(self.read.as_slice());
                        self.read.clear();
                        if length.ok() != Some(less) {
                            return Err(StreamEnd::Malformed("a message with more than its data"));
                        }
                        self.state =
                            if less == 0 { ParserState::Head } else { ParserState::Data { left: less } };
                    } else if self.read.len() > 5 {
                        return Err(StreamEnd::Malformed("data with a length of more than five bytes"));
                    }
                }
                ParserState::Data { left } => {
                    let data = from.split_to(left.min(from.len()));
                    let left = left - data.len();
                    self.state = if left == 0 { ParserState::Head } else { ParserState::Data { left } };
                    return Ok(Some(Part::Data(data)));
                }
            }
        }
        Ok(None)
    }

    /// Moves bytes until `read` has `whole` of them or `from` is used up.
    fn fill(&mut self, from: &mut Bytes, whole: usize) {
        let more = from.split_to((whole - self.read.len()).min(from.len()));
        self.read.extend_from_slice(&more);
    }
}

/// Reader of the messages and data in a body.
pub(crate) struct StreamReader {
    body: tonic::body::Body,
    piece: Bytes,
    frames: FrameParser,
}

impl StreamReader {
    pub(crate) fn new(body: tonic::body::Body, longest: usize) -> Self {
        Self { body, piece: Bytes::new(), frames: FrameParser::new(longest) }
    }

    /// Waits for the next message or piece of data, and returns it.
    ///
    /// # Errors
    /// [`StreamEnd`].
    pub(crate) async fn next<M: Message + Default>(&mut self) -> Result<Part<M>, StreamEnd> {
        loop {
            if let Some(part) = self.frames.next(&mut self.piece)? {
                return Ok(part);
            }
            match poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
                None => return Err(StreamEnd::Closed),
                Some(Err(status)) => {
                    let cause = causes(&status);
                    let timed_out = cause.contains("timed out");
                    return Err(StreamEnd::Failed { cause, timed_out });
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.piece = data;
                    }
                }
            }
        }
    }

    /// Allows messages of up to `longest` bytes, without data.
    pub(crate) fn allow(&mut self, longest: usize) {
        self.frames.longest = longest;
    }

    /// Returns the next message or piece of data if it has already arrived.
    ///
    /// # Errors
    /// [`StreamEnd::Malformed`].
    pub(crate) fn arrived<M: Message + Default>(&mut self) -> Result<Option<Part<M>>, StreamEnd> {
        self.frames.next(&mut self.piece)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::messages::{CallerMessage, CallerMessageKind};
    use crate::wire::send::head_of_data;

    /// Parses `bytes` in pieces of up to `piece` bytes. Returns all messages, and all data in one vector.
    fn parts(bytes: &[u8], piece: usize) -> Result<(Vec<CallerMessage>, Vec<u8>), String> {
        let (mut parser, mut messages, mut all) = (FrameParser::new(1000), Vec::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(part) = parser.next(&mut piece).map_err(|end| end.to_string())? {
                match part {
                    Part::Message(message) => messages.push(message),
                    Part::Data(data) => all.extend_from_slice(&data),
                }
            }
        }
        Ok((messages, all))
    }

    fn cancel(id: u64) -> CallerMessage {
        CallerMessage { kind: Some(CallerMessageKind::Cancel(id)) }
    }

    fn frame(message: &CallerMessage) -> Vec<u8> {
        let body = message.encode_to_vec();
        [&[0], (body.len() as u32).to_be_bytes().as_slice(), &body].concat()
    }

    #[test]
    fn receiver_reads_the_same_parts_from_any_pieces() {
        let data: Vec<u8> = (0..300_u32).map(|i| i as u8).collect();
        let head = head_of_data(data.len());
        let bytes =
            [&frame(&cancel(7)), &head[..], &data, &head_of_data(1), &[9], &frame(&cancel(1 << 60))].concat();
        for piece in 1..bytes.len() {
            let (messages, all) = parts(&bytes, piece).unwrap();
            assert_eq!(messages, [cancel(7), cancel(1 << 60)], "pieces of {piece}");
            assert!(all[..300] == data && all[300..] == [9]);
        }
    }

    #[test]
    fn receiver_refuses_invalid_frames() {
        let large = [&[0], 1001_u32.to_be_bytes().as_slice(), &[0]].concat();
        assert!(parts(&large, 100).unwrap_err().contains("above the limit"));
        assert!(parts(&[1, 0, 0, 0, 1, 0], 6).unwrap_err().contains("compressed"));
        assert!(parts(&[0, 0, 0, 0, 0], 5).unwrap_err().contains("empty"));
        // Data of 3 bytes in a message of 10.
        assert!(parts(&[0, 0, 0, 0, 10, DATA, 3, 1, 1, 1], 100).unwrap_err().contains("more than its data"));
        assert!(parts(&[0, 0, 0, 0, 1, DATA, 0], 100).unwrap_err().contains("without a length"));
    }

    proptest! {
        #[test]
        fn receiver_of_frames_does_not_panic_on_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            piece in 1..50_usize,
        ) {
            _ = parts(&bytes, piece);
        }
    }
}
