//! The type of a tensor's elements, as a value.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Calls a macro with all element types: name of the variant, number on the wire, type, torch's name.
macro_rules! each_dtype {
    ($then:ident) => {
        $then! {
            U8 = 1, u8, "uint8";
            I8 = 2, i8, "int8";
            U16 = 3, u16, "uint16";
            I16 = 4, i16, "int16";
            U32 = 5, u32, "uint32";
            I32 = 6, i32, "int32";
            U64 = 7, u64, "uint64";
            I64 = 8, i64, "int64";
            F16 = 9, $crate::tensor::f16, "float16";
            BF16 = 10, $crate::tensor::bf16, "bfloat16";
            F32 = 11, f32, "float32";
            F64 = 12, f64, "float64";
            Bool = 13, $crate::tensor::Bool, "bool";
            Complex64 = 14, $crate::tensor::Complex<f32>, "complex64";
            Complex128 = 15, $crate::tensor::Complex<f64>, "complex128";
            F8E4M3FN = 16, $crate::tensor::F8E4M3FN, "float8_e4m3fn";
            F8E5M2 = 17, $crate::tensor::F8E5M2, "float8_e5m2";
            F8E4M3FNUZ = 18, $crate::tensor::F8E4M3FNUZ, "float8_e4m3fnuz";
            F8E5M2FNUZ = 19, $crate::tensor::F8E5M2FNUZ, "float8_e5m2fnuz";
            F8E8M0FNU = 20, $crate::tensor::F8E8M0FNU, "float8_e8m0fnu";
        }
    };
}

macro_rules! dtypes {
    ($($variant:ident = $code:literal, $t:ty, $torch:literal;)*) => {
        /// The type of a tensor's elements, as a value.
        ///
        /// ```
        /// use mp_core::DType;
        ///
        /// assert_eq!((DType::F32.to_string().as_str(), DType::BF16.size()), ("f32", 2));
        /// assert_eq!("float64".parse::<DType>()?, DType::F64); // torch's names, and ours
        /// assert!(DType::Complex64.is_complex());
        /// # Ok::<(), mp_core::Error>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[repr(u8)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum DType {
            $($variant = $code,)*
        }

        impl DType {
            /// All of them.
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// What torch calls it: `float32`, say.
            pub const fn torch_name(self) -> &'static str {
                match self { $(DType::$variant => $torch,)* }
            }

            /// How many bytes an element takes.
            #[doc(alias = "itemsize")]
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => size_of::<$t>(),)* }
            }
        }
    };
}
each_dtype!(dtypes);

/// Runs code for the element type that a [`DType`] names.
///
/// ```
/// use mp_core::{AnyTensor, DType, Tensor, dispatch};
///
/// fn mean_size(dtype: DType) -> usize {
///     dispatch!(dtype, T => size_of::<T>())
/// }
/// assert_eq!(mean_size(DType::F16), 2);
///
/// let t = AnyTensor::from(Tensor::from_slice(&[1_i16, 2], &[2])?);
/// let first = dispatch!(t.dtype(), T => format!("{:?}", t.downcast::<T>()?.get(&[0])?));
/// assert_eq!(first, "1");
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// In the code, the name before `=>` is the type.
#[macro_export]
#[doc(alias = "AT_DISPATCH_ALL_TYPES")]
macro_rules! dispatch {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch!(@match $dtype, $T, $body,
            U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64,
            F16 $crate::f16, BF16 $crate::bf16, F32 f32, F64 f64, Bool $crate::Bool,
            Complex64 $crate::Complex<f32>, Complex128 $crate::Complex<f64>,
            F8E4M3FN $crate::F8E4M3FN, F8E5M2 $crate::F8E5M2, F8E4M3FNUZ $crate::F8E4M3FNUZ,
            F8E5M2FNUZ $crate::F8E5M2FNUZ, F8E8M0FNU $crate::F8E8M0FNU)
    };
    (@match $dtype:expr, $T:ident, $body:expr, $($variant:ident $t:ty),*) => {
        match $dtype {
            $($crate::DType::$variant => { type $T = $t; $body })*
            // A match on a type that may grow needs this; this library's own arms are complete.
            #[allow(unreachable_patterns, reason = "within the library")]
            other => unreachable!("{other} is not known to this build"),
        }
    };
}

impl DType {
    /// The one with this number in messages.
    #[inline]
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }

    /// Its number in messages.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// Whether it is a floating-point type, of any width.
    pub const fn is_floating_point(self) -> bool {
        !self.is_complex() && !matches!(self as u8, 1..=8 | 13)
    }

    /// Whether it is a complex type.
    pub const fn is_complex(self) -> bool {
        matches!(self, DType::Complex64 | DType::Complex128)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = |d: &&DType| d.torch_name() == name || d.to_string() == name;
        Self::ALL.iter().find(known).copied().ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|d| d.torch_name()).collect();
            Error::Shape(format!("{name:?} is no element type; there are {}", all.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Element;

    #[test]
    fn codes_names_and_types_agree() {
        for (i, &d) in DType::ALL.iter().enumerate() {
            assert_eq!((usize::from(d.code()), DType::from_code(d.code())), (i + 1, Some(d)));
            assert_eq!((d.torch_name().parse::<DType>().unwrap(), d.to_string().parse().unwrap()), (d, d));
            assert_eq!(dispatch!(d, T => (T::DTYPE, size_of::<T>())), (d, d.size()));
            // An attachment word has five bits for it.
            assert!(d.code() < 32);
        }
        assert!(DType::from_code(0).is_none() && DType::from_code(DType::ALL.len() as u8 + 1).is_none());
        assert!("float31".parse::<DType>().unwrap_err().to_string().contains("float8_e4m3fn"));
        let floats: Vec<_> = DType::ALL.iter().filter(|d| d.is_floating_point()).collect();
        assert_eq!(floats.len(), 9);
    }
}
