//! The key of a server, as its callers give it.

use mp_core::sent::ByteString;
use mp_queue::SocketOptions;

mod sealed {
    pub trait Sealed {}
}

/// No key: see [`no_key`].
#[derive(Clone, Copy, Debug)]
pub struct NoKey;

/// States that a server has no key: every program of this user can use it.
///
/// ```
/// use mp_manager::{Manager, RemoteManager, no_key};
///
/// let manager = Manager::start()?;
/// assert!(manager.serve("@example-of-no-key", "").is_err()); // a variable that is not set, for instance
/// manager.serve("@example-of-no-key", no_key())?;
/// RemoteManager::connect("@example-of-no-key", no_key())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn no_key() -> NoKey {
    NoKey
}

/// Key of a server: bytes or a text, which must not be empty, or [`no_key()`].
pub trait AuthKey: sealed::Sealed {
    /// Bytes of the key; `None` for [`no_key()`].
    #[doc(hidden)]
    fn into_bytes(self) -> Option<ByteString>;
}

impl<K: AsRef<[u8]>> sealed::Sealed for K {}
impl sealed::Sealed for NoKey {}

impl<K: AsRef<[u8]>> AuthKey for K {
    fn into_bytes(self) -> Option<ByteString> {
        Some(ByteString(self.as_ref().to_vec()))
    }
}

impl AuthKey for NoKey {
    fn into_bytes(self) -> Option<ByteString> {
        None
    }
}

/// Options of a socket with this key. An empty key is an error of the socket.
pub(super) fn options(key: Option<&ByteString>) -> SocketOptions {
    match key {
        Some(key) => SocketOptions::new().authkey(&key.0),
        None => SocketOptions::new().no_key(),
    }
}
