//! Type of a tensor's elements, as a value, for messages and errors. `mp-tensor` maps it to Rust types.

use std::fmt;

macro_rules! dtypes {
    ($(
        $variant:ident = $code:literal, $size:literal, $torch:literal, $dlpack:literal
            $(, $safetensors:literal)?;
    )*) => {
        /// Element type of a tensor, as a runtime value.
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
            /// All element types.
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// Returns torch's name, for example `float32`.
            pub const fn torch_name(self) -> &'static str {
                match self { $(DType::$variant => $torch,)* }
            }

            /// Returns the size of an element in bytes.
            #[doc(alias = "itemsize")]
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => $size,)* }
            }

            /// Returns the code of the type in DLPack (`DLDataTypeCode`).
            pub const fn dlpack_code(self) -> u8 {
                match self { $(DType::$variant => $dlpack,)* }
            }

            /// Returns the name of the type in safetensors files, or `None` if they have no such type.
            pub const fn safetensors_name(self) -> Option<&'static str> {
                match self {
                    $($(DType::$variant => Some($safetensors),)?)*
                    _ => None,
                }
            }
        }
    };
}
// Number in messages, size in bytes, torch's name, code in DLPack, name in safetensors.
dtypes! {
    U8 = 1, 1, "uint8", 1, "U8";
    I8 = 2, 1, "int8", 0, "I8";
    U16 = 3, 2, "uint16", 1, "U16";
    I16 = 4, 2, "int16", 0, "I16";
    U32 = 5, 4, "uint32", 1, "U32";
    I32 = 6, 4, "int32", 0, "I32";
    U64 = 7, 8, "uint64", 1, "U64";
    I64 = 8, 8, "int64", 0, "I64";
    F16 = 9, 2, "float16", 2, "F16";
    BF16 = 10, 2, "bfloat16", 4, "BF16";
    F32 = 11, 4, "float32", 2, "F32";
    F64 = 12, 8, "float64", 2, "F64";
    Bool = 13, 1, "bool", 6, "BOOL";
    Complex64 = 14, 8, "complex64", 5;
    Complex128 = 15, 16, "complex128", 5;
    F8E4M3FN = 16, 1, "float8_e4m3fn", 10, "F8_E4M3";
    F8E5M2 = 17, 1, "float8_e5m2", 12, "F8_E5M2";
    F8E4M3FNUZ = 18, 1, "float8_e4m3fnuz", 11;
    F8E5M2FNUZ = 19, 1, "float8_e5m2fnuz", 13;
    F8E8M0FNU = 20, 1, "float8_e8m0fnu", 14;
}

impl DType {
    /// Returns the type with this number in messages.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }

    /// Returns the type with this [code](Self::dlpack_code) and number of bits in DLPack.
    pub fn from_dlpack(code: u8, bits: u8) -> Option<Self> {
        let is_it = |dtype: &Self| (dtype.dlpack_code(), 8 * dtype.size()) == (code, bits.into());
        Self::ALL.iter().copied().find(is_it)
    }

    /// Returns the number of the type in messages.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns `true` for a floating-point type of any width.
    pub const fn is_floating_point(self) -> bool {
        !self.is_complex() && !matches!(self as u8, 1..=8 | 13)
    }

    /// Returns `true` for a complex type.
    pub const fn is_complex(self) -> bool {
        matches!(self, DType::Complex64 | DType::Complex128)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_codes_names_and_types_agree() {
        for (i, &d) in DType::ALL.iter().enumerate() {
            assert_eq!((usize::from(d.code()), DType::from_code(d.code())), (i + 1, Some(d)));
            assert_eq!(DType::from_dlpack(d.dlpack_code(), 8 * d.size() as u8), Some(d));
            assert_eq!((d.torch_name().parse::<DType>().unwrap(), d.to_string().parse().unwrap()), (d, d));
            // An attachment word has five bits for the type.
            assert!(d.code() < 32);
        }
        assert!(DType::from_code(0).is_none() && DType::from_code(DType::ALL.len() as u8 + 1).is_none());
        assert!("float31".parse::<DType>().unwrap_err().to_string().contains("float8_e4m3fn"));
        let floats: Vec<_> = DType::ALL.iter().filter(|d| d.is_floating_point()).collect();
        assert_eq!(floats.len(), 9);
    }
}
