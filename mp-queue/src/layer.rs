//! What the arena's sweep asks of those who know rings.

use mp_core::mem::Word;
use mp_core::words::{BlockId, EnvelopeId, Member};
use mp_core::{Arena, RingLayer};

use crate::shared::{RingMemory, Taken, settle};

/// This crate, to the arena.
#[derive(Debug)]
pub(crate) struct Rings;

impl RingLayer for Rings {
    fn settle(
        &self,
        arena: Arena,
        dead: &[Word],
        others: &[Word],
        taken: &mut dyn FnMut(EnvelopeId),
    ) -> bool {
        settle(arena, dead, others, taken).unwrap_or(false)
    }

    fn drain(&self, arena: Arena, (base, len): (Word, u64), block: BlockId) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        // Dropping an envelope releases what is attached to it.
        while let Ok(Taken::Message(envelope)) = ring.get() {
            drop(envelope);
        }
    }

    fn holder_died(&self, arena: Arena, (base, len): (Word, u64), block: BlockId, dead: Member, pid: u32) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        ring.note_death(dead, pid);
        ring.not_empty().wake_all();
        ring.not_full().wake_all();
    }
}
