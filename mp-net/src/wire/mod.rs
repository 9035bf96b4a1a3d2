//! Frames of gRPC, read and written without the copies of a codec.
//!
//! A stream is a body of HTTP/2. A frame of gRPC is five bytes (0, and the length of the message in
//! big-endian order), and a message of [`messages`]. Memory of the arena is sent unchanged, in messages of
//! data of up to [`CHUNK`] bytes: HTTP/2 reads it in place through [`send`], and [`receive`] writes arriving
//! bytes into their block. So each side copies the memory once, to or from the socket's buffers.

pub(crate) mod held;
pub(crate) mod messages;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod value;

/// Maximum number of bytes of the arena in a message of data.
pub(crate) const CHUNK: usize = 1 << 20;
/// Protobuf tag of the bytes in a message of data: field 15, wire type 2 (length-delimited).
pub(crate) const DATA: u8 = 15 << 3 | 2;
/// Maximum number of values of a call or reply.
pub(crate) const MOST_VALUES: usize = 256;
/// Maximum size in bytes of all values of a call or reply except the last value, with attachments. It is less
/// than the [additional bytes](crate::link::stream::BESIDE) of a message.
pub(crate) const TOGETHER: u64 = 32 << 10;
/// Length in bytes of the head of a gRPC frame.
pub(crate) const HEAD: usize = 5;
/// Maximum number of bytes of a message without its attachments: less than a frame of gRPC holds.
pub(crate) const LONGEST: usize = u32::MAX as usize - (1 << 16);
