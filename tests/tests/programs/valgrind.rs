//! Programs under valgrind's memcheck. Their workers run normally, or under memcheck as well.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mp::process::Signal;
use mp::{FrozenTensor, Pool, Queue, SpawnError, SpawnOptions, StartMethod, Tensor, start_processes};
use mp_tests::{Outcome, failure, give, join, next, one_process, send, take};

/// Deadline: memcheck makes a program some thirty times slower, and machines are shared.
const DEADLINE: Duration = Duration::from_secs(240);
/// Maximum memory of a program under memcheck in KiB, including memcheck's shadow memory.
const MOST_KIB: u64 = 3 << 20;

fn double(_: usize, (there, back): (Queue<Tensor<f32>>, Queue<FrozenTensor<f32>>)) -> Outcome {
    while let Some(mut tensor) = next(&there)? {
        tensor.as_mut_slice()?.iter_mut().for_each(|value| *value *= 2.0);
        send(&back, tensor.freeze())?;
    }
    Ok(())
}

#[allow(clippy::unnecessary_wraps, reason = "as tasks are")]
fn square(number: u64) -> mp::AnyResult<u64> {
    Ok(number * number)
}

/// Program that the test runs under valgrind.
#[test]
#[ignore = "part of another test"]
fn helper_uses_each_feature() {
    // Arguments, values, errors, signals.
    let worker = |rank: usize, base: usize| Ok::<_, String>(base + rank);
    assert_eq!(start_processes(worker, 10, SpawnOptions::nprocs(2)).unwrap().join().unwrap(), [10, 11]);
    let fails = |_: usize, (): ()| Err::<(), _>("it went wrong");
    let error = failure(&one_process(fails, ()));
    assert!(error.to_string().contains("it went wrong"), "{error}");
    let sleeps = |_: usize, (): ()| std::thread::sleep(DEADLINE); // sleep: until it is killed
    let context = one_process(sleeps, ());
    context.kill(0).unwrap();
    let SpawnError::ProcessExited(exited) = failure(&context) else { panic!("{context:?}") };
    assert!(matches!(exited.exit, mp::process::ExitStatus::Signal { signal: Signal::KILL, .. }), "{exited}");
    println!("helper: processes");

    // A queue, and tensors through it.
    let (there, back) = (Queue::bounded(2).unwrap(), Queue::bounded(2).unwrap());
    let context = one_process(double, (there.clone(), back.clone()));
    for length in [3, 5000] {
        give(&there, Tensor::full([length], 1.5f32).unwrap());
        assert!(take(&back).iter().eq(std::iter::repeat_n(3.0, length)));
    }
    there.close();
    join(&context).unwrap();
    println!("helper: tensors");

    let pool = Pool::new(2).unwrap();
    let squares = pool.task(square).map_async(0..20).get_timeout(DEADLINE).unwrap().unwrap();
    assert!(squares.into_iter().eq((0..20).map(|number| number * number)));
    drop(pool);
    println!("helper: pool");

    let options = SpawnOptions::nprocs(2).start_method(StartMethod::ForkServer);
    assert_eq!(start_processes(worker, 5, options).unwrap().join().unwrap(), [5, 6]);
    println!("helper: fork server");
}

/// Child process, killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Returns `true` if valgrind is installed and runs programs here.
fn valgrind() -> bool {
    let runs =
        Command::new("valgrind").args(["-q", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    runs.is_ok_and(|status| status.success())
}

fn under_memcheck(workers_too: bool) {
    if !valgrind() {
        mp_harness::skip("there is no valgrind");
        return;
    }
    let folder = mp_tests::scratch::Scratch::new(if workers_too { "valgrind-workers" } else { "valgrind" });
    let (out, log) = (folder.0.join("out"), folder.0.join("log"));
    let file = |path: &Path| std::fs::File::create(path).unwrap();
    let suppressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("valgrind.supp");
    let mut command = Command::new("valgrind");
    // Without pipes for a debugger, which killed workers would leave behind.
    command.arg("--vgdb=no").arg(format!("--suppressions={}", suppressions.display()));
    command.arg(format!("--trace-children={}", if workers_too { "yes" } else { "no" }));
    command.arg("--trace-children-skip=*/cc,*/sh").arg(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "valgrind::helper_uses_each_feature",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&log));
    // A worker that is killed while memcheck begins leaves a file of memcheck in this folder.
    command.env("TMPDIR", &folder.0);
    let begun = Instant::now();
    let mut running = Running(command.spawn().unwrap());
    let (said, log) =
        (|| std::fs::read_to_string(&out).unwrap(), || std::fs::read_to_string(&log).unwrap_or_default());
    let mut most = 0;
    let status = loop {
        most = most.max(resident_kib(running.0.id()));
        assert!(most < MOST_KIB, "{most} KiB: {}\n{}", said(), log());
        if let Some(status) = running.0.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < DEADLINE, "the program still runs: {}\n{}", said(), log());
        std::thread::sleep(Duration::from_millis(5)); // sleep: between two looks at what another process did
    };
    assert!(status.success() && said().contains("helper: fork server"), "{status}: {}\n{}", said(), log());
    println!("{:.1} s, {} MiB", begun.elapsed().as_secs_f32(), most >> 10);
    // One summary for each process that ended by itself.
    let log = log();
    let summaries: Vec<_> = log.lines().filter(|line| line.contains("ERROR SUMMARY")).collect();
    assert!(summaries.len() > usize::from(workers_too), "{log}");
    assert!(summaries.iter().all(|line| line.contains("ERROR SUMMARY: 0 errors")), "{log}");
}

#[test]
fn memcheck_program_starts_workers() {
    under_memcheck(false);
}

#[test]
fn workers_run_under_memcheck() {
    under_memcheck(true);
}
