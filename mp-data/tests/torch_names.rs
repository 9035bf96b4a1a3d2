//! Counterparts of the tests of torch's `DataLoader`.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{
    DEADLINE, Fault, NoDecoder, Samples, alive, all, builder, builder_of, bytes, eventually, kept, next,
    signal, threads_are,
};
use mp_data::plan::{BatchSampler, Sampler};
use mp_data::{
    AnyResult, Context, DataLoader, Dataset, Item, LoadError, Objects, Ragged, Strings, WorkerInfo,
};
use mp_pool::TaskError;
use mp_queue::Queue;
use mp_spawn::Process;
use mp_tensor::Tensor;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// Dataset whose rows describe their worker and their sample.
#[derive(Serialize, Deserialize)]
struct Plain {
    len: usize,
    #[serde(skip)]
    begun: Option<WorkerInfo>,
}

fn plain(len: usize) -> Plain {
    Plain { len, begun: None }
}

impl Dataset for Plain {
    type Batch =
        (Tensor<u64>, Objects<BTreeMap<String, usize>>, Strings, Ragged<u16>, Tensor<f32>, Tensor<u8>);

    fn len(&self) -> usize {
        self.len
    }

    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        assert!(self.begun.is_none());
        self.begun = Some(*worker);
        Ok(())
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        let begun = self.begun.ok_or("init was not called")?;
        assert_eq!(cx.worker(), &begun);
        cx.rows(
            items,
            (&[], (), (), (), &[2, 2], &[0]),
            |item, rng, (id, map, text, ragged, matrix, none)| {
                id[0] = u64::from(std::process::id());
                *map = Some(BTreeMap::from([("index".to_string(), item.index)]));
                text.push_str(&"é".repeat(item.index % 3));
                ragged.resize(item.index % 4, item.index as u16);
                matrix.copy_from_slice(&[rng.f32(), rng.f32(), item.index as f32, begun.seed as f32]);
                assert!(none.is_empty());
                Ok(())
            },
        )
    }
}

fn indices(builder: mp_data::DataLoaderBuilder<Plain>) -> Vec<Vec<usize>> {
    let loader = builder.build().unwrap();
    let mut batches = loader.epoch(0);
    std::iter::from_fn(|| next(&mut batches)).map(|batch| batch.unwrap().info.indices()).collect()
}

