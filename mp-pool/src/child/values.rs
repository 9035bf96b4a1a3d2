//! Many values in one message, each with its end position, so that a value that can't be decoded does not
//! affect the others.
//!
//! Values of one type often have the same length, such as numbers and structs without texts. Then one length
//! replaces all end positions.
//!
//! | in a message | meaning |
//! |---|---|
//! | four bytes, little-endian | length of each value, or 0 if they differ |
//! | four bytes for each value, if they differ | end of the value |
//! | remaining bytes | the values, without separators |

use std::ops::Range;
use std::sync::Arc;

use mp_core::Error;
use mp_core::message::{Incoming, Outgoing};

/// Values encoded one after the other, without attachments.
#[derive(Default, Debug)]
pub(crate) struct PackedValues {
    /// End positions in `bytes`.
    pub(crate) ends: EndPositions,
    pub(crate) bytes: Vec<u8>,
}

/// Consecutive values in shared [`PackedValues`].
#[derive(Clone, Debug)]
pub(crate) struct PackedRange {
    pub(crate) plain: Arc<PackedValues>,
    pub(crate) items: Range<usize>,
}

impl PackedRange {
    pub(crate) fn of(plain: PackedValues) -> PackedRange {
        let items = 0..plain.ends.len();
        PackedRange { plain: Arc::new(plain), items }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the values from `from` to `to` of this range.
    pub(crate) fn part(&self, from: usize, to: usize) -> PackedRange {
        let first = self.items.start;
        PackedRange { plain: Arc::clone(&self.plain), items: first + from..first + to }
    }

    fn write(&self, out: &mut Outgoing) {
        self.plain.ends.write(self.items.clone(), &self.plain.bytes, out);
    }
}

/// Received values, `count` of them in one message.
#[derive(Debug)]
pub(crate) struct ReceivedValues {
    rest: ValueBytes,
    pub(crate) count: usize,
}

/// Bytes of the values.
#[derive(Debug)]
enum ValueBytes {
    /// Few bytes, copied so that the next message can reuse the buffers.
    Short(u8, [u8; SHORT]),
    Long(Box<Incoming>),
}

/// Maximum number of bytes of [`ValueBytes::Short`]: a number and its end position fit.
const SHORT: usize = 22;

impl ReceivedValues {
    /// Takes `count` values from the rest of a message without attachments.
    pub(crate) fn new(inc: &mut Incoming, count: usize) -> ReceivedValues {
        let (bytes, mut short) = (inc.rest(), [0; SHORT]);
        let len = bytes.len();
        let rest = match short.get_mut(..len) {
            Some(short_bytes) => {
                short_bytes.copy_from_slice(bytes);
                inc.advance(len);
                ValueBytes::Short(len as u8, short)
            }
            None => ValueBytes::Long(Box::new(std::mem::take(inc))),
        };
        ReceivedValues { rest, count }
    }

    /// Creates values from the journal of a dead worker.
    pub(crate) fn from_journal(ends: &[u32], bytes: &[u8]) -> ReceivedValues {
        let mut out = Outgoing::default();
        let all: EndPositions = ends.iter().map(|end| *end as usize).collect();
        all.write(0..ends.len(), bytes, &mut out);
        let bytes = std::mem::take(out.bytes());
        ReceivedValues::new(&mut Incoming::from_plain(bytes), ends.len())
    }

    /// Returns a copy of all values for sending, or `None` if the message is malformed.
    #[cfg(feature = "net")]
    pub(crate) fn to_packed(&self) -> Option<PackedValues> {
        let mut packed = PackedValues::default();
        for i in 0..self.count {
            packed.bytes.extend_from_slice(self.get(i)?);
            packed.ends.push(packed.bytes.len());
        }
        Some(packed)
    }

    /// Returns value `i`, or `None` if it does not exist or the message is malformed.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<&[u8]> {
        self.all().get(i)
    }

    /// Returns a view of all values.
    #[inline]
    pub(crate) fn all(&self) -> ValuesView<'_> {
        let rest = match &self.rest {
            ValueBytes::Short(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or_default(),
            ValueBytes::Long(inc) => inc.rest(),
        };
        ValuesView::of(rest, self.count)
    }
}

/// Arguments of one task or of many.
#[derive(Debug)]
pub(crate) enum TaskArgs {
    /// Arguments without attachments, to be sent.
    Packed(PackedRange),
    /// Arguments of one task, to be sent.
    Single(Outgoing),
    /// Received arguments.
    Received(ReceivedValues),
    /// Received arguments of one task.
    ReceivedSingle(Box<Incoming>),
}

