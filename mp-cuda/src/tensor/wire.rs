//! Encoding of a tensor in a message. The encoding is a single byte string, because codecs are slower with
//! many values.
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | number of bytes of the handle |
//! | the number in the first byte | handle, like that of a tensor on the host ([`TensorHandle`]), without the number of the attachment |
//! | 4, or 0 for a tensor without memory | number of the attachment with the piece |
//! | 8 for each tick | ticks for which receivers' streams wait |
//!
//! Numbers are little-endian.

use mp_core::clocks::Tick;
use mp_core::{Error, Result};
use mp_tensor::parts::{MOST_HANDLE, TensorHandle, View, read_bytes};
use serde::{Deserialize, Deserializer};

/// Largest number of ticks in the encoding of a tensor, one for each stream.
const MOST_TICKS: usize = 4096;
/// Largest number of ticks that are encoded without a heap allocation.
const FEW_TICKS: usize = 6;
/// Number of bytes that encode the attachment's number.
const NUMBER: usize = 4;
/// Largest number of bytes that encode a tensor with at most [`FEW_TICKS`] ticks.
const FEW: usize = 1 + MOST_HANDLE + NUMBER + 8 * FEW_TICKS;
/// Largest number of bytes that encode any tensor.
const MOST: usize = FEW + 8 * (MOST_TICKS - FEW_TICKS);

/// Decoded tensor: its handle, and, if it has memory, the number of the attachment and the ticks for which
/// receivers' streams wait.
pub(super) struct ReceivedTensor(pub(super) TensorHandle, pub(super) Option<(u32, Vec<Tick>)>);

/// Encodes the contents of a [`ReceivedTensor`], and passes the bytes to `to`.
pub(super) fn bytes<R>(
    handle: &TensorHandle<&View>,
    attachment: Option<(u32, &[Tick])>,
    to: impl FnOnce(&[u8]) -> R,
) -> R {
    let mut few = [0; FEW];
    let [len, rest @ ..] = &mut few;
    let handle = rest.first_chunk_mut().map_or(0, |room| handle.write(room).len());
    *len = handle as u8;
    let Some((piece, ticks)) = attachment else { return to(&few[..1 + handle]) };
    let head = 1 + handle + NUMBER;
    few[1 + handle..head].copy_from_slice(&piece.to_le_bytes());
    let raw = ticks.iter().map(|tick| tick.raw().to_le_bytes());
    if ticks.len() <= FEW_TICKS {
        few[head..].as_chunks_mut::<8>().0.iter_mut().zip(raw).for_each(|(to, tick)| *to = tick);
        return to(&few[..head + 8 * ticks.len()]);
    }
    let mut many = few[..head].to_vec();
    many.extend(raw.flatten());
    to(&many)
}

impl ReceivedTensor {
    #[inline(always)]
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let malformed = || Error::Malformed(format!("{} bytes do not encode a CUDA tensor", bytes.len()));
        let (len, rest) = bytes.split_first().ok_or_else(malformed)?;
        let (handle, attachment) = rest.split_at_checked(usize::from(*len)).ok_or_else(malformed)?;
        let handle = TensorHandle::read(handle)?;
        if attachment.is_empty() {
            return Ok(Self(handle, None));
        }
        let (piece, rest) = attachment.split_first_chunk().ok_or_else(malformed)?;
        let (ticks, rest) = rest.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(malformed());
        }
        if ticks.len() > MOST_TICKS {
            return Err(Error::Malformed(format!("a tensor with {} ticks", ticks.len())));
        }
        let mut all = Vec::new();
        for raw in ticks {
            let no_tick = || Error::Malformed("0 is no tick".into());
            all.push(Tick::from_raw(u64::from_le_bytes(*raw)).ok_or_else(no_tick)?);
        }
        Ok(Self(handle, Some((u32::from_le_bytes(*piece), all))))
    }
}

/// Decodes a tensor from a byte string, or from a list of bytes in formats without byte strings.
#[inline]
pub(super) fn read<'de, T, D: Deserializer<'de>>(
    d: D,
    make: impl FnOnce(ReceivedTensor) -> Result<T>,
) -> std::result::Result<T, D::Error> {
    let what =
        ["the bytes of a tensor of a device's memory", "more bytes than a tensor of a device's memory has"];
    read_bytes(d, what, MOST, |bytes| ReceivedTensor::read(bytes).and_then(make))
}

impl<'de> Deserialize<'de> for ReceivedTensor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        read(d, Ok)
    }
}

#[cfg(test)]
mod tests {
    use mp_core::DType;
    use mp_tensor::parts::{TensorHeader, row_major};

    use super::*;

    /// Number of bytes of the encoded handle.
    const HANDLE: usize = 6 + 8;

    fn there_and_back(ticks: usize) -> Vec<u8> {
        let piece = 0x102;
        let ticks: Vec<Tick> = (0..ticks as u64).map(|n| Tick::from_raw(n << 20 | 1).unwrap()).collect();
        let view = row_major(3, &[7]).unwrap();
        let handle = TensorHandle {
            header: TensorHeader::new(0, DType::F32.code(), true),
            view: &*view,
            storage: None,
        };
        let bytes = bytes(&handle, Some((piece, &ticks)), <[u8]>::to_vec);
        let ReceivedTensor(read, attachment) = ReceivedTensor::read(&bytes).unwrap();
        assert_eq!(attachment.unwrap(), (piece, ticks));
        assert_eq!((read.dtype().unwrap(), read.view.shape(), read.view.offset()), (DType::F32, &[7][..], 3));
        bytes
    }

    #[test]
    fn device_tensor_bytes_round_trip() {
        for ticks in [0, 1, FEW_TICKS, FEW_TICKS + 1, MOST_TICKS] {
            assert_eq!(there_and_back(ticks).len(), 1 + HANDLE + NUMBER + 8 * ticks);
        }
        assert!(ReceivedTensor::read(&there_and_back(0)[..1 + HANDLE]).unwrap().1.is_none());
    }

    #[test]
    fn malformed_device_tensor_bytes_are_refused() {
        let bytes = there_and_back(2);
        let whole = [0, 4, 12, 20].map(|attachment| 1 + HANDLE + attachment);
        for len in (0..bytes.len()).filter(|len| !whole.contains(len)) {
            assert!(ReceivedTensor::read(&bytes[..len]).is_err(), "{len} bytes");
        }
        let none = [&bytes[..whole[2]], &[0; 8]].concat();
        assert!(ReceivedTensor::read(&none).is_err(), "0 is not a tick");
        let many = [&bytes[..whole[1]], &[1; 8 * (MOST_TICKS + 1)]].concat();
        assert!(ReceivedTensor::read(&many).is_err(), "more ticks than streams");
    }
}