#[test]
fn loader_batches_are_sequential_or_shuffled() {
    for workers in [0, 2] {
        let of = |shuffle| DataLoader::builder(plain(10)).batch_size(4).num_workers(workers).shuffle(shuffle);
        assert_eq!(indices(of(false)), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        assert_eq!(indices(of(false).drop_last(true)).len(), 2);
        let shuffled = indices(of(true));
        assert_ne!(shuffled, indices(of(false)));
        assert_eq!(shuffled.concat().into_iter().collect::<BTreeSet<_>>(), (0..10).collect());
        assert_eq!(shuffled, indices(of(true)));
        assert_ne!(shuffled, indices(of(true).seed(1)));
    }
}

/// Batch sampler whose batches have one, two, three samples and so on.
#[derive(Debug)]
struct Growing;

impl BatchSampler for Growing {
    fn name(&self) -> &str {
        "growing/1"
    }

    fn batch(&self, _: u64, k: u64) -> Option<Vec<u64>> {
        (k < 3).then(|| (0..=k).collect())
    }
}

#[test]
fn samplers_yield_indices_and_batches() {
    let of = || DataLoader::builder(plain(4_000_000_000)).num_workers(2);
    assert_eq!(indices(of().batch_sampler(Growing)), [vec![0], vec![0, 1], vec![0, 1, 2]]);
    let subset = Sampler::Subset([3_999_999_999, 7].into());
    assert_eq!(indices(of().sampler(subset).batch_size(2)), [[3_999_999_999, 7]]);
    assert!(of().sampler(Sampler::Subset([4_000_000_000].into())).build().is_err());
}

#[test]
fn test_len_and_test_invalid_ctor_args_combinations() {
    let of = |len| DataLoader::builder(plain(len)).batch_size(4);
    for (len, batches) in [(0, 0), (4, 1), (5, 2)] {
        let loader = of(len).num_workers(1).build().unwrap();
        assert_eq!(loader.plan().epoch(0).batches(), Some(batches));
        assert_eq!(loader.epoch(0).size_hint().1, Some(batches as usize));
        assert_eq!(loader.epoch(0).count() as u64, batches);
    }
    let said = |builder: mp_data::DataLoaderBuilder<Plain>| builder.build().unwrap_err().to_string();
    assert!(said(of(5).batch_size(0)).contains("`batch_size`"));
    assert!(said(of(5).distributed(2, 2)).contains("`distributed`"));
    assert!(said(of(5).shuffle(true).sampler(Sampler::WithReplacement(3))).contains("`shuffle`"));
    assert!(said(of(5).num_workers(1001)).contains("`num_workers`"));
}

/// Also covers `TestDictDataLoader` and `TestStringDataLoader`.
#[test]
fn collections_dicts_and_strings_become_columns() {
    for workers in [0, 1] {
        let loader =
            DataLoader::builder(plain(9)).batch_size(9).num_workers(workers).seed(3).build().unwrap();
        let batch = next(&mut loader.epoch(0)).unwrap().unwrap();
        let (_, maps, text, ragged, matrix, none) = &*batch;
        for index in 0..9 {
            assert_eq!(maps[index]["index"], index);
            assert_eq!(text.get(index).unwrap(), "é".repeat(index % 3));
            assert_eq!(ragged.row(index).unwrap(), vec![index as u16; index % 4]);
            assert_eq!(matrix.get(&[index, 1, 0]).unwrap(), index as f32);
        }
        assert!(text.get(9).is_err() && ragged.row(9).is_err());
        assert_eq!((matrix.shape(), none.shape()), (&[9, 2, 2][..], &[9, 0][..]));
        // The trainer owns the batch exclusively, so it may write.
        let (_, _, _, _, mut matrix, _) = batch.into_inner();
        matrix.as_mut_slice().unwrap().fill(1.0);
    }
}

#[test]
fn test_growing_dataset_and_test_multiple_dataloaders() {
    let mut first = builder(8, 2).build().unwrap();
    let second = builder(12, 1).build().unwrap();
    let (mut one, mut other) = (first.epoch(0), second.epoch(0));
    for _ in 0..2 {
        assert!(next(&mut one).unwrap().is_ok() && next(&mut other).unwrap().is_ok());
    }
    assert!(next(&mut one).is_none() && next(&mut other).unwrap().is_ok());
    first.set_dataset(Samples::new(16)).unwrap();
    assert_eq!(all(first.epoch(0)), all(builder(16, 0).build().unwrap().epoch(0)));
}

/// Returns the error of a loader of 12 samples whose second batch has a fault.
fn fault(fault: Fault) -> LoadError {
    // Unlike torch's, the loader continues after each fault. tests/loader/ has more cases.
    let hangs = matches!(fault, Fault::Hang);
    let loader = builder_of(Samples::new(12).with(5, fault, -1), 1).shuffle(false).retries(1);
    // Only the hanging case has a time-out, because on a busy machine any batch may take long.
    let loader = if hangs { loader.timeout(Duration::from_secs(2)) } else { loader };
    let loader = loader.build().unwrap();
    let mut batches = loader.epoch(0);
    assert!(next(&mut batches).unwrap().is_ok());
    let error = next(&mut batches).unwrap().unwrap_err();
    assert_eq!(error.item.map(|item| item.index), Some(5));
    assert!(next(&mut batches).unwrap().is_ok() && next(&mut batches).is_none());
    error
}

#[test]
fn test_segfault() {
    let error = fault(Fault::Segfault);
    assert_eq!(
        (error.signal(), error.attempts),
        (Some(mp_spawn::Signal::from_number(libc::SIGSEGV)), 2),
        "{error}"
    );
    // torch's text is "DataLoader worker (pid 7) is killed by signal: Segmentation fault".
    let text = error.to_string();
    assert!(text.contains("SIGSEGV") && text.contains("worker 0 (pid "), "{text}");
    assert!(error.stderr().is_some_and(|lines| lines.contains("about to read what is not there")), "{text}");
    assert_eq!(fault(Fault::Kill).signal(), Some(mp_spawn::Signal::KILL));
}

#[test]
fn test_no_segfault() {
    // Threads of the trainer that compute while workers are made and replaced.
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::black_box(Tensor::full([1000], 1.0_f32).unwrap());
                }
            });
        }
        for round in 0..3 {
            assert_eq!(all(builder(12, 3).build().unwrap().epoch(round)).len(), 3);
        }
        ends.store(true, Ordering::Relaxed);
    });
}

