//! Sixteen files of 8 MiB to be read, in a memory file system if there is one.

use std::path::PathBuf;

use crate::{Failure, Result};

const COUNT: usize = 16;
const BYTES: usize = 8 << 20;

/// Files that are removed when this value is dropped.
pub(crate) struct Files(PathBuf);

/// Returns the sum of the file's bytes.
pub(crate) fn sum(path: PathBuf) -> std::io::Result<u64> {
    Ok(std::fs::read(path)?.iter().map(|byte| u64::from(*byte)).sum())
}

impl Files {
    /// Writes the files.
    pub(crate) fn make() -> Result<Files> {
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let files = Files(place.join(format!("mp-bench-files-{}", std::process::id())));
        std::fs::create_dir_all(&files.0)?;
        for number in 0..COUNT {
            std::fs::write(files.path(number), vec![number as u8; BYTES])?;
        }
        Ok(files)
    }

    fn path(&self, number: usize) -> PathBuf {
        self.0.join(number.to_string())
    }

    /// Returns this many paths, repeating the files.
    pub(crate) fn paths(&self, count: u64) -> impl Iterator<Item = PathBuf> + '_ {
        (0..count as usize).map(|i| self.path(i % COUNT))
    }

    /// Checks the sums of the files.
    pub(crate) fn check(&self, sums: &[u64]) -> Result<()> {
        let right = sums.iter().enumerate().all(|(i, sum)| *sum == (i % COUNT) as u64 * BYTES as u64);
        if right { Ok(()) } else { Err(Failure::from("other sums than those of the files")) }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}
