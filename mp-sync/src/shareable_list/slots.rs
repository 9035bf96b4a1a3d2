//! Memory layout of a list, and conversion of items to bytes, as in CPython 3.11.
//!
//! | bytes | content | written by |
//! |---|---|---|
//! | 8 | number of slots, `n` | creator |
//! | 8 (n + 1) | start of each slot's data, relative to the first, and the end of the last one | creator |
//! | … | data, each slot a multiple of 8 bytes | holder of the lock |
//! | 8 n | format of each slot: `q`, `d`, `xxxxxxx?`, `xxxxxx?x`, `24s` | holder of the lock |
//! | n | code of each slot: 0 a number, 1 text, 2 bytes, 3 nothing; [`TORN`] | holder of the lock |
//!
//! A writer stores code [`TORN`], data, format and code, in this order. A process that is killed after the
//! first and before the last of these stores leaves [`TORN`]: reading that slot returns an error until the
//! slot is written again, and the other slots are unchanged. The number and the starts of the slots are read
//! and checked once, when a handle is created. Later changes of these words have no effect.
//!
//! Python strips trailing NULs from texts and bytes, because its formats contain the room and not the length.
//! This code strips trailing NULs only for formats that Python writes. If a value ends in NUL, this code
//! writes a format with the exact length and a leading `0` (`03s`). Python accepts that format as well.

use super::{ListError, ListItem};
use mp_core::foreign as mem_bytes;
use mp_core::mem::{Mem, Word};

/// Code of a slot that is being written.
const TORN: u8 = 127;
/// Maximum number of bytes that a format can express.
pub(super) const MOST_ROOM: u64 = 9_999_992;
/// Maximum number of bytes of a value that ends in NUL.
const MOST_EXACT: usize = 999_999;

/// Returns the number of bytes of the slot for an item. For a text or bytes, the slot is at least one byte
/// longer than the item, as in Python.
pub(super) fn room(item: &ListItem, at_least: usize) -> u64 {
    item.bytes().map_or(8, |b| (b.len().max(at_least) as u64 / 8 + 1).saturating_mul(8))
}

/// Returns the number of bytes of a list whose slots have the sizes `rooms`.
pub(super) fn size(rooms: &[u64]) -> u64 {
    16 + 8 * rooms.len() as u64 + rooms.iter().sum::<u64>() + 9 * rooms.len() as u64
}

/// Memory of a list: its words, and the ends of its slots.
#[derive(Clone, Copy)]
pub(super) struct ListSlots<'a> {
    pub(super) mem: &'a dyn Mem,
    pub(super) base: Word,
    pub(super) ends: &'a [u64],
}

/// Writes the number and offsets of the slots into new memory. Returns the offsets for [`ListSlots`].
pub(super) fn lay_out(mem: &dyn Mem, base: Word, rooms: &[u64]) -> Vec<u64> {
    let mut end = 0;
    let rooms = rooms.iter().map(|room| {
        end += room;
        end
    });
    let ends: Vec<u64> = std::iter::once(0).chain(rooms).collect();
    mem.store_relaxed(base, ends.len() as u64 - 1);
    ends.iter().zip(1..).for_each(|(&v, i)| mem.store_relaxed(base.plus(i), v));
    ends
}

/// Reads the offsets of the slots, and checks that all slots are within `bytes`.
pub(super) fn find(mem: &dyn Mem, base: Word, bytes: u64) -> Result<Vec<u64>, ListError> {
    let wrong = || ListError::Malformed("the memory holds no list: its slots don't fit into it".into());
    if bytes < 16 {
        return Err(wrong());
    }
    let n = mem.load_relaxed(base);
    // A slot takes at least 8 bytes of data, 8 of offset, 8 of format, and a code.
    if n > bytes / 25 {
        return Err(wrong());
    }
    let ends: Vec<u64> = (1..n + 2).map(|i| mem.load_relaxed(base.plus(i))).collect();
    let ordered = ends[0] == 0 && ends.windows(2).all(|w| w[0] + 8 <= w[1] && w[1] <= bytes);
    let last = ends.last().copied().unwrap_or(0);
    if !ordered || ends.iter().any(|e| e % 8 != 0) || 16 + 8 * n + last + 9 * n > bytes {
        return Err(wrong());
    }
    Ok(ends)
}

/// Returns the maximum number of bytes of a text in that slot: its room, or the limit of the format.
pub(super) fn room_in(ends: &[u64], slot: usize) -> Result<u64, ListError> {
    match ends.get(slot..slot.saturating_add(2)) {
        Some(ends) => Ok((ends[1] - ends[0]).min(MOST_ROOM)),
        None => Err(ListError::NoSlot { slot, len: ends.len() - 1 }),
    }
}

