//! Named files of programs in several process namespaces that share a directory, as containers share
//! `/dev/shm`: files of killed programs are removed, files of live ones are not. Needs `unshare(1)`, and the
//! right to create namespaces.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime};

use mp::{FrozenTensor, Queue, SpawnOptions, Tensor, start_processes};
use mp_tests::scratch::Scratch;
use mp_tests::{DEADLINE, Outcome, alone, eventually, give, join, next, one_process, send, take};
use rustix::process::{Signal, kill_process};

const KILLED: usize = 25;
const LIVE: usize = 3;
const MIB: usize = 1 << 20;

type Args = (bool, Queue<FrozenTensor<u8>>, Queue<()>);

/// Creates a tensor and sends it to the parent, which does not open it. Then dies if `dies` is set, or waits
/// for the end.
fn worker(_: usize, (dies, made, end): Args) -> Outcome {
    let kept = Tensor::<u8>::full([MIB], 7)?.freeze();
    send(&made, kept.clone())?;
    if dies {
        kill_process(rustix::process::getpid(), Signal::KILL)?;
    }
    drop(next(&end));
    Ok(())
}

fn sends_back(_: usize, (there, back): (Queue<FrozenTensor<u8>>, Queue<u8>)) -> Outcome {
    let tensor = next(&there)?.ok_or("closed")?;
    send(&back, tensor.get(&[MIB - 1])?)
}

/// Runs a program of two processes. On each request, the program proves that its memory is intact: a new
/// process reads a tensor whose creator may be dead, and a new tensor.
pub(crate) fn neighbour(worker_dies: bool) {
    let (made, end) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let args = (worker_dies, made.clone(), end.clone());
    let context = one_process(worker, args);
    if worker_dies {
        join(&context).unwrap_err();
    } else {
        eventually("the worker has made a tensor", || !made.is_empty());
    }
    println!("\nready");
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap() == 0 {
        return;
    }
    let (there, back) = (Queue::bounded(2).unwrap(), Queue::bounded(2).unwrap());
    give(&there, take(&made));
    give(&there, Tensor::full([MIB], 8).unwrap().freeze());
    join(&start_processes(sends_back, (there, back.clone()), SpawnOptions::nprocs(2)).unwrap()).unwrap();
    let mut got = [take(&back), take(&back)];
    got.sort_unstable();
    assert_eq!(got, [7, 8]);
    end.close();
    println!("\nfine");
}

struct Neighbour {
    child: Child,
    asks: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Neighbour {
    /// Starts a program in a separate process namespace. If the program's `unshare` is killed, the kernel
    /// kills all processes of the program.
    fn new(scratch: &Scratch, worker_dies: bool) -> Self {
        let program = scratch.program(&format!("neighbour {}", u8::from(worker_dies)));
        let mut command = Command::new("unshare");
        command.args(["-p", "-f", "--mount-proc", "--kill-child=KILL"]);
        command.arg(program.get_program()).args(program.get_args());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (asks, says) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, asks, says }
    }

    fn says(&mut self, what: &str) {
        let mut said = String::new();
        while self.says.read_line(&mut said).unwrap() > 0 {
            if said.lines().last() == Some(what) {
                return;
            }
        }
        panic!("it never said {what:?}, but: {said}");
    }

    /// Kills all processes of the program at once.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The output ends when the last process that has the pipe has ended.
        while self.says.read_line(&mut String::new()).unwrap() > 0 {}
    }

    fn proves_that_it_works(mut self) {
        writeln!(self.asks, "go on").unwrap();
        self.says("fine");
        assert!(self.child.wait().unwrap().success());
    }
}

fn possible() -> bool {
    let args = ["-p", "-f", "--mount-proc", "--kill-child=KILL", "true"];
    let possible = Command::new("unshare").args(args).output().is_ok_and(|o| o.status.success());
    if !possible {
        mp_harness::skip("no process namespaces of one's own here");
    }
    possible
}

/// Returns `true` if the file contains an arena. An arena is in a named file if the kernel has no anonymous
/// files.
fn is_of_an_arena(file: &Path) -> bool {
    let mut magic = [0; 8];
    fs::File::open(file).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok()) && magic == *b"mp-arena"
}

/// Sets the modification times of the files back by an hour.
fn an_hour_passes(scratch: &Scratch) {
    let then = SystemTime::now() - Duration::from_secs(3600);
    for file in scratch.files() {
        // A file that a live program removes meanwhile can be skipped.
        if let Ok(file) = fs::File::open(file) {
            file.set_modified(then).unwrap();
        }
    }
}

#[test]
fn only_files_of_dead_foreign_namespaces_are_removed() {
    let _alone = alone();
    if !possible() {
        return;
    }
    let scratch = Scratch::new("namespaces");
    let live: Vec<_> = (0..LIVE)
        .map(|i| {
            let mut neighbour = Neighbour::new(&scratch, i % 2 == 0);
            neighbour.says("ready");
            neighbour
        })
        .collect();
    let theirs = scratch.files();
    assert!(theirs.len() >= LIVE);
    for i in 0..KILLED {
        let mut neighbour = Neighbour::new(&scratch, i % 2 == 0);
        neighbour.says("ready");
        neighbour.kill();
    }
    let all = scratch.files();
    // Fewer files than programs were killed may be left, because the kernel may reuse the number of a removed
    // namespace. A program under a reused number detects that the owners of the earlier files are dead.
    assert!(all.len() > theirs.len(), "{all:?}");
    // The files are kept, because a process of theirs may be about to start. (It inherits the arena's own
    // file, so that file needs no name.)
    let kept: Vec<_> = all.iter().filter(|file| !is_of_an_arena(file)).collect();
    scratch.run("use");
    let left = scratch.files();
    assert!(kept.iter().all(|file| left.contains(file)), "{kept:?}, and {left:?} is left");
    an_hour_passes(&scratch);
    // A killed process closes its output before it releases its files.
    let begun = std::time::Instant::now();
    loop {
        scratch.run("use");
        let left = scratch.files();
        assert!(theirs.iter().all(|file| left.contains(file)), "{theirs:?}, and {left:?} is left");
        if left.len() == theirs.len() {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{left:?} of {all:?} are left");
    }
    live.into_iter().for_each(Neighbour::proves_that_it_works);
    assert!(scratch.files().is_empty(), "{:?}", scratch.files());
}

#[test]
fn files_of_killed_programs_are_removed_without_proc() {
    let _alone = alone();
    if !possible() {
        return;
    }
    let scratch = Scratch::new("no-proc");
    let mut lives = Neighbour::new(&scratch, false);
    lives.says("ready");
    let theirs = scratch.files();
    let mut neighbour = Neighbour::new(&scratch, false);
    neighbour.says("ready");
    neighbour.kill();
    an_hour_passes(&scratch);
    let program = scratch.program("use");
    eventually("all files of the killed program are removed", || {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
        command.arg(program.get_program()).args(program.get_args());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let left = scratch.files();
        assert!(theirs.iter().all(|file| left.contains(file)), "{theirs:?}, and {left:?} is left");
        left.len() == theirs.len()
    });
    lives.proves_that_it_works();
}
