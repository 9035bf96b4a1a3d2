//! Contents of messages that are copied from one arena to another.
//!
//! A relay sends the bytes of an encoded message and the memory of its attachments to another host, which
//! writes them into new blocks of its own arena. The bytes refer to attachments by numbers, so they are the
//! same in both arenas. A block is copied with the size of its class, which is up to a quarter more than the
//! requested size.

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::{Envelopes, Meta};
use crate::error::{Error, Result};
use crate::layout::envelope as field;
use crate::mem::Mem;
use crate::setup::Backing;
use crate::transport::attachments::AttachRequest;
use crate::transport::bytes::{own_mut, relayed, write_own};
use crate::transport::envelope::{Envelope, opened};
use crate::transport::exclusive_objects::EXCLUSIVE;
use crate::transport::{Attached, Messages, Outgoing};
use crate::words::{Access, Attachment, BlockId, BlockKind, Grant};

/// New block of this process for an attachment that arrives from another arena.
#[derive(Debug)]
pub struct NewBlock {
    hold: Hold,
    grant: Grant,
}

/// Returns the error for an attachment with this grant, which can't leave its arena.
#[cold]
fn stays(grant: Grant) -> Error {
    let what = match grant.access() {
        Access::Shared => "a shared tensor can't leave this host: freeze it, or send a copy",
        _ => "queues, locks, files and device tensors can't leave this host",
    };
    Error::Unsendable(what.into())
}

impl NewBlock {
    /// Allocates a block for an attachment of this size and grant.
    ///
    /// # Errors
    /// [`Error::Unsendable`] if memory of this grant can't leave its arena, and the errors of an allocation.
    pub fn new(arena: Arena, bytes: u64, grant: Grant) -> Result<Self> {
        let hold = match grant.access() {
            Access::Exclusive => Allocator(arena).alloc_by_strategy(bytes),
            Access::Frozen => Allocator(arena).alloc_kind(bytes, BlockKind::Frozen),
            Access::Shared | Access::Object => Err(stays(grant)),
        }?;
        Ok(Self { hold, grant })
    }

    /// Writes bytes into the block, from offset `at` on.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the bytes exceed the block.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let (first, room) = Blocks(self.hold.arena()).data_of(self.hold.block());
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > room) {
            return Err(Error::Malformed(format!(
                "{} bytes at offset {at} of an attachment of {room} bytes",
                bytes.len()
            )));
        }
        write_own(self.hold.arena().map(), first + at, bytes);
        Ok(())
    }

    /// Returns the bytes of the block, which the caller fills. Their number may exceed the requested size.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        own_mut(&mut self.hold)
    }
}

impl Attached {
    /// Attaches a block that was written for this message. Returns the number of the attachment.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] if there are too many attachments.
    pub fn attach_new(&mut self, new: NewBlock) -> Result<u32> {
        let NewBlock { hold, grant } = new;
        // No other handle of a new block can be attached.
        self.place(&hold, grant)?.or_else(|free| Ok(self.add(|| hold, grant, free)))
    }
}

/// Bytes of a message, and the grants and sizes of its attachments.
pub type RelayedMessage = (Vec<u8>, Vec<(Grant, u64)>);

impl Envelope {
    /// Returns the bytes of the message, and the grants and sizes in bytes of its attachments, for a copy in
    /// another arena. The message stays in its envelope.
    ///
    /// # Errors
    /// [`Error::Unsendable`] if an attachment can't leave this arena. [`Error::Version`] or
    /// [`Error::Malformed`] if the words of the message are invalid. [`Error::Stale`] if the message was
    /// taken out.
    pub fn relayed(&self) -> Result<RelayedMessage> {
        let (arena, id) = (self.arena, self.id());
        arena.me()?;
        if !self.is_whole() {
            return Err(opened());
        }
        let word = |f| arena.map().load_relaxed(Envelopes(arena).envelope_word(id, f));
        let meta = Meta::unpack(word(field::META))?;
        let spill = Attachment::unpack(word(field::SPILL)).and_then(|a| Blocks(arena).existing(a.block));
        let from = meta.bytes_at(spill.map(|(_, len)| len))?;
        let mut bytes = Vec::new();
        match spill {
            Some(spill) => {
                Backing(arena).reach(spill.0)?;
                bytes.extend_from_slice(&self.attached(spill)[from..from + meta.bytes]);
            }
            None => Messages(arena).read_inline(id, from, meta.bytes, &mut bytes),
        }
        let attached = Allocator(arena).attachments(id);
        let size = |(_, a): (_, Attachment)| Ok((a.grant, leaving(arena, a.block, a.grant)?.1));
        let blocks = attached.map(size).collect::<Result<Vec<_>>>()?;
        if blocks.len() == meta.attachments {
            Ok((bytes, blocks))
        } else {
            Err(Error::Malformed("an attachment of a message is missing".into()))
        }
    }

    /// Returns the memory of an attachment. Returns an empty slice if the attachment can't leave this arena,
    /// or this process can't map its file.
    pub fn relayed_memory(&self, attachment: usize) -> &[u8] {
        if !self.is_whole() || self.arena.me().is_err() {
            return &[];
        }
        let (arena, id) = (self.arena, self.id());
        let meta =
            Meta::of_any_version(arena.map().load_relaxed(Envelopes(arena).envelope_word(id, field::META)));
        let (list, length) = Allocator(arena).attachments_at(id, meta);
        let entry = (attachment as u64) < length;
        let attach =
            entry.then(|| Attachment::unpack(arena.map().load_relaxed(list.plus(attachment as u64))));
        let memory = |a: Attachment| {
            let found = leaving(arena, a.block, a.grant).ok()?;
            Backing(arena).reach(found.0).ok()?;
            Some(self.attached(found))
        };
        attach.flatten().and_then(memory).unwrap_or_default()
    }
}

/// Returns the offset and length of an attachment's memory. This process need not have mapped that memory.
///
/// # Errors
/// If the attachment can't leave this arena, or does not exist.
pub(super) fn leaving(arena: Arena, block: BlockId, grant: Grant) -> Result<(u64, u64)> {
    let Some(found) = Blocks(arena).existing(block) else {
        return Err(Error::Malformed("an attachment of a message names no block".into()));
    };
    match grant.access() {
        _ if grant == EXCLUSIVE => Err(stays(grant)),
        Access::Exclusive | Access::Frozen => Ok(found),
        Access::Shared | Access::Object => Err(stays(grant)),
    }
}

impl Outgoing {
    /// Returns the bytes written so far.
    pub fn written(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the grants and sizes in bytes of all attachments, for a copy in another arena.
    ///
    /// # Errors
    /// [`Error::Unsendable`] if an attachment can't leave this arena: shared tensors and objects.
    pub fn relayed_blocks(&self) -> Result<Vec<(Grant, u64)>> {
        let size = |a: &AttachRequest| Ok((a.grant, leaving(a.hold.arena(), a.hold.block(), a.grant)?.1));
        self.requests().iter().map(size).collect()
    }

    /// Returns the memory of an attachment, or an empty slice if the attachment can't leave this arena.
    pub fn relayed_bytes(&self, attachment: usize) -> &[u8] {
        match self.requests().get(attachment) {
            Some(request) if matches!(request.grant.access(), Access::Exclusive | Access::Frozen) => {
                relayed(request)
            }
            _ => &[],
        }
    }
}
