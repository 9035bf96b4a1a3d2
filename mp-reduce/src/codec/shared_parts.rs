//! Parts: values that a message refers to several times and contains once.
//!
//! A reference contains the number of a part and not its bytes. The parts precede the value with the first
//! reference. So a reader can resolve every reference, although serde may read references in another order
//! than they were written: it reads flattened fields last, and the contents of untagged enums several times.
//!
//! | bytes | contents |
//! |---|---|
//! | 2 | [`JUST`](super::first::JUST), [`PARTS`] |
//! | 4 | number of parts |
//! | variable, for each part | length of the part, in the form of a value's length, and the encoded part |
//! | the rest | the value, which refers to the parts |
//!
//! Parts are numbered through all values of one message. A part is identified by its address *and* the type
//! of the pointer to it, since objects of several types can have the same address. While the message is
//! written, the table owns a copy of the pointer, so that the address is not reused.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use mp_core::message::memo;
use mp_core::{Error, Result};

use super::error::{CodecError, too_short};
use super::first::JUST;
use super::{split_length, write_length};

/// Code after [`JUST`] that announces shared parts. No buffer has this code.
pub(super) const PARTS: u8 = 0x20;

/// Parts of the message that this thread is writing, and parts of the message that it is reading.
#[derive(Default)]
struct PartTable {
    numbers: HashMap<(usize, TypeId), u32>,
    written: Vec<WrittenPart>,
    /// Number of parts that were already inserted before a value of the message.
    before_values: usize,
    read: Vec<ReadPart>,
}

struct WrittenPart {
    /// Encoded part, or `None` while the part is being written.
    bytes: Option<Rc<[u8]>>,
    /// Copy of the pointer to the part. It keeps the part's address from being reused.
    _kept: Box<dyn Any>,
}

struct ReadPart {
    bytes: Rc<[u8]>,
    at: Range<usize>,
    /// `true` while the part is being read. Used to detect a part that contains itself.
    open: bool,
    /// Pointers to the decoded part. All have the same type, unless the reader tried several types.
    built: Vec<Box<dyn Any>>,
}

impl ReadPart {
    fn built<P: Any + Clone>(&self) -> Option<P> {
        self.built.iter().find_map(|built| built.downcast_ref::<P>()).cloned()
    }
}

#[cold]
fn no_message() -> String {
    "the thread is ending, and its thread-local data was dropped".into()
}

#[cold]
fn cycle<P>() -> String {
    format!(
        "a {} leads to itself, and a message can't have cycles: skip the reference back (`#[serde(skip)]`), \
         and restore it in the receiver",
        type_name::<P>()
    )
}

/// Returns the number of the part to which `pointer` points. At the first reference to the part, calls
/// `write` to encode the part.
pub(crate) fn write_reference<P: Any + Clone>(
    pointer: &P,
    address: usize,
    write: impl FnOnce() -> std::result::Result<Vec<u8>, CodecError>,
) -> std::result::Result<u32, String> {
    let key = (address, TypeId::of::<P>());
    let found = memo::with(|memo: &mut PartTable| {
        if let Some(number) = memo.numbers.get(&key) {
            let done = memo.written.get(*number as usize).is_some_and(|part| part.bytes.is_some());
            let cyclic = !done;
            return if cyclic { Err(cycle::<P>()) } else { Ok((*number, false)) };
        }
        let number = u32::try_from(memo.written.len()).map_err(|_| "too many parts in a message")?;
        memo.numbers.insert(key, number);
        memo.written.push(WrittenPart { bytes: None, _kept: Box::new(pointer.clone()) });
        Ok((number, true))
    });
    let (number, first) = found.ok_or_else(no_message)??;
    if first {
        // Outside of the memo, since this calls user code.
        let bytes = write();
        memo::with(|memo: &mut PartTable| {
            if bytes.is_err() {
                memo.numbers.remove(&key);
            }
            if let Some(part) = memo.written.get_mut(number as usize) {
                part.bytes = Some(bytes.as_deref().unwrap_or_default().into());
            }
        });
        bytes.map_err(|e| e.located())?;
    }
    Ok(number)
}

