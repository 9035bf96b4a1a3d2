//! Values that travel many in one message, each with the place where it ends, so that one that can't be read spoils no other.

use std::ops::Range;
use std::sync::Arc;

use mp_core::Error;
use mp_core::message::{Incoming, Outgoing};

use crate::run::ends::{AllOf, Ends};

/// Values that were encoded one after the other, with nothing attached to any.
#[derive(Default, Debug)]
pub(crate) struct Plain {
    /// Where each ends in `bytes`.
    pub(crate) ends: Ends,
    pub(crate) bytes: Vec<u8>,
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
        self.plain.ends.write(self.items.clone(), &self.plain.bytes, out);
    }
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
        let all: Ends = ends.iter().map(|end| *end as usize).collect();
        all.write(0..ends.len(), bytes, &mut out);
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
        AllOf::of(rest, self.count)
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
