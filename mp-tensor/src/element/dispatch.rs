//! Conversion of a runtime element type to a Rust type: [`dispatch!`](crate::dispatch).

/// Calls a macro with the variant and the Rust type of each element type.
macro_rules! each_dtype {
    ($then:ident) => {
        $then! {
            U8 u8;
            I8 i8;
            U16 u16;
            I16 i16;
            U32 u32;
            I32 i32;
            U64 u64;
            I64 i64;
            F16 $crate::f16;
            BF16 $crate::bf16;
            F32 f32;
            F64 f64;
            Bool $crate::Bool;
            Complex64 $crate::Complex<f32>;
            Complex128 $crate::Complex<f64>;
            F8E4M3FN $crate::F8E4M3FN;
            F8E5M2 $crate::F8E5M2;
            F8E4M3FNUZ $crate::F8E4M3FNUZ;
            F8E5M2FNUZ $crate::F8E5M2FNUZ;
            F8E8M0FNU $crate::F8E8M0FNU;
        }
    };
}
pub(crate) use each_dtype;

/// Runs code with the Rust type of a [`DType`](mp_core::DType).
///
/// ```
/// use mp_tensor::{AnyTensor, DType, Tensor, dispatch};
///
/// fn mean_size(dtype: DType) -> usize {
///     dispatch!(dtype, T => size_of::<T>())
/// }
/// assert_eq!(mean_size(DType::F16), 2);
///
/// let t = AnyTensor::from(Tensor::from_slice(&[1_i16, 2], &[2])?);
/// let first = dispatch!(t.dtype(), T => format!("{:?}", t.downcast::<T>()?.get(&[0])?));
/// assert_eq!(first, "1");
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// The identifier before `=>` names the type in the code.
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
            // `DType` is non-exhaustive outside of this library, where all its variants are matched above.
            #[allow(unreachable_patterns, reason = "within the library")]
            other => unreachable!("{other} is not known to this build"),
        }
    };
}

#[cfg(test)]
mod tests {
    use mp_core::DType;

    use crate::Element;

    #[test]
    fn dtypes_match_their_rust_types() {
        for &d in DType::ALL {
            assert_eq!(dispatch!(d, T => (T::DTYPE, size_of::<T>())), (d, d.size()));
        }
    }
}