#[test]
fn test_timeout() {
    let error = fault(Fault::Hang);
    assert!(matches!(error.task(), Some(TaskError::TimedOut { .. })), "{error}");
    assert_eq!(error.attempts, 2);
    // The time-out of a wait, which is torch's `timeout`, has no effect on the batch.
    let loader = builder_of(Samples::new(4).with(2, Fault::Stop, 1), 1).build().unwrap();
    let mut batches = loader.epoch(0);
    let pid = loader.pids()[0];
    eventually("it stands still", || threads_are(pid, 'T'));
    assert_eq!(batches.next_timeout(Duration::from_millis(1)).unwrap_err().batch, Some((0, 0)));
    signal(pid, Signal::CONT);
    assert!(next(&mut batches).unwrap().is_ok());
}

#[test]
fn test_error_workers() {
    for (what, said) in [(Fault::Error, "sample 5 is bad"), (Fault::Panic, "sample 5 panics")] {
        let error = fault(what);
        assert!(matches!(error.task(), Some(TaskError::Raised(_))), "{error}");
        assert!(error.to_string().contains(said) && error.attempts == 1, "{error}");
    }
}

#[test]
fn test_error_in_init() {
    for workers in [0, 2] {
        let loader = DataLoader::builder(NoDecoder).num_workers(workers).build().unwrap();
        let mut batches = loader.epoch(0);
        let error = next(&mut batches).unwrap().unwrap_err();
        assert!(error.to_string().contains("there is no decoder"), "{error}");
        assert!(next(&mut batches).is_none());
    }
}

/// Also covers `test_worker_seed_reproducibility`.
#[test]
fn worker_seeds_and_epochs_are_reproducible() {
    let of = |workers, seed| {
        let loader = builder(12, workers).seed(seed).build().unwrap();
        all(loader.epochs(0..3))
    };
    let first = of(2, 5);
    assert_eq!(first, of(2, 5));
    assert_eq!(first, of(3, 5));
    let numbers = |all: &[common::Bytes]| -> BTreeSet<u64> {
        all.iter().flat_map(|batch| batch.3.chunks_exact(3).map(|row| row[2]).collect::<Vec<_>>()).collect()
    };
    // No two samples, epochs or seeds share random numbers.
    assert_eq!(numbers(&first).len(), 36);
    assert!(numbers(&first).is_disjoint(&numbers(&of(2, 6))));
}

/// Also covers `TestDataLoaderPersistentWorkers`.
#[test]
fn init_gets_worker_info_in_persistent_workers() {
    let loader = DataLoader::builder(plain(40)).batch_size(2).num_workers(2).build().unwrap();
    let pids: BTreeSet<u32> = loader.pids().into_iter().collect();
    let mut seen = BTreeSet::new();
    for epoch in 0..3 {
        for batch in loader.epoch(epoch) {
            let batch = batch.unwrap();
            assert_eq!(batch.0.to_vec(), [u64::from(batch.info.pid); 2]);
            assert!(batch.info.worker.unwrap() < 2);
            seen.insert(batch.info.pid);
        }
    }
    assert!(seen.is_subset(&pids), "workers live from epoch to epoch: {seen:?} of {pids:?}");
    // With `max_tasks_per_child`, workers are replaced, and each calls `init`.
    let loader =
        DataLoader::builder(plain(40)).batch_size(2).num_workers(2).max_tasks_per_child(3).build().unwrap();
    let pids: BTreeSet<u32> = loader.epoch(0).map(|batch| batch.unwrap().info.pid).collect();
    assert!(pids.len() >= 6, "{pids:?}");
}

