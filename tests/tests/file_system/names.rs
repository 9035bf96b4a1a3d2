//! Names in the strategy `file_system`: visibility, unusable directories, exhausted limits. Programs that
//! must begin without shared memory are this program, started again.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use mp::memory::{
    SharingStrategy, get_sharing_directory, get_sharing_strategy, set_sharing_directory, set_sharing_strategy,
};
use mp::{Arena, Error, FrozenTensor, Queue, Tensor};
use mp_tests::limits::{Resource, limit};
use mp_tests::refusal;
use mp_tests::scratch::{HugePages, Scratch, files_in};
use mp_tests::{Outcome, alone, give, join, next, one_process, send, take};
use rustix::process::getrlimit;

use crate::KIB;

const MIB: usize = 1 << 20;

/// Puts tensors of this process into files below a directory. Dropping the value restores the setting.
struct Below(SharingStrategy, PathBuf);

impl Below {
    fn new(directory: &Path) -> Self {
        let before = Self(get_sharing_strategy(), get_sharing_directory());
        files_in(directory);
        before
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        set_sharing_strategy(self.0).unwrap();
        set_sharing_directory(&self.1).unwrap();
    }
}

#[test]
fn arena_files_are_private_and_removed_at_the_end() {
    let _alone = alone();
    let scratch = Scratch::new("names");
    let _below = Below::new(&scratch.0);
    assert!(!scratch.ours().exists(), "the directory exists before a file is needed");
    let t = Tensor::<u8>::full([MIB], 1).unwrap();
    let directory = fs::metadata(scratch.ours()).unwrap();
    assert_eq!((directory.mode() & 0o7777, directory.uid()), (0o700, rustix::process::getuid().as_raw()));
    let [file] = &scratch.files()[..] else { panic!("{:?}", scratch.files()) };
    let meta = fs::symlink_metadata(file).unwrap();
    assert!(meta.is_file() && meta.mode() & 0o7777 == 0o600 && meta.nlink() == 1);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.len() == 35 && name.starts_with("mp-"), "{name}");
    // The tensors are in this file. Its unused parts have no pages.
    let kib = meta.blocks() / 2;
    assert!((1024..10 << 10).contains(&kib), "{kib} KiB");
    // Programs that exit normally leave no files, and keep the files of others.
    let other = Scratch::new("other");
    other.run("use");
    scratch.run("use");
    assert!(!other.ours().exists());
    assert_eq!(scratch.files(), std::slice::from_ref(file));
    assert!(t.iter().all(|v| v == 1));
}

#[test]
fn files_with_foreign_names_are_not_removed() {
    let _alone = alone();
    let scratch = Scratch::new("others");
    fs::DirBuilder::new().mode(0o700).create(scratch.ours()).unwrap();
    // None of these files is locked. The name of the last one has the form of a dead program's file.
    let digits = "0123456789abcdef".repeat(2);
    let names = ["mp-notes".into(), format!("mp-{digits}0"), format!("mp-{digits}")];
    let paths = names.map(|name| scratch.ours().join(name));
    paths.iter().for_each(|path| drop(fs::File::create(path).unwrap()));
    scratch.run("use");
    assert_eq!(paths.map(|path| path.exists()), [true, true, false]);
}

