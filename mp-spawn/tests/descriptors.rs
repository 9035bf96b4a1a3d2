//! File descriptors that a start leaves open here, and those that a worker inherits. Each test runs in a
//! separate process, because it checks all descriptors of that process.
#![allow(unsafe_code)]

mod common;

use std::collections::BTreeMap;

use common::{DEADLINE, alone, eventually};
use mp_spawn::{Process, SpawnOptions, StartMethod, start_processes};

/// Returns the open files of this process, by number.
fn files() -> BTreeMap<i32, String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    let numbers: Vec<_> = entries.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect();
    let target = |number: i32| std::fs::read_link(format!("/proc/self/fd/{number}"));
    let all = numbers.into_iter().filter_map(|number| Some((number, target(number).ok()?)));
    all.map(|(number, target)| (number, target.to_string_lossy().into_owned())).collect()
}

fn pidfds() -> usize {
    files().values().filter(|target| target.contains("pidfd")).count()
}

const METHODS: [StartMethod; 2] = [StartMethod::Spawn, StartMethod::ForkServer];

#[test]
fn pidfds_are_closed_after_join_and_drop() {
    alone(|()| {
        for method in METHODS {
            let start = || Process::builder().start_method(method).spawn(|(): ()| {}, ()).unwrap();
            let one =
                || start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(2).start_method(method));
            start().join().unwrap();
            // The fork server's own pidfd.
            let before = pidfds();
            let joined: Vec<_> = (0..30)
                .map(|_| {
                    let child = start();
                    child.join().unwrap();
                    child
                })
                .collect();
            assert_eq!(pidfds(), before, "{method}: pidfds of joined processes that have a handle");
            drop(joined);
            let contexts: Vec<_> = (0..10)
                .map(|_| {
                    let context = one().unwrap();
                    context.join().unwrap();
                    context
                })
                .collect();
            assert_eq!(pidfds(), before, "{method}: pidfds of joined contexts");
            drop(contexts);
            (0..30).for_each(|_| drop(start()));
            // The kernel reports their ends with a delay.
            eventually("the pidfds of dropped handles are closed", || pidfds() == before);
        }
    });
}

#[test]
fn sentinels_stay_open_and_late_ones_are_readable() {
    alone(|()| {
        let kept = Process::spawn(|(): ()| {}, ()).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&kept.sentinel());
        kept.join().unwrap();
        assert!(files()[&number].contains("pidfd"));
        assert_eq!(mp_spawn::wait(&[&kept], Some(DEADLINE)).unwrap(), [0]);
        let late = Process::spawn(|(): ()| {}, ()).unwrap();
        late.join().unwrap();
        assert_eq!(mp_spawn::wait(&[&late], Some(DEADLINE)).unwrap(), [0]);
        drop(kept);
        assert_eq!(pidfds(), 0);
    });
}

/// Returns a file that executed programs inherit by default.
fn leaking(name: &str) -> std::fs::File {
    let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::empty()).unwrap();
    file.into()
}

/// Returns the numbers of a worker's files whose names contain `name`.
fn finds(name: String) -> Result<Vec<i32>, String> {
    Ok(files().into_iter().filter(|(_, target)| target.contains(&name)).map(|(number, _)| number).collect())
}

/// Runs a test with and without the system calls that usually start a worker.
fn with_and_without_clone3(test: fn()) {
    for refused in [false, true] {
        let number = TESTS.iter().position(|other| std::ptr::fn_addr_eq(*other, test)).unwrap();
        let alone = |(number, refused): (usize, bool)| {
            if refused {
                common::refuse([libc::SYS_close_range; 3], libc::ENOSYS);
            }
            TESTS[number]();
        };
        let child =
            Process::builder().start_method(StartMethod::Spawn).spawn(alone, (number, refused)).unwrap();
        assert!(child.wait_timeout(2 * DEADLINE), "{child:?}");
        child.join().unwrap();
    }
}

