//! Types that are no serde types, as something that is.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type that travels as something else, from which it is made again on the other side.
///
/// ```
/// use mp_reduce::{Reduce, pack, unpack};
/// use serde::{Deserialize, Serialize};
///
/// /// A compiled pattern, say; cheap to make again from its source.
/// struct Pattern { source: String, len: usize }
///
/// impl Reduce for Pattern {
///     type Handle = String;
///     fn reduce(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(self.source.clone())
///     }
///     fn rebuild(source: String) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(Pattern { len: source.len(), source })
///     }
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct Job {
///     #[serde(with = "mp_reduce::reduced")]
///     pattern: Pattern,
/// }
///
/// let job = Job { pattern: Pattern { source: "a+b".into(), len: 3 } };
/// let job = unpack::<Job>(pack(job).map_err(|e| e.error)?)?;
/// assert_eq!(job.pattern.len, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ForkingPickler")]
pub trait Reduce: Sized {
    /// What it travels as.
    type Handle: Serialize + DeserializeOwned;

    /// Makes what travels.
    ///
    /// # Errors
    /// Whatever keeps it from travelling; the sender sees it at `put`.
    #[doc(alias = "__reduce__")]
    fn reduce(&self) -> Result<Self::Handle, Box<dyn std::error::Error + Send + Sync>>;

    /// Makes it again.
    ///
    /// # Errors
    /// Whatever keeps it from being made again; the receiver sees it at `get`.
    fn rebuild(handle: Self::Handle) -> Result<Self, Box<dyn std::error::Error + Send + Sync>>;
}

/// For fields: `#[serde(with = "mp_reduce::reduced")]`.
pub mod reduced {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Reduce;

    /// Writes what [`Reduce::reduce`] makes.
    ///
    /// # Errors
    /// Those of `reduce` and of the serializer.
    pub fn serialize<T: Reduce, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        value.reduce().map_err(S::Error::custom)?.serialize(s)
    }

    /// Makes the value of it again.
    ///
    /// # Errors
    /// Those of `rebuild` and of the deserializer.
    pub fn deserialize<'de, T: Reduce, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        T::rebuild(T::Handle::deserialize(d)?).map_err(D::Error::custom)
    }
}
