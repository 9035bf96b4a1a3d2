//! Arguments that are kept in this process until their task is done.

use mp_core::message::Outgoing;
use mp_core::message::level::with_nested_message;
use mp_core::user_code::UserValue;
use mp_reduce::{Message, MessagePack};
use mp_spawn::CallFailure;

use crate::error::EncodeError;
use crate::worker::values::PackedRange;

/// Arguments kept for a retry, or for sending the rest of a chunk to another worker. Dropping them catches
/// panics.
pub(crate) enum SavedArgs {
    /// Bytes of the arguments.
    Packed(PackedRange),
    /// Arguments with attachments, taken from their message.
    Values(UserValue<Box<dyn SavedValue>>),
    None,
}

/// Arguments that were kept for a retry, for which they are encoded again.
pub(crate) trait SavedValue: Send {
    fn encode_again(&mut self) -> Result<Outgoing, EncodeError>;
}

pub(crate) struct OriginalArgs<A>(pub(crate) A);

impl<A: Message + Send> SavedValue for OriginalArgs<A> {
    fn encode_again(&mut self) -> Result<Outgoing, EncodeError> {
        let mut out = Outgoing::default();
        encode(&mut self.0, &mut out)?;
        Ok(out)
    }
}

/// Encodes arguments. Calls user code: a panic of it is returned as an error.
fn encode<A: Message>(args: &mut A, out: &mut Outgoing) -> Result<(), EncodeError> {
    match CallFailure::catch(|| with_nested_message(|| args.encode::<MessagePack>(out))) {
        Ok(written) => written.map_err(unsendable),
        Err(raise) => Err(panicked(&raise)),
    }
}

pub(super) fn unsendable(error: mp_core::Error) -> EncodeError {
    mp_reduce::Error::from(error).into()
}

pub(super) fn panicked(raise: &CallFailure) -> EncodeError {
    let error = mp_core::Error::Unsendable(format!("its `Serialize` panicked: {}", raise.message()));
    unsendable(error)
}

/// Keeps arguments that were encoded without moving any part.
pub(super) fn save_original<A: Message + Send>(item: UserValue<Option<A>>) -> SavedArgs {
    match item.into_inner().flatten() {
        Some(args) => SavedArgs::Values(UserValue::new(Box::new(OriginalArgs(args)) as Box<dyn SavedValue>)),
        None => SavedArgs::None,
    }
}