/// Inserts parts before the value at offset `at`: the parts to which this value contains the first reference.
#[inline]
pub(super) fn insert_parts(to: &mut Vec<u8>, at: usize) -> std::result::Result<(), Box<Error>> {
    if memo::exists() { insert_before(to, at).map_err(Box::new) } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn insert_before(to: &mut Vec<u8>, at: usize) -> Result<()> {
    let parts = memo::with(|memo: &mut PartTable| {
        let from = std::mem::replace(&mut memo.before_values, memo.written.len());
        let bytes = |part: &WrittenPart| part.bytes.clone().unwrap_or_default();
        memo.written.iter().skip(from).map(bytes).collect::<Vec<_>>()
    });
    let parts = parts.unwrap_or_default();
    if parts.is_empty() {
        return Ok(());
    }
    let mut before = parts_head(parts.len());
    for part in parts {
        write_length(&mut before, part.len()).ok_or_else(|| {
            Error::LimitExceeded("a shared part has more than 4 GiB: put it into a tensor".into())
        })?;
        before.extend_from_slice(&part);
    }
    to.splice(at..at, before);
    Ok(())
}

/// Returns the bytes that precede this number of parts.
pub(super) fn parts_head(parts: usize) -> Vec<u8> {
    let mut head = vec![JUST, PARTS];
    head.extend_from_slice(&(parts as u32).to_le_bytes());
    head
}

/// Returns the number of parts that precede a value, and the bytes of these parts followed by the value.
/// Returns `None` if no parts precede the value.
pub(super) fn split_parts(value: &[u8]) -> Option<(usize, &[u8])> {
    match *value {
        [JUST, PARTS, a, b, c, d, ref rest @ ..] => Some((u32::from_le_bytes([a, b, c, d]) as usize, rest)),
        _ => None,
    }
}

/// Records the parts that precede a value, and returns the bytes of the value without the parts.
#[inline]
pub(super) fn record_parts(value: &[u8]) -> std::result::Result<&[u8], CodecError> {
    match split_parts(value) {
        Some((count, rest)) => record(value, count, rest),
        None => Ok(value),
    }
}

#[cold]
#[inline(never)]
fn record<'a>(
    value: &'a [u8],
    count: usize,
    mut rest: &'a [u8],
) -> std::result::Result<&'a [u8], CodecError> {
    // Each part has at least a length.
    if count > rest.len() {
        return Err(too_short());
    }
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        let (head, len) = split_length(rest).map_err(|_| too_short())?;
        let at = value.len() - rest.len() + head;
        found.push(at..at + len);
        rest = &rest[head + len..];
    }
    let bytes: Rc<[u8]> = value[..value.len() - rest.len()].into();
    memo::with(|memo: &mut PartTable| {
        let part = |at| ReadPart { bytes: Rc::clone(&bytes), at, open: false, built: Vec::new() };
        memo.read.extend(found.into_iter().map(part));
    });
    Ok(rest)
}

/// Returns `true` if the message that is being read has shared parts. Shared values are then encoded as
/// references.
pub(crate) fn has_parts() -> bool {
    memo::exists() && memo::with(|memo: &mut PartTable| !memo.read.is_empty()).unwrap_or_default()
}

/// Returns the part with this number. Calls `read` to decode the part if it was not decoded before.
pub(crate) fn read_reference<P: Any + Clone>(
    number: u32,
    read: impl FnOnce(&[u8]) -> std::result::Result<P, CodecError>,
) -> std::result::Result<P, String> {
    let found = memo::with(|memo: &mut PartTable| {
        let part = memo.read.get_mut(number as usize);
        let part = part.ok_or_else(|| format!("the message has no part {number}"))?;
        if let Some(built) = part.built::<P>() {
            return Ok(Err(built));
        }
        if std::mem::replace(&mut part.open, true) {
            return Err(cycle::<P>());
        }
        Ok(Ok((Rc::clone(&part.bytes), part.at.clone())))
    });
    let (bytes, at) = match found.ok_or_else(no_message)?? {
        Ok(unread) => unread,
        Err(built) => return Ok(built),
    };
    // Outside of the memo, since this calls user code.
    let value = read(&bytes[at]);
    memo::with(|memo: &mut PartTable| {
        if let Some(part) = memo.read.get_mut(number as usize) {
            part.open = false;
            part.built.extend(value.as_ref().ok().map(|value| Box::new(value.clone()) as Box<dyn Any>));
        }
    });
    value.map_err(|e| format!("the shared {}: {}", type_name::<P>(), e.located()))
}

/// Calls `f` while the parts of the message that is being written can be read, so that `f` can check that
/// they can be decoded.
pub(super) fn with_written<R>(f: impl FnOnce() -> R) -> R {
    if !memo::exists() {
        return f();
    }
    let exchange = |parts| memo::with(|memo: &mut PartTable| std::mem::replace(&mut memo.read, parts));
    let written = memo::with(|memo: &mut PartTable| {
        let bytes = memo.written.iter().map(|part| part.bytes.clone().unwrap_or_default());
        bytes.map(|bytes| ReadPart { at: 0..bytes.len(), bytes, open: false, built: Vec::new() }).collect()
    });
    let before = exchange(written.unwrap_or_default());
    let result = f();
    // Dropped outside of the memo.
    drop(exchange(before.unwrap_or_default()));
    result
}
