//! Program that is stopped with all its workers: time in which the pool's thread did not run is not counted.

mod common;

use std::time::Duration;

use common::{DEADLINE, Gate, eventually, stop_at, stopped};
use mp_pool::{Pool, TaskError};
use mp_queue::Queue;
use mp_spawn::Process;
use rustix::process::{Pid, Signal, kill_current_process_group, kill_process_group, setpgid};

const TIMEOUT: Duration = Duration::from_secs(4);

fn runs_timed_tasks((gate, pids): (Gate, Queue<Vec<u32>>)) -> Result<Vec<u32>, TaskError> {
    // The workers belong to the same group.
    setpgid(None, None).expect("a group of its own");
    let pool = Pool::new(2).expect("a pool");
    let tasks = [1, 2].map(|number| pool.task(stop_at).timeout(TIMEOUT).apply_async((gate.clone(), number)));
    eventually("both workers run", || pool.pids().iter().all(|pid| *pid != 0));
    pids.put(pool.pids()).expect("the pids");
    tasks.into_iter().map(|task| task.get()).collect()
}

#[test]
fn stop_of_the_program_does_not_time_tasks_out() {
    let (gate, pids) = (Gate::new(), Queue::unbounded().unwrap());
    let program = Process::spawn(runs_timed_tasks, (gate.clone(), pids.clone())).unwrap();
    let mut all = pids.get_timeout(DEADLINE).unwrap().unwrap();
    all.push(program.pid());
    gate.arrived();
    gate.arrived();
    let group = Pid::from_raw(program.pid() as i32).unwrap();
    let send = |signal| kill_process_group(group, signal).unwrap();
    send(Signal::STOP);
    eventually("all are stopped", || all.iter().all(|pid| stopped(*pid)));
    // sleep: the stop has to last longer than the tasks' time-out.
    std::thread::sleep(TIMEOUT + Duration::from_secs(1));
    send(Signal::CONT);
    // sleep: the pool's thread would need at most this time to end the tasks.
    std::thread::sleep(Duration::from_millis(300));
    gate.open(2);
    assert!(program.wait_timeout(DEADLINE), "{program:?}");
    assert_eq!(program.join().unwrap(), [1, 2]);
}

/// Number of stops, so that some of them begin while the pool's thread does not sleep.
const STOPS: u32 = 8;

fn stops_its_program(_: u32) {
    kill_current_process_group(Signal::STOP).expect("a stop");
    // sleep: the task's own time after the stop.
    std::thread::sleep(TIMEOUT / 20);
}

fn runs_tasks_that_stop_it(pids: Queue<Vec<u32>>) -> Result<(), TaskError> {
    setpgid(None, None).expect("a group of its own");
    let pool = Pool::new(1).expect("a pool");
    pool.task(|_: u32| ()).apply(0)?;
    pids.put(pool.pids()).expect("the pids");
    (0..STOPS).try_for_each(|stop| pool.task(stops_its_program).timeout(TIMEOUT / 10).apply(stop))
}

#[test]
fn stop_at_the_start_of_a_task_does_not_time_it_out() {
    let pids = Queue::unbounded().unwrap();
    let program = Process::spawn(runs_tasks_that_stop_it, pids.clone()).unwrap();
    let mut all = pids.get_timeout(DEADLINE).unwrap().unwrap();
    all.push(program.pid());
    for _ in 0..STOPS {
        eventually("all are stopped", || all.iter().all(|pid| stopped(*pid)) || !program.is_alive());
        // sleep: the stop has to last longer than the task's time-out.
        std::thread::sleep(TIMEOUT / 5);
        let group = Pid::from_raw(program.pid() as i32).unwrap();
        // Fails if a task has timed out, which ended the program.
        _ = kill_process_group(group, Signal::CONT);
    }
    assert!(program.wait_timeout(DEADLINE), "{program:?}");
    program.join().unwrap();
}
