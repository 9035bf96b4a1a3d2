//! Guests: programs that receive their arguments by a call. Here a guest is this test program, which runs one
//! of the tests at the end of this file.

use std::time::{Duration, Instant};

use mp::process::{ExitStatus, GuestError, Signal, Stdio};
use mp::{Message, Process, Queue, SpawnError, Tensor};

const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Message)]
#[message(name = "tests/batch/1")]
struct Batch {
    pixels: Tensor<f32>,
    path: String,
}

#[derive(Message)]
#[message(name = "tests/job/1")]
struct Job {
    batches: Queue<Batch>,
    answers: Queue<Batch>,
    end: String,
}

/// Starts this program as a guest that runs a test of this file.
fn start<A: Message>(test: &str, args: A) -> Result<Process, SpawnError> {
    let program = std::env::current_exe().unwrap();
    let words =
        [program.into_os_string(), format!("guest::{test}").into(), "--exact".into(), "--nocapture".into()];
    Process::builder().name("guest").stdout(Stdio::Null).stderr(Stdio::Capture).guest(words, args)
}

fn job(end: &str) -> (Job, Queue<Batch>, Queue<Batch>) {
    let (batches, answers) = (Queue::bounded(2).unwrap(), Queue::bounded(2).unwrap());
    (Job { batches: batches.clone(), answers: answers.clone(), end: end.to_owned() }, batches, answers)
}

fn batch(value: f32) -> Batch {
    Batch { pixels: Tensor::full([64, 64], value).unwrap(), path: format!("{value}.png") }
}

#[test]
fn guest_program_shares_queues_and_tensors() {
    let (job, batches, answers) = job("return");
    let guest = start("in_a_guest", job).unwrap();
    for value in [1.0, 2.0] {
        batches.put_timeout(batch(value), DEADLINE).map_err(|error| error.forget()).unwrap();
        let answer = answers.get_timeout(DEADLINE).unwrap().unwrap();
        assert_eq!((answer.pixels[[63, 63]], answer.path), (2.0 * value, format!("{value}.png")));
    }
    batches.close();
    guest.join().unwrap();
}

#[test]
fn exit_code_and_stderr_of_a_guest_are_reported() {
    let (job, batches, _answers) = job("exit");
    let guest = start("in_a_guest", job).unwrap();
    batches.close();
    let error = guest.join().unwrap_err().to_string();
    assert!(error.contains("code 9") && error.contains("last words"), "{error}");
}

#[test]
fn killed_guest_ends_a_wait_for_it() {
    let (job, batches, answers) = job("return");
    let guest = start("in_a_guest", job).unwrap();
    batches.put(batch(1.0)).map_err(|error| error.forget()).unwrap();
    answers.get_timeout(DEADLINE).unwrap().unwrap();
    guest.kill().unwrap();
    let begin = Instant::now();
    assert!(answers.get().is_err() && begin.elapsed() < DEADLINE);
    assert!(matches!(guest.wait(), Ok(ExitStatus::Signal { signal: Signal::KILL, .. })));
    drop(guest.join());
}

#[test]
fn arguments_of_another_type_are_refused() {
    let guest = start("in_a_guest", batch(1.0)).unwrap();
    let error = guest.join().unwrap_err().to_string();
    let (found, expected) = ("tests/batch/1(pixels:tensor<f32>,path:str)", "tests/job/1(batches:queue<");
    assert!(error.contains(found) && error.contains(expected), "{error}");
}

#[test]
fn guest_call_outside_a_guest_is_an_error() {
    assert!(matches!(mp::process::guest::<u64>(), Err(GuestError::NoGuest)));
    let error = Process::builder().guest(["true"], 1_u64).unwrap().join().unwrap_err();
    assert!(matches!(error, SpawnError::NeverReported { guest: true, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("multiproc.child()") && !text.contains("mp::init()"), "{text}");
    let error = Process::builder().guest(["/no/such/program"], 1_u64).unwrap_err().to_string();
    assert!(error.contains("/no/such/program"), "{error}");
    let error = Process::builder().guest::<&str, _>([], 1_u64).unwrap_err().to_string();
    assert!(error.contains("empty"), "{error}");
}

/// Answers batches in a guest, and exits as its job requires. Returns at once in the process of the tests.
#[test]
fn in_a_guest() {
    let job = match mp::process::guest::<Job>() {
        Err(GuestError::NoGuest) => return,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
        Ok(job) => job,
    };
    assert!(matches!(mp::process::guest::<Job>(), Err(GuestError::NoGuest)));
    assert_eq!(mp::process::name(), Some("guest"));
    while let Some(mut batch) = job.batches.get().unwrap() {
        batch.pixels.map_in_place(|pixel| 2.0 * pixel).unwrap();
        job.answers.put(batch).map_err(|error| error.forget()).unwrap();
    }
    if job.end == "exit" {
        eprintln!("last words");
        std::process::exit(9);
    }
    std::process::exit(0);
}
