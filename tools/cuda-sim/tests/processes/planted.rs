//! Checks that tests detect mutations (planted bugs) in `mp-cuda`. Each mutation is switched on in all
//! processes of a test, which must fail and print one of the listed texts. `cargo xtask mutate` runs these
//! tests in its copy of the sources.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

/// Mutation, the test that detects it, and the expected output.
struct Planted {
    mutation: &'static str,
    test: &'static str,
    /// Texts, one of which the failing test must print.
    says: &'static [&'static str],
}

const PLANTED: [Planted; 16] = [
    // A tensor that was already received is not waited for at its second receipt.
    Planted {
        mutation: "cuda.message.second-not-waited",
        test: "order::resent_tensor_waits_for_slow_kernel",
        says: &["a tensor received again is waited for"],
    },
    // The end value of a dead process's clock is before all ticks in a cyclic comparison.
    Planted {
        mutation: "clock.end.unsigned",
        test: "ends::stream_waiting_for_a_killed_process_continues",
        says: &["\"stuck\""],
    },
    // A tick is reported although the driver has refused it.
    Planted {
        mutation: "cuda.clock.published-unaccepted",
        test: "failures::refused_tick_is_not_published",
        says: &["Finding { kind"],
    },
    // A message is sent before the tick after its tensor's work.
    Planted {
        mutation: "cuda.uses.sent-before-its-tick",
        test: "order::moved_tensor_is_read_after_senders_work::clocks",
        says: &["\"race\""],
    },
    // The next use overwrites the last use in the row.
    Planted {
        mutation: "cuda.uses.left-without-join",
        test: "order::device_memory_is_reused_after_its_last_reader",
        // The values are wrong if the simulator ran both works in a bad order before it reported the race.
        says: &["\"race\"", "panicked: ["],
    },
    // Memory that a dead process may still write is reused. The process died during a use, or after it.
    Planted {
        mutation: "cuda.given.open-use-ignored",
        test: "late::memory_of_a_killed_writer_is_not_reused",
        says: &["\"race\""],
    },
    Planted {
        mutation: "cuda.given.dead-use-ignored",
        test: "late::slab_of_killed_writer_is_retired::clocks",
        says: &["the slab is retired"],
    },
    // A descriptor stays open after its import. So the memory stays allocated after all other references are
    // dropped.
    Planted {
        mutation: "cuda.slab.descriptor-kept",
        test: "late::unmapped_memory_of_a_dead_maker_is_freed",
        says: &["all memory is free"],
    },
    // The first process that opens the memory removes the descriptor from the locker.
    Planted {
        mutation: "locker.kept.taken-out",
        test: "ends::sent_memory_is_opened_by_successive_processes",
        says: &["packet 0 of the locker of descriptors is missing"],
    },
    // A process opens a handle of its own memory.
    Planted {
        mutation: "cuda.slab.own-handle-opened",
        test: "foreign::each_kind_of_foreign_memory_is_shared_or_copied",
        says: &["cuIpcOpenMemHandle"],
    },
    // The last use is not marked as following work of several processes.
    Planted {
        mutation: "cuda.row.mixed-not-recorded",
        test: "drops::memory_joined_by_a_third_process_survives_a_death",
        says: &["\"race\""],
    },
    // A dead process's unfinished clock is not counted, although streams no longer wait for it.
    Planted {
        mutation: "clock.end.not-counted",
        test: "drops::memory_joined_by_its_maker_survives_a_death",
        says: &["\"race\""],
    },
    // Memory is reused under work without a tick.
    Planted {
        mutation: "cuda.uses.read-not-reported",
        test: "drops::memory_of_unrecorded_reader_is_not_reused",
        says: &["\"race\""],
    },
    // The thread that detects a death unmaps memory.
    Planted {
        mutation: "cuda.here.unmapped-by-the-recoverer",
        test: "drops::death_is_handled_without_waiting_for_a_device",
        says: &["the process continued during the unmapping"],
    },
    // A user's streams end under a tensor's lock.
    Planted {
        mutation: "cuda.uses.ended-under-locks",
        test: "drops::user_code_runs_outside_of_tensor_locks",
        says: &["a user's value is dropped under a tensor's lock"],
    },
    // A use with write access is not recorded in the row, so the death of a writer has no effect.
    Planted {
        mutation: "cuda.row.use-not-begun",
        test: "late::memory_of_a_killed_writer_is_not_reused",
        says: &["\"race\""],
    },
];

/// Time limit of a test with a mutation. All waits of the test have deadlines.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs a test of this program with a mutation. Returns `true` if it passes, and its output.
fn outcome(test: &str, mutation: &str) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("MP_MUTANT", mutation);
    let piped = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().expect("it starts");
    let group = Pid::from_child(&child);
    let (ended, end) = mpsc::channel::<()>();
    let limit = thread::spawn(move || {
        if end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            _ = kill_process_group(group, Signal::KILL);
        }
    });
    let output = child.wait_with_output().expect("it ends");
    drop(ended);
    limit.join().expect("no panic");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}

fn is_found(mutation: &str) {
    let all: Vec<_> = PLANTED.iter().filter(|planted| planted.mutation == mutation).collect();
    let [planted] = all[..] else { panic!("{mutation} is {} times in the list", all.len()) };
    let (passes, text) = outcome(planted.test, mutation);
    assert!(text.contains("running 1 test"), "there is no {}: {text}", planted.test);
    assert!(!passes, "{} doesn't find {mutation}", planted.test);
    assert!(
        planted.says.iter().any(|word| text.contains(word)),
        "{}: not a word of {:?}: {text}",
        planted.test,
        planted.says
    );
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_missing_wait_at_second_receipt() {
    is_found("cuda.message.second-not-waited");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_unsigned_end_of_clocks() {
    is_found("clock.end.unsigned");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_opening_of_an_own_handle() {
    is_found("cuda.slab.own-handle-opened");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_publication_of_unaccepted_tick() {
    is_found("cuda.clock.published-unaccepted");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_message_sent_before_its_tick() {
    is_found("cuda.uses.sent-before-its-tick");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_last_use_without_the_previous() {
    is_found("cuda.uses.left-without-join");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_reuse_of_a_dead_writers_memory() {
    is_found("cuda.given.open-use-ignored");
    is_found("cuda.row.use-not-begun");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_reuse_despite_a_dead_last_user() {
    is_found("cuda.given.dead-use-ignored");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_descriptor_kept_after_its_import() {
    is_found("cuda.slab.descriptor-kept");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_descriptor_taken_from_the_locker() {
    is_found("locker.kept.taken-out");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_unmarked_joint_last_use() {
    is_found("cuda.row.mixed-not-recorded");
    is_found("clock.end.not-counted");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_unrecorded_read() {
    is_found("cuda.uses.read-not-reported");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_unmapping_by_recovering_thread() {
    is_found("cuda.here.unmapped-by-the-recoverer");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn cuda_tests_find_user_code_under_locks() {
    is_found("cuda.uses.ended-under-locks");
}
