//! Conversion of a message with attached buffers into a message that contains the bytes of these buffers, for
//! an error that contains all bytes of a message.

use mp_core::message::ReceivedAttachments;

use super::buffer::{ATTACHED, HEAD, decode_kind};
use super::first::*;
use super::{shared_parts, split_length, write, write_length};

/// Returns the converted message, or `None` if the message has no attached buffers or can't be converted.
pub(super) fn inline_attachments(message: &[u8], arrived: &mut ReceivedAttachments) -> Option<Vec<u8>> {
    let (mut rest, mut all, mut any) = (message, Vec::new(), false);
    while !rest.is_empty() {
        let (head, len) = split_length(rest).ok()?;
        let (value, next) = rest[head..].split_at(len);
        let inner = with_parts(value, arrived, &mut any)?;
        write_length(&mut all, inner.len())?;
        all.extend_from_slice(&inner);
        rest = next;
    }
    any.then_some(all)
}

/// Converts a value and the shared parts that precede it. Sets `any` if there was an attached buffer.
fn with_parts(value: &[u8], arrived: &mut ReceivedAttachments, any: &mut bool) -> Option<Vec<u8>> {
    let Some((count, mut rest)) = shared_parts::split_parts(value) else {
        return value_of(value, arrived, any);
    };
    let mut all = shared_parts::parts_head(count);
    for _ in 0..count {
        let (head, len) = split_length(rest).ok()?;
        let (part, next) = rest[head..].split_at(len);
        let part = value_of(part, arrived, any)?;
        write_length(&mut all, part.len())?;
        all.extend_from_slice(&part);
        rest = next;
    }
    all.extend_from_slice(&value_of(rest, arrived, any)?);
    Some(all)
}

/// Converts a value without shared parts. Replaces each reference to an attached buffer, and copies all other
/// bytes. Sets `any` if there was an attached buffer.
fn value_of(value: &[u8], arrived: &mut ReceivedAttachments, any: &mut bool) -> Option<Vec<u8>> {
    let (mut rest, mut all) = (value, Vec::new());
    while !rest.is_empty() {
        let len = part(rest)?;
        let (this, next) = rest.split_at_checked(len)?;
        match *this {
            [JUST, code, ref numbers @ ..] if code & ATTACHED != 0 => {
                let (len, attachment) = numbers.split_first_chunk()?;
                let attachment = u32::from_le_bytes(attachment.try_into().ok()?);
                let buffer = arrived.buffer(attachment, u64::from_le_bytes(*len)).ok()?;
                write::append_here(&mut all, decode_kind(code).ok()?.0, buffer.as_ref())?;
                *any = true;
            }
            _ => all.extend_from_slice(this),
        }
        rest = next;
    }
    Some(all)
}

/// Returns the number of bytes of the first piece. A piece is a value without elements, or the head of a
/// sequence or map.
fn part(rest: &[u8]) -> Option<usize> {
    let number = |size: usize| {
        let bytes = rest.get(1..1 + size)?;
        Some(bytes.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)))
    };
    let after = |size: usize| number(size)?.checked_add(1 + size);
    match *rest.first()? {
        JUST if rest.get(1).is_some_and(|second| !matches!(*second, NIL | JUST)) => {
            let len = u64::from_le_bytes(rest.get(2..HEAD)?.try_into().ok()?);
            if rest[1] & ATTACHED == 0 {
                HEAD.checked_add(usize::try_from(len).ok()?)
            } else {
                Some(HEAD + 4)
            }
        }
        SMALL..SHORT_STR | SMALL_NEGATIVE.. | NIL..=TRUE => Some(1),
        first @ SHORT_STR..NIL => Some(1 + usize::from(first - SHORT_STR)),
        first @ BIN_8..=BIN_32 => after(1 << (first - BIN_8)),
        first @ STR_8..=STR_32 => after(1 << (first - STR_8)),
        first @ EXT_8..=EXT_32 => after(1 << (first - EXT_8))?.checked_add(1),
        first @ FIXED_EXT_1..=FIXED_EXT_16 => Some(2 + (1 << (first - FIXED_EXT_1))),
        U8 | I8 => Some(2),
        U16 | I16 | ARRAY_16 | MAP_16 => Some(3),
        U32 | I32 | F32 | ARRAY_32 | MAP_32 => Some(5),
        U64 | I64 | F64 => Some(9),
    }
}
