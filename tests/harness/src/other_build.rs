//! Copies of the test program that count as another build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes before the build-id in a program: type and name of the note.
const NOTE: &[u8] = b"\x03\0\0\0GNU\0";

/// Copy of this test program with another build-id. Dropping it removes the copy.
#[derive(Debug)]
pub struct OtherBuild(PathBuf);

impl OtherBuild {
    /// Writes the copy, with changed bytes in its build-id. Returns `None` if this program has no build-id.
    ///
    /// # Panics
    /// If the file can't be written.
    pub fn new() -> Option<Self> {
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let mut program = std::fs::read("/proc/self/exe").unwrap();
        let place = program.windows(NOTE.len()).position(|window| window == NOTE)?;
        program[place + NOTE.len()] ^= 1;
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mp-build-{}-{number}", std::process::id()));
        let draft = path.with_extension("draft");
        std::fs::write(&draft, program).unwrap();
        install(&draft, &path);
        std::fs::remove_file(draft).unwrap();
        Some(Self(path))
    }

    /// Returns the path of the copy.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OtherBuild {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

/// Copies a file to an executable program, in a separate process. A program that is open for writing can't be
/// executed, and children of other tests briefly share files that this process has open for writing.
///
/// # Panics
/// If the file can't be copied.
pub fn install(from: &Path, to: &Path) {
    let status = Command::new("install").args(["-m", "755"]).args([from, to]).status().unwrap();
    assert!(status.success());
}
