//! What can lie in shared memory as it is.

use bytemuck::Pod;

/// What locks, values and arrays of this crate can hold: all that is [`Pod`], numbers and structs of them, for which there is
/// nothing to implement. The compiler's error for anything else says what to use in its place.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't lie in shared memory as it is",
    label = "not plain data",
    note = "plain data has no pointers and a value for every bit pattern: numbers, arrays `[T; N]`, and structs of them with \
            `#[repr(C)] #[derive(Clone, Copy, Pod, Zeroable)]` of `mp::sync::bytemuck`, and `#[bytemuck(crate = \"mp::sync::bytemuck\")]`",
    note = "in place of a `Vec` of fixed length: `mp::Array` or a tensor; of a list or text that changes: `mp::ShareableList`; of a \
            collection whose elements go to other processes: `mp::Queue`; of a `bool`: `u8` or `mp::Event`",
    note = "`mp::Lock<()>` protects what lies elsewhere"
)]
pub trait Plain: Pod {}

// Or the compiler would name `Pod`, and not what it is needed for.
#[diagnostic::do_not_recommend]
impl<T: Pod> Plain for T {}