impl TaskArgs {
    pub(crate) fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            TaskArgs::Packed(slice) => {
                slice.write(out);
                Ok(())
            }
            TaskArgs::Single(alone) => out.append(std::mem::take(alone)),
            TaskArgs::Received(_) | TaskArgs::ReceivedSingle(_) => {
                Err(Error::Unsendable("it was received, and is not sent again".into()))
            }
        }
    }

    #[cfg(feature = "net")]
    /// Converts received arguments, so that they can be sent to a worker.
    ///
    /// # Errors
    /// Returns an error if the arguments are malformed.
    pub(crate) fn into_unsent(self) -> mp_core::Result<TaskArgs> {
        let malformed = || mp_core::Error::Malformed("arguments of tasks".into());
        match self {
            TaskArgs::Received(many) => {
                let range = many.to_packed().ok_or_else(malformed)?;
                Ok(TaskArgs::Packed(PackedRange::of(range)))
            }
            TaskArgs::ReceivedSingle(inc) => inc.into_outgoing().map(TaskArgs::Single).ok_or_else(malformed),
            args => Ok(args),
        }
    }

    /// Takes the arguments of a single task after they could not be decoded, so that the worker can return
    /// them to the pool. Returns `None` for arguments of several tasks and for arguments to be sent.
    pub(crate) fn take_unread(&mut self) -> Option<Outgoing> {
        match self {
            TaskArgs::ReceivedSingle(inc) => std::mem::take(&mut **inc).into_outgoing(),
            TaskArgs::Packed(_) | TaskArgs::Single(_) | TaskArgs::Received(_) => None,
        }
    }

    /// Returns the number of tasks.
    pub(crate) fn len(&self) -> usize {
        match self {
            TaskArgs::Packed(slice) => slice.len(),
            TaskArgs::Received(many) => many.count,
            TaskArgs::Single(_) | TaskArgs::ReceivedSingle(_) => 1,
        }
    }
}

/// End positions of values. The first value begins at position 0.
#[derive(Clone, Default, Debug)]
pub(crate) struct EndPositions {
    /// Length of each value while all lengths are equal. `alike` is then the number of values.
    stride: u32,
    alike: usize,
    /// End of each value, used instead of `stride` and `alike` if lengths differ.
    each: Vec<u32>,
}

impl EndPositions {
    /// Adds a value that ends at `end`.
    #[inline]
    pub(crate) fn push(&mut self, end: usize) {
        let end = end as u32;
        if self.each.is_empty() {
            if self.alike == 0 {
                self.stride = end;
            }
            // Empty values are excluded, because their number could not be checked against their bytes.
            if self.stride != 0 && u64::from(end) == u64::from(self.stride) * (self.alike as u64 + 1) {
                self.alike += 1;
                return;
            }
            self.store_each();
        }
        self.each.push(end);
    }

    #[cold]
    fn store_each(&mut self) {
        self.each = (0..self.alike).map(|i| self.stride * (i as u32 + 1)).collect();
    }

    pub(crate) fn len(&self) -> usize {
        if self.each.is_empty() { self.alike } else { self.each.len() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the end of the last value.
    #[inline]
    pub(crate) fn last(&self) -> usize {
        match self.each.last() {
            Some(end) => *end as usize,
            None => self.stride as usize * self.alike,
        }
    }

    /// Returns the end of value `i`, which must exist.
    fn end(&self, i: usize) -> usize {
        match self.each.get(i) {
            Some(end) => *end as usize,
            None => self.stride as usize * (i + 1),
        }
    }

    /// Returns the start of value `i`.
    fn start(&self, i: usize) -> usize {
        i.checked_sub(1).map_or(0, |before| self.end(before))
    }

    /// Writes the values `items`, with their lengths or ends. `bytes` contains all values.
    pub(crate) fn write(&self, items: Range<usize>, bytes: &[u8], out: &mut Outgoing) {
        if items.is_empty() {
            return;
        }
        let (from, to) = (self.start(items.start), self.end(items.end - 1));
        let out = out.bytes();
        out.reserve(HEAD * (1 + items.len()) + (to - from));
        if self.each.is_empty() {
            out.extend_from_slice(&self.stride.to_le_bytes());
        } else {
            let at = out.len();
            out.resize(at + HEAD * (1 + items.len()), 0);
            let places = out[at + HEAD..].as_chunks_mut().0;
            for (place, end) in places.iter_mut().zip(&self.each[items]) {
                *place = (*end - from as u32).to_le_bytes();
            }
        }
        out.extend_from_slice(&bytes[from..to]);
    }
}

impl FromIterator<usize> for EndPositions {
    fn from_iter<I: IntoIterator<Item = usize>>(all: I) -> Self {
        let mut ends = EndPositions::default();
        all.into_iter().for_each(|end| ends.push(end));
        ends
    }
}

/// Size of a length or an end in bytes.
const HEAD: usize = 4;

/// View of encoded values.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ValuesView<'a> {
    /// Length of each value, or 0 if they differ.
    stride: usize,
    ends: &'a [[u8; HEAD]],
    bytes: &'a [u8],
}

impl<'a> ValuesView<'a> {
    /// Returns a view of `count` values in these bytes. The view is empty if the bytes do not match the
    /// number.
    #[inline]
    pub(crate) fn of(bytes: &'a [u8], count: usize) -> Self {
        let Some((stride, rest)) = bytes.split_first_chunk() else { return Self::default() };
        let stride = u32::from_le_bytes(*stride) as usize;
        let ends = if stride == 0 { count.saturating_mul(HEAD) } else { 0 };
        let Some((ends, bytes)) = rest.split_at_checked(ends) else { return Self::default() };
        if stride != 0 && count.saturating_mul(stride) != bytes.len() {
            return Self::default();
        }
        ValuesView { stride, ends: ends.as_chunks().0, bytes }
    }

