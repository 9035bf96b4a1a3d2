//! Texts of errors: each fact once, in the terms of a loader.

use std::fmt;

use mp_data::plan::IndexSampler;
use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, LoadError, OnError, WorkerInfo};
use mp_spawn::Process;
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::common::shards::{Shards, When, next_of, streaming_of};
use crate::common::{Fault, Samples, builder, builder_of, next};

fn first_error(samples: Samples, workers: usize) -> LoadError {
    let loader = builder_of(samples, workers).shuffle(false).retries(1).build().unwrap();
    let mut batches = loader.epoch(0);
    std::iter::from_fn(|| next(&mut batches)).find_map(Result::err).unwrap()
}

/// Returns `true` if the error's text has no terms of the pool or of other layers below the loader.
fn is_of_a_loader(error: &LoadError) -> bool {
    let (text, debug) = (error.to_string(), format!("{error:?}"));
    let foreign = ["rank", "task", "pool", "LoadError", "data loader-"];
    foreign.iter().all(|word| !text.contains(word) && !debug.contains(word)) && debug.starts_with(&text)
}

#[test]
fn loader_error_names_batch_sample_worker_and_cause() {
    let error = first_error(Samples::new(12).with(6, Fault::Error, -1), 1);
    let text = error.to_string();
    let (begin, end) = text.split_once("(pid ").unwrap();
    assert_eq!(begin, "batch 1 of epoch 0, sample 6 (number 6), worker 0 ");
    assert!(end.ends_with("): sample 6 is bad") && is_of_a_loader(&error), "{error:?}");
    // Without workers.
    let error = first_error(Samples::new(12).with(6, Fault::Error, -1), 0);
    assert_eq!(error.to_string(), "batch 1 of epoch 0, sample 6 (number 6): sample 6 is bad");
    assert!(is_of_a_loader(&error), "{error:?}");

    let error = first_error(Samples::new(12).with(6, Fault::Kill, -1), 1);
    let text = error.to_string();
    let begin = "batch 1 of epoch 0, sample 6 (number 6), attempt 2, worker 0 (pid ";
    assert!(text.starts_with(begin) && text.contains("): its process was killed by SIGKILL"), "{text}");
    assert!(is_of_a_loader(&error), "{error:?}");

    let shards = Shards::new(&[12]).with((When::Read, 0, 6), Fault::Kill, -1);
    let loader = streaming_of(shards, 1).retries(1).build().unwrap();
    let mut batches = loader.epoch(0);
    let error = std::iter::from_fn(|| next_of(&mut batches)).find_map(Result::err).unwrap();
    let text = error.to_string();
    let begin = "batch 1 of epoch 0, sample 6 of shard 0 (shard-0.tar), attempt 2, worker 0 (pid ";
    assert!(text.starts_with(begin) && text.contains("): its process was killed by SIGKILL"), "{text}");
    assert!(is_of_a_loader(&error), "{error:?}");
}

/// Sampler that returns an invalid index.
#[derive(Debug)]
struct Beyond;

impl IndexSampler for Beyond {
    fn name(&self) -> &str {
        "beyond/1"
    }

    fn len(&self, _: u64) -> u64 {
        8
    }

    fn index(&self, _: u64, k: u64) -> u64 {
        if k == 5 { 9999 } else { k }
    }
}

#[test]
fn loader_error_names_its_batch_only_once() {
    let loader = builder(8, 0).shuffle(false).index_sampler(Beyond).build().unwrap();
    let error = loader.epoch(1).find_map(Result::err).unwrap();
    let text = error.to_string();
    assert_eq!(text.matches("batch 1 of epoch 1").count(), 1, "{text}");
    assert!(text.starts_with("batch 1 of epoch 1: the sampler gave index 9999"), "{text}");

    // A batch without remaining samples.
    let shards = (4..8)
        .fold(Shards::new(&[12]), |shards, sample| shards.with((When::Row, 0, sample), Fault::Error, -1));
    let loader = streaming_of(shards, 1).on_error(OnError::SkipSample).build().unwrap();
    let mut batches = loader.epoch(0);
    assert_eq!(std::iter::from_fn(|| next_of(&mut batches)).filter(Result::is_ok).count(), 2);
    let [error] = batches.skipped_batches() else { panic!("{:?}", batches.skipped_batches()) };
    let text = error.to_string();
    assert_eq!(text.matches("batch 1 of epoch 0").count(), 1, "{text}");
    assert!(text.starts_with("batch 1 of epoch 0: no sample is left: sample 4 of shard 0"), "{text}");
    assert!((4..8).all(|n| text.matches(&format!("Row of {n} in 0 is bad")).count() == 1), "{text}");
    assert!(is_of_a_loader(error), "{error:?}");
}

/// Dataset whose worker can't start, or whose error has a longer text in its alternate form.
#[derive(Serialize, Deserialize)]
struct Long {
    begins: bool,
}

#[derive(Debug)]
struct LongError;

impl fmt::Display for LongError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if f.alternate() { "all of it" } else { "a part" })
    }
}

impl std::error::Error for LongError {}

impl Dataset for Long {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        1
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        if self.begins { Ok(()) } else { Err("there is no GPU".into()) }
    }

    fn fetch(&mut self, _: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        if cx.worker().worker.is_none() { Err(LongError.into()) } else { panic!("with a backtrace") }
    }
}

fn long(begins: bool, workers: usize) -> LoadError {
    let loader = DataLoader::builder(Long { begins }).num_workers(workers).build().unwrap();
    next(&mut loader.epoch(0)).unwrap().unwrap_err()
}

/// Returns the short and the full text of an error. Runs in a process whose workers record backtraces.
fn backtraces(_: ()) -> (String, String) {
    let error = long(true, 1);
    (error.to_string(), format!("{error:#}"))
}

#[test]
fn alternate_loader_error_format_includes_all_details() {
    let error = long(true, 0);
    assert_eq!(error.to_string(), "batch 0 of epoch 0: a part");
    assert_eq!(format!("{error:#}"), "batch 0 of epoch 0: all of it");
    let process = Process::builder().env("RUST_BACKTRACE", "1").spawn(backtraces, ()).unwrap();
    let (short, full) = process.join().unwrap();
    assert!(short.contains("panicked: with a backtrace") && short.contains("(`{:#}` shows all)"), "{short}");
    assert!(!full.contains("shows all") && full.len() > short.len(), "{full}");
}

#[test]
fn failed_loader_worker_starts_are_explained() {
    let error = long(false, 1);
    let text = error.to_string();
    let begin =
        "batch 0 of epoch 0: the loader has no workers left: 5 starts failed; the last error: worker 0 (pid ";
    assert!(text.starts_with(begin) && text.ends_with("): there is no GPU"), "{text}");
    assert!(is_of_a_loader(&error), "{error:?}");
}

#[test]
fn loader_build_error_from_main_is_shown_as_text() {
    let error = builder(8, 1001).build().unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
}