/// Also covers `TestOutOfOrderDataLoader`.
#[test]
fn test_partial_workers_and_out_of_order() {
    // More workers than batches.
    assert_eq!(all(builder(5, 6).build().unwrap().epoch(0)).len(), 2);
    // A batch that never ends delays no other batch.
    let first = all(builder(40, 0).build().unwrap().epoch(0))[0].2[0];
    let hang = || Samples::new(40).with(first, Fault::Hang, 1);
    let loader = builder_of(hang(), 2).in_order(false).build().unwrap();
    let mut batches = loader.epoch(0);
    for _ in 0..9 {
        assert_ne!(next(&mut batches).unwrap().unwrap().info.number, 0);
    }
    assert!(batches.next_timeout(Duration::from_millis(1)).is_err());
    let state = batches.state();
    assert_eq!((state.next(), state.out_of_order()), (0, &[1, 2, 3, 4, 5, 6, 7, 8, 9][..]));
    let other = builder(40, 1).in_order(false).build().unwrap();
    let rest = all(other.resume(&state).unwrap());
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].1, 0);
}

#[test]
fn test_proper_exit() {
    // However the trainer ends, its workers end.
    for how in ["drop", "kill", "panic", "exit"] {
        let pids = Queue::<Vec<u32>>::unbounded().unwrap();
        let args = (pids.clone(), how.to_string());
        let trainer = |(pids, how): (Queue<Vec<u32>>, String)| {
            let loader = builder(1000, 2).build().unwrap();
            let mut batches = loader.epoch(0);
            let kept = next(&mut batches).unwrap().unwrap();
            pids.put(loader.pids()).unwrap();
            match how.as_str() {
                "drop" => drop((loader, batches)),
                "kill" => signal(std::process::id(), Signal::KILL),
                "panic" => panic!("the trainer"),
                _ => std::process::exit(3),
            }
            drop(kept);
        };
        let trainer = Process::spawn(trainer, args).unwrap();
        let workers = pids.get_timeout(DEADLINE).unwrap().unwrap();
        _ = trainer.join();
        assert_eq!(workers.len(), 2);
        eventually(how, || !workers.iter().any(|pid| alive(*pid)));
    }
}

#[test]
fn test_proper_exit_with_worker_kill() {
    // torch skips this test, since it sometimes hangs (pytorch#16608). A worker is killed, then the trainer
    // ends, and the other worker with it.
    for how in ["drop", "kill", "exit"] {
        let pids = Queue::<Vec<u32>>::unbounded().unwrap();
        let trainer = |(pids, how): (Queue<Vec<u32>>, String)| {
            let loader = builder(1000, 2).build().unwrap();
            let mut batches = loader.epoch(0);
            drop(next(&mut batches));
            let workers = loader.pids();
            pids.put(workers.clone()).unwrap();
            signal(workers[0], Signal::KILL);
            match how.as_str() {
                "drop" => drop((loader, batches)),
                "kill" => signal(std::process::id(), Signal::KILL),
                _ => std::process::exit(3),
            }
        };
        let trainer = Process::spawn(trainer, (pids.clone(), how.to_string())).unwrap();
        let workers = pids.get_timeout(DEADLINE).unwrap().unwrap();
        _ = trainer.join();
        eventually(how, || !workers.iter().any(|pid| alive(*pid)));
    }
}

#[test]
fn ctrl_c_reaches_only_the_trainer() {
    // The signal is sent to workers while they start and while they work, as a terminal does. Workers ignore
    // it from their first instruction on.
    let loader = builder(400, 2).build().unwrap();
    let begun = loader.pids();
    let mut batches = loader.epoch(0);
    let mut count = 0;
    loop {
        begun.iter().for_each(|pid| signal(*pid, Signal::INT));
        let Some(batch) = next(&mut batches) else { break };
        drop(batch.unwrap());
        count += 1;
    }
    assert_eq!((count, loader.pids(), loader.metrics().restarts), (100, begun, 0));
}

// Cases of torchdata's `test_state_dict.py`.

