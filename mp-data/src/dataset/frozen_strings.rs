//! Strings in shared memory, which all processes share.

use std::fmt;
use std::ops::Index;

use mp_tensor::{FrozenTensor, Tensor};
use serde::{Deserialize, Serialize};

use crate::AnyResult;

/// List of strings in shared memory. All workers use one copy. Use it for datasets of many paths or texts. A
/// message with the list contains only a handle.
///
/// ```
/// use mp_data::FrozenStrings;
///
/// let paths = FrozenStrings::new(["cat/1.png", "dog/2.png"])?;
/// assert_eq!((paths.len(), &paths[1]), (2, "dog/2.png"));
/// assert_eq!(paths.get(2), None);
/// assert_eq!(paths.iter().filter(|path| path.starts_with("cat/")).count(), 1);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A `Vec<String>` in a dataset is encoded, and each worker decodes a copy into its own memory.
///
/// # Panics
/// Indexing panics if there is no such string, as for a slice.
#[derive(Clone, Serialize, Deserialize)]
pub struct FrozenStrings {
    bytes: FrozenTensor<u8>,
    /// End of each string, as an offset in `bytes`.
    ends: FrozenTensor<u64>,
}

impl fmt::Debug for FrozenStrings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrozenStrings({} strings, {} bytes)", self.len(), self.bytes.len())
    }
}

impl FrozenStrings {
    /// Copies these strings into shared memory.
    ///
    /// # Errors
    /// Shared memory is exhausted.
    #[doc(alias = "from_iter")]
    pub fn new<S: AsRef<str>>(strings: impl IntoIterator<Item = S>) -> AnyResult<Self> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for string in strings {
            bytes.extend_from_slice(string.as_ref().as_bytes());
            ends.push(bytes.len() as u64);
        }
        let (mut all, mut places) = (Tensor::empty([bytes.len()])?, Tensor::empty([ends.len()])?);
        all.as_mut_slice()?.copy_from_slice(&bytes);
        places.as_mut_slice()?.copy_from_slice(&ends);
        Ok(FrozenStrings { bytes: all.freeze(), ends: places.freeze() })
    }

    /// Returns the number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if there are no strings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes of shared memory.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.bytes.nbytes() + self.ends.nbytes()
    }

    /// Returns a string, or `None` if there is no such string. Each call checks that the string is UTF-8,
    /// since another process may have sent it.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        let ends = self.ends.as_slice().ok()?;
        let to = usize::try_from(*ends.get(index)?).ok()?;
        let from = match index.checked_sub(1) {
            Some(before) => usize::try_from(*ends.get(before)?).ok()?,
            None => 0,
        };
        str::from_utf8(self.bytes.as_slice().ok()?.get(from..to)?).ok()
    }

    /// Returns an iterator over the strings, in order, without entries that are not valid UTF-8.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl Index<usize> for FrozenStrings {
    type Output = str;

    fn index(&self, index: usize) -> &str {
        match self.get(index) {
            Some(string) => string,
            None => panic!("no string has the index {index}: there are {}", self.len()),
        }
    }
}

impl PartialEq for FrozenStrings {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for FrozenStrings {}
