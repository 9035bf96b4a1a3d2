//! Serialized form of a tensor: the attachment that it views, its element type, and its view.
//!
//! The handle is a single byte string, because codecs spend time on each number of a list:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | rank, `GRAD`, `WIDE`, `STRIDED`, `SIZED` |
//! | 1 | element type |
//! | 4 | index of the attachment |
//! | 4, or 8 if `WIDE` | offset |
//! | the same for each dimension | shape |
//! | the same for each dimension, if `STRIDED` | strides |
//! | 8, if `SIZED` | length of the storage in bytes; otherwise it ends with the last element |
//!
//! Numbers are little-endian, strides in two's complement. Without strides, the view is row-major.

use std::fmt;
use std::num::NonZero;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::view::dims::Dims;
use crate::view::recent;
use crate::view::{MAX_RANK, View};
use mp_core::DType;
use mp_core::{Error, Result};

const RANK: u8 = 0xF;
const GRAD: u8 = 1 << 4;
const WIDE: u8 = 1 << 5;
const STRIDED: u8 = 1 << 6;
const SIZED: u8 = 1 << 7;
/// Size in bytes of flags, element type and attachment index.
const HEAD: usize = 6;
/// Maximum number of bytes of a [`TensorHandle`].
pub const MOST: usize = HEAD + 8 * (1 + 2 * MAX_RANK + 1);

/// Serialized tensor: `TensorHandle<&View>` is written, `TensorHandle` is read. The view need not be within
/// the storage.
#[derive(Clone, Debug)]
pub struct TensorHandle<V = Arc<View>> {
    /// Attachment and element type.
    pub header: TensorHeader,
    /// View of the storage.
    pub view: V,
    /// Length of the storage in bytes, or `None` if the storage ends with the last element of the view.
    pub storage: Option<NonZero<u64>>,
}

/// Index of the attachment, element type, and whether gradients are required. Stored as one word, because a
/// struct that is written in parts and then moved as a whole stalls the processor (see
/// [`Grant`](mp_core::words::Grant)).
#[derive(Clone, Copy, Debug)]
pub struct TensorHeader(u64);

impl TensorHeader {
    /// Packs the three fields.
    #[inline]
    pub fn new(attachment: u32, dtype: u8, requires: bool) -> Self {
        Self(u64::from(attachment) | u64::from(dtype) << 32 | u64::from(requires) << 40)
    }
    /// Returns the index among the attachments.
    #[inline]
    pub fn attachment(self) -> u32 {
        self.0 as u32
    }
    #[inline]
    fn dtype(self) -> u8 {
        (self.0 >> 32) as u8
    }
    /// Returns `true` if gradients are required.
    #[inline]
    pub fn requires(self) -> bool {
        self.0 >> 40 != 0
    }
}

impl TensorHandle<&View> {
    /// Encodes the handle. [`read`](TensorHandle::read) decodes it.
    pub fn write<'b>(&self, bytes: &'b mut [u8; MOST]) -> &'b [u8] {
        /// Writes numbers in `N` bytes each. Returns the remaining part of the buffer.
        fn put<const N: usize>(to: &mut [u8], numbers: impl Iterator<Item = u64>) -> &mut [u8] {
            let mut to = to;
            for n in numbers {
                let Some((first, rest)) = to.split_first_chunk_mut::<N>() else { return &mut [] };
                first.iter_mut().zip(n.to_le_bytes()).for_each(|(to, byte)| *to = byte);
                to = rest;
            }
            to
        }
        let (offset, shape, strides) = (self.view.offset(), self.view.shape(), self.view.unusual_strides());
        let large = |n: usize| n > u32::MAX as usize;
        let wide = large(offset)
            || shape.iter().any(|&n| large(n))
            || strides.iter().any(|&stride| large(stride as usize));
        let flags = [
            (self.header.requires(), GRAD),
            (wide, WIDE),
            (!strides.is_empty(), STRIDED),
            (self.storage.is_some(), SIZED),
        ];
        bytes[0] = flags.iter().filter(|(on, _)| *on).fold(shape.len() as u8, |all, (_, flag)| all | flag);
        bytes[1] = self.header.dtype();
        bytes[2..HEAD].copy_from_slice(&self.header.attachment().to_le_bytes());
        let numbers = std::iter::once(offset as u64).chain(shape.iter().map(|&n| n as u64));
        let strides = strides.iter().map(|&stride| stride as u64);
        let to = if wide {
            let to = put::<8>(&mut bytes[HEAD..], numbers);
            put::<8>(to, strides)
        } else {
            let to = put::<4>(&mut bytes[HEAD..], numbers);
            put::<4>(to, strides)
        };
        let left = put::<8>(to, self.storage.into_iter().map(NonZero::get)).len();
        &bytes[..MOST - left]
    }
}