#[test]
fn unusable_arena_directories_are_refused() {
    let _alone = alone();
    let scratch = Scratch::new("bad");
    let before = get_sharing_directory();
    let refused = |path: &Path| match set_sharing_directory(path).unwrap_err() {
        error @ Error::Directory { .. } => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused(&scratch.0.join("none")).contains("can't be found"));
    fs::write(scratch.0.join("file"), "").unwrap();
    assert!(refused(&scratch.0.join("file")).contains("is no directory"));
    let deep = scratch.0.join("x".repeat(200)).join("y".repeat(60));
    fs::create_dir_all(&deep).unwrap();
    assert!(refused(&deep).contains("at most 248"));
    assert_eq!(get_sharing_directory(), before, "an error changes nothing");
    // Files that another user could have created at the path of the library's directory.
    let _below = Below::new(&scratch.0);
    let blocks = Arena::current().unwrap().memory_stats().live_blocks;
    let fails = |with: &str| {
        let error = Tensor::<u8>::zeros([10]).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Directory { .. }) && text.contains(with), "{text}");
        assert!(text.contains(scratch.ours().to_str().unwrap()) && text.contains("set_sharing_directory"));
    };
    fs::write(scratch.ours(), "").unwrap();
    fails("can't be opened");
    fs::remove_file(scratch.ours()).unwrap();
    symlink("/dev/shm", scratch.ours()).unwrap();
    fails("can't be opened");
    fs::remove_file(scratch.ours()).unwrap();
    fs::DirBuilder::new().mode(0o700).create(scratch.ours()).unwrap();
    fs::set_permissions(scratch.ours(), fs::Permissions::from_mode(0o777)).unwrap();
    fails("mode 777");
    // After the directory is repaired, it can be used, and no memory was lost.
    fs::set_permissions(scratch.ours(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(Tensor::<u8>::zeros([10]).unwrap().len(), 10);
    assert_eq!(Arena::current().unwrap().memory_stats().live_blocks, blocks);
    assert_eq!(scratch.files().len(), 1, "a failed allocation has left a file");
}

#[test]
fn read_only_arena_directory_is_refused() {
    let scratch = Scratch::new("read-only");
    if let Some(said) = scratch.run_mounted("ro", "read-only") {
        assert!(said.contains("it can't be made: Read-only file system"), "{said}");
        assert!(said.contains(scratch.ours().to_str().unwrap()), "{said}");
    }
}

/// Creates tensors in a directory of 1 MiB until it is full, and again after a drop.
pub(crate) fn small_directory(directory: &Path) {
    // Messages are in the arena, not in this directory, even if the arena is a named file.
    Arena::current().unwrap();
    files_in(directory);
    let full = |result: mp_core::Result<Tensor<u8>>| match result.map(drop).unwrap_err() {
        Error::OutOfMemory { asked, left, limit } => {
            assert!(left < asked && left <= MIB as u64, "{asked} asked, {left} left");
            assert!(limit.contains(directory.to_str().unwrap()), "{limit}");
        }
        other => panic!("{other:?}"),
    };
    full(Tensor::full([2 * MIB], 1));
    for round in 0..5 {
        let first = Tensor::<u8>::full([500 * KIB], round).unwrap();
        full(Tensor::full([500 * KIB], 9));
        full(Tensor::full([4 * MIB], 9));
        // Allocates until the directory is full to the last page, and writes each tensor completely.
        let mut all = Vec::new();
        while let Ok(t) = Tensor::<u8>::full([20 * KIB], round) {
            all.push(t);
        }
        assert!(all.len() >= 10, "{} tensors of 20 KiB", all.len());
        assert!(all.iter().chain([&first]).all(|t| t.iter().all(|v| v == round)));
        // Queues and messages are not in this directory, so they still work.
        let queue = Queue::bounded(1).unwrap();
        give(&queue, (vec![round; 2 * MIB], first.freeze()));
        assert_eq!(take(&queue).1.len(), 500 * KIB);
    }
    // Another directory has room.
    set_sharing_directory("/dev/shm").unwrap();
    Tensor::<u8>::full([4 * MIB], 1).unwrap();
}

#[test]
fn full_arena_directory_is_an_error_until_a_drop() {
    let scratch = Scratch::new("small");
    scratch.run_mounted("size=1m", "small");
}

/// Creates a tensor that exceeds the limit of file sizes. The library returns an error before the kernel
/// would send SIGXFSZ.
pub(crate) fn file_size(directory: &Path) {
    Arena::current().unwrap();
    limit(Resource::Fsize, MIB as u64);
    files_in(directory);
    match Tensor::<u8>::zeros([2 * MIB]).map(drop).unwrap_err() {
        Error::OutOfMemory { asked, left, limit } => {
            assert!(
                asked >= 2 << 20 && left < 1 << 20 && limit.contains("RLIMIT_FSIZE"),
                "{asked} {left} {limit}"
            );
        }
        other => panic!("{other:?}"),
    }
    let small: Vec<_> = (0..1000).map(|i| Tensor::full([10], i).unwrap()).collect();
    assert!(small.iter().zip(0..).all(|(t, i)| t.get(&[9]).unwrap() == i));
}

#[test]
fn file_size_limit_is_an_error_of_arena_allocation() {
    Scratch::new("file-size").run("file-size");
}

/// Creates a tensor while the quota of the file system, which is simulated, is exceeded.
pub(crate) fn quota(directory: &Path) {
    files_in(directory);
    // After the first tensor, the next one of its size needs only its own memory.
    let first = Tensor::<u8>::full([2 * MIB], 1).unwrap();
    refusal::refuse_to_allocate(libc::EDQUOT);
    match Tensor::<u8>::zeros([2 * MIB]).map(drop).unwrap_err() {
        Error::OutOfMemory { asked, left, limit } => {
            assert!(asked >= 2 << 20 && left < asked, "{asked} {left}");
            assert!(limit.contains("quota") && limit.contains(directory.to_str().unwrap()), "{limit}");
        }
        other => panic!("{other:?}"),
    }
    // Existing tensors are unaffected.
    assert!(first.iter().all(|v| v == 1));
}

#[test]
fn exceeded_quota_is_named_in_the_error() {
    Scratch::new("quota").run("quota");
}

/// Number of huge pages of the mount, each of 2 MiB.
const HUGE_PAGES: usize = 16;

/// Fills a hugetlbfs of [`HUGE_PAGES`] pages with tensors, several times.
pub(crate) fn few_huge_pages(directory: &Path) {
    fn worker(_: usize, (there, back): (Queue<Tensor<u8>>, Queue<Tensor<u8>>)) -> Outcome {
        while let Some(mut t) = next(&there)? {
            t.as_mut_slice()?.iter_mut().for_each(|v| *v += 1);
            send(&back, t)?;
        }
        Ok(())
    }
    Arena::current().unwrap();
    files_in(directory);
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker, (there.clone(), back.clone()));
    for round in 0..3 {
        // Sizes that are not multiples of a huge page, each written to its last byte in both processes.
        let mut all = Vec::new();
        let error = loop {
            match Tensor::<u8>::full([3 * MIB + 1], round) {
                Ok(t) => all.push(t),
                Err(error) => break error,
            }
            assert!(all.len() <= HUGE_PAGES, "more tensors than huge pages");
        };
        match error {
            Error::OutOfMemory { asked, left, limit } => {
                assert!(left < asked && limit.contains("huge pages"), "{asked} {left} {limit}");
                assert!(limit.contains(directory.to_str().unwrap()), "{limit}");
            }
            other => panic!("{other:?}"),
        }
        assert!(all.len() >= 3, "{} tensors in {HUGE_PAGES} huge pages", all.len());
        for t in all {
            give(&there, t);
            assert!(take(&back).iter().all(|v| v == round + 1));
        }
        // Sizes that equal the remaining memory, and that exceed it.
        match Tensor::<u8>::zeros([2 * HUGE_PAGES * MIB]).map(drop).unwrap_err() {
            Error::OutOfMemory { .. } => {}
            other => panic!("{other:?}"),
        }
        Arena::current().unwrap().empty_cache().unwrap();
    }
    there.close();
    join(&context).unwrap();
}

