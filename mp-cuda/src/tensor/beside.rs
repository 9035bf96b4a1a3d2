//! What a message says of a tensor's memory: where it is attached, and what streams have to wait for.
//!
//! Bytes in one piece, as a [`Handle`](mp_tensor::parts::Handle)'s are, since a codec takes its time for each number of a list: none of
//! a tensor without memory; else the numbers of both attachments, 4 bytes each, and the ticks, 8 bytes each, all in little-endian order.

use std::fmt;

use mp_core::clocks::Tick;
use mp_core::{Error, Result};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::memory::Attachments;

/// The most ticks of one tensor: a stream each.
const MOST_TICKS: usize = 4096;
/// Up to this number they are written without an allocation.
const FEW_TICKS: usize = 6;

/// The attachments of a tensor's memory, and the ticks behind the work that its receivers wait for.
pub(super) struct Beside(pub(super) Option<(Attachments, Vec<Tick>)>);

impl Beside {
    fn write(attachments: Attachments, ticks: &[Tick], to: &mut [u8]) {
        let (head, rest) = to.split_at_mut(Attachments::BYTES);
        head.copy_from_slice(&attachments.to_bytes());
        for (to, tick) in rest.as_chunks_mut::<8>().0.iter_mut().zip(ticks) {
            *to = tick.raw().to_le_bytes();
        }
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        let malformed =
            || Error::Malformed(format!("{} bytes say nothing of a tensor's memory", bytes.len()));
        let (head, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
        let (ticks, rest) = rest.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(malformed());
        }
        if ticks.len() > MOST_TICKS {
            return Err(Error::Malformed(format!("a tensor with {} ticks", ticks.len())));
        }
        let tick = |raw: &[u8; 8]| {
            let no_tick = || Error::Malformed("0 is no tick".into());
            Tick::from_raw(u64::from_le_bytes(*raw)).ok_or_else(no_tick)
        };
        let ticks = ticks.iter().map(tick).collect::<Result<_>>()?;
        Ok(Self(Some((Attachments::from_bytes(*head), ticks))))
    }
}

impl Serialize for Beside {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        let Some((attachments, ticks)) = &self.0 else { return s.serialize_bytes(&[]) };
        let len = Attachments::BYTES + 8 * ticks.len();
        let (mut few, mut many) = ([0; Attachments::BYTES + 8 * FEW_TICKS], Vec::new());
        let bytes = match few.get_mut(..len) {
            Some(few) => few,
            None => {
                many.resize(len, 0);
                &mut many[..]
            }
        };
        Self::write(*attachments, ticks, bytes);
        s.serialize_bytes(bytes)
    }
}

impl<'de> Deserialize<'de> for Beside {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Beside;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a tensor's attachments and ticks")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> std::result::Result<Beside, E> {
                Beside::read(bytes).map_err(E::custom)
            }
            // Formats without bytes write them as a list.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Beside, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = seq.next_element::<u8>()? {
                    if bytes.len() > Attachments::BYTES + 8 * MOST_TICKS {
                        return Err(A::Error::custom(
                            "more bytes than a tensor's attachments and ticks have",
                        ));
                    }
                    bytes.push(byte);
                }
                Beside::read(&bytes).map_err(A::Error::custom)
            }
        }
        d.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(ticks: usize) -> Vec<u8> {
        let attachments = Attachments::from_bytes([1, 0, 0, 0, 2, 1, 0, 0]);
        let ticks: Vec<Tick> = (0..ticks as u64).map(|n| Tick::from_raw(n << 20 | 1).unwrap()).collect();
        let mut bytes = vec![0; Attachments::BYTES + 8 * ticks.len()];
        Beside::write(attachments, &ticks, &mut bytes);
        let (found, read) = Beside::read(&bytes).unwrap().0.unwrap();
        assert_eq!((found, read), (attachments, ticks));
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        assert!(Beside::read(&[]).unwrap().0.is_none());
        for ticks in [0, 1, FEW_TICKS, FEW_TICKS + 1, MOST_TICKS] {
            there_and_back(ticks);
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let bytes = there_and_back(2);
        for len in (1..bytes.len()).filter(|len| !matches!(len, 8 | 16)) {
            assert!(Beside::read(&bytes[..len]).is_err(), "{len} bytes");
        }
        let none = [&bytes[..16], &[0; 8]].concat();
        assert!(Beside::read(&none).is_err(), "0 is no tick");
        let many = [&bytes[..8], &[1; 8 * (MOST_TICKS + 1)]].concat();
        assert!(Beside::read(&many).is_err(), "more than all streams");
    }
}
