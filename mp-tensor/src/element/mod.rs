//! Element types of tensors, and their arithmetic.

use std::fmt;

use half::{bf16, f16};

use mp_core::DType;

#[macro_use]
mod dispatch;
mod scalars;

pub use scalars::{Bool, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU};

mod sealed {
    pub trait Sealed {}
}

/// A type of tensor elements: plain numbers of 1 to 16 bytes, for which every bit pattern is a valid value.
///
/// `bool` and enums are not elements, because another process could write an invalid bit pattern. Use
/// [`Bool`](crate::Bool) for booleans.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be an element of a tensor",
    label = "not an element type",
    note = "elements are `u8` to `u64`, `i8` to `i64`, `f32`, `f64`, `f16` and `bf16` of `half`, \
            and `Complex` of `num-complex`; for a `bool` there is `mp::tensor::Bool`; \
            for a struct, one tensor for each field, or `mp::Array`"
)]
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed + 'static {
    /// Element type as a runtime value.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($variant:ident $t:ty;)*) => {$(
        // Accesses to storages choose their width by this size.
        const _: () = assert!(size_of::<$t>() == DType::$variant.size());
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$variant;
        }
    )*};
}
dispatch::each_dtype!(elements);

/// Elements with addition and subtraction, also atomic: integers and floating-point numbers.
pub trait Number: Element {
    /// `true` for integers. The bits of the sum of two integers are the sum of their bits, so a processor's
    /// atomic addition works.
    #[doc(hidden)]
    const INTEGER: bool;
    /// Returns the sum. Integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Returns the difference. Integers wrap.
    fn minus(self, other: Self) -> Self;
}

/// Integers, which also have atomic comparison and bitwise operations.
pub trait Integer: Number + Ord {}

macro_rules! numbers {
    (integers $($t:ty)*) => {$(
        impl Number for $t {
            const INTEGER: bool = true;
            #[inline]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
        }
        impl Integer for $t {}
    )*};
    (floats $($t:ty)*) => {$(
        impl Number for $t {
            const INTEGER: bool = false;
            #[inline]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline]
            fn minus(self, other: Self) -> Self {
                self - other
            }
        }
    )*};
}
numbers!(integers u8 i8 u16 i16 u32 i32 u64 i64);
numbers!(floats f16 bf16 f32 f64);
