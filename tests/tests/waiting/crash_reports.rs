//! Files with reports about failed workers, which `MP_REPORT` enables.

use mp::process::Stdio;
use mp::{Lock, Process, Queue};
use mp_tests::Outcome;
use mp_tests::scratch::Scratch;

/// Starts a worker that aborts while it holds a lock and a queue.
fn loses_a_worker() -> Outcome {
    let lock = Lock::new(0_u32)?.named("weights");
    let jobs = Queue::<String>::bounded(8)?.named("jobs");
    jobs.put("one job that is longer than a slot".into())?;
    let dies = |(lock, _jobs): (Lock<u32>, Queue<String>)| {
        let _guard = lock.lock().unwrap();
        eprintln!("about to die");
        std::process::abort();
    };
    let worker = Process::builder().name("rank-0").stderr(Stdio::Capture).spawn(dies, (lock, jobs))?;
    assert!(worker.join().is_err());
    Ok(())
}

/// Starts a pool whose worker aborts in a task.
fn loses_a_task() -> Outcome {
    let pool = mp::Pool::builder().processes(1).name("resize").build()?;
    let dies = |(): ()| -> u32 {
        mp::pool::note(17);
        std::process::abort()
    };
    assert!(pool.apply(dies, ()).is_err());
    Ok(())
}

/// Starts two workers: one returns, and this program kills the other.
fn loses_no_worker() -> Outcome {
    Process::spawn(|(): ()| (), ())?.join()?;
    let sleeps = |(): ()| loop {
        std::thread::park();
    };
    let worker = Process::spawn(sleeps, ())?;
    worker.kill()?;
    assert!(worker.join().is_err());
    Ok(())
}

/// Runs a scenario in a program that has its own shared memory. Otherwise, processes of other tests would
/// release the resources of a dead process. Returns the names and contents of the reports.
fn reports(scenario: &str) -> Vec<(String, String)> {
    let scratch = Scratch::new(scenario);
    let folder = scratch.0.join("reports");
    scratch.run_with(scenario, |program| _ = program.env("MP_REPORT", &folder));
    let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    files.map(|file| (file.file_name().to_str().unwrap().to_owned(), read(file.path()))).collect()
}

/// Runs the programs of [`reports`].
pub(super) fn run(scenario: &str) {
    let run = match scenario {
        "loses_a_worker" => loses_a_worker(),
        "loses_a_task" => loses_a_task(),
        _ => loses_no_worker(),
    };
    run.unwrap();
}

#[test]
fn failed_worker_has_a_report() {
    let found = reports("loses_a_worker");
    let [(name, text)] = found.as_slice() else { panic!("{found:?}") };
    assert!(name.starts_with("rank-0-") && name.ends_with(".txt"), "{name}");
    let lines = ["SIGABRT", "about to die", "it held the lock \"weights\"", "it had the queue \"jobs\""];
    for line in lines {
        assert!(text.contains(line), "{line:?} is not in this:\n{text}");
    }
    assert!(text.contains("with 1 message") && text.contains("The other processes:"), "{text}");
}

#[test]
fn report_names_the_task_of_a_pools_worker() {
    let found = reports("loses_a_task");
    let [(_, text)] = found.as_slice() else { panic!("{found:?}") };
    assert!(text.contains("it was worker 0 of the pool \"resize\" (#"), "{text}");
    assert!(text.contains("with a task, at note 17"), "{text}");
}

#[test]
fn ended_and_killed_workers_have_no_report() {
    assert_eq!(reports("loses_no_worker"), []);
}
