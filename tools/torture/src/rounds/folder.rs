//! A place for files with names that no other program has: others' files are not ours to count.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the folders are called, before the number of their process.
const NAME: &str = "mp-torture-";

/// The folder of this process. Dropping it removes it, with all that is in it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes it, and removes those of processes that were killed.
    pub(crate) fn new() -> io::Result<Self> {
        let place = mp::memory::get_sharing_directory();
        for entry in fs::read_dir(&place)?.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(NAME));
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = place.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}
