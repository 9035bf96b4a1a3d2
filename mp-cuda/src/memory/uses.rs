//! What streams of this process did with a piece, for the next that gets its memory.

use mp_core::clocks::Tick;

use super::object::Row;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// The uses of a piece in this process, since it came.
#[derive(Debug, Default)]
pub(crate) struct Uses;

impl Uses {
    /// The piece has no holder here any more: its uses become the row's last use. The ticks behind them.
    pub(crate) fn leave(&self, _: &Row) -> Vec<Tick> {
        Vec::new()
    }
}

/// Has a stream wait for a tick.
pub(crate) fn wait(stream: &Stream, _: Tick) -> Result<()> {
    Err(Error::Unsupported { what: "its streams have no clocks yet", device: stream.device().uuid() })
}
