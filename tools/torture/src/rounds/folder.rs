//! Folder for named files of this program only, so that files of other programs do not count as leaks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Prefix of the name of a folder. The id of its process follows.
const NAME: &str = "mp-torture-";

/// Folder of this process. Dropping the value removes the folder and its contents.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates the folder, and removes folders of earlier processes that were killed.
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
