//! Conversion of types that are not serde types.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Trait of types whose values are sent as handles of another type, from which the receiver rebuilds the
/// values.
///
/// ```
/// use mp_reduce::{Reduce, pack, unpack};
/// use serde::{Deserialize, Serialize};
///
/// /// A compiled pattern; cheap to rebuild from its source.
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
///
/// To send a value as a message of its own, wrap it in [`Reduced`].
///
/// The following types of the standard library implement `Reduce`:
///
/// | type | support |
/// |---|---|
/// | `PathBuf`, `OsString` | all values, also non-UTF-8 values, which the implementation of serde refuses |
/// | `SystemTime` | all values, also times before 1970, which the implementation of serde refuses |
/// | `Instant` | the receiver gets the same instant, by the monotonic clock of the machine |
/// | `io::Error` | the receiver gets an error with the same code of the operating system, or else with the same kind, text and sources |
/// | `Box<dyn Error>`, with or without `Send + Sync` | the receiver gets an [`ErrorChain`](crate::ErrorChain): the texts of the error and its sources |
/// | `process::ExitStatus` | the receiver gets the same code, signal and core file flag |
/// | `Option`, `Vec`, and `Result` with such an error | the contents are sent in the same way |
///
/// (`Duration` and 128-bit numbers are serde types already.)
#[doc(alias = "ForkingPickler")]
#[doc(alias = "init_reductions")]
#[doc(alias = "reducer")]
pub trait Reduce: Sized {
    /// Serde type that is sent in place of the value.
    type Handle: Serialize + DeserializeOwned;

    /// Converts the value to its handle.
    ///
    /// # Errors
    /// May return any error, which `put` returns to the sender.
    #[doc(alias = "__reduce__")]
    fn reduce(&self) -> Result<Self::Handle, Box<dyn std::error::Error + Send + Sync>>;

    /// Rebuilds the value from its handle.
    ///
    /// # Errors
    /// May return any error, which `get` returns to the receiver.
    fn rebuild(handle: Self::Handle) -> Result<Self, Box<dyn std::error::Error + Send + Sync>>;
}

/// A value that is sent by [`Reduce`], as a message of its own or within any other serde type.
///
/// ```
/// use mp_reduce::{Reduced, pack, unpack};
/// use std::path::PathBuf;
/// use std::time::Instant;
///
/// let (path, now) = (PathBuf::from("/tmp"), Instant::now());
/// let envelope = pack((Reduced(path.clone()), Reduced(now))).map_err(|e| e.error)?;
/// assert_eq!(unpack::<(Reduced<PathBuf>, Reduced<Instant>)>(envelope)?, (Reduced(path), Reduced(now)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Reduced<T>(pub T);

impl<T: Reduce> Serialize for Reduced<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        reduced::serialize(&self.0, s)
    }
}

impl<'de, T: Reduce> Deserialize<'de> for Reduced<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        reduced::deserialize(d).map(Self)
    }
}

/// Functions for the attribute `#[serde(with = "mp_reduce::reduced")]` at a field.
pub mod reduced {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Reduce;

    /// Serializes the result of [`Reduce::reduce`].
    ///
    /// # Errors
    /// Returns the errors of `reduce` and of the serializer.
    pub fn serialize<T: Reduce, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        value.reduce().map_err(S::Error::custom)?.serialize(s)
    }

    /// Deserializes the handle and rebuilds the value.
    ///
    /// # Errors
    /// Returns the errors of `rebuild` and of the deserializer.
    pub fn deserialize<'de, T: Reduce, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        T::rebuild(T::Handle::deserialize(d)?).map_err(D::Error::custom)
    }
}
