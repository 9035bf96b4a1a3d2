//! Element types without a Rust equivalent: booleans for which every byte is valid, and 8-bit floats as raw
//! bits.

use std::fmt;

/// A boolean element: `false` if it is 0, otherwise `true`.
///
/// A Rust `bool` must be 0 or 1, but another process could write any byte. For this type every byte is valid.
/// Two values are equal if both are true or both are false.
///
/// ```
/// use mp_tensor::{Bool, ShareMemory};
///
/// let mask = [true, false, true].share_memory()?;
/// assert_eq!(mask.as_slice()?, [Bool::TRUE, Bool::FALSE, Bool::TRUE]);
/// assert_eq!(mask.iter().filter(|b| b.get()).count(), 2);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Default, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// True.
    pub const TRUE: Bool = Bool(1);
    /// False.
    pub const FALSE: Bool = Bool(0);

    /// Returns the value as a Rust `bool`.
    #[inline]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl PartialEq for Bool {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}
impl Eq for Bool {}

impl PartialEq<bool> for Bool {
    #[inline]
    fn eq(&self, other: &bool) -> bool {
        self.get() == *other
    }
}

impl std::hash::Hash for Bool {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.get().hash(state);
    }
}

impl From<bool> for Bool {
    #[inline]
    fn from(b: bool) -> Self {
        Self(b.into())
    }
}

impl From<Bool> for bool {
    #[inline]
    fn from(b: Bool) -> Self {
        b.get()
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

impl fmt::Display for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}

macro_rules! raw_floats {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// The type stores the bits and has no arithmetic.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, bytemuck::Zeroable, bytemuck::Pod)]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            /// Creates a value from its bits.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Returns the bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "0x{:02x}", self.0)
            }
        }
    )*};
}

raw_floats! {
    /// An 8-bit float with 4 bits of exponent and 3 of mantissa, finite (torch's `float8_e4m3fn`), as raw
    /// bits.
    F8E4M3FN;
    /// An 8-bit float with 5 bits of exponent and 2 of mantissa (torch's `float8_e5m2`), as raw bits.
    F8E5M2;
    /// An 8-bit float with 4 bits of exponent and 3 of mantissa, finite, no negative zero (torch's
    /// `float8_e4m3fnuz`), as raw bits.
    F8E4M3FNUZ;
    /// An 8-bit float with 5 bits of exponent and 2 of mantissa, finite, no negative zero (torch's
    /// `float8_e5m2fnuz`), as raw bits.
    F8E5M2FNUZ;
    /// An 8-bit power of two, for scales (torch's `float8_e8m0fnu`), as raw bits.
    F8E8M0FNU;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_bool_reads_any_nonzero_byte_as_true() {
        for byte in 0..=u8::MAX {
            let b: Bool = bytemuck::cast(byte);
            assert_eq!((b.get(), b == Bool::TRUE, b == (byte != 0)), (byte != 0, byte != 0, true));
            assert_eq!(format!("{b:?}"), if byte == 0 { "false" } else { "true" });
        }
    }
}
