//! Atomic creation of files.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// Writes a file atomically. If this process is killed meanwhile, the file is complete or missing, and no
/// other file is left. On a file system without unnamed files (`O_TMPFILE`) a kill may leave a file
/// `.NAME.PID`.
///
/// A pipe, a terminal or another existing path that is not a regular file is written to directly.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The target of a symbolic link is replaced, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return fs::write(&path, bytes);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => {
            let mut file = File::from(file);
            file.write_all(bytes)?;
            link(&file, &path)
        }
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let unfinished = unfinished(folder, &path);
            let done = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, &path));
            done.inspect_err(|_| _ = fs::remove_file(&unfinished))
        }
        Err(error) => Err(error.into()),
    }
}

/// Gives an unnamed file a name. An existing file with this name is removed first, because `linkat` never
/// replaces a file.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    loop {
        match rustix::fs::linkat(CWD, &unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW) {
            Err(Errno::EXIST) => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            done => return Ok(done?),
        }
    }
}

fn unfinished(folder: &Path, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    folder.join(format!(".{name}.{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_written_through_a_link_replaces_its_target() {
        let folder = std::env::temp_dir().join(format!("mp-whole-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, symlink) = (folder.join("file"), folder.join("link"));
        write(&file, b"old and long").unwrap();
        std::os::unix::fs::symlink("file", &symlink).unwrap();
        write(&symlink, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(symlink.is_symlink());
        write(Path::new("/dev/null"), b"gone").unwrap();
        assert!(write(&folder, b"").is_err() && write(&folder.join("missing/file"), b"").is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
