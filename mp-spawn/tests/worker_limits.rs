//! Limits of a worker: resources, process group, user, control group.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use mp_spawn::{
    ExitDetail, Limits, Process, ProcessBuilder, ResourceLimit, SpawnError, StartMethod, allow_fork,
};
use mp_tensor::Tensor;

const METHODS: [StartMethod; 3] = [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork];

fn limited(method: StartMethod, limits: Limits) -> ProcessBuilder {
    #[allow(unsafe_code)]
    // SAFETY: the other threads of this test program hold no lock for long, and the copies need none of their
    // state.
    unsafe {
        allow_fork();
    }
    Process::builder().start_method(method).limits(limits)
}

fn is_root() -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root {
        println!("SKIPPED: only a privileged user can change its user");
    }
    is_root
}

#[test]
fn worker_resources_are_limited_in_each_start_method() {
    let limits = |(): ()| -> Result<Vec<u64>, String> {
        let text = std::fs::read_to_string("/proc/self/limits").map_err(|error| error.to_string())?;
        let of = |name| text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        let limits =
            ["Max open files", "Max core file size"].map(|name| of(name).and_then(|n| n.parse().ok()));
        limits.into_iter().map(|limit| limit.ok_or_else(|| text.clone())).collect()
    };
    for method in METHODS {
        let set = Limits::new().resource(ResourceLimit::OpenFiles, 99).resource(ResourceLimit::Core, 0);
        let child = limited(method, set).spawn(limits, ()).unwrap();
        assert_eq!(child.join().unwrap(), [99, 0], "{method}");
    }
}

const MIB: usize = 1 << 20;

/// Allocates 6 MiB twice, and again after the first two are freed. Returns the errors.
fn allocate((): ()) -> Vec<Option<String>> {
    let allocate = || Tensor::<u8>::zeros([6 * MIB]);
    let first = allocate();
    let second = allocate();
    let mut all = vec![first.as_ref().err().map(ToString::to_string)];
    all.push(second.as_ref().err().map(ToString::to_string));
    drop((first, second));
    all.push(allocate().err().map(|error| error.to_string()));
    all
}

#[test]
fn tensor_memory_is_limited_in_each_start_method() {
    for method in METHODS {
        let child = limited(method, Limits::new().shared_memory(8 << 20)).spawn(allocate, ()).unwrap();
        let errors = child.join().unwrap();
        let [None, Some(error), None] = &errors[..] else { panic!("{method}: {errors:?}") };
        let parts =
            ["6 MiB asked", "left under the 8 MiB that this process may hold", "it holds ", "drop tensors"];
        assert!(parts.iter().all(|part| error.contains(part)), "{method}: {error}");
        // Neither this process nor its other children have a limit.
        let large = Tensor::<u8>::zeros([20 * MIB]).unwrap();
        assert_eq!(Process::builder().spawn(allocate, ()).unwrap().join().unwrap(), [None, None, None]);
        drop(large);
    }
}

#[test]
fn child_memory_limit_is_at_most_the_parents() {
    let start = |limit: Option<u64>| -> Result<Vec<bool>, SpawnError> {
        let own = Tensor::<u8>::zeros([7 * MIB]).is_ok();
        let limits = limit.map_or_else(Limits::new, |limit| Limits::new().shared_memory(limit));
        let child = Process::builder().limits(limits).spawn(allocate, ())?;
        let errors = child.join()?;
        Ok([own].into_iter().chain(errors.iter().map(Option::is_none)).collect())
    };
    for (limit, fits) in
        [(None, [true, false, true]), (Some(1 << 30), [true, false, true]), (Some(1 << 20), [false; 3])]
    {
        let child =
            limited(StartMethod::Spawn, Limits::new().shared_memory(8 << 20)).spawn(start, limit).unwrap();
        assert_eq!(child.join().unwrap(), [&[true], &fits[..]].concat(), "{limit:?}");
    }
}

