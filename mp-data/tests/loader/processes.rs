//! Loaders in main, worker and forked processes, several loaders at once, and interrupts while workers run.

use std::collections::BTreeSet;

use mp_data::{
    AnyResult, Context, DataLoader, DataLoaderBuilder, Dataset, Item, OnError, Strings, WorkerInfo,
};
use mp_pool::Pool;
use mp_queue::Queue;
use mp_spawn::{ExitStatus, Process, Signal as Ended, SpawnError};
use mp_tensor::Tensor;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::common::shards::{all_of, next_of, streamed, streaming};
use crate::common::{
    Bytes, DEADLINE, Fault, NoDecoder, Samples, alive, all, builder, builder_of, bytes, eventually, kept,
    next, signal,
};

#[test]
fn loader_in_a_pool_worker_has_own_workers() {
    let pool = Pool::new(1).unwrap();
    for workers in [0, 2] {
        let made = pool.apply(
            |workers: usize| -> Vec<Bytes> { all(builder(12, workers).build().unwrap().epoch(0)) },
            workers,
        );
        assert_eq!(made.unwrap(), all(builder(12, 0).build().unwrap().epoch(0)));
    }
}

/// Dataset in which each sample is a batch of the worker's own loader.
#[derive(Serialize, Deserialize)]
struct Nested {
    #[serde(skip)]
    own: Option<DataLoader<Samples>>,
}

impl Dataset for Nested {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        6
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        self.own = Some(builder(12, 1).build()?);
        Ok(())
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        let own = self.own.as_ref().ok_or("init was not called")?;
        let made =
            cx.map(items, |item, _| Ok(bytes(&next(&mut own.epoch(item.index as u64)).ok_or("none")??)))?;
        let first = made.into_iter().map(|bytes| bytes.3[2]).collect::<Vec<_>>();
        Ok(Tensor::from_slice(&first, [items.len()])?)
    }
}

#[test]
fn loader_in_a_loader_worker_yields_batches() {
    let of = |workers| {
        let loader =
            DataLoader::builder(Nested { own: None }).batch_size(2).num_workers(workers).build().unwrap();
        let mut batches = loader.epoch(0);
        std::iter::from_fn(|| next(&mut batches))
            .flat_map(|batch| batch.unwrap().to_vec())
            .collect::<Vec<_>>()
    };
    let made = of(0);
    assert_eq!((made.len(), &made), (6, &of(2)));
}

#[test]
fn loaders_of_both_kinds_run_concurrently() {
    let (maps, streams) = (builder(40, 2).build().unwrap(), streaming(&[9, 30, 4], 2).build().unwrap());
    let (mut one, mut other) = (maps.epoch(0), streams.epoch(0));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        first.push(bytes(&next(&mut one).unwrap().unwrap()));
        second.push(streamed(&next_of(&mut other).unwrap().unwrap()));
    }
    assert_eq!(first, all(builder(40, 0).build().unwrap().epoch(0)));
    assert_eq!(second, all_of(streaming(&[9, 30, 4], 0).build().unwrap().epoch(0))[..10]);
}

#[test]
#[allow(unsafe_code)]
fn ctrl_c_ends_trainer_and_loader_workers() {
    for workers in [0, 2] {
        let (pids, goes_on) = (Queue::<Vec<u32>>::unbounded().unwrap(), Queue::<u8>::unbounded().unwrap());
        let trainer = |(workers, pids, goes_on): (usize, Queue<Vec<u32>>, Queue<u8>)| {
            // SAFETY: `SIG_DFL` is not a handler function. A shell that runs these tests in the background
            // makes them ignore SIGINT.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            let loader = builder(100_000, workers).build().unwrap();
            for (number, batch) in loader.epochs(0..u64::MAX).enumerate() {
                drop(batch.unwrap());
                if number == 3 {
                    pids.put(loader.pids()).unwrap();
                    _ = goes_on.get_timeout(DEADLINE);
                }
            }
        };
        let process = Process::spawn(trainer, (workers, pids.clone(), goes_on.clone())).unwrap();
        let made = pids.get_timeout(DEADLINE).unwrap().unwrap();
        assert_eq!(made.len(), workers);
        goes_on.put(1).unwrap();
        // The signal is sent to all processes, as a terminal does. Workers ignore it.
        made.iter().for_each(|pid| signal(*pid, Signal::INT));
        signal(process.pid(), Signal::INT);
        assert!(process.wait_timeout(DEADLINE), "the trainer still runs: {process:?}");
        let Err(SpawnError::ProcessExited(exited)) = process.join() else { panic!("it went on") };
        let int = Ended::from_number(libc::SIGINT);
        let by_int = matches!(exited.exit, ExitStatus::Signal { signal, .. } if signal == int);
        assert!(by_int, "{exited}");
        eventually("its workers end", || !made.iter().any(|pid| alive(*pid)));
    }
}

