//! Contract for every kind of shared memory: the same tests of real processes run on each strategy, and
//! on each kind of directory of the strategy `file_system`. Behaviour specific to named files is tested in
//! `file_system`.

mod contract;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::MutexGuard;

use mp::memory::{
    SharingStrategy, get_all_sharing_strategies, get_sharing_directory, get_sharing_strategy,
    set_sharing_directory, set_sharing_strategy,
};
use mp_tests::scratch::{HugePages, Scratch};

/// Location of the memory of tensors, for one test.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Descriptor,
    /// Files on a tmpfs.
    Files,
    /// Files on the disk that has the temporary directory.
    Disk,
    /// Files of huge pages, in a hugetlbfs if one is mounted and has pages.
    Huge,
}

/// Strategy and directory for one test, which runs alone. Dropping the value restores the previous setting.
struct Setting {
    strategy: SharingStrategy,
    directory: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// Message that is printed if no huge pages are mounted. The test `memory_contract_holds_on_huge_pages`
/// mounts huge pages itself, and runs the contract on them.
const NO_HUGE_PAGES: &str = "no hugetlbfs with 64 free huge pages is mounted";

impl Memory {
    /// Chooses this memory for new storages. Returns `None` if no huge pages are mounted or the build lacks
    /// the strategy.
    fn set(self) -> Option<Setting> {
        let alone = mp_tests::alone();
        let (strategy, below) = match self {
            Memory::Descriptor => (SharingStrategy::FileDescriptor, None),
            Memory::Files => (SharingStrategy::FileSystem, Some(PathBuf::from("/dev/shm"))),
            Memory::Disk => (SharingStrategy::FileSystem, Some(std::env::temp_dir())),
            Memory::Huge => match huge_pages() {
                Some(mount) => (SharingStrategy::FileSystem, Some(mount)),
                None => {
                    println!("{NO_HUGE_PAGES}");
                    return None;
                }
            },
        };
        if !get_all_sharing_strategies().contains(&strategy) {
            println!("this build doesn't have the strategy {strategy}");
            return None;
        }
        let before = (get_sharing_strategy(), get_sharing_directory());
        if let Some(below) = below {
            set_sharing_directory(below).unwrap();
        }
        set_sharing_strategy(strategy).unwrap();
        Some(Setting { strategy: before.0, directory: before.1, _alone: alone })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        set_sharing_strategy(self.strategy).unwrap();
        set_sharing_directory(&self.directory).unwrap();
    }
}

/// Returns the mount point of a hugetlbfs that has free pages.
fn huge_pages() -> Option<PathBuf> {
    let free = std::fs::read_to_string("/proc/meminfo").ok()?;
    let free = free.lines().find_map(|l| l.strip_prefix("HugePages_Free:"))?.trim().parse::<u32>().ok()?;
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let mut found = mounts.lines().filter_map(|l| {
        let mut words = l.split(' ').skip(1);
        let path = words.next()?;
        (words.next()? == "hugetlbfs").then(|| Path::new(path).to_owned())
    });
    found.next().filter(|_| free >= 64)
}

/// Runs the contract on huge pages that the test mounts, if none are mounted already.
#[test]
fn memory_contract_holds_on_huge_pages() {
    if huge_pages().is_some() {
        // The tests of the module `huge` use the existing mount.
        return;
    }
    if !get_all_sharing_strategies().contains(&SharingStrategy::FileSystem) {
        return;
    }
    let _alone = mp_tests::alone();
    let scratch = Scratch::new("conformance");
    let Some(_pages) = HugePages::reserve(256) else { return };
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args(["huge::", "--nocapture", "--test-threads=1"]);
    if let Some(said) = scratch.run_on_huge_pages("pagesize=2M", &tests) {
        assert!(!said.contains(NO_HUGE_PAGES), "{said}");
    }
}

macro_rules! on_every_memory {
    ($($contract:ident)*) => {
        mod descriptor { on_every_memory!(Descriptor: $($contract)*); }
        mod files { on_every_memory!(Files: $($contract)*); }
        mod disk { on_every_memory!(Disk: $($contract)*); }
        mod huge { on_every_memory!(Huge: $($contract)*); }
    };
    ($memory:ident: $($contract:ident)*) => {
        $(
            #[test]
            fn $contract() {
                if let Some(_setting) = crate::Memory::$memory.set() {
                    crate::contract::$contract();
                }
            }
        )*
    };
}

on_every_memory! {
    shared_tensor_writes_are_visible_to_other_process
    received_views_are_views_of_one_storage
    exclusive_tensor_moves_to_the_other_process
    message_outlives_its_sender
    killed_holder_releases_its_memory
    thousand_tensors_need_few_files
    freed_tensor_memory_is_used_again
    memory_within_the_budget_is_usable_after_drops
    tensors_of_all_strategies_travel_in_one_message
    children_inherit_sharing_strategy_and_directory
    tensor_memory_of_any_size_is_aligned_and_whole
}
