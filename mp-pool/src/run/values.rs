//! Many values in one message, each with its end position, so that a value that can't be decoded does not
//! affect the others.

use std::ops::Range;
use std::sync::Arc;

use mp_core::Error;
use mp_core::message::{Incoming, Outgoing};

use crate::run::ends::{AllOf, Ends};

/// Values encoded one after the other, without attachments.
#[derive(Default, Debug)]
pub(crate) struct Plain {
    /// End positions in `bytes`.
    pub(crate) ends: Ends,
    pub(crate) bytes: Vec<u8>,
}

/// Range of such values.
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

    /// Returns the values from `from` to `to` of this range.
    pub(crate) fn part(&self, from: usize, to: usize) -> Slice {
        let first = self.items.start;
        Slice { plain: Arc::clone(&self.plain), items: first + from..first + to }
    }

    fn write(&self, out: &mut Outgoing) {
        self.plain.ends.write(self.items.clone(), &self.plain.bytes, out);
    }
}

/// Received values, `count` of them in one message.
#[derive(Debug)]
pub(crate) struct Many {
    rest: Rest,
    pub(crate) count: usize,
}

/// Bytes of the values.
#[derive(Debug)]
enum Rest {
    /// Few bytes, copied so that the next message can reuse the buffers.
    Short(u8, [u8; SHORT]),
    Long(Box<Incoming>),
}

/// Maximum number of such bytes: a number and its end position fit.
const SHORT: usize = 22;

impl Many {
    /// Takes `count` values from the rest of a message without attachments.
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

    /// Creates values from the journal of a dead worker.
    pub(crate) fn found(ends: &[u32], bytes: &[u8]) -> Many {
        let mut out = Outgoing::default();
        let all: Ends = ends.iter().map(|end| *end as usize).collect();
        all.write(0..ends.len(), bytes, &mut out);
        let bytes = std::mem::take(out.bytes());
        Many::new(&mut Incoming::from_plain(bytes), ends.len())
    }

    /// Returns value `i`, or `None` if it does not exist or the message is malformed.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<&[u8]> {
        self.all().get(i)
    }

    /// Returns a view of all values.
    #[inline]
    pub(crate) fn all(&self) -> AllOf<'_> {
        let rest = match &self.rest {
            Rest::Short(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Rest::Long(inc) => inc.rest(),
        };
        AllOf::of(rest, self.count)
    }
}

/// Arguments of one task or of many.
#[derive(Debug)]
pub(crate) enum Args {
    /// Arguments without attachments, to be sent.
    Plain(Slice),
    /// Arguments of one task, to be sent.
    Alone(Outgoing),
    /// Received arguments.
    Many(Many),
    /// Received arguments of one task.
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

    /// Takes received arguments that could not be read, to send them back.
    pub(crate) fn take_unread(&mut self) -> Option<Outgoing> {
        match self {
            Args::One(inc) => std::mem::take(&mut **inc).into_outgoing(),
            Args::Plain(_) | Args::Alone(_) | Args::Many(_) => None,
        }
    }

    /// Returns the number of tasks.
    pub(crate) fn len(&self) -> usize {
        match self {
            Args::Plain(slice) => slice.len(),
            Args::Many(many) => many.count,
            Args::Alone(_) | Args::One(_) => 1,
        }
    }
}
