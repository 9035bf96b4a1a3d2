//! Key of a cluster, from the environment.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use mp_core::AuthKey;

use super::LauncherError;

/// Variable with the key.
const KEY: &str = "MP_CLUSTER_KEY";
/// Variable that names the file with the key.
const KEY_FILE: &str = "MP_CLUSTER_KEY_FILE";
/// Length of the longest key in a file, in bytes.
const LONGEST: u64 = 4096;

/// Returns the value of `MP_CLUSTER_KEY`, or the contents of the file that `MP_CLUSTER_KEY_FILE` names,
/// without a newline at the end. Returns `None` if neither is set.
///
/// # Errors
/// Returns an error if both are set, or the file can't be used. It does not contain the key.
pub(crate) fn key(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<AuthKey>, LauncherError> {
    let [key, file] = [KEY, KEY_FILE].map(|name| get(name).filter(|value| !value.is_empty()));
    match (key, file) {
        (None, None) => Ok(None),
        (Some(key), None) => Ok(Some(AuthKey::from(key.as_bytes()))),
        (None, Some(file)) => match read(&file) {
            Ok(key) => Ok(Some(AuthKey::from(key.as_slice()))),
            Err(error) => Err(LauncherError::Key(format!("{}: {error}", file.display()))),
        },
        (Some(_), Some(_)) => Err(LauncherError::Contradiction {
            first: KEY.into(),
            second: KEY_FILE.into(),
            reason: "only one of them may be set",
        }),
    }
}

fn read(path: &OsStr) -> io::Result<Vec<u8>> {
    // Opening a FIFO would block.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let file = File::open(path)?;
    let mode = file.metadata()?.mode();
    if mode & 0o007 != 0 {
        let mode = mode & 0o777;
        return Err(io::Error::other(format!(
            "other users can access it (mode {mode:03o}): remove their permissions (chmod o= FILE)"
        )));
    }
    let mut key = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut key)?;
    if key.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("it is longer than {LONGEST} bytes")));
    }
    if key.last() == Some(&b'\n') {
        key.pop();
    }
    if key.is_empty() { Err(io::Error::other("it is empty")) } else { Ok(key) }
}
