//! Copies of a message's bytes into and out of an envelope, a spill block, or the block of a buffer.
//!
//! # Safety
//! Unsafe, because these bytes are plain memory that other processes map. Sound, because every caller is the
//! owner of the envelope at that moment (its owner word names this process), or holds the spill block or
//! buffer, which is written once, before it is sent.
#![allow(unsafe_code)]

use crate::alloc::handles::Hold;
use crate::blocks::Blocks;
use crate::sys::Mapping;
use crate::transport::attachments::AttachRequest;
use crate::transport::envelope::Envelope;

/// Bytes of a message that did not fit into its envelope.
#[derive(Debug)]
pub(crate) struct Spill {
    pub(crate) hold: Hold,
    pub(crate) from: usize,
    pub(crate) len: usize,
}

impl Spill {
    pub(crate) fn bytes(&self) -> &[u8] {
        spilled(&self.hold, self.from, self.len)
    }
}

/// Writes bytes of a message that this process is packing, at offset `at` of the arena.
#[inline]
pub(crate) fn write_own(map: &Mapping, at: u64, bytes: &[u8]) {
    // SAFETY: the target is in an envelope, spill block or buffer that this process owns and has not
    // published yet.
    unsafe { map.write(at, bytes) }
}

/// Returns the whole memory of a new block.
pub(crate) fn own_mut(hold: &mut Hold) -> &mut [u8] {
    let (at, size) = Blocks(hold.arena()).data_of(hold.block());
    let first = hold.arena().map().bytes(at, size);
    // SAFETY: the whole block, initialised by the kernel's zeros at least, and held as long as `hold` is
    // borrowed. It was allocated for a message that is not yet sent, so no other handle of it exists.
    unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), size as usize) }
}

/// Appends bytes of a message that this process owns to `to`. The bytes are at offset `at` of the arena.
#[inline]
pub(crate) fn read_own(map: &Mapping, at: u64, len: usize, to: &mut Vec<u8>) {
    let first = map.bytes(at, len as u64);
    // SAFETY: inside the mapping (checked above), initialised by the kernel's zeros at least. The source is
    // in an envelope that this process owns. Its last owner stopped writing before publishing it, and the
    // ring's compare-and-swap ordered that before this read.
    let bytes = unsafe { std::slice::from_raw_parts(first.as_ptr(), len) };
    to.extend_from_slice(bytes);
}

/// Returns the bytes of a message in its spill block, or of a buffer in its block.
#[inline]
pub(crate) fn spilled(hold: &Hold, from: usize, len: usize) -> &[u8] {
    let (at, size) = Blocks(hold.arena()).data_of(hold.block());
    let len = len.min((size as usize).saturating_sub(from));
    let first = hold.arena().map().bytes(at + from as u64, len as u64);
    // SAFETY: inside the block (checked above), initialised by the kernel's zeros at least, and held as long
    // as `hold` is borrowed. These bytes of a spill block are written once, before it is sent. The bytes of a
    // buffer, or of any other block that was attached as frozen, are no longer written by any process.
    unsafe { std::slice::from_raw_parts(first.as_ptr(), len) }
}

impl Envelope {
    /// Returns the memory of one block of the message in this envelope: its spill block, or a block that it
    /// attaches as exclusive or frozen. The block is at offset `at`, has `len` bytes, and is mapped in this
    /// process.
    pub(crate) fn attached(&self, (at, len): (u64, u64)) -> &[u8] {
        let first = self.arena.map().bytes(at, len);
        // SAFETY: the whole block, initialised by the kernel's zeros at least, in a file that the caller has
        // mapped. The envelope belongs to this process and holds the block until it is opened or dropped,
        // for which its borrow has to end. No process writes the block meanwhile: a spill block and frozen
        // memory are never written again, and exclusive memory belongs to the message.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), len as usize) }
    }
}

/// Returns the memory of an exclusive or frozen attachment of a message that this process is sending.
pub(crate) fn relayed(request: &AttachRequest) -> &[u8] {
    // Frozen memory is never written again. A value does not access its exclusive memory while its handle is
    // in the message, which is borrowed here.
    spilled(&request.hold, 0, usize::MAX)
}
