//! Limit on further processes. Each process of the tree counts, also those of other tests in the same
//! program, so this test has a separate program.

mod common;

use common::{DEADLINE, wait_for_the_end};
use mp_spawn::{OnFailure, SpawnOptions, start_processes};

#[test]
fn running_processes_count_against_the_member_limit() {
    let few = || SpawnOptions::nprocs(3).on_failure(OnFailure::Continue);
    let runs = start_processes(|_: usize, (): ()| wait_for_the_end(), (), few()).unwrap();
    // Only this process and these three processes are members, or will be.
    let error = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1 << 20)).unwrap_err();
    let text = error.to_string();
    let room: usize =
        text.split("there is room for ").nth(1).unwrap().split('.').next().unwrap().parse().unwrap();
    let taken: usize =
        text.split("tree included; ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(taken == 4 && [256, 1024].contains(&(room + taken)), "{text}");
    let error = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(room + 1)).unwrap_err();
    assert!(error.to_string().contains(&format!("room for {room}")), "{error}");
    runs.kill_all().unwrap();
    assert!(runs.join_timeout(DEADLINE).is_err());
    // The three places are free again, and nothing is reserved for the refused processes.
    let error = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1 << 20)).unwrap_err();
    assert!(error.to_string().contains(&format!("room for {}", room + 3)), "{error}");
}
