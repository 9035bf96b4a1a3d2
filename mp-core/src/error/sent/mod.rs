//! How errors travel: what serde lacks for the fields of error types, of all crates. For `#[serde(with = "…")]`.

mod byte_string;
mod chain;
mod interned;
mod io_error;

pub use byte_string::ByteString;
pub use chain::ErrorChain;
pub use io_error::IoError;

/// A text of the program, as `&'static str`.
pub mod text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::interned::interned;

    /// As a text.
    pub fn serialize<S: Serializer>(text: &str, s: S) -> Result<S::Ok, S::Error> {
        text.serialize(s)
    }

    /// The same text of this process.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<&'static str, D::Error> {
        String::deserialize(d).map(interned)
    }
}

/// Several of them.
pub mod texts {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::interned::interned;

    /// As texts.
    pub fn serialize<S: Serializer>(texts: &[&'static str], s: S) -> Result<S::Ok, S::Error> {
        texts.serialize(s)
    }

    /// The same texts of this process.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<&'static str>, D::Error> {
        Ok(Vec::<String>::deserialize(d)?.into_iter().map(interned).collect())
    }
}

/// A path, whether UTF-8 or not.
pub mod path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ByteString;

    /// As its bytes.
    pub fn serialize<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(path.as_os_str().as_bytes())
    }

    /// Of its bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
        ByteString::deserialize(d).map(|bytes| OsString::from_vec(bytes.0).into())
    }

    /// One that may be missing.
    pub mod option {
        use super::*;

        /// As its bytes.
        pub fn serialize<S: Serializer>(path: &Option<PathBuf>, s: S) -> Result<S::Ok, S::Error> {
            path.as_ref().map(|path| ByteString(path.as_os_str().as_bytes().to_vec())).serialize(s)
        }

        /// Of its bytes.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PathBuf>, D::Error> {
            let bytes = Option::<ByteString>::deserialize(d)?;
            Ok(bytes.map(|bytes| OsString::from_vec(bytes.0).into()))
        }
    }
}

/// An `io::Error`: with the system's number, or with kind, text and sources.
pub mod io {
    use std::io::Error;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::IoError;

    /// As [`IoError`].
    pub fn serialize<S: Serializer>(error: &Error, s: S) -> Result<S::Ok, S::Error> {
        IoError::of(error).serialize(s)
    }

    /// Of [`IoError`].
    pub fn deserialize<'de, D: Deserializer<'de>, E: From<Error>>(d: D) -> Result<E, D::Error> {
        IoError::deserialize(d).map(|sent| Error::from(sent).into())
    }
}

/// What is in an `Arc`, as a value of its own.
pub mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// As what is in it.
    pub fn serialize<T: Serialize, S: Serializer>(shared: &Arc<T>, s: S) -> Result<S::Ok, S::Error> {
        (**shared).serialize(s)
    }

    /// In an `Arc` of its own.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<Arc<T>, D::Error> {
        T::deserialize(d).map(Arc::new)
    }

    /// One that may be missing.
    pub mod option {
        use super::*;

        /// As what is in it.
        pub fn serialize<T: Serialize, S: Serializer>(
            shared: &Option<Arc<T>>,
            s: S,
        ) -> Result<S::Ok, S::Error> {
            shared.as_deref().serialize(s)
        }

        /// In an `Arc` of its own.
        pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
            d: D,
        ) -> Result<Option<Arc<T>>, D::Error> {
            Ok(Option::<T>::deserialize(d)?.map(Arc::new))
        }
    }

    /// A text that may be missing.
    pub mod text {
        use super::*;

        /// As a text.
        pub fn serialize<S: Serializer>(shared: &Option<Arc<str>>, s: S) -> Result<S::Ok, S::Error> {
            shared.as_deref().serialize(s)
        }

        /// In an `Arc` of its own.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Arc<str>>, D::Error> {
            Ok(Option::<String>::deserialize(d)?.map(Arc::from))
        }
    }
}
