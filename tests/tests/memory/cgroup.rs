//! Process whose control group has too little memory. It gets an error that names the group, instead of being
//! killed.

use std::fs;
use std::path::{Path, PathBuf};

use mp::{Error, ProcessContext, SpawnError, SpawnOptions, Tensor, start_processes};
use mp_tests::{Outcome, join};

const MIB: usize = 1 << 20;
/// Memory limit of the group.
const LIMIT: u64 = 200 << 20;

/// Returns the folder of this process's group of the memory controller, and the name of the limit's file.
fn own_group() -> Option<(PathBuf, &'static str)> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let found = |version: &str, root: &str, limit| {
        let line =
            own.lines().find(|l| l.split(':').nth(1).is_some_and(|c| c.split(',').any(|c| c == version)))?;
        let dir = Path::new(root).join(line.splitn(3, ':').nth(2)?.trim_start_matches('/'));
        dir.join(limit).exists().then_some((dir, limit))
    };
    found("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        // The root group has no limit.
        .or_else(|| found("", "/sys/fs/cgroup", "memory.max"))
}

/// Moves this process into a new group with little memory.
fn enter(group: &Path, limit: &str) -> std::io::Result<()> {
    fs::create_dir(group)?;
    fs::write(group.join(limit), LIMIT.to_string())?;
    // Prevents swapping if there is swap and the kernel counts it.
    _ = fs::write(group.join("memory.swap.max"), "0");
    _ = fs::write(group.join("memory.memsw.limit_in_bytes"), LIMIT.to_string());
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// Allocates more than the group allows, and then as much as the group allows.
fn worker(_: usize, (group, limit): (PathBuf, String)) -> Outcome {
    if let Err(e) = enter(&group, &limit) {
        mp_harness::skip(format_args!("no control group could be made: {e}"));
        return Ok(());
    }
    match Tensor::<u8>::zeros([512 * MIB]).unwrap_err() {
        Error::OutOfMemory { asked, left, limit: what } => {
            assert!(asked >= 512 << 20 && left <= LIMIT, "{asked} {left}");
            assert!(what.contains("cgroup") && what.contains(&limit), "{what}");
        }
        e => panic!("{e}"),
    }
    let ones = Tensor::<u8>::full([64 * MIB], 1).unwrap();
    assert_eq!(ones.iter().map(u64::from).sum::<u64>(), 64 << 20);
    Ok(())
}

/// Allocates private memory, which the library does not limit, until the kernel kills this process.
fn eats(_: usize, (): ()) -> Outcome {
    let mut all = Vec::new();
    while all.len() < 64 {
        all.push(vec![1_u8; 16 * MIB]);
    }
    Err(format!("it has {} pieces", all.len()).into())
}

/// Checks that the kernel kills the child of this process.
fn parent(_: usize, (group, limit): (PathBuf, String)) -> Outcome {
    if let Err(e) = enter(&group, &limit) {
        mp_harness::skip(format_args!("no control group could be made: {e}"));
        return Ok(());
    }
    let error = start_processes(eats, (), SpawnOptions::nprocs(1))?.join().unwrap_err();
    let said = error.to_string();
    if said.contains("pieces") {
        mp_harness::skip("the kernel has swapped instead");
        return Ok(());
    }
    assert!(said.contains("SIGKILL") && said.contains("the kernel's OOM killer ended it"), "{said}");
    Ok(())
}

/// Starts a process that enters a group, and waits for it.
fn within(name: &str, start: impl FnOnce((PathBuf, String)) -> Result<ProcessContext, SpawnError>) {
    let Some((own, limit)) = own_group() else {
        mp_harness::skip("the memory controller is not to be seen here");
        return;
    };
    let group = own.join(format!("mp-test-{name}-{}", std::process::id()));
    let ended = start((group.clone(), limit.to_owned())).map(|c| join(&c));
    // The members of the group have ended, so that it can be removed.
    _ = fs::remove_dir(&group);
    ended.unwrap().unwrap();
}

#[test]
fn cgroup_limit_is_an_error_before_the_kernel_kills() {
    let _alone = mp_tests::alone();
    within("asks", |group| start_processes(worker, group, SpawnOptions::nprocs(1)));
}

#[test]
fn out_of_memory_kill_differs_from_other_kills() {
    let _alone = mp_tests::alone();
    within("eats", |group| start_processes(parent, group, SpawnOptions::nprocs(1)));
}