const TESTS: [fn(); 3] = [nothing_leaks, named_descriptors_are_inherited, numbers_may_be_in_the_way];

fn nothing_leaks() {
    let file = leaking("leaked");
    for method in METHODS {
        let child = Process::builder().start_method(method).spawn(finds, "leaked".to_string()).unwrap();
        assert_eq!(child.join().unwrap(), [], "{method}");
        let options = SpawnOptions::nprocs(2).start_method(method);
        let all =
            start_processes(|_: usize, name: String| finds(name), "leaked".to_string(), options).unwrap();
        assert_eq!(all.join().unwrap(), [[], []] as [[i32; 0]; 2], "{method}");
    }
    drop(file);
}

#[test]
fn worker_inherits_no_files_by_default() {
    with_and_without_clone3(nothing_leaks);
}

#[allow(unsafe_code)]
fn named_descriptors_are_inherited() {
    use std::os::fd::AsRawFd;

    // SAFETY: code in copies checks its files.
    unsafe { mp_spawn::allow_fork() };
    for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
        let (named, other) = (leaking("named"), leaking("unnamed"));
        let number = named.as_raw_fd();
        let builder = Process::builder().start_method(method).inherit_fds([&named]);
        // This process may close its own descriptor and reuse the number.
        drop(named);
        let reused = leaking("reused");
        assert_eq!(reused.as_raw_fd(), number);
        if method == StartMethod::Fork {
            // A copy has all files of this process, the duplicate included.
            let found = builder.spawn(finds, "memfd:named".to_string()).unwrap().join().unwrap();
            assert!(found.contains(&number), "{found:?}");
            continue;
        }
        let found = builder.spawn(finds, "memfd:named".to_string()).unwrap().join().unwrap();
        assert_eq!(found, [number], "{method}");
        let options = SpawnOptions::nprocs(2).start_method(method).inherit_fds([&reused, &other]);
        let all = start_processes(|_: usize, name: String| finds(name), "memfd:reused".to_string(), options);
        assert_eq!(all.unwrap().join().unwrap(), [[number], [number]], "{method}");
    }
}

#[test]
fn worker_inherits_named_files() {
    with_and_without_clone3(named_descriptors_are_inherited);
}

/// Returns the files under these numbers, and whether an executed program inherits them.
fn looks_at(numbers: Vec<i32>) -> Result<Vec<(String, bool)>, String> {
    let look = |number: i32| {
        let files = files();
        let target = files.get(&number).ok_or_else(|| format!("no file has the number {number}"))?;
        let target = target.trim_start_matches("/memfd:").trim_end_matches(" (deleted)");
        // SAFETY: a command without an argument.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        Ok((target.to_string(), flags & libc::FD_CLOEXEC == 0))
    };
    numbers.into_iter().map(look).collect()
}

/// Checks each start method.
#[test]
fn inherited_fd_is_the_file_at_the_time_of_naming() {
    use std::os::fd::{AsRawFd, OwnedFd};

    fn expect(method: StartMethod, case: &str, named: &[&OwnedFd], change: impl FnOnce(), expected: &[&str]) {
        let numbers: Vec<_> = named.iter().map(|file| file.as_raw_fd()).collect();
        let builder = Process::builder().start_method(method).inherit_fds(named);
        change();
        let child = builder.spawn(looks_at, numbers).unwrap();
        assert!(child.wait_timeout(DEADLINE), "{method}, {case}: {child:?}");
        let found = child.join().unwrap_or_else(|error| panic!("{method}, {case}: {error}"));
        let expected: Vec<_> = expected.iter().map(|name| (name.to_string(), true)).collect();
        assert_eq!(found, expected, "{method}, {case}");
    }

    alone(|()| {
        // SAFETY: code in copies checks its files.
        unsafe { mp_spawn::allow_fork() };
        // With close-on-exec, like almost all files.
        let memory = |name: &str| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
            let (one, other) = (memory("one"), memory("other"));
            expect(method, "still open", &[&one, &other], || {}, &["one", "other"]);
            let now = memory("now");
            let becomes = |to: &OwnedFd| {
                // SAFETY: both are open files of this test.
                assert_ne!(unsafe { libc::dup3(now.as_raw_fd(), to.as_raw_fd(), libc::O_CLOEXEC) }, -1);
            };
            expect(method, "reused", &[&one], || becomes(&one), &["one"]);
            expect(method, "since then", &[&one, &other], || {}, &["now", "other"]);
            // Numbers that the files of the start, and the duplicates themselves, would have.
            let many: Vec<_> = (0..50).map(|n| memory(&format!("many-{n}"))).collect();
            let numbers: Vec<_> = many.iter().map(AsRawFd::as_raw_fd).collect();
            let builder = Process::builder().start_method(method).inherit_fds(&many);
            let builder = builder.stdout(mp_spawn::Stdio::Capture);
            drop(many);
            let found = builder.spawn(looks_at, numbers).unwrap().join().unwrap();
            let expected: Vec<_> = (0..50).map(|n| (format!("many-{n}"), true)).collect();
            assert_eq!(found, expected, "{method}, many");
        }
    });
}