impl ListSlots<'_> {
    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    fn data_at(&self, slot: usize) -> u64 {
        16 + 8 * self.len() as u64 + self.ends[slot]
    }

    fn format_at(&self, slot: usize) -> u64 {
        self.data_at(0) + self.ends[self.len()] + 8 * slot as u64
    }

    fn code_at(&self, slot: usize) -> u64 {
        self.format_at(self.len()) + slot as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        mem_bytes::read(self.mem, self.base, at, to);
    }

    fn write(&self, at: u64, from: &[u8]) {
        mem_bytes::write(self.mem, self.base, at, from);
    }

    /// Returns the item in a slot.
    pub(super) fn get(&self, slot: usize) -> Result<ListItem, ListError> {
        room_in(self.ends, slot)?;
        let mut code = [0];
        self.read(self.code_at(slot), &mut code);
        if code[0] == TORN {
            return Err(ListError::Torn { slot });
        }
        let format = self.format(slot)?;
        let mut eight = [0; 8];
        self.read(self.data_at(slot), &mut eight);
        Ok(match (format.as_str(), code[0]) {
            ("q", 0) => ListItem::Int(i64::from_ne_bytes(eight)),
            ("d", 0) => ListItem::Float(f64::from_ne_bytes(eight)),
            ("xxxxxxx?", 0) => ListItem::Bool(eight[7] != 0),
            (_, 3) => ListItem::None,
            (text, 1) => String::from_utf8(self.bytes(slot, text)?)
                .map(ListItem::Str)
                .map_err(|_| ListError::NotText { slot })?,
            (bytes, 2) => ListItem::Bytes(self.bytes(slot, bytes)?),
            (_, code) => return Err(unknown(slot, &format, code)),
        })
    }

    fn bytes(&self, slot: usize, format: &str) -> Result<Vec<u8>, ListError> {
        let len = format.strip_suffix('s').and_then(|n| n.parse::<u64>().ok());
        let room = self.ends[slot + 1] - self.ends[slot];
        let len = len.filter(|&n| n <= room);
        let len = len.ok_or_else(|| unknown(slot, format, 1))?;
        let mut bytes = vec![0; len as usize];
        self.read(self.data_at(slot), &mut bytes);
        if !format.starts_with('0') {
            let end = bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
            bytes.truncate(end);
        }
        Ok(bytes)
    }

    /// Returns a slot's format in the notation of Python's `struct`.
    pub(super) fn format(&self, slot: usize) -> Result<String, ListError> {
        room_in(self.ends, slot)?;
        let mut format = [0; 8];
        self.read(self.format_at(slot), &mut format);
        let end = format.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
        let text = std::str::from_utf8(&format[..end]);
        text.map(str::to_owned).map_err(|_| ListError::NotText { slot })
    }

    /// Replaces the item in a slot. The list is unchanged if this fails.
    pub(super) fn set(&self, slot: usize, item: &ListItem) -> Result<(), ListError> {
        let room = room_in(self.ends, slot)?;
        let (format, code) = match item {
            ListItem::None => ("xxxxxx?x".to_owned(), 3),
            ListItem::Bool(_) => ("xxxxxxx?".to_owned(), 0),
            ListItem::Int(_) => ("q".to_owned(), 0),
            ListItem::Float(_) => ("d".to_owned(), 0),
            ListItem::Str(s) => (sized(s.as_bytes(), slot, room)?, 1),
            ListItem::Bytes(b) => (sized(b, slot, room)?, 2),
        };
        self.write(self.code_at(slot), &[TORN]);
        // The code has to be TORN before the data changes.
        self.mem.fence_after_rmw();
        let at = self.data_at(slot);
        match item {
            ListItem::None => self.write(at, &[0; 8]),
            ListItem::Bool(v) => self.write(at, &[0, 0, 0, 0, 0, 0, 0, u8::from(*v)]),
            ListItem::Int(v) => self.write(at, &v.to_ne_bytes()),
            ListItem::Float(v) => self.write(at, &v.to_ne_bytes()),
            ListItem::Str(_) | ListItem::Bytes(_) => {
                let bytes = item.bytes().unwrap_or_default();
                self.write(at, bytes);
                // Python pads to whole words.
                let padded = (bytes.len() as u64).next_multiple_of(8).min(room);
                self.write(at + bytes.len() as u64, &[0; 8][..padded as usize - bytes.len()]);
                for word in (padded..room).step_by(8) {
                    self.write(at + word, &[0; 8]);
                }
            }
        }
        let mut eight = [0; 8];
        eight[..format.len()].copy_from_slice(format.as_bytes());
        self.write(self.format_at(slot), &eight);
        // Swaps the word that contains the code, which is ordered after all writes above.
        self.write(self.code_at(slot), &[code]);
        Ok(())
    }
}

fn unknown(slot: usize, format: &str, code: u8) -> ListError {
    ListError::Malformed(format!("slot {slot} has format {format:?} and code {code}, an unknown combination"))
}

/// Returns the format of a text or byte string in a slot of `room` bytes.
fn sized(bytes: &[u8], slot: usize, room: u64) -> Result<String, ListError> {
    let exact = bytes.last() == Some(&0);
    if bytes.len() as u64 > room || exact && bytes.len() > MOST_EXACT {
        return Err(ListError::NoRoom { slot, asked: bytes.len(), room: room as usize });
    }
    Ok(if exact { format!("0{}s", bytes.len()) } else { format!("{room}s") })
}

#[cfg(test)]
mod tests {
    use mp_core::mem::HeapMem;

    use super::*;

    /// Any process of the user can create a named list with a slot that is larger than a format can express.
    #[test]
    fn shareable_list_slot_room_is_limited_by_its_format() {
        let rooms = [MOST_ROOM + 8, 16];
        let (bytes, base) = (size(&rooms), Word::at(0));
        let mem = HeapMem::new(bytes.div_ceil(8) as usize);
        lay_out(&mem, base, &rooms);
        let ends = find(&mem, base, bytes).unwrap();
        let slots = ListSlots { mem: &mem, base, ends: &ends };
        slots.set(0, &"text".into()).unwrap();
        slots.set(1, &7.into()).unwrap();
        assert_eq!(slots.get(0).unwrap(), "text".into());
        let long = ListItem::Bytes(vec![1; MOST_ROOM as usize + 1]);
        let most = MOST_ROOM as usize;
        assert!(matches!(slots.set(0, &long), Err(ListError::NoRoom { room, .. }) if room == most));
        assert_eq!((slots.get(0).unwrap(), slots.get(1).unwrap()), ("text".into(), 7.into()));
    }
}