#[test]
fn cpu_limit_is_named_as_cause_of_death() {
    let spin = |(): ()| -> u64 {
        loop {
            std::hint::spin_loop();
        }
    };
    let limits = Limits::new().resource(ResourceLimit::CpuSeconds, 1).resource(ResourceLimit::Core, 0);
    let child = limited(StartMethod::Spawn, limits).spawn(spin, ()).unwrap();
    assert!(child.wait_timeout(common::DEADLINE));
    let error = child.join().unwrap_err();
    let SpawnError::ProcessExited(exited) = &error else { panic!("{error}") };
    assert_eq!(exited.detail, Some(ExitDetail::CpuTime(Some(1))), "{error}");
    assert!(error.to_string().contains("processor time has reached the limit (RLIMIT_CPU = 1 s)"), "{error}");
}

#[test]
fn process_group_option_makes_the_worker_its_leader() {
    let group = |(): ()| {
        let own = rustix::process::getpgid(None).map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        own.map_err(|error| error.to_string())
    };
    for method in METHODS {
        let child = limited(method, Limits::new().process_group(0)).spawn(group, ()).unwrap();
        let pid = child.pid();
        assert_eq!(child.join().unwrap(), pid, "{method}");
    }
}

/// The worker shares memory with its parent, and ends with it, like any worker.
#[test]
fn worker_runs_under_the_requested_user_and_group() {
    if !is_root() {
        return;
    }
    let who = |(copy, long): (bool, Vec<u8>)| -> common::Outcome {
        assert_eq!(long.len(), 1 << 20);
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        let ids = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!((ids("Uid:"), ids("Gid:")), (vec!["65534".to_owned(); 4], vec!["65534".to_owned(); 4]));
        assert!(ids("Groups:").is_empty(), "{status}");
        // The signal belongs to a thread: a copy of a thread calls its function on another one.
        let ends = rustix::process::parent_process_death_signal()?.map(|signal| signal.as_raw());
        assert!(copy || ends == Some(9), "{ends:?}");
        Ok(())
    };
    for method in METHODS {
        let child = limited(method, Limits::new().user(65534).group(65534));
        let child = child.spawn(who, (method == StartMethod::Fork, vec![1_u8; 1 << 20])).unwrap();
        child.join().unwrap_or_else(|error| panic!("{method}: {error}"));
    }
}

#[test]
fn refused_resource_limits_are_named_in_errors() {
    let folder = common::Folder::new("no-cgroup");
    let said = |limits: Limits| {
        let child = limited(StartMethod::Spawn, limits).spawn(|(): ()| {}, ()).unwrap();
        child.join().unwrap_err().to_string()
    };
    let missing = said(Limits::new().cgroup(folder.0.join("missing")));
    assert!(
        missing.contains("joining the control group ") && missing.contains("/missing failed: "),
        "{missing}"
    );
    let group = said(Limits::new().process_group(u32::MAX));
    assert!(group.contains("4294967295 is not the number of a process group"), "{group}");
    // The worker joins by a write of its own number.
    std::fs::write(folder.0.join("cgroup.procs"), "").unwrap();
    std::fs::set_permissions(folder.0.join("cgroup.procs"), PermissionsExt::from_mode(0o666)).unwrap();
    let child = limited(StartMethod::Spawn, Limits::new().cgroup(&folder.0)).spawn(|(): ()| {}, ()).unwrap();
    child.join().unwrap();
    assert_eq!(std::fs::read_to_string(folder.0.join("cgroup.procs")).unwrap(), "0");
}

/// The limit applies to the whole address range of the arena.
#[test]
fn address_space_too_small_names_the_arena_size() {
    let limits = Limits::new().resource(ResourceLimit::AddressSpace, 4 << 30);
    let child =
        limited(StartMethod::Spawn, limits).spawn(|long: Vec<u8>| long.len() as u64, vec![1; 1 << 20]);
    let error = child.unwrap().join().unwrap_err().to_string();
    for part in ["joining the shared memory failed", "RLIMIT_AS", "MP_ARENA_SIZE", "of addresses"] {
        assert!(error.contains(part), "{error}");
    }
}
