//! Plain data: types that can be stored in shared memory.

use bytemuck::Pod;

/// Plain data, which locks, values and arrays of this crate can hold. The trait is implemented for every
/// [`Pod`] type: numbers and structs of numbers. For other types, the compiler error suggests an alternative.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be stored in shared memory",
    label = "not plain data",
    note = "plain data has no pointers and a value for every bit pattern: numbers, arrays `[T; N]`, and \
            structs of them with `#[repr(C)] #[derive(Clone, Copy, Pod, Zeroable)]` of \
            `mp::sync::bytemuck` and `#[bytemuck(crate = \"mp::sync::bytemuck\")]`",
    note = "use `mp::Array` or a tensor for a `Vec` of fixed length, `mp::ShareableList` for a list or text \
            that changes, `mp::Queue` for values that go to other processes, `u8` or \
            `mp::Event` for a `bool`",
    note = "`mp::Lock<()>` protects a resource outside of the lock"
)]
pub trait Plain: Pod {}

// Otherwise the compiler error would name `Pod` instead of the reason.
#[diagnostic::do_not_recommend]
impl<T: Pod> Plain for T {}
