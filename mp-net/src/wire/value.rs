//! Conversion of values between the arena and a stream.

use crate::sync::{AtomicU64, Ordering};

use mp_core::message::Outgoing;
use mp_core::words::{Access, Grant};
use mp_core::{Arena, Error, NewBlock, RelayedMessage};

use crate::wire::messages::{Block, Value};
use crate::wire::receive::StreamEnd;
use crate::wire::{MOST_VALUES, TOGETHER};

/// Number of bytes of attachments that streams of this process have copied into the arena.
// fork: a count, which a child continues.
pub(crate) static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// Returns a message in the form in which it is sent before its attachments, and the sizes of the attachments
/// in bytes.
pub(crate) fn describe((bytes, blocks): RelayedMessage) -> (Value, Vec<u64>) {
    let sizes = blocks.iter().map(|(_, bytes)| *bytes).collect();
    let block = |(grant, bytes): (Grant, u64)| Block {
        bytes,
        frozen: grant.access() == Access::Frozen,
        element: grant.tag().into(),
    };
    (Value { bytes, blocks: blocks.into_iter().map(block).collect() }, sizes)
}

/// Returns the bytes and the descriptions of the attachments of an encoded value.
///
/// # Errors
/// [`Error::Unsendable`] if an attachment can't leave this arena.
pub(crate) fn parts(value: &Outgoing) -> Result<RelayedMessage, Error> {
    Ok((value.written().to_vec(), value.relayed_blocks()?))
}

/// Returns the size of a value in bytes, with its attachments, or `u64::MAX` if the sum overflows.
pub(crate) fn size_of(value: &Value) -> u64 {
    value.blocks.iter().fold(value.bytes.len() as u64, |sum, block| sum.saturating_add(block.bytes))
}

/// Returns an upper bound in bytes for the length and the list of attachments that are sent with a value.
pub(crate) fn heads(value: &Value) -> u64 {
    (1 + value.blocks.len() as u64) * 16
}

/// Maximum number of attachments of a message.
const MOST_BLOCKS: usize = u16::MAX as usize;

/// Reason why a value could not be received into the arena.
#[derive(Debug)]
pub(crate) enum ArrivalError {
    /// Value with this many bytes, which is above the limit.
    TooLarge(u64),
    /// There is too little memory, or an attachment is invalid.
    Memory(Error),
}

/// Value whose data is arriving.
pub(crate) struct ArrivingValue {
    bytes: Vec<u8>,
    sizes: Vec<u64>,
    blocks: Result<Vec<NewBlock>, ArrivalError>,
    /// Index of the block that is being written. The next field is the offset in this block.
    block: usize,
    at: u64,
}

impl ArrivingValue {
    /// Allocates the blocks of a value of up to `largest` bytes. If the value is larger, or the allocation
    /// fails, its data are skipped, and [`finish`](Self::finish) returns the error.
    pub(crate) fn new(value: Value, largest: u64) -> Self {
        let size = size_of(&value);
        let blocks = if size > largest || value.blocks.len() > MOST_BLOCKS {
            Err(ArrivalError::TooLarge(size))
        } else {
            allocate(&value.blocks)
        };
        let sizes = value.blocks.iter().map(|block| block.bytes).collect();
        let mut arriving = Self { bytes: value.bytes, sizes, blocks, block: 0, at: 0 };
        arriving.skip_full();
        arriving
    }

    /// Advances to the next block that is not full.
    fn skip_full(&mut self) {
        while self.sizes.get(self.block) == Some(&self.at) {
            (self.block, self.at) = (self.block + 1, 0);
        }
    }

    /// Returns `true` if all data of the value have arrived.
    pub(crate) fn is_whole(&self) -> bool {
        self.block == self.sizes.len()
    }

