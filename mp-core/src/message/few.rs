//! The bytes of a message that has few of them, and nothing attached: they stay in registers, where others go through buffers.

use std::fmt;

/// Up to ten bytes: as many as a queue has room for in a slot.
///
/// ```
/// use mp_core::message::FewBytes;
///
/// let few = FewBytes::new(&[1, 2, 3]).unwrap();
/// assert_eq!(few.as_slice(), [1, 2, 3]);
/// assert_eq!(FewBytes::new(&[0; 11]), None);
/// ```
#[derive(Clone, Copy, Default)]
pub struct FewBytes {
    bytes: [u8; FewBytes::MOST],
    /// How many of them count.
    len: u8,
}

impl FewBytes {
    /// How many they can be.
    pub const MOST: usize = 10;
    /// None.
    pub const EMPTY: Self = Self { bytes: [0; Self::MOST], len: 0 };

    /// These bytes; `None` if they are too many.
    #[inline]
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MOST];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { bytes, len: from.len() as u8 })
    }

    /// The first `len` of these. Beyond [`MOST`](Self::MOST), [`as_slice`](Self::as_slice) has none.
    #[inline(always)]
    pub fn first(len: usize, bytes: [u8; Self::MOST]) -> Self {
        Self { bytes, len: len as u8 }
    }

    /// The bytes.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len()).unwrap_or_default()
    }

    /// The bytes, and others behind them.
    #[inline(always)]
    pub fn all(self) -> [u8; Self::MOST] {
        self.bytes
    }

    /// How many they are.
    #[inline(always)]
    pub fn len(self) -> usize {
        self.len.into()
    }

    /// Whether there is none.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl PartialEq for FewBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for FewBytes {}

impl fmt::Debug for FewBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}
