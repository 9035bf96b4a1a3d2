//! Seats that an envelope holds for the attachments of its message.

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::envelopes::meta::{INLINE, Meta};
use crate::layout::{SLAB_BLOCKS, envelope as field};
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::steps::{ReleaseOutcome, ReleaseSeat};
use crate::words::{Attachment, EnvelopeId, Seat};

impl Allocator {
    /// Returns the position of an envelope's list of attachments, and the number of entries, limited to the
    /// available space.
    pub(crate) fn attachments_at(self, id: EnvelopeId, meta: Meta) -> (Word, u64) {
        let spill =
            Attachment::unpack(self.map().load_relaxed(Envelopes(self.0).envelope_word(id, field::SPILL)));
        let (at, room) = match spill.filter(|a| meta.spilled && Blocks(self.0).block_exists(a.block)) {
            Some(attach) => {
                let (at, len) = Blocks(self.0).data_of(attach.block);
                (Word::at(at), len)
            }
            None => (Envelopes(self.0).envelope_word(id, field::INLINE), INLINE as u64),
        };
        (at, (meta.attachments as u64).min(room / 8))
    }

    /// Returns the attachments that an envelope lists, with the position of each in the list.
    pub(crate) fn attachments(self, id: EnvelopeId) -> impl Iterator<Item = (Word, Attachment)> + use<> {
        let map = self.map();
        let meta = Meta::of_any_version(map.load(Envelopes(self.0).envelope_word(id, field::META)));
        let (entries, n) = self.attachments_at(id, meta);
        (0..n).filter_map(move |k| Some((entries.plus(k), Attachment::unpack(map.load(entries.plus(k)))?)))
    }

    /// Releases every seat that an envelope of this process holds, even if its message has another wire
    /// version.
    pub(crate) fn empty_envelope(self, id: EnvelopeId) {
        let map = self.map();
        let meta_word = Envelopes(self.0).envelope_word(id, field::META);
        let meta = Meta::of_any_version(map.load_relaxed(meta_word));
        let spill_word = Envelopes(self.0).envelope_word(id, field::SPILL);
        let spill = Attachment::unpack(map.load_relaxed(spill_word));
        for (entry, attach) in self.attachments(id) {
            self.release_attachment(id, attach);
            map.store(entry, 0);
        }
        if meta.attachments != 0 || meta.spilled {
            map.store(meta_word, Meta::default().pack());
        }
        // After the attachments in it, whose number is 0 by now.
        if let Some(attach) = spill {
            self.release_attachment(id, attach);
            map.store(spill_word, 0);
        }
    }

    fn release_attachment(self, e: EnvelopeId, attach: Attachment) {
        let Ok(me) = self.me() else { return };
        if !Blocks(self.0).block_exists(attach.block) {
            return;
        }
        let Some(word) = Blocks(self.0).seat_word(attach.block, attach.seat) else { return };
        // This process may have to free it.
        Members(self.0).touch(me, attach.block / SLAB_BLOCKS);
        let at = Blocks(self.0).block_at(attach.block);
        let release = ReleaseSeat::new(at, Blocks(self.0).pages(), me, word, Seat::Envelope(e));
        if let ReleaseOutcome::MustFree(state) = run(release, self.map()) {
            self.finish_free(attach.block, state);
        }
    }
}
