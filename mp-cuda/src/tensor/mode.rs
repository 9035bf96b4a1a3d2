//! Access modes of tensors on devices, as types. They are the same types as for tensors in memory of the
//! host.

use mp_tensor::{Exclusive, Frozen, Shared};

pub(crate) mod sealed {
    use crate::memory;

    /// Properties of a mode for this crate.
    pub trait DeviceMode {
        /// Mode in which pieces are opened and attached to messages.
        #[doc(hidden)]
        const MODE: memory::PieceMode;
        /// Name of the type of tensors in this mode.
        #[doc(hidden)]
        const NAME: &'static str;
        /// Name of a tensor in this mode with its article, for error messages.
        #[doc(hidden)]
        const WHAT: &'static str;
    }
}

/// Mode of a tensor: access to its memory, and number of handles to the memory.
///
/// | mode | the tensor | read on streams | written on streams | handles |
/// |---|---|---|---|---|
/// | [`Exclusive`] | [`CudaTensor`](crate::CudaTensor) | yes | yes | one among all processes |
/// | [`Frozen`] | [`FrozenCudaTensor`](crate::FrozenCudaTensor) | yes | never again | any number |
/// | [`Shared`] | [`SharedCudaTensor`](crate::SharedCudaTensor) | yes | yes | any number |
#[diagnostic::on_unimplemented(
    message = "there is no tensor of mode {Self} on a device",
    note = "the modes are `Exclusive`, `Frozen` and `Shared`"
)]
pub trait CudaMode: sealed::DeviceMode + Send + Sync + 'static {}

/// Modes in which tensors can be cloned and can have overlapping views. Sending such a tensor sends a clone.
#[diagnostic::on_unimplemented(
    message = "there is one {Self} tensor of its memory, not several",
    note = "freeze() or share() it, or copy it by to_device()"
)]
pub trait CudaAliased: CudaMode {}

macro_rules! modes {
    ($($mode:ident, $name:literal, $what:literal;)*) => {$(
        impl sealed::DeviceMode for $mode {
            const MODE: crate::memory::PieceMode = crate::memory::PieceMode::$mode;
            const NAME: &'static str = $name;
            const WHAT: &'static str = $what;
        }
        impl CudaMode for $mode {}
    )*};
}

modes! {
    Exclusive, "CudaTensor", "a CudaTensor";
    Frozen, "FrozenCudaTensor", "a FrozenCudaTensor";
    Shared, "SharedCudaTensor", "a SharedCudaTensor";
}

impl CudaAliased for Frozen {}
impl CudaAliased for Shared {}