impl TensorHandle {
    /// Returns the element type in the handle.
    #[inline]
    pub fn dtype(&self) -> Result<DType> {
        DType::from_code(self.header.dtype()).ok_or_else(|| unknown(self.header.dtype()))
    }

    /// Decodes untrusted bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the bytes are not a handle.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let malformed = || malformed(bytes.len());
        let (head, numbers) = bytes.split_first_chunk::<HEAD>().ok_or_else(malformed)?;
        let [mut flags, dtype, attachment @ ..] = *head;
        let (mut numbers, mut storage) = (numbers, None);
        if flags & SIZED != 0 {
            let (rest, last) = numbers.split_last_chunk().ok_or_else(malformed)?;
            (numbers, flags) = (rest, flags & !SIZED);
            storage = Some(NonZero::new(u64::from_le_bytes(*last)).ok_or_else(malformed)?);
        }
        let rank = usize::from(flags & RANK);
        let (wide, strided) = (flags & WIDE != 0, flags & STRIDED != 0);
        let count = 1 + rank * if strided { 2 } else { 1 };
        let known = flags & !(RANK | GRAD | WIDE | STRIDED) == 0 && rank <= MAX_RANK;
        let len = count * if wide { 8 } else { 4 };
        let is_whole = numbers.len() == len;
        if !known || !is_whole {
            return Err(malformed());
        }
        let view = match same(numbers, flags) {
            Some(view) => view,
            None => read_view(numbers, rank, flags)?,
        };
        let attachment = u32::from_le_bytes(attachment);
        Ok(Self { header: TensorHeader::new(attachment, dtype, flags & GRAD != 0), view, storage })
    }
}

#[cold]
fn unknown(dtype: u8) -> Error {
    Error::Malformed(format!("a tensor with the unknown element type {dtype}"))
}

#[cold]
fn malformed(len: usize) -> Error {
    Error::Malformed(format!("{len} bytes that are not a handle to a tensor"))
}

/// Returns the view that this thread created last, if these numbers describe the same row-major view.
#[inline]
fn same(numbers: &[u8], flags: u8) -> Option<Arc<View>> {
    let mut numbers = numbers.as_chunks().0.iter().map(|n| u32::from_le_bytes(*n) as usize);
    let offset = numbers.next().filter(|_| flags & (WIDE | STRIDED) == 0)?;
    recent::same(offset, numbers)
}

/// Returns the view that these numbers describe. The number of bytes matches the rank and the flags.
#[inline(never)]
fn read_view(numbers: &[u8], rank: usize, flags: u8) -> Result<Arc<View>> {
    let mut all = [0; 1 + 2 * MAX_RANK];
    // Numbers beyond the address space are refused below, by the view.
    if flags & WIDE != 0 {
        let numbers = numbers.as_chunks().0;
        all.iter_mut().zip(numbers).for_each(|(to, n)| *to = u64::from_le_bytes(*n) as usize);
    } else {
        let numbers = numbers.as_chunks().0;
        all.iter_mut().zip(numbers).for_each(|(to, n)| *to = u32::from_le_bytes(*n) as usize);
    }
    let (offset, shape) = (all[0], &all[1..1 + rank]);
    if flags & STRIDED == 0 {
        return recent::row_major(offset, shape);
    }
    let mut strides = Dims::filled(rank, 0_isize);
    strides.iter_mut().zip(&all[1 + rank..]).for_each(|(to, &n)| *to = n as isize);
    Ok(Arc::new(View::from_elsewhere(offset, Dims::from_slice(shape)?, strides)?))
}

impl Serialize for TensorHandle<&View> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_bytes(self.write(&mut [0; MOST]))
    }
}

impl<'de> Deserialize<'de> for TensorHandle {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let what = ["the bytes of a handle to a tensor", "more bytes than a handle has"];
        read_bytes(d, what, MOST, TensorHandle::read)
    }
}

