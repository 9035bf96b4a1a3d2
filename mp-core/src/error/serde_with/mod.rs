//! Serialization of error types: serde implementations for fields of the error types of all crates. For
//! `#[serde(with = "…")]`.

mod byte_string;
mod chain;
mod interned;
mod io_error;

pub use byte_string::ByteString;
pub use chain::ErrorChain;
pub use io_error::IoError;

/// Static text, as `&'static str`.
pub mod text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::interned::interned;

    /// Serializes the text.
    pub fn serialize<S: Serializer>(text: &str, s: S) -> Result<S::Ok, S::Error> {
        text.serialize(s)
    }

    /// Returns the equal text of this process.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<&'static str, D::Error> {
        String::deserialize(d).map(interned)
    }
}

/// List of static texts.
pub mod texts {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::interned::interned;

    /// Serializes the texts.
    pub fn serialize<S: Serializer>(texts: &[&'static str], s: S) -> Result<S::Ok, S::Error> {
        texts.serialize(s)
    }

    /// Returns the equal texts of this process.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<&'static str>, D::Error> {
        Ok(Vec::<String>::deserialize(d)?.into_iter().map(interned).collect())
    }
}

/// Path, possibly not UTF-8.
pub mod path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ByteString;

    /// Serializes the path as bytes.
    pub fn serialize<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(path.as_os_str().as_bytes())
    }

    /// Deserializes the path from bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
        ByteString::deserialize(d).map(|bytes| OsString::from_vec(bytes.0).into())
    }

    /// Optional path.
    pub mod option {
        use super::*;

        /// Serializes the path as bytes.
        pub fn serialize<S: Serializer>(path: &Option<PathBuf>, s: S) -> Result<S::Ok, S::Error> {
            path.as_ref().map(|path| ByteString(path.as_os_str().as_bytes().to_vec())).serialize(s)
        }

        /// Deserializes the path from bytes.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PathBuf>, D::Error> {
            let bytes = Option::<ByteString>::deserialize(d)?;
            Ok(bytes.map(|bytes| OsString::from_vec(bytes.0).into()))
        }
    }
}

/// `io::Error`: the system's number, or kind, text and sources.
pub mod io {
    use std::io::Error;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::IoError;

    /// Serializes the error as an [`IoError`].
    pub fn serialize<S: Serializer>(error: &Error, s: S) -> Result<S::Ok, S::Error> {
        IoError::from_error(error).serialize(s)
    }

    /// Deserializes the error from an [`IoError`].
    pub fn deserialize<'de, D: Deserializer<'de>, E: From<Error>>(d: D) -> Result<E, D::Error> {
        IoError::deserialize(d).map(|sent| Error::from(sent).into())
    }
}

/// Value in an `Arc`.
pub mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serializes the value.
    pub fn serialize<T: Serialize, S: Serializer>(shared: &Arc<T>, s: S) -> Result<S::Ok, S::Error> {
        (**shared).serialize(s)
    }

    /// Deserializes the value into a new `Arc`.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<Arc<T>, D::Error> {
        T::deserialize(d).map(Arc::new)
    }

    /// Optional value in an `Arc`.
    pub mod option {
        use super::*;

        /// Serializes the value.
        pub fn serialize<T: Serialize, S: Serializer>(
            shared: &Option<Arc<T>>,
            s: S,
        ) -> Result<S::Ok, S::Error> {
            shared.as_deref().serialize(s)
        }

        /// Deserializes the value into a new `Arc`.
        pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
            d: D,
        ) -> Result<Option<Arc<T>>, D::Error> {
            Ok(Option::<T>::deserialize(d)?.map(Arc::new))
        }
    }

    /// Optional text in an `Arc`.
    pub mod text {
        use super::*;

        /// Serializes the text.
        pub fn serialize<S: Serializer>(shared: &Option<Arc<str>>, s: S) -> Result<S::Ok, S::Error> {
            shared.as_deref().serialize(s)
        }

        /// Deserializes the text into a new `Arc`.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Arc<str>>, D::Error> {
            Ok(Option::<String>::deserialize(d)?.map(Arc::from))
        }
    }
}
