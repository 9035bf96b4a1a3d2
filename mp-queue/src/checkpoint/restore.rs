//! Creation of a queue from a checkpoint file.

use std::path::Path;

use mp_core::message::Outgoing;
use mp_core::words::{Access, Grant};
use mp_core::{Message, NewBlock, Wait};
use mp_reduce::{Error, TypeFingerprint, name_of};

use super::checksum::Checksum;
use super::error::CheckpointError;
use super::file::CheckpointReader;
use super::format::SavedMessage;
use crate::error::PutError;
use crate::queue::Queue;
use crate::raw::RawQueue;
use crate::raw::header::NAME_MAX;
use crate::raw::options::QueueOptions;
use crate::raw::payload::{Payload, pack_envelope};
use crate::ring::SmallMessage;

/// Creates a queue from a checkpoint file. The queue gets `options`, or else the options in the file.
pub(super) fn restore<T: Message>(
    path: &Path,
    options: Option<QueueOptions>,
) -> Result<Queue<T>, CheckpointError> {
    let mut file = CheckpointReader::open(path)?;
    let (mut fingerprint, mut name) = (TypeFingerprint::<T>::new(), name_of::<T>().into_owned());
    let cut = String::from_utf8_lossy(&name.as_bytes()[..name.len().min(NAME_MAX)]);
    if T::DYNAMIC {
        fingerprint = TypeFingerprint::stored(file.queue.fingerprint);
        name.clone_from(&file.queue.type_name);
    } else if (file.queue.fingerprint, &file.queue.type_name)
        != (fingerprint.get(), &mp_core::printable(&cut))
    {
        return Err(file.other_type(name));
    }
    let mut messages = std::mem::take(&mut file.queue.messages);
    // Held messages are put first, since they leave their slots at once.
    messages.sort_by_key(|message| !message.set_aside);
    let queued = messages.iter().filter(|message| !message.set_aside).count();
    let mut of_file = file.queue.options;
    // Producers may exceed the limit of a growing queue by one message each.
    if of_file.growing {
        of_file.capacity = of_file.capacity.map(|limit| limit.max(queued));
    }
    let options = options.unwrap_or(of_file);
    options.check()?;
    let raw = RawQueue::create(options, (fingerprint.get(), &name), true)?;
    for message in &messages {
        let payload = read(&file, &raw, fingerprint, message)?;
        put(&raw, payload, message.set_aside).map_err(|error| match error {
            PutError::Failed { error, .. } => CheckpointError::Failed(error),
            PutError::TooLarge { bytes, limit, .. } => CheckpointError::TooLarge { bytes, limit },
            // The arena has no room for as many messages as the options allow.
            _ if options.capacity.is_none_or(|wanted| wanted as u64 > raw.memory().capacity().into()) => {
                CheckpointError::Failed(raw.too_many())
            }
            _ => CheckpointError::TooMany { messages: messages.len() },
        })?;
    }
    if file.queue.closed {
        raw.close();
    }
    Ok(Queue::of_raw(raw, fingerprint))
}

/// Reads a message from the file into a new message, with new blocks for its attachments.
fn read<T: Message>(
    file: &CheckpointReader,
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    message: &SavedMessage,
) -> Result<Payload, CheckpointError> {
    let (mut out, mut sum) = (Outgoing::default(), Checksum::default());
    file.read_more(message.bytes.at, message.bytes.len, out.bytes(), &mut sum)?;
    for saved in &message.blocks {
        let access = if saved.frozen { Access::Frozen } else { Access::Exclusive };
        let (at, len) = (saved.range.at, saved.range.len);
        let mut block = NewBlock::new(raw.arena(), len, Grant::new(access, saved.element))?;
        // A block has at least the size that was asked for.
        file.read(at, &mut block.bytes_mut()[..len as usize], &mut sum)?;
        out.attached().attach_new(block)?;
    }
    if sum.get() != message.checksum {
        return Err(file.damaged());
    }
    let small = message.blocks.is_empty() && message.deliveries == 0 && !message.set_aside;
    if small
        && raw.memory().accepts_small()
        && let Some(small) = SmallMessage::new(out.bytes())
    {
        return Ok(Payload::Small(small));
    }
    let envelope = pack_envelope(raw, &mut out, fingerprint.get()).map_err(Error::from)?;
    envelope.set_deliveries(message.deliveries.into());
    Ok(Payload::Envelope(envelope))
}

/// Puts a restored message. If the message was leased or given back when it was saved (`set_aside`), this
/// process leases it and gives it back. It is then delivered before all other messages, or becomes a dead
/// letter.
fn put(raw: &RawQueue, mut payload: Payload, set_aside: bool) -> Result<(), PutError<()>> {
    let failed = |error| PutError::Failed { value: (), error: Error::from(error) };
    if set_aside {
        raw.memory().enable_redelivery();
    }
    raw.put(&mut payload, Wait::Never)?;
    if set_aside {
        let mut leased = None;
        raw.memory().lease(0, &mut leased).map_err(failed)?;
        if let Some(leased) = leased {
            raw.memory().give_back(&leased);
        }
    }
    Ok(())
}
