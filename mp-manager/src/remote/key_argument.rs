//! Key of a server, as callers pass it.

use mp_queue::SocketOptions;

mod sealed {
    pub trait IntoOptions {}
}

/// Absence of a key: see [`no_key`].
#[derive(Clone, Copy, Debug)]
pub struct NoKey;

/// Declares that a server has no key: every program of this user can use it, or, over TCP at a loopback
/// address, every program of this machine.
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

/// Key of a server: non-empty bytes or text, [`no_key()`], or [`SocketOptions`] with one of these and limits
/// and time-outs.
///
/// ```
/// use std::time::Duration;
/// use mp_manager::{Manager, RemoteManager};
/// use mp_queue::SocketOptions;
///
/// let manager = Manager::start()?;
/// let options = SocketOptions::new().authkey(b"a secret").max_message(1 << 20);
/// // Options that state neither a key nor `no_key()` are refused.
/// assert!(manager.serve("@example-of-options", SocketOptions::new()).is_err());
/// manager.serve("@example-of-options", &options)?;
/// RemoteManager::connect("@example-of-options", options.handshake_timeout(Duration::from_secs(1)))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IntoAuthKey: sealed::IntoOptions {
    /// Returns options of a socket with this key. An empty key is an error of the socket.
    #[doc(hidden)]
    fn into_options(self) -> SocketOptions;
}

macro_rules! keys {
    ($([$($generics:tt)*] $key:ty;)*) => {$(
        impl<$($generics)*> sealed::IntoOptions for $key {}

        impl<$($generics)*> IntoAuthKey for $key {
            fn into_options(self) -> SocketOptions {
                SocketOptions::new().authkey(self)
            }
        }
    )*};
}

keys! {
    [] &str; [] String; [] &String;
    [] &[u8]; [] Vec<u8>; [] &Vec<u8>; [const N: usize] [u8; N]; [const N: usize] &[u8; N];
    [] mp_core::AuthKey; [] &mp_core::AuthKey;
}

impl sealed::IntoOptions for NoKey {}

impl IntoAuthKey for NoKey {
    fn into_options(self) -> SocketOptions {
        SocketOptions::new().no_key()
    }
}

impl sealed::IntoOptions for SocketOptions {}

impl IntoAuthKey for SocketOptions {
    fn into_options(self) -> SocketOptions {
        // A missing key is treated as an empty key, so that it does not open the server to all programs.
        if self.states_key() { self } else { self.authkey("") }
    }
}

impl sealed::IntoOptions for &SocketOptions {}

impl IntoAuthKey for &SocketOptions {
    fn into_options(self) -> SocketOptions {
        self.clone().into_options()
    }
}