#[test]
fn loader_pids_list_only_running_workers() {
    let loader = DataLoader::builder(NoDecoder).num_workers(2).build().unwrap();
    // Between two starts a worker has no process.
    eventually("there is no process", || {
        let pids = loader.pids();
        assert!(!pids.contains(&0), "{pids:?}");
        pids.is_empty()
    });
    assert!(builder(4, 0).build().unwrap().pids().is_empty());
}

#[test]
fn skipped_samples_count_at_delivery_not_in_states() {
    let of = |samples: Samples| {
        builder_of(samples, 2).shuffle(false).on_error(OnError::SkipSample).build().unwrap()
    };
    // Batch 1 does not arrive. Meanwhile sample 9 of batch 2 is skipped.
    let loader = of(Samples::new(16).with(5, Fault::Stop, 1).with(9, Fault::Error, -1));
    let mut batches = loader.epoch(0);
    assert_eq!(bytes(&next(&mut batches).unwrap().unwrap()).1, 0);
    let tried = || i64::MAX - loader.dataset().times[1].load(0);
    eventually("sample 9 has failed", || tried() > 0);
    for _ in 0..20 {
        // Arrived outcomes are received, and batch 2 is made without the sample.
        assert!(batches.next_timeout(std::time::Duration::from_millis(5)).is_err());
    }
    assert_eq!(tried(), 1);
    assert_eq!(loader.metrics().skipped_samples, 0, "batch 2 was not delivered");
    let state = kept(&batches.state());
    drop((batches, loader));
    // The sample is tried and skipped again, in its batch.
    let loader = of(Samples::new(16).with(9, Fault::Error, -1));
    let mut batches = loader.resume(&state).unwrap();
    for (number, skipped) in [(1, 0), (2, 1)] {
        let batch = next(&mut batches).unwrap().unwrap();
        assert_eq!((batch.info.number, batch.info.skipped.len()), (number, skipped));
        assert_eq!(loader.metrics().skipped_samples, skipped as u64);
    }
    let state = kept(&batches.state());
    let loader = of(Samples::new(16).with(9, Fault::Error, -1));
    assert_eq!(all(loader.resume(&state).unwrap()).len(), 1);
    assert_eq!(loader.metrics().skipped_samples, 0, "the skipped sample was delivered before the resume");
    // A batch without remaining samples is skipped.
    let bad = (4..8).fold(Samples::new(16), |samples, index| samples.with(index, Fault::Error, -1));
    let loader = of(bad);
    assert_eq!(all(loader.epoch(0)).len(), 3);
    let metrics = loader.metrics();
    assert_eq!((metrics.skipped_samples, metrics.skipped_batches), (4, 1));
}

/// Dataset in which each sample is the name of its process.
#[derive(Serialize, Deserialize)]
struct Names;

impl Dataset for Names {
    type Batch = Strings;

    fn len(&self) -> usize {
        8
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, (), |_, _, row| {
            row.push_str(&mp_spawn::current_process().name);
            Ok(())
        })
    }
}

#[test]
fn worker_processes_are_named_after_their_loader() {
    let names = |builder: DataLoaderBuilder<Names>| {
        let loader = builder.num_workers(2).build().unwrap();
        let mut batches = loader.epoch(0);
        std::iter::from_fn(|| next(&mut batches))
            .flat_map(|batch| batch.unwrap().to_vec().unwrap())
            .collect::<BTreeSet<_>>()
    };
    let training = names(DataLoader::builder(Names).name("training"));
    assert!(training.iter().all(|name| ["training-0", "training-1"].contains(&&**name)), "{training:?}");
    let default = names(DataLoader::builder(Names));
    assert!(default.iter().all(|name| name.starts_with("data loader-")), "{default:?}");
    let loader = streaming(&[8], 1).name("validation").build().unwrap();
    let mut batches = loader.epoch(0);
    assert!(next_of(&mut batches).unwrap().is_ok());
    let children = mp_spawn::active_children();
    assert!(children.iter().any(|child| child.name == "validation-0"), "{children:?}");
}
