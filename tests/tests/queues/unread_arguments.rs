//! Processes that end while they read their arguments or messages: after they have connected, and before
//! their function runs. Their handles in flight count as dropped, and the error of a wait names the failure
//! of the process.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mp::data::{Context, DataLoader, Dataset, Item};
use mp::process::{Backoff, Restart, StartMethod};
use mp::{GetError, Manager, Pool, Process, Queue, SpawnOptions, Tensor, closure, start_processes};
use mp_tests::{DEADLINE, alone, eventually};
use rustix::process::Signal;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
enum End {
    Killed,
    Refuses,
    Panics,
}

impl End {
    const ALL: [End; 3] = [End::Killed, End::Refuses, End::Panics];

    fn reported(self) -> &'static str {
        match self {
            End::Killed => "SIGKILL",
            End::Refuses | End::Panics => "the disk is full",
        }
    }
}

/// Value that ends the process that decodes it. In the process that has encoded it, decoding has no effect.
#[derive(Clone, Debug)]
struct Ends(End);

impl Serialize for Ends {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0, std::process::id()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Ends {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, writer): (End, u32) = Deserialize::deserialize(deserializer)?;
        if writer == std::process::id() {
            return Ok(Ends(end));
        }
        match end {
            End::Killed => {
                mp_tests::signal(std::process::id(), Signal::KILL);
                loop {
                    thread::park();
                }
            }
            End::Refuses => Err(D::Error::custom("the disk is full")),
            End::Panics => panic!("the disk is full"),
        }
    }
}

/// Arguments in which the value is decoded before the handle of the queue.
type Before = (Ends, Queue<u32>);
type After = (Queue<u32>, Ends);

fn queue() -> Queue<u32> {
    Queue::bounded(1).unwrap()
}

/// Checks that a call without a time-out ends within the deadline, and names the failure.
#[track_caller]
fn get_names(end: End, queue: Queue<u32>, who: &str) {
    let (send, got) = mpsc::channel();
    thread::spawn(move || _ = send.send(queue.get()));
    let got = got.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("{end:?}: the get ends"));
    assert!(matches!(got, Err(GetError::Deserted { .. })), "{end:?}: {got:?}");
    let error = got.unwrap_err();
    // On a busy machine, the end of the queue may be detected before the process is reaped.
    eventually(&format!("{end:?}: {error} names {who}"), || {
        let text = error.to_string();
        text.contains(end.reported()) && text.contains(who)
    });
}

#[test]
fn process_that_ends_reading_arguments_ends_gets() {
    let _alone = alone();
    for end in End::ALL {
        for method in [StartMethod::Spawn, StartMethod::ForkServer] {
            let builder = || Process::builder().name("sorter").start_method(method);
            let at = queue();
            let process = builder().spawn(|_: Before| {}, (Ends(end), at.clone())).unwrap();
            get_names(end, at, "sorter");
            assert!(process.join().is_err());
            let at = queue();
            let process = builder().spawn(|_: After| {}, (at.clone(), Ends(end))).unwrap();
            get_names(end, at, "sorter");
            assert!(process.join().is_err());
        }
    }
}

#[test]
fn rank_that_ends_reading_arguments_ends_gets() {
    let _alone = alone();
    for end in End::ALL {
        let at = queue();
        let args = (Ends(end), at.clone());
        let context = start_processes(|_: usize, _: Before| {}, args, SpawnOptions::nprocs(2)).unwrap();
        get_names(end, at, "rank");
        assert!(context.join().is_err());
    }
}

#[test]
fn supervised_process_ends_gets_at_its_last_start() {
    let _alone = alone();
    for end in End::ALL {
        let at = queue();
        let restart = Restart::OnFailure { max: 1, backoff: Backoff::new(Duration::from_millis(1)) };
        let builder = Process::builder().name("sorter").restart(restart);
        let process = builder.spawn(|_: Before| {}, (Ends(end), at.clone())).unwrap();
        get_names(end, at, "sorter");
        assert!(process.join().is_err());
    }
}

#[test]
fn broken_pool_ends_gets() {
    let _alone = alone();
    for end in End::ALL {
        let at = queue();
        let pool =
            Pool::builder().processes(1).name("sorters").initializer(|_: Before| {}, (Ends(end), at.clone()));
        let pool = pool.build().unwrap();
        assert!(pool.apply(|n: u32| n, 1).is_err());
        get_names(end, at, "sorters");
    }
}

#[test]
fn pool_worker_ending_in_a_task_ends_gets() {
    let _alone = alone();
    let pool = Pool::builder().processes(1).name("sorters").build().unwrap();
    let at = queue();
    let result = pool.apply_async(|_: Before| {}, (Ends(End::Killed), at.clone()));
    get_names(End::Killed, at, "sorters");
    assert!(result.get().is_err());
    // The worker survives the other ends: only its task has failed.
    for end in [End::Refuses, End::Panics] {
        let at = queue();
        let error = pool.apply(|_: Before| {}, (Ends(end), at.clone())).unwrap_err().to_string();
        assert!(error.contains("the disk is full"), "{error}");
        let got = at.get_timeout(DEADLINE);
        assert!(matches!(got, Err(GetError::Deserted { .. })), "{end:?}: {got:?}");
    }
}

#[test]
fn manager_ending_in_a_request_ends_gets() {
    let _alone = alone();
    for end in End::ALL {
        let manager = Manager::start().unwrap();
        let (at, ends) = (queue(), Ends(end));
        let sent = at.clone();
        let made = manager.create_closure(closure!(
            [ends, sent] || {
                _ = (ends, sent);
                1_u32
            }
        ));
        assert!(made.is_err(), "{end:?}");
        if end == End::Killed {
            get_names(end, at, "");
        } else {
            let got = at.get_timeout(DEADLINE);
            assert!(matches!(got, Err(GetError::Deserted { .. })), "{end:?}: {got:?}");
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Samples(Ends, Queue<u32>);

impl Dataset for Samples {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        4
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> mp::AnyResult<Self::Batch> {
        cx.rows(items, &[], |_, _, _| Ok(()))
    }
}

#[test]
fn loader_with_ending_workers_ends_gets() {
    let _alone = alone();
    for end in End::ALL {
        let at = queue();
        let loader = DataLoader::builder(Samples(Ends(end), at.clone())).num_workers(1).build();
        match loader {
            Ok(loader) => assert!(loader.epoch(0).next().is_none_or(|batch| batch.is_err()), "{end:?}"),
            Err(error) => assert!(error.to_string().contains(end.reported()), "{error}"),
        }
        get_names(end, at, "");
    }
}
