//! Errors as messages: `std::io::Error`, and any error as a chain of texts.

use std::error::Error;
use std::io;

use mp_core::ErrorChain;
use mp_core::serde_with::IoError;

use super::BoxError;
use crate::reduce::Reduce;

/// An error with a code of the system arrives as the same error. Any other error arrives with its kind, and
/// with its text and sources as an [`ErrorChain`].
impl Reduce for io::Error {
    type Handle = IoError;
    fn reduce(&self) -> Result<IoError, BoxError> {
        Ok(IoError::from_error(self))
    }
    fn rebuild(handle: IoError) -> Result<Self, BoxError> {
        Ok(handle.into())
    }
}

/// Arrives as an [`ErrorChain`].
///
/// ```
/// use mp_reduce::{ErrorChain, Reduced, pack, unpack};
/// use std::error::Error;
///
/// let error: Box<dyn Error + Send + Sync> = "ä".parse::<u8>().unwrap_err().into();
/// // A serde type by itself, and the target of `Box<dyn Error + Send + Sync>` at the receiver.
/// let chain = unpack::<ErrorChain>(pack(ErrorChain::new(&*error)).map_err(|e| e.error)?)?;
/// assert_eq!(chain.to_string(), "invalid digit found in string");
/// let envelope = pack(Reduced(error)).map_err(|e| e.error)?;
/// let Reduced(error) = unpack::<Reduced<Box<dyn Error + Send + Sync>>>(envelope)?;
/// assert_eq!(error.downcast_ref(), Some(&chain));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Reduce for Box<dyn Error + Send + Sync> {
    type Handle = ErrorChain;
    fn reduce(&self) -> Result<ErrorChain, BoxError> {
        Ok(ErrorChain::new(&**self))
    }
    fn rebuild(chain: ErrorChain) -> Result<Self, BoxError> {
        Ok(chain.into())
    }
}

/// Arrives as an [`ErrorChain`].
impl Reduce for Box<dyn Error> {
    type Handle = ErrorChain;
    fn reduce(&self) -> Result<ErrorChain, BoxError> {
        Ok(ErrorChain::new(&**self))
    }
    fn rebuild(chain: ErrorChain) -> Result<Self, BoxError> {
        Ok(chain.into())
    }
}
