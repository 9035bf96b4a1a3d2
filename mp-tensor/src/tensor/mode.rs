//! Access modes of tensors, as types.

use std::borrow::Borrow;
use std::marker::PhantomData;

use mp_core::Storage;
use mp_core::words::Access;

pub(crate) mod sealed {
    use super::{Access, Borrow, Storage};

    /// Private part of a mode.
    pub trait Mode {
        /// Reference to the storage: owned or borrowed.
        type Keep: Borrow<Storage>;
        /// Name of a tensor of this mode.
        const NAME: &'static str;
    }

    /// A mode whose tensors are sent as clones.
    pub trait Sendable: Mode<Keep = Storage> {
        /// Access under which the memory is attached to messages.
        const ACCESS: Access;
        /// Name of a tensor of this mode in errors.
        const WHAT: &str;
    }
}

/// Access to a tensor's memory, and number of handles.
///
/// | mode | the tensor | reads | writes | handles |
/// |---|---|---|---|---|
/// | [`Exclusive`] | [`Tensor`](crate::Tensor) | `&[T]` | `&mut [T]` | one among all processes |
/// | [`Frozen`] | [`FrozenTensor`](crate::FrozenTensor) | `&[T]` | none, ever again | any number |
/// | [`Shared`] | [`SharedTensor`](crate::SharedTensor) | atomic | atomic | any number |
/// | [`Borrowed`] | [`TensorView`](crate::TensorView) | `&[T]` | none while borrowed | any number, in this process |
/// | [`BorrowedMut`] | [`TensorViewMut`](crate::TensorViewMut) | `&[T]` | `&mut [T]` | one for each element |
pub trait Mode: sealed::Mode {}

/// Modes in which no code writes while a tensor is borrowed, so that its elements are plain slices.
///
/// (Sealed: the soundness of the slices depends on it.)
#[diagnostic::on_unimplemented(
    message = "{Self} tensors have no slices and references",
    note = "other processes may write a shared tensor at any time: use load, iter, read_into, \
            or copy it by contiguous()"
)]
pub trait Readable: Mode {}

/// Modes in which only the holder of the tensor accesses its elements, and may write them.
///
/// (Sealed: the soundness of the slices depends on it.)
#[diagnostic::on_unimplemented(
    message = "{Self} tensors can't be written through references",
    note = "a frozen tensor is never written: copy it by contiguous()"
)]
pub trait Writable: Readable {}

/// Modes in which several tensors may be views of the same elements.
#[diagnostic::on_unimplemented(
    message = "an {Self} tensor is the only handle to its memory",
    note = "freeze() or share() it, copy it by try_clone(), or borrow it by view()"
)]
pub trait Aliased: Mode + sealed::Mode<Keep: Clone> {}

/// Modes whose tensors are sent in messages as clones.
#[diagnostic::on_unimplemented(
    message = "{Self} tensors are not serde values: they can't be sent twice",
    note = "freeze() or share() it; or move it: by itself, in a `Bundle`, \
            or in a type with #[derive(Message)]"
)]
pub trait Sendable: Aliased + sealed::Sendable {}

macro_rules! modes {
    ($($(#[$doc:meta])* $mode:ident, $keep:ty, $name:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $mode {}
        impl sealed::Mode for $mode {
            type Keep = $keep;
            const NAME: &'static str = $name;
        }
        impl Mode for $mode {}
    )*};
}

modes! {
    /// Exclusive access: one process owns the memory. Only the owner reads and writes it.
    Exclusive, Storage, "Tensor";
    /// Any number of readers in any process. Never written again.
    Frozen, Storage, "FrozenTensor";
    /// Any number of readers and writers in any process, through atomics.
    Shared, Storage, "SharedTensor";
}

/// A read-only view of a borrowed tensor.
#[derive(Clone, Copy, Debug)]
pub struct Borrowed<'a>(PhantomData<&'a ()>);

/// A writable view of a mutably borrowed tensor, or of a part of it that no other view contains.
#[derive(Debug)]
pub struct BorrowedMut<'a>(PhantomData<&'a mut ()>);

impl<'a> sealed::Mode for Borrowed<'a> {
    type Keep = &'a Storage;
    const NAME: &'static str = "TensorView";
}
impl Mode for Borrowed<'_> {}

impl<'a> sealed::Mode for BorrowedMut<'a> {
    type Keep = &'a Storage;
    const NAME: &'static str = "TensorViewMut";
}
impl Mode for BorrowedMut<'_> {}

impl Readable for Exclusive {}
impl Readable for Frozen {}
impl Readable for Borrowed<'_> {}
impl Readable for BorrowedMut<'_> {}

impl Writable for Exclusive {}
impl Writable for BorrowedMut<'_> {}

impl Aliased for Frozen {}
impl Aliased for Shared {}
impl Aliased for Borrowed<'_> {}

impl sealed::Sendable for Frozen {
    const ACCESS: Access = Access::Frozen;
    const WHAT: &str = "a FrozenTensor";
}
impl Sendable for Frozen {}

impl sealed::Sendable for Shared {
    const ACCESS: Access = Access::Shared;
    const WHAT: &str = "a SharedTensor";
}
impl Sendable for Shared {}
