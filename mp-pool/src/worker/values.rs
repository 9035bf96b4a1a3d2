//! Many values in one message, each with its end position, so that a value that can't be decoded does not
//! affect the others.

use std::ops::Range;
use std::sync::Arc;

use mp_core::Error;
use mp_core::message::{Incoming, Outgoing};

use crate::worker::end_positions::{EndPositions, ValuesView};

/// Values encoded one after the other, without attachments.
#[derive(Default, Debug)]
pub(crate) struct PackedValues {
    /// End positions in `bytes`.
    pub(crate) ends: EndPositions,
    pub(crate) bytes: Vec<u8>,
}

/// Range of such values.
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

/// Maximum number of such bytes: a number and its end position fit.
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

    /// Takes received arguments that could not be read, to send them back.
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