/// With each start method, the file that was named last is used.
#[test]
fn fd_number_named_twice_inherits_the_later_file() {
    use std::os::fd::AsRawFd;

    alone(|()| {
        // SAFETY: code in copies checks its files.
        unsafe { mp_spawn::allow_fork() };
        for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
            let first = leaking("first");
            let number = first.as_raw_fd();
            let builder = Process::builder().start_method(method).inherit_fds([&first]);
            drop(first);
            let second = leaking("second");
            assert_eq!(second.as_raw_fd(), number);
            let builder = builder.inherit_fds([&second]);
            drop(second);
            let found = builder.spawn(looks_at, vec![number]).unwrap().join().unwrap();
            assert_eq!(found, [("second".to_string(), true)], "{method}");
        }
        let few = leaking("few");
        let all = (0..300).map(|_| few.try_clone().unwrap()).collect::<Vec<_>>();
        let options = SpawnOptions::nprocs(1).start_method(StartMethod::Fork).inherit_fds(&all);
        let error = start_processes(|_: usize, (): ()| {}, (), options).unwrap_err();
        assert!(error.to_string().contains("300 were named, and at most 200"), "{error}");
    });
}

/// Files are inherited under numbers that sockets and pipes of the start occupy when a process is started.
fn numbers_may_be_in_the_way() {
    use std::os::fd::AsRawFd;

    for method in METHODS {
        for _ in 0..2 {
            let many: Vec<_> = (0..100).map(|n| leaking(&format!("way-{n}-"))).collect();
            let numbers: Vec<_> = many.iter().map(AsRawFd::as_raw_fd).collect();
            let options = SpawnOptions::nprocs(1).start_method(method).inherit_fds(&many);
            // So files that are opened for the start get these numbers.
            drop(many);
            let look = |_: usize, numbers: Vec<i32>| -> Result<bool, String> {
                let files = files();
                let is_there =
                    |(n, number)| files.get(number).is_some_and(|f| f.contains(&format!("way-{n}-")));
                Ok(numbers.iter().enumerate().all(is_there))
            };
            let options = options.stdout(mp_spawn::Stdio::Capture).stderr(mp_spawn::Stdio::Capture);
            let context = start_processes(look, numbers, options).unwrap();
            assert_eq!(context.join().unwrap(), [true], "{method}");
        }
        let few = leaking("few");
        let all = (0..300).map(|_| few.try_clone().unwrap()).collect::<Vec<_>>();
        let options = SpawnOptions::nprocs(1).start_method(method).inherit_fds(&all);
        let error = start_processes(|_: usize, (): ()| {}, (), options).unwrap_err();
        assert!(error.to_string().contains("300 were named, and at most 200"), "{error}");
    }
}

#[test]
fn files_are_inherited_at_numbers_already_in_use() {
    with_and_without_clone3(numbers_may_be_in_the_way);
}
