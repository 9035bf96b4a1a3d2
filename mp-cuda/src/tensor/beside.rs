//! A tensor in a message: a few bytes in one piece, since a codec takes its time for each value.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | how many bytes the next are |
//! | as many | what a tensor on the host writes ([`Handle`]), of which the number of the attachment is not used |
//! | 0, of a tensor without memory; else 4 each | the numbers of both attachments: the slab's, the piece's |
//! | 8 each | ticks that streams have to wait for |
//!
//! Numbers are in little-endian order.

use std::fmt;

use mp_core::clocks::Tick;
use mp_core::{Error, Result};
use mp_tensor::parts::{Handle, MOST_HANDLE, View};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::memory::Attachments;

/// The most ticks of one tensor: a stream each.
const MOST_TICKS: usize = 4096;
/// Up to this number they are written without an allocation.
const FEW_TICKS: usize = 6;
/// The most bytes of a tensor with few ticks.
const FEW: usize = 1 + MOST_HANDLE + Attachments::BYTES + 8 * FEW_TICKS;
/// The most of any.
const MOST: usize = FEW + 8 * (MOST_TICKS - FEW_TICKS);

/// The attachments of a tensor's memory, and the ticks behind the work that its receivers wait for; `None` without memory.
pub(super) type Beside = Option<(Attachments, Vec<Tick>)>;

/// A tensor as it leaves.
pub(super) struct Leaving<'a>(pub(super) Handle<&'a View>, pub(super) Beside);

/// As it arrives.
pub(super) struct Arriving(pub(super) Handle, pub(super) Beside);

impl Leaving<'_> {
    /// Gives its bytes to `to`.
    pub(super) fn bytes<R>(&self, to: impl FnOnce(&[u8]) -> R) -> R {
        let mut few = [0; FEW];
        let [len, rest @ ..] = &mut few;
        let handle = rest.first_chunk_mut().map_or(0, |room| self.0.write(room).len());
        *len = handle as u8;
        let Some((attachments, ticks)) = &self.1 else { return to(&few[..1 + handle]) };
        let head = 1 + handle + Attachments::BYTES;
        few[1 + handle..head].copy_from_slice(&attachments.to_bytes());
        let raw = ticks.iter().map(|tick| tick.raw().to_le_bytes());
        if ticks.len() <= FEW_TICKS {
            few[head..].as_chunks_mut::<8>().0.iter_mut().zip(raw).for_each(|(to, tick)| *to = tick);
            return to(&few[..head + 8 * ticks.len()]);
        }
        let mut many = few[..head].to_vec();
        many.extend(raw.flatten());
        to(&many)
    }
}

impl Arriving {
    #[inline(always)]
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let malformed =
            || Error::Malformed(format!("{} bytes are no tensor of a device's memory", bytes.len()));
        let (len, rest) = bytes.split_first().ok_or_else(malformed)?;
        let (handle, beside) = rest.split_at_checked(usize::from(*len)).ok_or_else(malformed)?;
        let handle = Handle::read(handle)?;
        if beside.is_empty() {
            return Ok(Self(handle, None));
        }
        let (attachments, rest) = beside.split_first_chunk().ok_or_else(malformed)?;
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
        Ok(Self(handle, Some((Attachments::from_bytes(*attachments), all))))
    }
}

impl Serialize for Leaving<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.bytes(|bytes| s.serialize_bytes(bytes))
    }
}

impl<'de> Deserialize<'de> for Arriving {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Arriving;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a tensor of a device's memory")
            }
            #[inline]
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> std::result::Result<Arriving, E> {
                Arriving::read(bytes).map_err(E::custom)
            }
            // Formats without bytes write them as a list.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Arriving, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = seq.next_element::<u8>()? {
                    if bytes.len() == MOST {
                        return Err(A::Error::custom("more bytes than a tensor of a device's memory has"));
                    }
                    bytes.push(byte);
                }
                Arriving::read(&bytes).map_err(A::Error::custom)
            }
        }
        d.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use mp_core::DType;
    use mp_tensor::parts::{What, row_major};

    use super::*;

    /// The bytes of a handle.
    const HANDLE: usize = 6 + 8;

    fn there_and_back(ticks: usize) -> Vec<u8> {
        let attachments = Attachments::from_bytes([1, 0, 0, 0, 2, 1, 0, 0]);
        let ticks: Vec<Tick> = (0..ticks as u64).map(|n| Tick::from_raw(n << 20 | 1).unwrap()).collect();
        let view = row_major(3, &[7]).unwrap();
        let handle = Handle { what: What::new(0, DType::F32.code(), true), view: &*view, storage: None };
        let bytes = Leaving(handle, Some((attachments, ticks.clone()))).bytes(<[u8]>::to_vec);
        let Arriving(read, beside) = Arriving::read(&bytes).unwrap();
        assert_eq!(beside.unwrap(), (attachments, ticks));
        assert_eq!((read.dtype().unwrap(), read.view.shape(), read.view.offset()), (DType::F32, &[7][..], 3));
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for ticks in [0, 1, FEW_TICKS, FEW_TICKS + 1, MOST_TICKS] {
            assert_eq!(there_and_back(ticks).len(), 1 + HANDLE + 8 + 8 * ticks);
        }
        assert!(Arriving::read(&there_and_back(0)[..1 + HANDLE]).unwrap().1.is_none());
    }

    #[test]
    fn other_bytes_are_refused() {
        let bytes = there_and_back(2);
        let whole = [0, 8, 16, 24].map(|beside| 1 + HANDLE + beside);
        for len in (0..bytes.len()).filter(|len| !whole.contains(len)) {
            assert!(Arriving::read(&bytes[..len]).is_err(), "{len} bytes");
        }
        let none = [&bytes[..whole[2]], &[0; 8]].concat();
        assert!(Arriving::read(&none).is_err(), "0 is no tick");
        let many = [&bytes[..whole[1]], &[1; 8 * (MOST_TICKS + 1)]].concat();
        assert!(Arriving::read(&many).is_err(), "more than all streams");
    }
}
