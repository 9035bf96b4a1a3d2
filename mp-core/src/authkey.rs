//! The secret of a family of processes: one process, those that it has started, and those that they have
//! started.
//!
//! It is here, below processes and sockets, because the code that starts processes hands it down, and the
//! code that connects proves it, and neither knows the other. It is nowhere but in the memory of these
//! processes, and in what a parent sends to a child over a socket that only the two have: not in the
//! environment, not among arguments, not in shared memory.
use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess};
use crate::sys;

/// A secret. What prints values doesn't print it.
///
/// ```
/// use mp_core::AuthKey;
///
/// let key = AuthKey::from(b"secret".as_slice());
/// assert_eq!(format!("{key:?}"), "AuthKey(..)");
/// assert_eq!(key.as_ref(), b"secret");
/// ```
///
/// Cloning it copies a reference.
#[derive(Clone)]
pub struct AuthKey(Arc<[u8]>);

impl From<&[u8]> for AuthKey {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl AsRef<[u8]> for AuthKey {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthKey(..)")
    }
}

/// This process's; a copy of it gets what every process gets from the one that starts it.
static KEY: PerProcess<Mutex<Option<AuthKey>>> = PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// The secret of this process: what its parent had when it started it, or [`set_authkey`] has set; else 32 random bytes, from
/// the first call on.
///
/// ```
/// let key = mp_core::authkey()?;
/// assert_eq!(key.as_ref().len(), 32);
/// assert_eq!(mp_core::authkey()?.as_ref(), key.as_ref());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Os`](crate::Error::Os) if the system has no random bytes.
pub fn authkey() -> Result<AuthKey> {
    let mut key = KEY.lock();
    if let Some(key) = &*key {
        return Ok(key.clone());
    }
    let random = [sys::foreign::random()?, sys::foreign::random()?].concat();
    Ok(key.insert(AuthKey(random.into())).clone())
}

/// Sets the secret of this process, and of those that it starts from now on.
pub fn set_authkey(key: AuthKey) {
    *KEY.lock() = Some(key);
}
