//! Format of a checkpoint: a file of the format safetensors, with a table of the messages at its end.
//!
//! | part | contents |
//! |---|---|
//! | header | length of the JSON, and the JSON, padded with spaces. Attachment `a` of message `m` has the name `m.a` |
//! | data | encoded bytes and attachments of the messages. Bytes that are not in attachments have names `encoded.n` |
//! | table | type and options of the queue; for each message the ranges of its bytes and attachments, and its checksum |
//! | trailer | eight words: magic, version, lengths of header and table, position of the table, length of the file, checksums |
//!
//! Restoring reads the table and not the JSON. All numbers are little-endian.

use std::fmt::Write as _;

use mp_core::{DType, Messages};

use super::checksum::Checksum;
use crate::raw::options::{DesertedWhen, QueueOptions};

/// Version of the file, which includes the version of the encoded bytes.
pub(super) const VERSION: u64 = 1000 + Messages::WIRE_VERSION;
/// Beginning of the JSON, followed by the version.
pub(super) const PREFIX: &str = r#"{"__metadata__":{"format":"mp-queue-checkpoint","version":""#;
/// Largest length of the JSON that readers of safetensors accept.
pub(super) const MAX_HEADER: u64 = 100_000_000;
/// Largest length of a table in bytes.
const MAX_TABLE: u64 = 1 << 30;
pub(super) const TRAILER: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"mp-queue");
/// Alignment of attachments in the file, in bytes.
pub(super) const ALIGN: u64 = 64;

/// Range of bytes in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileRange {
    pub(super) at: u64,
    pub(super) len: u64,
}

/// Block of memory attached to a saved message, and the position of its bytes in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SavedBlock {
    pub(super) range: FileRange,
    pub(super) frozen: bool,
    /// Code of the element type. 0 for frozen memory, whose type is in the encoded bytes.
    pub(super) element: u8,
}

/// Message in a checkpoint file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SavedMessage {
    /// `true` if a consumer had leased the message or had given it back.
    pub(super) set_aside: bool,
    pub(super) deliveries: u8,
    pub(super) bytes: FileRange,
    pub(super) blocks: Vec<SavedBlock>,
    pub(super) checksum: u64,
}

impl SavedMessage {
    /// Returns the number of bytes that the message uses in the file.
    pub(super) fn len(&self) -> u64 {
        self.blocks.iter().fold(self.bytes.len, |sum, block| sum.saturating_add(block.range.len))
    }
}

/// Type, options and messages of a saved queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SavedQueue {
    pub(super) fingerprint: u64,
    pub(super) type_name: String,
    pub(super) options: QueueOptions,
    pub(super) closed: bool,
    pub(super) messages: Vec<SavedMessage>,
}

/// Returns the JSON header of a file whose data begins at `data_at` and ends at `end`.
pub(super) fn header(queue: &SavedQueue, data_at: u64, end: u64) -> String {
    let mut named: Vec<(FileRange, usize, usize, u8)> = Vec::new();
    for (m, message) in queue.messages.iter().enumerate() {
        let blocks = message.blocks.iter().enumerate().filter(|(_, block)| block.range.len > 0);
        named.extend(blocks.map(|(a, block)| (block.range, m, a, block.element)));
    }
    named.sort_unstable_by_key(|(range, ..)| range.at);
    let mut json = format!("{PREFIX}{VERSION}\",\"messages\":\"{}\",\"type\":\"", queue.messages.len());
    for c in queue.type_name.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            // The library replaces control characters in names.
            c if c.is_control() => json.push(' '),
            c => json.push(c),
        }
    }
    json.push_str("\"}");
    let (mut at, mut gaps) = (data_at, 0);
    let mut gap = |json: &mut String, from: u64, to: u64| {
        if from < to {
            let (from, to) = (from - data_at, to - data_at);
            // Writing to a string can't fail.
            _ = write!(
                json,
                r#","encoded.{gaps}":{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#,
                to - from
            );
            gaps += 1;
        }
    };
    for (range, message, attachment, element) in named {
        gap(&mut json, at, range.at);
        let (dtype, size) = dtype(element, range.len);
        let (from, to) = (range.at - data_at, range.at - data_at + range.len);
        _ = write!(
            json,
            r#","{message}.{attachment}":{{"dtype":"{dtype}","shape":[{}],"data_offsets":[{from},{to}]}}"#,
            range.len / size
        );
        at = range.at + range.len;
    }
    gap(&mut json, at, end);
    json.push('}');
    json
}

/// Returns the safetensors name of an element type, and the size of an element in bytes. Returns `U8` and 1
/// if safetensors lacks the type, or `len` is not a multiple of the size.
fn dtype(element: u8, len: u64) -> (&'static str, u64) {
    let named =
        DType::from_code(element).and_then(|dtype| Some((dtype.safetensors_name()?, dtype.size() as u64)));
    named.filter(|(_, size)| len.is_multiple_of(*size)).unwrap_or(("U8", 1))
}

/// Encodes the table of a saved queue.
pub(super) fn table(queue: &SavedQueue) -> Vec<u8> {
    let mut to = Vec::new();
    let options = queue.options;
    to.extend(queue.fingerprint.to_le_bytes());
    to.extend((queue.type_name.len() as u64).to_le_bytes());
    to.extend(queue.type_name.as_bytes());
    let flags = u64::from(options.growing) | u64::from(options.capacity.is_some()) << 1;
    let flags = flags | u64::from(queue.closed) << 2 | options.deserted.pack() << 8;
    for word in [flags, options.capacity.unwrap_or(0) as u64, options.bytes, options.deliveries.into()] {
        to.extend(word.to_le_bytes());
    }
    to.extend((queue.messages.len() as u64).to_le_bytes());
    for message in &queue.messages {
        to.extend([u8::from(message.set_aside), message.deliveries]);
        to.extend((message.blocks.len() as u32).to_le_bytes());
        for word in [message.bytes.at, message.bytes.len, message.checksum] {
            to.extend(word.to_le_bytes());
        }
        for block in &message.blocks {
            to.extend([u8::from(block.frozen), block.element]);
            to.extend(block.range.at.to_le_bytes());
            to.extend(block.range.len.to_le_bytes());
        }
    }
    to
}

