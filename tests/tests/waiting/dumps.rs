//! Dumps of a process: waits of its threads, and the locks and leases that it holds.

use mp::process::Stdio;
use mp::{Lock, Queue, SpawnOptions, start_processes};
use mp_tests::{DEADLINE, Outcome, join};

fn dumps(_: usize, (lock, jobs): (Lock<u32>, Queue<u32>)) -> Outcome {
    let guard = lock.lock()?;
    let leased = jobs.get_lease_timeout(DEADLINE)?;
    mp::wait::dump_waits();
    drop((guard, leased));
    eprintln!("and after that");
    mp::wait::dump_waits();
    Ok(())
}

#[test]
fn dump_of_waits_shows_held_locks_and_leases() {
    let lock = Lock::new(7).unwrap().named("weights");
    let jobs = Queue::bounded(4).unwrap().named("jobs");
    jobs.put(1).unwrap();
    let options = SpawnOptions::nprocs(1).stderr(Stdio::Capture);
    let context = start_processes(dumps, (lock, jobs), options).unwrap();
    join(&context).unwrap();
    let text = context.stderr(0).unwrap().text();
    let (held, after) = text.split_once("and after that").unwrap();
    for part in ["holds the lock \"weights\" (#", "1 leased message(s) of the queue \"jobs\" (#"] {
        assert!(held.contains(part) && !after.contains(part), "{part}: {text}");
    }
}
