//! Which access to a tensor's memory is allowed, as types.

use std::borrow::Borrow;
use std::marker::PhantomData;

use mp_core::Storage;
use mp_core::words::Access;

pub(crate) mod sealed {
    use super::{Access, Borrow, Storage};

    /// What a mode is to this crate.
    pub trait Mode {
        /// How a tensor keeps its storage.
        type Keep: Borrow<Storage>;
        /// What a tensor of this mode is called.
        const NAME: &'static str;
    }

    /// A mode whose tensors travel as clones.
    pub trait Sendable: Mode<Keep = Storage> {
        /// As what its memory is attached to a message.
        const ACCESS: Access;
        /// What an error calls a tensor of this mode.
        const WHAT: &str;
    }
}

/// Which access to a tensor's memory is allowed, and to how many handles.
///
/// | mode | the tensor | reads | writes | handles |
/// |---|---|---|---|---|
/// | [`Exclusive`] | [`Tensor`](crate::Tensor) | `&[T]` | `&mut [T]` | one among all processes |
/// | [`Frozen`] | [`FrozenTensor`](crate::FrozenTensor) | `&[T]` | none, ever again | any number |
/// | [`Shared`] | [`SharedTensor`](crate::SharedTensor) | atomic | atomic | any number |
/// | [`Borrowed`] | [`TensorView`](crate::TensorView) | `&[T]` | none meanwhile | any number, in this process |
/// | [`BorrowedMut`] | [`TensorViewMut`](crate::TensorViewMut) | `&[T]` | `&mut [T]` | one for each element |
pub trait Mode: sealed::Mode {}

/// Modes in which no code writes as long as a tensor is borrowed: its memory is plain slices.
///
/// (Sealed: the slices rest on it.)
#[diagnostic::on_unimplemented(
    message = "{Self} tensors give no slices and references",
    note = "other processes may write a shared tensor at any time: use load, iter, read_into, or copy it by contiguous()"
)]
pub trait Readable: Mode {}

/// Modes in which the holder of the tensor alone reaches its elements: it may write them.
///
/// (Sealed: the slices rest on it.)
#[diagnostic::on_unimplemented(
    message = "{Self} tensors can't be written through references",
    note = "a frozen tensor is never written: copy it by contiguous()"
)]
pub trait Writable: Readable {}

/// Modes in which several tensors may be views of the same elements.
#[diagnostic::on_unimplemented(
    message = "there is one {Self} tensor of its memory, not several",
    note = "freeze() or share() it, copy it by try_clone(), or look at it through view()"
)]
pub trait Aliased: Mode + sealed::Mode<Keep: Clone> {}

/// Modes whose tensors travel in messages as clones.
#[diagnostic::on_unimplemented(
    message = "{Self} tensors are no serde values: they can't be sent twice",
    note = "freeze() or share() it; or move it: by itself, in a `Bundle`, or in a type with #[derive(Message)]"
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
    /// One owner among all processes, which may write.
    Exclusive, Storage, "Tensor";
    /// Any number of readers, in any process; no writer, ever again.
    Frozen, Storage, "FrozenTensor";
    /// Any number of readers and writers, in any process, through atomics.
    Shared, Storage, "SharedTensor";
}

/// A view of a borrowed tensor, to read.
#[derive(Clone, Copy, Debug)]
pub struct Borrowed<'a>(PhantomData<&'a ()>);

/// A view of a mutably borrowed tensor, or of a part of it that no other view has, to read and write.
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