#[test]
fn exhausted_huge_pages_are_an_error() {
    let _alone = alone();
    let scratch = Scratch::new("huge");
    // The first mount is limited by its size, the second by the kernel's pages.
    for options in [format!("size={}m", 2 * HUGE_PAGES), "min_size=0".to_owned()] {
        let Some(pages) = HugePages::reserve(HUGE_PAGES as u64) else { return };
        if !options.starts_with("size") && pages.free() > HUGE_PAGES as u64 {
            mp_harness::skip("many huge pages are reserved on this machine, which a test must not use up");
            continue;
        }
        scratch.run_on_huge_pages(&format!("pagesize=2M,{options}"), &scratch.program("huge"));
    }
}

#[test]
fn receiver_without_spare_descriptors_gets_an_error() {
    let _alone = alone();
    fn worker(_: usize, (there, back): (Queue<FrozenTensor<u8>>, Queue<String>)) -> Outcome {
        // The process becomes a member before any file exists.
        send(&back, "ready".to_owned())?;
        let before = getrlimit(Resource::Nofile).current.unwrap_or(1024);
        limit(Resource::Nofile, 1);
        let error = next(&there).map(drop).unwrap_err().to_string();
        limit(Resource::Nofile, before);
        send(&back, error)?;
        let sum: usize = next(&there)?.ok_or("closed")?.iter().map(usize::from).sum();
        send(&back, sum.to_string())
    }
    let scratch = Scratch::new("nofile");
    let (there, back) = (Queue::bounded(2).unwrap(), Queue::bounded(2).unwrap());
    let context = one_process(worker, (there.clone(), back.clone()));
    assert_eq!(take(&back), "ready");
    let below = Below::new(&scratch.0);
    let t = Tensor::<u8>::full([3 * KIB], 2).unwrap().freeze();
    drop(below);
    give(&there, t.clone());
    let error = take(&back);
    assert!(error.contains("Too many open files"), "{error}");
    give(&there, t);
    assert_eq!(take(&back), (6 * KIB).to_string());
    join(&context).unwrap();
}