    /// Returns value `i`, or `None` if it does not exist or the message is malformed.
    #[inline]
    pub(crate) fn get(self, i: usize) -> Option<&'a [u8]> {
        if self.stride != 0 {
            let start = i.checked_mul(self.stride)?;
            return self.bytes.get(start..start.checked_add(self.stride)?);
        }
        let end = |i: usize| self.ends.get(i).map(|end| u32::from_le_bytes(*end) as usize);
        let start = if i == 0 { 0 } else { end(i - 1)? };
        self.bytes.get(start..end(i)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_of(values: &[&str]) -> EndPositions {
        values
            .iter()
            .scan(0, |end, value| {
                *end += value.len();
                Some(*end)
            })
            .collect()
    }

    #[test]
    fn end_positions_of_task_values_round_trip() {
        for values in [
            &["abc", "def", "ghi", "jkl"][..],
            &["abc", "de", "ghi", "jkl"],
            &["abc", "def", "ghi", "j"],
            &["", "", ""],
            &["", "abc", ""],
            &["abc", "", "abc"],
            &["abc"],
            &[""],
            &[],
        ] {
            let (ends, bytes) = (ends_of(values), values.concat());
            assert_eq!((ends.len(), ends.last()), (values.len(), bytes.len()), "{values:?}");
            for (from, to) in
                (0..=values.len()).flat_map(|from| (from..=values.len()).map(move |to| (from, to)))
            {
                let mut out = Outgoing::default();
                ends.write(from..to, bytes.as_bytes(), &mut out);
                let all = ValuesView::of(out.bytes(), to - from);
                let read: Vec<_> = (0..to - from).map(|i| all.get(i)).collect();
                let wanted: Vec<_> = values[from..to].iter().map(|value| Some(value.as_bytes())).collect();
                assert_eq!(read, wanted, "{values:?}");
                assert_eq!(all.get(to - from), None);
                assert_eq!(all.get(usize::MAX), None);
            }
        }
    }

    #[test]
    fn task_values_of_equal_length_need_only_their_bytes() {
        let mut out = Outgoing::default();
        ends_of(&["abc"; 100]).write(0..100, "abc".repeat(100).as_bytes(), &mut out);
        assert_eq!(out.bytes().len(), HEAD + 300);
    }

    /// Tests arbitrary bytes and numbers of values.
    #[test]
    fn malformed_task_bytes_contain_no_values() {
        let mut out = Outgoing::default();
        ends_of(&["abc", "def"]).write(0..2, b"abcdef", &mut out);
        let bytes = out.bytes();
        for count in [0, 1, 3, usize::MAX] {
            assert_eq!(ValuesView::of(bytes, count).get(0), None, "{count}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(ValuesView::of(&bytes[..cut], 2).get(0), None, "{cut}");
        }
        // One end is before the start of its value, and one after the last byte.
        for ends in [[5, 2], [2, 9]] {
            let words = [0_u32, ends[0], ends[1]].map(u32::to_le_bytes).concat();
            let bytes = [&words[..], b"abcdef"].concat();
            assert_eq!(ValuesView::of(&bytes, 2).get(1), None, "{ends:?}");
        }
        assert_eq!(ValuesView::of(&[0; 4], usize::MAX).get(0), None);
    }
}
