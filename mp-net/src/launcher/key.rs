//! Key of a cluster, from the environment.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use mp_core::AuthKey;
use rustix::fs::{Mode, OFlags};

use super::LauncherError;

/// Name of the variable that contains the key.
const KEY: &str = "MP_CLUSTER_KEY";
/// Name of the variable with the path of the key file.
const KEY_FILE: &str = "MP_CLUSTER_KEY_FILE";
/// Length of the longest key in a file, in bytes.
const LONGEST: u64 = 4096;

/// Returns the value of `MP_CLUSTER_KEY`, or the contents of the file that `MP_CLUSTER_KEY_FILE` names,
/// without a newline at the end. Returns `None` if neither is set.
///
/// # Errors
/// Returns an error, which does not contain the key, if both are set, the file can't be used, or the key is
/// empty.
pub(crate) fn key(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<AuthKey>, LauncherError> {
    let [key, file] = [KEY, KEY_FILE].map(|name| get(name).filter(|value| !value.is_empty()));
    let (source, bytes) = match (key, file) {
        (None, None) => return Ok(None),
        (Some(key), None) => (KEY.to_owned(), Ok(key.into_vec())),
        (None, Some(file)) => {
            // If there is no such file, the variable may contain the key itself, which must not be printed.
            let is_file = fs::symlink_metadata(&file).is_ok();
            let unprinted = || format!("the {} bytes of {KEY_FILE} name no file", file.len());
            (if is_file { file.display().to_string() } else { unprinted() }, read(&file))
        }
        (Some(_), Some(_)) => {
            return Err(LauncherError::Contradiction {
                first: KEY.into(),
                second: KEY_FILE.into(),
                reason: "only one of them may be set",
            });
        }
    };
    let key = bytes.and_then(|bytes| match bytes.strip_suffix(b"\n").unwrap_or(&bytes) {
        [] => {
            Err(io::Error::other("it is empty: write the key into it, for example by `openssl rand -hex 32`"))
        }
        key => Ok(AuthKey::from(key)),
    });
    key.map(Some).map_err(|error| LauncherError::Key(format!("{source}: {error}")))
}

fn read(path: &OsStr) -> io::Result<Vec<u8>> {
    // Without `NONBLOCK`, opening a FIFO would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file: name the file that contains the key"));
    }
    if ![0, rustix::process::geteuid().as_raw()].contains(&found.uid()) {
        return Err(io::Error::other(format!("its owner is another user ({})", found.uid())));
    }
    if found.mode() & 0o007 != 0 {
        return Err(io::Error::other(format!(
            "other users can access it (mode {:03o}): remove their permissions (chmod o= FILE)",
            found.mode() & 0o777
        )));
    }
    let mut key = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut key)?;
    if key.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("it is longer than {LONGEST} bytes: write a shorter key")));
    }
    Ok(key)
}