    /// Writes data that arrived. Returns `true` if all data have arrived.
    ///
    /// # Errors
    /// [`StreamEnd::Malformed`] if the data exceed the block.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result<bool, StreamEnd> {
        let room = self.sizes.get(self.block).map_or(0, |size| size - self.at);
        if data.len() as u64 > room {
            return Err(StreamEnd::Malformed("data that exceed their attachment"));
        }
        if let Ok(blocks) = &mut self.blocks
            && let Some(block) = blocks.get_mut(self.block)
            && let Err(error) = block.write(self.at, data)
        {
            self.blocks = Err(ArrivalError::Memory(error));
        }
        RECEIVED.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.at += data.len() as u64;
        self.skip_full();
        Ok(self.is_whole())
    }

    /// Returns the value. The caller has checked that all data has arrived.
    ///
    /// # Errors
    /// Returns an [`ArrivalError`] if there was too little memory for the data.
    pub(crate) fn finish(self) -> Result<Outgoing, ArrivalError> {
        let mut out = Outgoing::default();
        *out.bytes() = self.bytes;
        for block in self.blocks? {
            out.attached().attach_new(block).map_err(ArrivalError::Memory)?;
        }
        Ok(out)
    }
}

/// Values of a call or reply whose data is arriving.
pub(crate) struct ArrivingValues {
    values: Vec<ArrivingValue>,
    /// Index of the value that is being written.
    at: usize,
}

impl ArrivingValues {
    /// Allocates the blocks of the last value, of up to `largest` bytes, and of the small values before it.
    ///
    /// # Errors
    /// [`StreamEnd::Malformed`] if there are more than [`MOST_VALUES`] values, or if all values but the last
    /// exceed [`TOGETHER`] bytes together: no sender combines such values.
    pub(crate) fn new(values: Vec<Value>, largest: u64) -> Result<Self, StreamEnd> {
        let before_last = values.iter().rev().skip(1);
        let size = before_last.fold(0, |sum: u64, value| sum.saturating_add(size_of(value)));
        if values.len() > MOST_VALUES || size > TOGETHER {
            return Err(StreamEnd::Malformed("too many values, or too large ones, in one message"));
        }
        let values = values.into_iter().map(|value| ArrivingValue::new(value, largest)).collect();
        let mut arriving = Self { values, at: 0 };
        arriving.skip_whole();
        Ok(arriving)
    }

    fn skip_whole(&mut self) {
        while self.values.get(self.at).is_some_and(ArrivingValue::is_whole) {
            self.at += 1;
        }
    }

    /// Returns `true` if all data of all values have arrived.
    pub(crate) fn are_whole(&self) -> bool {
        self.at == self.values.len()
    }

    /// Writes data that arrived. Returns `true` if all data of all values have arrived.
    ///
    /// # Errors
    /// [`StreamEnd::Malformed`] if the data exceed the block.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result<bool, StreamEnd> {
        let value = self.values.get_mut(self.at).ok_or(StreamEnd::Malformed("data without a value"))?;
        if value.write(data)? {
            self.skip_whole();
        }
        Ok(self.are_whole())
    }

    /// Returns the values after all their data has arrived.
    pub(crate) fn finish(self) -> impl Iterator<Item = Result<Outgoing, ArrivalError>> {
        self.values.into_iter().map(ArrivingValue::finish)
    }
}

fn allocate(blocks: &[Block]) -> Result<Vec<NewBlock>, ArrivalError> {
    let arena = Arena::current().map_err(ArrivalError::Memory)?;
    let new = |block: &Block| {
        let access = if block.frozen { Access::Frozen } else { Access::Exclusive };
        let element = u8::try_from(block.element).ok().filter(|element| *element < 32);
        let element = element.ok_or_else(|| Error::Malformed("an unknown element type".into()))?;
        NewBlock::new(arena, block.bytes, Grant::new(access, element))
    };
    blocks.iter().map(new).collect::<Result<_, Error>>().map_err(ArrivalError::Memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_above_the_limit_sent_together_are_refused() {
        let value =
            |bytes| Value { bytes: Vec::new(), blocks: vec![Block { bytes, frozen: false, element: 0 }] };
        let arriving =
            |sizes: &[u64]| ArrivingValues::new(sizes.iter().map(|n| value(*n)).collect(), 1 << 40);
        assert!(arriving(&[TOGETHER; 2]).is_ok() && arriving(&[TOGETHER + 1]).is_ok());
        assert!(arriving(&[TOGETHER / 2, TOGETHER / 2 + 1, 1]).is_err());
        assert!(arriving(&[u64::MAX, 1]).is_err() && arriving(&[0; MOST_VALUES + 1]).is_err());
    }
}
