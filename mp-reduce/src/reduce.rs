//! Types that are no serde types, as something that is.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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
///
/// A value that is a message by itself goes in a [`Reduced`].
///
/// These types of the standard library have it, whole:
///
/// | type | arrives |
/// |---|---|
/// | `PathBuf`, `OsString` | also one that is no UTF-8, which serde's own implementation refuses |
/// | `SystemTime` | also one before 1970, which serde's own implementation refuses |
/// | `Instant` | as the same instant: the clock is the machine's |
/// | `io::Error` | with the system's number, or with its kind, text and sources |
/// | `Box<dyn Error>`, with or without `Send + Sync` | as an [`ErrorChain`](crate::ErrorChain): the texts of the error and its sources |
/// | `process::ExitStatus` | code, signal, core file |
/// | `Option`, `Vec`, and `Result` whose error is one | with what is in it |
///
/// (`Duration` and numbers of 128 bits need nothing: they are serde types.)
#[doc(alias = "ForkingPickler")]
#[doc(alias = "init_reductions")]
#[doc(alias = "reducer")]
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

/// A value that travels by [`Reduce`], as a message of its own or within any other serde type.
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
