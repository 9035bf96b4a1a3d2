//! Files that a program leaves after its end.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::Leak;

/// Time within which a file that may belong to another program must disappear.
const DEADLINE: Duration = Duration::from_secs(2);

const SHARED: &str = "/dev/shm";

/// Returns all files in a directory of the run, except the directory of the strategy `file_system` if it is
/// empty.
pub(super) fn temporary(folder: &Path) -> Vec<Leak> {
    let mut all = BTreeSet::new();
    names(folder, 2, &mut all);
    all.iter().map(|path| Leak::certain(format!("temporary file {}", path.display()))).collect()
}

/// Listing of /dev/shm.
pub(super) struct Shared(BTreeSet<PathBuf>);

impl Shared {
    pub(super) fn now() -> Self {
        let mut all = BTreeSet::new();
        names(Path::new(SHARED), 2, &mut all);
        Self(all)
    }

    /// Returns new files that seem to belong to the program.
    pub(super) fn left_by(&self, program: u32) -> Vec<Leak> {
        let until = Instant::now() + DEADLINE;
        let me = rustix::process::geteuid().as_raw();
        loop {
            let mut new = Self::now().0;
            new.retain(|path| !self.0.contains(path) && path.metadata().is_ok_and(|file| file.uid() == me));
            let (ours, others): (BTreeSet<_>, _) =
                new.into_iter().partition(|path| names_process(path, program));
            // All processes of the program have ended. So a file isn't a leak if a living process has the
            // file open, or has its id in the file's name.
            let mut others = if others.is_empty() { others } else { without_open(others) };
            others.retain(|path| !names_a_living_process(path) && path.symlink_metadata().is_ok());
            if others.is_empty() || Instant::now() > until {
                let reported = |path: &PathBuf| format!("file {}", path.display());
                let ours = ours.iter().map(|path| Leak::certain(reported(path)));
                return ours
                    .chain(others.iter().map(|path| Leak { what: reported(path), certain: false }))
                    .collect();
            }
            // sleep: between two listings of a folder that other programs change
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Collects the paths in a directory. A subdirectory of the strategy `file_system` is replaced with the paths
/// in it, as long as the depth permits.
fn names(folder: &Path, depth: u32, all: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_str().is_some_and(is_ours);
        if is_ours && depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names(&path, depth - 1, all);
        } else {
            all.insert(path);
        }
    }
}

/// Returns `true` for the name of a directory of the strategy `file_system`, `mp-<uid>`.
fn is_ours(name: &str) -> bool {
    name.strip_prefix("mp-")
        .is_some_and(|user| !user.is_empty() && user.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns `true` if a number in the file's name is `pid`.
fn names_process(path: &Path, pid: u32) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == pid.to_string())
}

/// Returns `true` if a number in the file's name is the id of a living process.
fn names_a_living_process(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Small numbers are counters, or the ids of processes that live as long as the system.
    let lives = |part: &str| {
        part.parse::<u32>().is_ok_and(|pid| pid > 300 && Path::new(&format!("/proc/{pid}")).exists())
    };
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(lives)
}

/// Returns the paths of the files and directories that no process has open or mapped.
fn without_open(mut paths: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let Ok(processes) = fs::read_dir("/proc") else { return paths };
    for process in
        processes.flatten().filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
    {
        if let Ok(open) = fs::read_dir(process.path().join("fd")) {
            open.flatten()
                .filter_map(|entry| fs::read_link(entry.path()).ok())
                .for_each(|path| _ = paths.remove(&path));
        }
        // Reading `map_files` would require privileges.
        let maps = fs::read(process.path().join("maps")).unwrap_or_default();
        let mapped = String::from_utf8_lossy(&maps);
        for (at, line) in mapped.lines().filter_map(|line| Some((line.find('/')?, line))) {
            paths.remove(Path::new(&line[at..]));
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_open_in_another_program_is_no_leak() {
        let before = Shared::now();
        // No living process has this number, and no program has the number 0. So the file counts as belonging
        // to another program.
        let number = (1 << 30) + std::process::id();
        let path = PathBuf::from(format!("/dev/shm/mp-xtask-{number}"));
        let file = fs::File::create(&path).unwrap();
        let found =
            || before.left_by(0).into_iter().find(|leak| leak.what.ends_with(&*path.to_string_lossy()));
        let while_open = found();
        drop(file);
        let (closed, its_own) = (found(), before.left_by(number));
        fs::remove_file(&path).unwrap();
        assert_eq!(while_open, None);
        assert_eq!(closed.map(|leak| leak.certain), Some(false));
        assert!(its_own.iter().any(|leak| leak.certain && leak.what.ends_with(&*path.to_string_lossy())));
    }

    #[test]
    fn process_id_in_a_name_must_be_a_whole_word() {
        let names = |name: &str| names_process(Path::new(name), 123);
        assert!(names("/dev/shm/mp-test-123-names") && names("mp-numbers-123") && names("123"));
        assert!(!names("/dev/shm/mp-test-1234-names") && !names("mp_a123b") && !names("/123/x"));
        assert!(is_ours("mp-0") && is_ours("mp-1000") && !is_ours("mp-") && !is_ours("mp-test-1"));
    }
}