/// Bytes of a table that were not read yet.
struct TableReader<'a>(&'a [u8]);

impl<'a> TableReader<'a> {
    fn bytes(&mut self, len: u64) -> Option<&'a [u8]> {
        let (now, later) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = later;
        Some(now)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (now, later) = self.0.split_first_chunk()?;
        self.0 = later;
        Some(*now)
    }

    fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn range(&mut self, trailer: &Trailer, room: &mut u64) -> Option<FileRange> {
        let (at, len) = (self.word()?, self.word()?);
        // Hostile ranges could overlap, so that a short file would need much memory.
        *room = room.checked_sub(len)?;
        (at >= trailer.data_at && at.checked_add(len)? <= trailer.table_at).then_some(FileRange { at, len })
    }

    fn message(&mut self, trailer: &Trailer, room: &mut u64) -> Option<SavedMessage> {
        let [set_aside, deliveries] = self.array()?;
        let blocks = u32::from_le_bytes(self.array()?);
        let bytes = self.range(trailer, room)?;
        let checksum = self.word()?;
        let block = |_| {
            let [frozen, element] = self.array()?;
            let range = self.range(trailer, room)?;
            (frozen <= 1 && element < 32).then_some(SavedBlock { range, frozen: frozen == 1, element })
        };
        let blocks = (0..blocks).map(block).collect::<Option<_>>()?;
        let valid = set_aside <= 1 && bytes.len <= u64::from(u32::MAX);
        valid.then_some(SavedMessage { set_aside: set_aside == 1, deliveries, bytes, blocks, checksum })
    }
}

/// Decodes the table of a saved queue. Returns `None` if the table is invalid.
pub(super) fn read_table(bytes: &[u8], trailer: &Trailer) -> Option<SavedQueue> {
    let mut from = TableReader(bytes);
    let fingerprint = from.word()?;
    let len = from.word()?;
    let type_name = String::from_utf8(from.bytes(len)?.to_vec()).ok()?;
    let (flags, capacity) = (from.word()?, usize::try_from(from.word()?).ok()?);
    let mut options = QueueOptions::new().bytes(from.word()?).deliveries(u32::try_from(from.word()?).ok()?);
    options.growing = flags & 1 != 0;
    options.capacity = (flags & 2 != 0).then_some(capacity);
    options.deserted = DesertedWhen::unpack(flags >> 8);
    let (count, mut room) = (from.word()?, trailer.table_at - trailer.data_at);
    let messages = (0..count).map(|_| from.message(trailer, &mut room)).collect::<Option<_>>()?;
    let queue = SavedQueue { fingerprint, type_name, options, closed: flags & 4 != 0, messages };
    from.0.is_empty().then_some(queue)
}

/// Trailer of a checkpoint file: positions and checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Trailer {
    /// Position of the data, after the padded header.
    pub(super) data_at: u64,
    pub(super) table_at: u64,
    pub(super) table_len: u64,
    /// Checksum of the header.
    pub(super) header_sum: u64,
}

impl Trailer {
    /// Returns the length of the file.
    pub(super) fn file_len(&self) -> u64 {
        self.table_at + self.table_len + TRAILER as u64
    }

    /// Encodes the trailer, with a checksum of the trailer and `table`.
    pub(super) fn pack(&self, table: &[u8]) -> [u8; TRAILER] {
        let words = [
            MAGIC,
            VERSION,
            self.data_at,
            self.table_at,
            self.table_len,
            self.file_len(),
            self.header_sum,
            0,
        ];
        let mut bytes = [0; TRAILER];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        let sum = Self::sum(&bytes, table);
        bytes[TRAILER - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn sum(trailer: &[u8; TRAILER], table: &[u8]) -> u64 {
        let mut sum = Checksum::default();
        sum.add(&trailer[..TRAILER - 8]);
        sum.add(table);
        sum.get()
    }

    /// Decodes the trailer of a file of `len` bytes. Returns `None` if the trailer is invalid.
    pub(super) fn unpack(bytes: &[u8; TRAILER], len: u64) -> Option<Self> {
        let mut words = [0; 8];
        for (to, from) in words.iter_mut().zip(bytes.as_chunks().0) {
            *to = u64::from_le_bytes(*from);
        }
        let [magic, version, data_at, table_at, table_len, file_len, header_sum, _] = words;
        let ends = table_at.checked_add(table_len)?.checked_add(TRAILER as u64)?;
        let valid = magic == MAGIC
            && version == VERSION
            && (file_len, ends) == (len, len)
            && (8..=8 + MAX_HEADER).contains(&data_at)
            && data_at <= table_at
            && table_len <= MAX_TABLE;
        valid.then_some(Self { data_at, table_at, table_len, header_sum })
    }

    /// Returns `true` if the checksum in the trailer `bytes` matches this trailer and table.
    pub(super) fn is_sum_of(bytes: &[u8; TRAILER], table: &[u8]) -> bool {
        bytes[TRAILER - 8..] == Self::sum(bytes, table).to_le_bytes()
    }
}
