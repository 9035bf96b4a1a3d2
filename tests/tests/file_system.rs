//! What the strategy `file_system` does with names: who may see them, what is wrong with a directory, what runs out, and
//! what is left when processes are killed. Programs that must begin without shared memory are this one, started anew.

mod common;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Outcome, alone, give, join, next, send, take};
use mp::{
    Arena, Error, FrozenTensor, Options, Queue, SharingStrategy, Tensor, get_sharing_directory,
    get_sharing_strategy, set_sharing_directory, set_sharing_strategy, start_processes,
};
use mp_core::inject;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SCENARIO: &str = "MP_TESTS_SCENARIO";
const DIRECTORY: &str = "MP_TESTS_DIRECTORY";

/// A directory below /dev/shm, gone with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/mp-test-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Where our files are.
    fn ours(&self) -> PathBuf {
        self.0.join(format!("mp-{}", rustix::process::getuid().as_raw()))
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.ours()) else { return Vec::new() };
        entries.map(|e| e.unwrap().path()).collect()
    }

    /// As a program of its own, which has no shared memory yet: [`helper`] runs the scenario.
    fn program(&self, scenario: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["helper", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(SCENARIO, scenario).env(DIRECTORY, &self.0);
        command
    }

    #[track_caller]
    fn run(&self, scenario: &str) -> String {
        said(self.program(scenario).output().unwrap())
    }

    /// With another file system in its place, for this one program; `None` where that isn't allowed.
    fn run_mounted(&self, options: &str, scenario: &str) -> Option<String> {
        let script = format!("mount -t tmpfs -o {options} mp-test \"$0\" && exec \"$@\"");
        let probe = ["-rm", "sh", "-c", &script].map(str::to_owned);
        if !Command::new("unshare")
            .args(&probe)
            .arg(&self.0)
            .arg("true")
            .output()
            .is_ok_and(|o| o.status.success())
        {
            println!("SKIPPED: no mounts in namespaces of one's own here");
            return None;
        }
        let program = self.program(scenario);
        let mut command = Command::new("unshare");
        command.args(&probe).arg(&self.0).arg(program.get_program()).args(program.get_args());
        command.env(SCENARIO, scenario).env(DIRECTORY, &self.0);
        Some(said(command.output().unwrap()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn said(output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "{text}\n{errors}");
    text
}

fn files_in(directory: &Path) {
    set_sharing_directory(directory).unwrap();
    set_sharing_strategy(SharingStrategy::FileSystem).unwrap();
}

/// Puts tensors of this process into files below a directory, as long as it lives.
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

/// Not a test: what [`Scratch::run`] starts.
#[test]
fn helper() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let directory = PathBuf::from(std::env::var(DIRECTORY).unwrap());
    let (what, at) = scenario.split_once(' ').unwrap_or((&scenario, "0"));
    let at: u64 = at.parse().unwrap();
    match what {
        "use" => {
            files_in(&directory);
            Tensor::<u8>::full(&[100 * KIB], 1).unwrap();
        }
        "small" => small_directory(&directory),
        "read-only" => {
            files_in(&directory);
            println!("{}", Tensor::<u8>::zeros(&[1]).map(drop).unwrap_err());
        }
        "file-size" => file_size(&directory),
        "killed" => {
            inject::arm(at, Signal::KILL.as_raw());
            first_use(&directory);
        }
        "child-killed" => child_at(&directory, at, Signal::KILL),
        "child-stopped" => child_at(&directory, at, Signal::STOP),
        "all-killed" => all_killed(&directory),
        other => panic!("{other}"),
    }
}

fn first_use(directory: &Path) {
    files_in(directory);
    let kept = Tensor::<u64>::full(&[100], 1).unwrap();
    let large = Tensor::<u64>::full(&[100 * KIB], 2).unwrap().freeze();
    drop(kept);
    Arena::current().unwrap().empty_cache().unwrap();
    assert_eq!(large.get(&[77]).unwrap(), 2);
}

#[test]
fn names_are_private_and_gone_at_the_end() {
    let _alone = alone();
    let scratch = Scratch::new("names");
    let _below = Below::new(&scratch.0);
    assert!(!scratch.ours().exists(), "made before it is needed");
    let t = Tensor::<u8>::full(&[MIB], 1).unwrap();
    let directory = fs::metadata(scratch.ours()).unwrap();
    assert_eq!((directory.mode() & 0o7777, directory.uid()), (0o700, rustix::process::getuid().as_raw()));
    let [file] = &scratch.files()[..] else { panic!("{:?}", scratch.files()) };
    let meta = fs::symlink_metadata(file).unwrap();
    assert!(meta.is_file() && meta.mode() & 0o7777 == 0o600 && meta.nlink() == 1);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.len() == 35 && name.starts_with("mp-"), "{name}");
    // The memory is in there: what is not in use has no pages.
    let kib = meta.blocks() / 2;
    assert!((1024..10 << 10).contains(&kib), "{kib} KiB");
    // Programs that end by themselves leave nothing, and leave the files of others alone.
    let other = Scratch::new("other");
    other.run("use");
    scratch.run("use");
    assert!(!other.ours().exists());
    assert_eq!(scratch.files(), std::slice::from_ref(file));
    assert!(t.iter().all(|v| v == 1));
}

#[test]
fn directories_that_will_not_do() {
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
    // What somebody else could have put where ours is looked for.
    let _below = Below::new(&scratch.0);
    let blocks = Arena::current().unwrap().memory_stats().live_blocks;
    let fails = |with: &str| {
        let error = Tensor::<u8>::zeros(&[10]).map(drop).unwrap_err();
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
    // Mended, it works; nothing was lost on the way.
    fs::set_permissions(scratch.ours(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(Tensor::<u8>::zeros(&[10]).unwrap().len(), 10);
    assert_eq!(Arena::current().unwrap().memory_stats().live_blocks, blocks);
    assert_eq!(scratch.files().len(), 1, "what failed left no file");
}

#[test]
fn a_directory_that_can_only_be_read() {
    let scratch = Scratch::new("read-only");
    if let Some(said) = scratch.run_mounted("ro", "read-only") {
        assert!(said.contains("it can't be made: Read-only file system"), "{said}");
        assert!(said.contains(scratch.ours().to_str().unwrap()), "{said}");
    }
}

/// On a tmpfs of 1 MiB.
fn small_directory(directory: &Path) {
    // Elsewhere, also where it is a file with a name.
    Arena::current().unwrap();
    files_in(directory);
    let full = |result: mp_core::Result<Tensor<u8>>| match result.map(drop).unwrap_err() {
        Error::OutOfMemory { asked, left, limit } => {
            assert!(left < asked && left <= MIB as u64, "{asked} asked, {left} left");
            assert!(limit.contains(directory.to_str().unwrap()), "{limit}");
        }
        other => panic!("{other:?}"),
    };
    full(Tensor::full(&[2 * MIB], 1));
    for round in 0..5 {
        let first = Tensor::<u8>::full(&[500 * KIB], round).unwrap();
        full(Tensor::full(&[500 * KIB], 9));
        full(Tensor::full(&[4 * MIB], 9));
        // Until it is full to the last page; each is written whole.
        let mut all = Vec::new();
        while let Ok(t) = Tensor::<u8>::full(&[20 * KIB], round) {
            all.push(t);
        }
        assert!(all.len() >= 10, "{} tensors of 20 KiB", all.len());
        assert!(all.iter().chain([&first]).all(|t| t.iter().all(|v| v == round)));
        // Queues and messages are elsewhere: they work.
        let queue = Queue::bounded(1).unwrap();
        give(&queue, (vec![round; 2 * MIB], first.freeze()));
        assert_eq!(take(&queue).1.len(), 500 * KIB);
    }
    // Elsewhere is room.
    set_sharing_directory("/dev/shm").unwrap();
    Tensor::<u8>::full(&[4 * MIB], 1).unwrap();
}

#[test]
fn a_full_directory_is_an_error_until_something_is_dropped() {
    let scratch = Scratch::new("small");
    scratch.run_mounted("size=1m", "small");
}

fn limit(resource: Resource, value: u64) {
    setrlimit(resource, Rlimit { current: Some(value), maximum: getrlimit(resource).maximum }).unwrap();
}

/// With files of at most 1 MiB: beyond that, the kernel would send SIGXFSZ.
fn file_size(directory: &Path) {
    Arena::current().unwrap();
    limit(Resource::Fsize, MIB as u64);
    files_in(directory);
    match Tensor::<u8>::zeros(&[2 * MIB]).map(drop).unwrap_err() {
        Error::OutOfMemory { asked, left, limit } => {
            assert!(
                asked >= 2 << 20 && left < 1 << 20 && limit.contains("RLIMIT_FSIZE"),
                "{asked} {left} {limit}"
            );
        }
        other => panic!("{other:?}"),
    }
    let small: Vec<_> = (0..1000).map(|i| Tensor::full(&[10], i).unwrap()).collect();
    assert!(small.iter().zip(0..).all(|(t, i)| t.get(&[9]).unwrap() == i));
}

#[test]
fn a_file_size_limit_is_an_error() {
    Scratch::new("file-size").run("file-size");
}

#[test]
fn a_receiver_without_a_file_to_spare_gets_an_error() {
    let _alone = alone();
    fn worker(_: usize, (there, back): (Queue<FrozenTensor<u8>>, Queue<String>)) -> Outcome {
        // It is a member before there is any file.
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
    let context = start_processes(worker, (there.clone(), back.clone()), Options::nprocs(1)).unwrap();
    assert_eq!(take(&back), "ready");
    let below = Below::new(&scratch.0);
    let t = Tensor::<u8>::full(&[3 * KIB], 2).unwrap().freeze();
    drop(below);
    give(&there, t.clone());
    let error = take(&back);
    assert!(error.contains("Too many open files"), "{error}");
    give(&there, t);
    assert_eq!(take(&back), (6 * KIB).to_string());
    join(&context).unwrap();
}

#[test]
fn a_message_outlives_its_sender_while_others_clean() {
    let _alone = alone();
    fn worker(_: usize, (directory, queue): (String, Queue<FrozenTensor<u8>>)) -> Outcome {
        files_in(Path::new(&directory));
        send(&queue, Tensor::full(&[MIB], 5)?.freeze())?;
        Ok(kill_process(rustix::process::getpid(), Signal::KILL)?)
    }
    let scratch = Scratch::new("in-flight");
    let queue = Queue::bounded(1).unwrap();
    let args = (scratch.0.to_str().unwrap().to_owned(), queue.clone());
    common::failure(&start_processes(worker, args, Options::nprocs(1)).unwrap());
    // Nobody has the file open now: this process hasn't looked at the message.
    let left = scratch.files();
    assert_eq!(left.len(), 1);
    scratch.run("use");
    assert_eq!(scratch.files(), left, "another program took it for garbage");
    let t = take(&queue);
    assert!(t.len() == MIB && t.iter().all(|v| v == 5));
}

/// A process tree in the middle of things, killed at once.
fn all_killed(directory: &Path) {
    type Args = (Queue<FrozenTensor<u8>>, Queue<u8>, Queue<()>);
    fn worker(rank: usize, (there, back, end): Args) -> Outcome {
        let _own = Tensor::<u8>::full(&[MIB], rank as u8)?;
        let _got = next(&there)?;
        send(&back, 1)?;
        // Until it is killed with the others.
        drop(next(&end));
        Ok(())
    }
    files_in(directory);
    let (there, back, end) =
        (Queue::bounded(4).unwrap(), Queue::bounded(2).unwrap(), Queue::bounded(1).unwrap());
    let args = (there.clone(), back.clone(), end.clone());
    let context = start_processes(worker, args, Options::nprocs(2)).unwrap();
    (0..2).for_each(|_| give(&there, Tensor::full(&[MIB], 1).unwrap().freeze()));
    assert_eq!((take(&back), take(&back)), (1, 1));
    for pid in context.pids() {
        common::signal(pid, Signal::KILL);
    }
    kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
}

#[test]
fn after_the_death_of_everybody_the_next_start_removes_all() {
    let scratch = Scratch::new("all-killed");
    for round in 0..5 {
        let output = scratch.program("all-killed").output().unwrap();
        assert!(!output.status.success());
        assert!(!scratch.files().is_empty(), "round {round}: there was something to remove");
        scratch.run("use");
        assert!(!scratch.ours().exists(), "round {round}: {:?}", scratch.files());
    }
}

#[test]
fn a_program_is_killed_at_every_access_of_its_first_use() {
    let scratch = Scratch::new("killed");
    let mut left = 0;
    for at in 1.. {
        assert!(at < 3000, "a script of more than 3000 accesses");
        let output = scratch.program(&format!("killed {at}")).output().unwrap();
        if output.status.success() {
            assert!(
                at > 100 && left > 20,
                "the script ended after {at} accesses, {left} of them with a file left"
            );
            assert!(!scratch.ours().exists(), "{:?}", scratch.files());
            return;
        }
        left += usize::from(!scratch.files().is_empty());
        // Looking after each is slow; the names of all that were left add up meanwhile.
        if at % 7 == 0 {
            scratch.run("use");
            assert!(!scratch.ours().exists(), "killed at access {at}: {:?}", scratch.files());
        }
    }
}

/// A child dies, or stops, at the n-th access of its first use of files; its parent then uses the same directory.
fn child_at(directory: &Path, at: u64, signal: Signal) {
    fn worker(_: usize, (directory, at, signal): (String, u64, i32)) -> Outcome {
        inject::arm(at, signal);
        first_use(Path::new(&directory));
        Ok(())
    }
    let arena = Arena::current().unwrap();
    let args = (directory.to_str().unwrap().to_owned(), at, signal.as_raw());
    let context = start_processes(worker, args, Options::nprocs(1)).unwrap();
    let pid = context.pids()[0];
    let mut ended = false;
    if signal == Signal::STOP {
        common::eventually("it stops or ends", || {
            ended = context.join_timeout(std::time::Duration::ZERO).unwrap();
            ended || common::threads_are(pid, 'T')
        });
    } else {
        ended = join(&context).is_ok();
    }
    files_in(directory);
    match Tensor::<u64>::full(&[5000], 3) {
        Ok(t) => assert!(t.iter().all(|v| v == 3)),
        // It is stopped with the lock of the slab table. Everything that is to be seen came before.
        Err(Error::Busy { .. }) if !ended => {
            println!("to the end");
            common::signal(pid, Signal::CONT);
            return join(&context).unwrap();
        }
        Err(error) => panic!("{error}"),
    }
    if signal == Signal::STOP && !ended {
        common::signal(pid, Signal::CONT);
        join(&context).unwrap();
    }
    arena.sweep().unwrap();
    let stats = arena.memory_stats();
    assert_eq!((stats.live_blocks, stats.queued, stats.members), (0, 0, 1), "{stats:#?}");
    let ours = directory.join(format!("mp-{}", rustix::process::getuid().as_raw()));
    let files = fs::read_dir(ours).unwrap().count();
    let most = if signal == Signal::STOP { 2 } else { 1 };
    assert!(files <= most, "{files} files: what was half made is still there");
    println!("{}", if ended { "to the end" } else { "on the way" });
}

fn children_at_every_access(scenario: &str, step: usize, least: usize) {
    let scratch = Scratch::new(scenario);
    for at in (1..).step_by(step) {
        assert!(at < 3000, "a script of more than 3000 accesses");
        let said = scratch.run(&format!("{scenario} {at}"));
        assert!(!scratch.ours().exists(), "at access {at}: {:?}", scratch.files());
        if said.contains("to the end") {
            assert!(at > least, "the script ended after {at} accesses");
            return;
        }
    }
}

#[test]
fn a_child_is_killed_at_every_access_of_its_first_use() {
    children_at_every_access("child-killed", 1, 100);
}

#[test]
fn a_child_is_stopped_at_every_access_of_making_a_file() {
    children_at_every_access("child-stopped", 1, 40);
}
