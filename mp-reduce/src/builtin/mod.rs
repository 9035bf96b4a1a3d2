//! [`Reduce`] for types of the standard library that serde does not support, or only for some values.

mod errors;
mod time;

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::reduce::Reduce;
pub use mp_core::ErrorChain;
pub use mp_core::serde_with::{ByteString, IoError};
pub use time::{MonotonicTime, SinceEpoch};

type BoxError = Box<dyn Error + Send + Sync>;

fn bytes_of(name: &OsStr) -> ByteString {
    ByteString(name.as_bytes().to_vec())
}

/// Any path, including non-UTF-8 ones, which serde's own implementation refuses.
impl Reduce for PathBuf {
    type Handle = ByteString;
    fn reduce(&self) -> Result<ByteString, BoxError> {
        Ok(bytes_of(self.as_os_str()))
    }
    fn rebuild(bytes: ByteString) -> Result<Self, BoxError> {
        Ok(OsString::from_vec(bytes.0).into())
    }
}

impl Reduce for OsString {
    type Handle = ByteString;
    fn reduce(&self) -> Result<ByteString, BoxError> {
        Ok(bytes_of(self))
    }
    fn rebuild(bytes: ByteString) -> Result<Self, BoxError> {
        Ok(OsString::from_vec(bytes.0))
    }
}

/// Encoded like the status of `waitpid(2)`: code, signal and core file.
impl Reduce for ExitStatus {
    type Handle = i32;
    fn reduce(&self) -> Result<i32, BoxError> {
        Ok(self.into_raw())
    }
    fn rebuild(raw: i32) -> Result<Self, BoxError> {
        Ok(ExitStatus::from_raw(raw))
    }
}

impl<T: Reduce> Reduce for Option<T> {
    type Handle = Option<T::Handle>;
    fn reduce(&self) -> Result<Self::Handle, BoxError> {
        self.as_ref().map(T::reduce).transpose()
    }
    fn rebuild(handle: Self::Handle) -> Result<Self, BoxError> {
        handle.map(T::rebuild).transpose()
    }
}

impl<T: Reduce> Reduce for Vec<T> {
    type Handle = Vec<T::Handle>;
    fn reduce(&self) -> Result<Self::Handle, BoxError> {
        self.iter().map(T::reduce).collect()
    }
    fn rebuild(handles: Self::Handle) -> Result<Self, BoxError> {
        handles.into_iter().map(T::rebuild).collect()
    }
}

/// For a success type that is a serde type and an error that is not: `Result<(), io::Error>`.
impl<T: Serialize + DeserializeOwned + Clone, E: Reduce> Reduce for Result<T, E> {
    type Handle = Result<T, E::Handle>;
    fn reduce(&self) -> Result<Self::Handle, BoxError> {
        match self {
            Ok(value) => Ok(Ok(value.clone())),
            Err(error) => Ok(Err(error.reduce()?)),
        }
    }
    fn rebuild(handle: Self::Handle) -> Result<Self, BoxError> {
        Ok(match handle {
            Ok(value) => Ok(value),
            Err(error) => Err(E::rebuild(error)?),
        })
    }
}
