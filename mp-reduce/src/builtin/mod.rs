//! [`Reduce`] for types of the standard library that serde does not support, or supports only for some
//! values.

mod time;

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io;
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

macro_rules! reduced_as {
    ($(
        $(#[$doc:meta])*
        $t:ty: $handle:ty, |$value:ident| $reduced:expr, |$arrived:ident| $rebuilt:expr;
    )*) => {$(
        $(#[$doc])*
        impl Reduce for $t {
            type Handle = $handle;

            fn reduce(&self) -> Result<$handle, BoxError> {
                let $value = self;
                Ok($reduced)
            }

            fn rebuild($arrived: $handle) -> Result<Self, BoxError> {
                Ok($rebuilt)
            }
        }
    )*};
}

reduced_as! {
    /// Supports every path. The implementation of serde refuses non-UTF-8 paths.
    PathBuf: ByteString, |path| bytes_of(path.as_os_str()), |bytes| OsString::from_vec(bytes.0).into();
    OsString: ByteString, |name| bytes_of(name), |bytes| OsString::from_vec(bytes.0);
    /// Encoded like the status of `waitpid(2)`: code, signal and core file.
    ExitStatus: i32, |status| status.into_raw(), |raw| ExitStatus::from_raw(raw);
    /// Sends an error with a code of the operating system as that code. Sends any other error as its kind,
    /// with its text and its sources as an [`ErrorChain`].
    io::Error: IoError, |error| IoError::from_error(error), |error| error.into();
    /// Sends the error as an [`ErrorChain`].
    ///
    /// ```
    /// use mp_reduce::{ErrorChain, Reduced, pack, unpack};
    /// use std::error::Error;
    ///
    /// let error: Box<dyn Error + Send + Sync> = "ä".parse::<u8>().unwrap_err().into();
    /// // `ErrorChain` is a serde type. The receiver's `Box<dyn Error + Send + Sync>` contains one.
    /// let chain = unpack::<ErrorChain>(pack(ErrorChain::new(&*error)).map_err(|e| e.error)?)?;
    /// assert_eq!(chain.to_string(), "invalid digit found in string");
    /// let envelope = pack(Reduced(error)).map_err(|e| e.error)?;
    /// let Reduced(error) = unpack::<Reduced<Box<dyn Error + Send + Sync>>>(envelope)?;
    /// assert_eq!(error.downcast_ref(), Some(&chain));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Box<dyn Error + Send + Sync>: ErrorChain, |error| ErrorChain::new(&**error), |chain| chain.into();
    /// Sends the error as an [`ErrorChain`].
    Box<dyn Error>: ErrorChain, |error| ErrorChain::new(&**error), |chain| chain.into();
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

/// Sends a result whose success type is a serde type and whose error type is not, such as `Result<(),
/// io::Error>`.
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
