//! Element types.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements, as a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DType {
    U8 = 1,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type that tensors have elements of: plain numbers of 1, 2, 4 or 8 bytes, for which every bit pattern is a value.
///
/// `bool` and enums are not among them: another process could write a pattern that is none of their values.
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed + 'static {
    /// It, as a value.
    const DTYPE: DType;
}

/// Elements that can be added.
pub trait Number: Element {
    /// The sum; integers wrap.
    fn plus(self, other: Self) -> Self;
}

macro_rules! elements {
    ($($t:ty => $d:ident, |$a:ident, $b:ident| $sum:expr;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
        impl Number for $t {
            #[inline]
            fn plus(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $sum
            }
        }
    )*};
}

elements! {
    u8 => U8, |a, b| a.wrapping_add(b);
    i8 => I8, |a, b| a.wrapping_add(b);
    u16 => U16, |a, b| a.wrapping_add(b);
    i16 => I16, |a, b| a.wrapping_add(b);
    u32 => U32, |a, b| a.wrapping_add(b);
    i32 => I32, |a, b| a.wrapping_add(b);
    u64 => U64, |a, b| a.wrapping_add(b);
    i64 => I64, |a, b| a.wrapping_add(b);
    f16 => F16, |a, b| a + b;
    bf16 => BF16, |a, b| a + b;
    f32 => F32, |a, b| a + b;
    f64 => F64, |a, b| a + b;
}