/// Reads at most `most` bytes, and converts them by `make`. `expected` names the bytes in errors, and
/// `too_long` is the error for more bytes.
#[inline]
pub fn read_bytes<'de, T, D: Deserializer<'de>>(
    d: D,
    [expected, too_long]: [&'static str; 2],
    most: usize,
    make: impl FnOnce(&[u8]) -> Result<T>,
) -> std::result::Result<T, D::Error> {
    struct BytesVisitor<F> {
        expected: &'static str,
        too_long: &'static str,
        most: usize,
        make: F,
    }

    impl<'de, T, F: FnOnce(&[u8]) -> Result<T>> Visitor<'de> for BytesVisitor<F> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.expected)
        }

        #[inline]
        fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> std::result::Result<T, E> {
            (self.make)(bytes).map_err(E::custom)
        }

        // Formats without byte strings write a list.
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<T, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = seq.next_element::<u8>()? {
                if bytes.len() == self.most {
                    return Err(A::Error::custom(self.too_long));
                }
                bytes.push(byte);
            }
            self.visit_bytes(&bytes)
        }
    }

    d.deserialize_bytes(BytesVisitor { expected, too_long, most, make })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(view: View, requires: bool) -> (usize, Result<TensorHandle>) {
        let storage = requires.then_some(NonZero::new(1 << 40).unwrap());
        let handle =
            TensorHandle { header: TensorHeader::new(7, DType::F32.code(), requires), view: &view, storage };
        let mut bytes = [0; MOST];
        let bytes = handle.write(&mut bytes);
        (bytes.len(), TensorHandle::read(bytes))
    }

    #[test]
    fn tensor_handle_bytes_round_trip() {
        let of = |offset, shape: &[usize], strides: &[isize]| {
            View::from_parts(offset, shape, strides, usize::MAX).unwrap()
        };
        let row = View::contiguous(&[3, 4]).unwrap();
        let wide = of(1 << 40, &[2], &[1 << 33]);
        let full = of(1 << 33, &[1; 8], &[9; 8]);
        let overlaps = of(5, &[2, 3], &[0, 0]);
        let scalar = View::contiguous(&[]).unwrap();
        for (view, len) in [
            (row, 6 + 12),
            (wide, 6 + 24),
            (full, MOST - 8),
            (overlaps, 6 + 20),
            (scalar, 6 + 4),
            (View::NONE, 6 + 8),
        ] {
            for sized in [false, true] {
                let (written, read) = through(view, sized);
                let read = read.unwrap();
                assert_eq!(
                    (
                        written,
                        read.header.attachment(),
                        read.header.requires(),
                        read.storage.map(NonZero::get)
                    ),
                    (len + if sized { 8 } else { 0 }, 7, sized, sized.then_some(1 << 40)),
                    "{view:?}"
                );
            }
            let read = through(view, false).1.unwrap();
            assert_eq!(read.dtype().unwrap(), DType::F32);
            assert_eq!(format!("{:?}", read.view), format!("{view:?}"));
        }
    }

    #[test]
    fn invalid_tensor_handle_bytes_are_errors() {
        let good = [1, DType::F32.code(), 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
        assert!(TensorHandle::read(&good).is_ok());
        for cut in 0..good.len() {
            assert!(TensorHandle::read(&good[..cut]).is_err(), "{cut}");
        }
        let with = |i: usize, byte: u8| {
            let mut bytes = good;
            bytes[i] = byte;
            TensorHandle::read(&bytes)
        };
        for flags in [0, 2, 9, 15, 1 | WIDE, 1 | STRIDED, 1 | SIZED] {
            assert!(with(0, flags).is_err(), "flags {flags:#x}");
        }
        assert!(with(1, 255).unwrap().dtype().is_err());
        // Beyond the end of memory, and with a negative stride.
        let wide = |offset: u64, n: u64, stride: i64| {
            let numbers = [offset, n, stride as u64].map(u64::to_le_bytes).concat();
            TensorHandle::read(&[&[1 | WIDE | STRIDED, DType::F32.code(), 0, 0, 0, 0][..], &numbers].concat())
        };
        assert!(wide(0, u64::MAX, 1).is_err() && wide(0, 4, -1).is_err());
        let far = wide(u64::MAX, 4, i64::MAX).unwrap();
        assert!(far.view.within(usize::MAX).is_err());
    }
}
