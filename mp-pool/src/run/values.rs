//! Values that travel many in one message, each with the place where it ends, so that one that can't be read spoils no other.

use std::ops::Range;
use std::sync::Arc;

use mp_core::Error;
use mp_core::message::{Incoming, Outgoing};

/// Values that were encoded one after the other, with nothing attached to any.
#[derive(Default, Debug)]
pub(crate) struct Plain {
    /// Where each ends in `bytes`.
    pub(crate) ends: Vec<u32>,
    pub(crate) bytes: Vec<u8>,
}

impl Plain {
    /// Where value `i` is.
    fn range(&self, i: usize) -> Range<usize> {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        start..self.ends[i] as usize
    }
}

/// Some values of them.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(crate) plain: Arc<Plain>,
    pub(crate) items: Range<usize>,
}

impl Slice {
    pub(crate) fn of(plain: Plain) -> Slice {
        let items = 0..plain.ends.len();
        Slice { plain: Arc::new(plain), items }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Those from `from` to `to`, as numbered in here.
    pub(crate) fn part(&self, from: usize, to: usize) -> Slice {
        let first = self.items.start;
        Slice { plain: Arc::clone(&self.plain), items: first + from..first + to }
    }

    fn write(&self, out: &mut Outgoing) {
        let Range { start, end } = self.items.clone();
        let Some(last) = end.checked_sub(1).filter(|last| *last >= start) else { return };
        let bytes = self.plain.range(start).start..self.plain.range(last).end;
        write_many(out, &self.plain.ends[start..end], bytes.start as u32, &self.plain.bytes[bytes]);
    }
}

/// Writes values as [`Many`] reads them: where each ends, counted from `start`, and all of them.
pub(crate) fn write_many(out: &mut Outgoing, ends: &[u32], start: u32, bytes: &[u8]) {
    let to = out.bytes();
    to.reserve(4 * ends.len() + bytes.len());
    let at = to.len();
    to.resize(at + 4 * ends.len(), 0);
    for (place, end) in to[at..].as_chunks_mut().0.iter_mut().zip(ends) {
        *place = (end - start).to_le_bytes();
    }
    to.extend_from_slice(bytes);
}

/// Values that were received, `count` of them in one message.
#[derive(Debug)]
pub(crate) struct Many {
    rest: Rest,
    pub(crate) count: usize,
}

/// Their bytes.
#[derive(Debug)]
enum Rest {
    /// So few that the buffers of the message are left to the next one.
    Short(u8, [u8; SHORT]),
    Long(Box<Incoming>),
}

/// As many as fit beside the rest of it: a number, and where it ends.
const SHORT: usize = 22;

impl Many {
    /// `count` of them, in the rest of a message to which nothing is attached.
    pub(crate) fn new(inc: &mut Incoming, count: usize) -> Many {
        let (bytes, mut short) = (inc.rest(), [0; SHORT]);
        let len = bytes.len();
        let rest = match short.get_mut(..len) {
            Some(short_bytes) => {
                short_bytes.copy_from_slice(bytes);
                inc.advance(len);
                Rest::Short(len as u8, short)
            }
            None => Rest::Long(Box::new(std::mem::take(inc))),
        };
        Many { rest, count }
    }

    /// Of what a dead worker has left.
    pub(crate) fn found(ends: &[u32], bytes: &[u8]) -> Many {
        let mut out = Outgoing::default();
        write_many(&mut out, ends, 0, bytes);
        let bytes = std::mem::take(out.bytes());
        Many::new(&mut Incoming::from_plain(bytes), ends.len())
    }

    /// Value `i`; `None` if it is not there, or the message is none of ours.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<&[u8]> {
        self.all().get(i)
    }

    /// All of them, to be read one after the other.
    #[inline]
    pub(crate) fn all(&self) -> AllOf<'_> {
        let rest = match &self.rest {
            Rest::Short(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Rest::Long(inc) => inc.rest(),
        };
        let parts = rest.split_at_checked(self.count.saturating_mul(4));
        let (ends, bytes) = parts.unwrap_or_default();
        AllOf { ends: ends.as_chunks().0, bytes }
    }
}

/// Values of one message.
#[derive(Clone, Copy, Default)]
pub(crate) struct AllOf<'a> {
    ends: &'a [[u8; 4]],
    bytes: &'a [u8],
}

impl<'a> AllOf<'a> {
    /// Value `i`; `None` if it is not there, or the message is none of ours.
    #[inline]
    pub(crate) fn get(self, i: usize) -> Option<&'a [u8]> {
        let end = |i: usize| self.ends.get(i).map(|end| u32::from_le_bytes(*end) as usize);
        let start = if i == 0 { 0 } else { end(i - 1)? };
        self.bytes.get(start..end(i)?)
    }
}

/// The arguments of one task or of many.
#[derive(Debug)]
pub(crate) enum Args {
    /// To be sent: of a call, nothing attached.
    Plain(Slice),
    /// To be sent: of one task.
    Alone(Outgoing),
    /// Received.
    Many(Many),
    /// Received, of one task.
    One(Box<Incoming>),
}

impl Args {
    pub(crate) fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Args::Plain(slice) => {
                slice.write(out);
                Ok(())
            }
            Args::Alone(alone) => out.append(std::mem::take(alone)),
            Args::Many(_) | Args::One(_) => {
                Err(Error::Unsendable("it was received, and is not sent again".into()))
            }
        }
    }

    /// Those that were received and could not be read, to be sent back.
    pub(crate) fn take_unread(&mut self) -> Option<Outgoing> {
        match self {
            Args::One(inc) => std::mem::take(&mut **inc).into_outgoing(),
            Args::Plain(_) | Args::Alone(_) | Args::Many(_) => None,
        }
    }

    /// Of how many tasks.
    pub(crate) fn len(&self) -> usize {
        match self {
            Args::Plain(slice) => slice.len(),
            Args::Many(many) => many.count,
            Args::Alone(_) | Args::One(_) => 1,
        }
    }
}
