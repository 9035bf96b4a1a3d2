//! Types of `tls` in a build without that feature: no process has certificates.

use std::ffi::OsString;
use std::io;

use crate::error::{NetError, Refusal};
use crate::launcher::LauncherError;
use crate::socket::AsyncSocket;

/// Certificates. This type has no values.
#[derive(Clone, Debug)]
pub(crate) enum ClusterTls {}

impl ClusterTls {
    pub(crate) fn from_vars(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, LauncherError> {
        match crate::launcher::tls_files(get)? {
            None => Ok(None),
            Some(_) => Err(LauncherError::Certificates(built_without())),
        }
    }

    pub(crate) fn from_pem(_: &[u8], _: &[u8], _: &[u8]) -> Result<Self, NetError> {
        Err(NetError::Configuration(built_without()))
    }

    pub(crate) fn pem(&self) -> &[Vec<u8>; 3] {
        match *self {}
    }

    pub(crate) async fn connect(
        &self,
        _: impl AsyncSocket + 'static,
    ) -> Result<Box<dyn AsyncSocket>, Result<Refusal, io::Error>> {
        match *self {}
    }

    pub(crate) async fn accept<T>(&self, _: T) -> Result<Box<dyn AsyncSocket>, (String, T)> {
        match *self {}
    }
}

fn built_without() -> String {
    "this program was built without the feature `tls` of mp-net".into()
}

/// Returns `None`: without TLS, each error is an error of the socket.
pub(crate) fn refusal(_: &io::Error) -> Option<Refusal> {
    None
}
