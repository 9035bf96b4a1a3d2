//! Secret shared by a family of processes: a process, the processes that it has started, and so on.
//!
//! The crate that starts processes passes the secret on, and the crate that connects processes proves
//! knowledge of it. Neither depends on the other, so the secret is defined here. The secret exists only in
//! the memory of these processes, and in the data that a parent sends to a child over a private socket. It is
//! never in the environment, in arguments or in shared memory.
use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::sys;

/// Secret key. `Debug` does not print it.
///
/// ```
/// use mp_core::AuthKey;
///
/// let key = AuthKey::from(b"secret".as_slice());
/// assert_eq!(format!("{key:?}"), "AuthKey(..)");
/// assert_eq!(key.as_ref(), b"secret");
/// ```
///
/// Cloning copies a reference.
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

/// Key of this process; a forked copy gets its key from its parent, like every started process.
static KEY: PerProcess<Mutex<Option<AuthKey>>> = per_process!(Mutex::new(None));

/// Returns the secret of this process: the key inherited from the parent, or set by [`set_authkey`]. If this
/// process has neither, the first call creates 32 random bytes.
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

/// Sets the secret of this process, and of all processes that it starts after this call.
pub fn set_authkey(key: AuthKey) {
    *KEY.lock() = Some(key);
}
