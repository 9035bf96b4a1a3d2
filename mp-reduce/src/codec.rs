//! MessagePack, with attachments beside it.

use mp_core::message::{Codec, Incoming, Outgoing, scope};
use mp_core::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Each value as its length (4 bytes, little-endian) and its MessagePack bytes.
///
/// Structs are written with the names of their fields, so that fields that are left out (`skip_serializing_if`) and enums
/// that are told apart by their fields arrive as they were.
#[derive(Clone, Copy, Debug)]
pub struct MessagePack;

impl Codec for MessagePack {
    #[inline]
    fn write<T: Serialize + ?Sized>(out: &mut Outgoing, value: &T) -> Result<()> {
        scope::with_outgoing(out, |bytes| {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; 4]);
            value
                .serialize(&mut rmp_serde::Serializer::new(&mut *bytes).with_struct_map())
                .map_err(|e| Error::Malformed(format!("a value can't be encoded: {e}")))?;
            let len = u32::try_from(bytes.len() - start - 4)
                .map_err(|_| Error::Malformed("a value of more than 4 GiB: put it in a tensor".into()))?;
            bytes[start..start + 4].copy_from_slice(&len.to_le_bytes());
            Ok(())
        })
    }

    #[inline]
    fn read<T: DeserializeOwned>(inc: &mut Incoming) -> Result<T> {
        let short = || Error::Malformed("a message is shorter than its type".into());
        let head: [u8; 4] = inc.rest().get(..4).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
        let len = u32::from_le_bytes(head) as usize;
        inc.advance(4);
        if inc.rest().len() < len {
            return Err(short());
        }
        let value = scope::with_incoming(inc, |rest| rmp_serde::from_slice(&rest[..len]));
        inc.advance(len);
        value.map_err(|e| {
            Error::Malformed(format!("a message can't be decoded as {}: {e}", std::any::type_name::<T>()))
        })
    }
}