#[test]
fn loader_states_resume_at_any_batch_and_epoch() {
    for workers in [0, 2] {
        let of = || builder(20, workers).build().unwrap();
        let expected = all(of().epochs(0..3));
        // TestSnapshotZero, TestStatefulDataLoaderMap, TestSnapshotEnd, TestMultiEpochSDL: before each batch,
        // and after the last.
        for at in 0..=expected.len() {
            let loader = of();
            let mut batches = loader.epochs(0..3);
            (0..at).for_each(|_| drop(next(&mut batches).unwrap().unwrap()));
            let state = kept(&batches.state());
            drop((batches, loader));
            assert_eq!(all(of().resume_until(&state, 3).unwrap()), expected[at..], "{at}");
        }
        // TestEndOfEpochBehavior: the state at the end of an epoch has no more batches, and the next epoch is
        // complete.
        let loader = of();
        let mut batches = loader.epoch(0);
        while next(&mut batches).is_some() {}
        let state = kept(&batches.state());
        assert_eq!((state.epoch(), state.next()), (0, 5));
        assert!(all(loader.resume(&state).unwrap()).is_empty());
        assert_eq!(all(loader.resume_until(&state, 2).unwrap()), expected[5..10]);
        assert_eq!(all(loader.epoch(1)), expected[5..10]);
        // Each loader that resumes from the same state returns the same batches (huggingface/datasets#8308).
        let state = loader.epoch(1).state();
        assert_eq!(all(loader.resume(&state).unwrap()), all(loader.resume(&state).unwrap()));
    }
}

#[test]
fn json_loader_states_fit_any_number_of_workers() {
    let expected = all(builder(40, 0).build().unwrap().epoch(0));
    let two = builder(40, 2).build().unwrap();
    let mut batches = two.epoch(0);
    (0..4).for_each(|_| drop(next(&mut batches).unwrap().unwrap()));
    let state = kept(&batches.state());
    // torchdata requires equal numbers of workers. Here any number works, and both iterators continue.
    for workers in [0, 1, 3] {
        let other = builder(40, workers).build().unwrap();
        assert_eq!(all(other.resume(&state).unwrap()), expected[4..]);
    }
    assert_eq!(all(batches), expected[4..]);
    // TestErrors: an invalid state.
    let text = serde_json::to_string(&state).unwrap();
    let broken = text.replace("\"format\":1", "\"format\":2");
    let error = two.resume(&serde_json::from_str(&broken).unwrap()).unwrap_err();
    assert!(error.to_string().contains("format is 2 in the state, 1 in the plan"), "{error}");
    assert!(serde_json::from_str::<mp_data::LoaderState>("{}").is_err());
}

#[test]
fn loader_states_cover_delivered_batches_only() {
    let expected = all(builder(40, 0).build().unwrap().epoch(2));
    let loader = builder(40, 2).prefetch_factor(4).build().unwrap();
    let mut batches = loader.epoch(2);
    assert_eq!((batches.state().epoch(), batches.state().next()), (2, 0));
    let mut kept = Vec::new();
    for given in 0..10 {
        let state = batches.state();
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.len() < 600, "{text}");
        assert_eq!((state.next(), state.out_of_order().len()), (given, 0));
        kept.push(serde_json::from_str(&text).unwrap());
        assert_eq!(bytes(&next(&mut batches).unwrap().unwrap()), expected[given as usize]);
    }
    assert!(next(&mut batches).is_none());
    assert_eq!(batches.state().next(), 10);
    kept.push(batches.state());
    for (given, state) in kept.iter().enumerate() {
        assert_eq!(all(builder(40, given % 3).build().unwrap().resume(state).unwrap()), expected[given..]);
        if given > 0 {
            assert_eq!(batches.state_after(given as u64 - 1).unwrap(), *state);
        }
    }
    assert!(batches.state_after(10).is_none());
    // Two ranks resume the epoch of one rank.
    let rank = |rank| {
        let loader = builder(40, 1).batch_size(2).distributed(rank, 2).build().unwrap();
        all(loader.resume(&kept[7]).unwrap())
    };
    let (zero, one) = (rank(0), rank(1));
    let together: Vec<usize> =
        zero.iter().zip(&one).flat_map(|(zero, one)| [&zero.2[..], &one.2].concat()).collect();
    let alone: Vec<usize> = expected[7..].iter().flat_map(|batch| batch.2.clone()).collect();
    assert_eq!(together, alone);
    // A state of another plan is refused, and the error contains the reason.
    let error = builder(41, 1).build().unwrap().resume(&kept[3]).unwrap_err();
    assert!(error.to_string().contains("len is 40 in the state, 41 in the plan"), "{error}");
}
