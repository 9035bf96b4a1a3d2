//! Files about failed workers, which `MP_REPORT` asks for.

use mp::process::Stdio;
use mp::{Lock, Process, Queue};
use mp_tests::Outcome;

/// Starts a worker that aborts with a lock and a queue.
fn loses_a_worker((): ()) -> Outcome {
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

/// Starts a pool of which a worker aborts in a task.
fn loses_a_task((): ()) -> Outcome {
    let pool = mp::Pool::builder().processes(1).name("resize").build()?;
    let dies = |(): ()| -> u32 {
        mp::pool::note(17);
        std::process::abort()
    };
    assert!(pool.apply(dies, ()).is_err());
    Ok(())
}

fn ends_normally((): ()) -> Outcome {
    Ok(Process::spawn(|(): ()| (), ())?.join()?)
}

/// Runs a program, and returns the names and contents of its reports.
fn reports<F>(program: F) -> Vec<(String, String)>
where
    F: Fn(()) -> Outcome + Copy + Send + 'static,
{
    let name = std::any::type_name::<F>().replace(':', "-");
    let folder = std::env::temp_dir().join(format!("mp-reports-{}-{name}", std::process::id()));
    let builder = Process::builder().env("MP_REPORT", folder.to_str().unwrap()).stderr(Stdio::Capture);
    builder.spawn(program, ()).unwrap().join().unwrap();
    let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    let found =
        files.map(|file| (file.file_name().to_str().unwrap().to_owned(), read(file.path()))).collect();
    _ = std::fs::remove_dir_all(&folder);
    found
}

#[test]
fn failed_worker_has_a_report() {
    let found = reports(loses_a_worker);
    let [(name, text)] = found.as_slice() else { panic!("{found:?}") };
    assert!(name.starts_with("rank-0-") && name.ends_with(".txt"), "{name}");
    let lines = ["SIGABRT", "about to die", "it held the lock \"weights\"", "it had the queue \"jobs\""];
    for line in lines {
        assert!(text.contains(line), "{line:?} is not in this:\n{text}");
    }
    assert!(text.contains("with 1 messages") && text.contains("The other processes:"), "{text}");
}

#[test]
fn report_names_the_task_of_a_pools_worker() {
    let found = reports(loses_a_task);
    let [(_, text)] = found.as_slice() else { panic!("{found:?}") };
    assert!(text.contains("it was worker 0 of the pool \"resize\" (#"), "{text}");
    assert!(text.contains("with a task, at note 17"), "{text}");
}

#[test]
fn worker_that_succeeds_has_no_report() {
    assert_eq!(reports(ends_normally), []);
}
