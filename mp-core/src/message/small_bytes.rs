//! Messages of a few bytes without attachments. They stay in registers, whereas other messages use buffers.

use std::fmt;

/// Up to ten bytes, the capacity of a queue's slot.
///
/// ```
/// use mp_core::message::SmallBytes;
///
/// let small_bytes = SmallBytes::new(&[1, 2, 3]).unwrap();
/// assert_eq!(small_bytes.as_slice(), [1, 2, 3]);
/// assert_eq!(SmallBytes::new(&[0; 11]), None);
/// ```
#[derive(Clone, Copy, Default)]
pub struct SmallBytes {
    bytes: [u8; SmallBytes::MOST],
    /// Number of bytes in use.
    len: u8,
}

impl SmallBytes {
    /// Maximum number of bytes.
    pub const MOST: usize = 10;
    /// No bytes.
    pub const EMPTY: Self = Self { bytes: [0; Self::MOST], len: 0 };

    /// Creates a value with these bytes. Returns `None` if there are more than `MOST`.
    #[inline]
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MOST];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { bytes, len: from.len() as u8 })
    }

    /// Creates a value with the first `len` of these bytes. If `len` exceeds [`MOST`](Self::MOST),
    /// [`as_slice`](Self::as_slice) returns an empty slice.
    #[inline(always)]
    pub fn first(len: usize, bytes: [u8; Self::MOST]) -> Self {
        Self { bytes, len: len as u8 }
    }

    /// Returns the bytes.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len()).unwrap_or_default()
    }

    /// Returns the whole array: the bytes, followed by unused ones.
    #[inline(always)]
    pub fn all(self) -> [u8; Self::MOST] {
        self.bytes
    }

    /// Returns the number of bytes.
    #[inline(always)]
    pub fn len(self) -> usize {
        self.len.into()
    }

    /// Returns `true` if there are no bytes.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl PartialEq for SmallBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SmallBytes {}

impl fmt::Debug for SmallBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}
