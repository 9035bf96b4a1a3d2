//! Errors of datasets, settings and states. Each error names a remedy, and loses no other batch.

use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

use mp_core::user_code::catch_panic;
use mp_data::plan::{BatchSampler, Batching, Plan, PlanError};
use mp_data::{
    AnyResult, BuildError, Context, DataLoader, DataLoaderBuilder, Dataset, Item, LoadError, LoaderState,
    Ragged, WorkerInfo,
};
use mp_tensor::Tensor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::common::{DEADLINE, all, builder, next};

/// Kind of mistake in a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wrong {
    Nothing,
    Describe,
    SourceOfItself,
    OutOfMemory,
    OtherShape,
    Panic,
    Init,
}

/// Dataset of numbers, with a mistake at sample 5.
#[derive(Serialize, Deserialize)]
pub(crate) struct Numbers(usize, Wrong);

#[derive(Debug)]
struct OfItself;

impl fmt::Display for OfItself {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an error that comes from itself")
    }
}

impl Error for OfItself {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self)
    }
}

impl Dataset for Numbers {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        self.0
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        if self.1 == Wrong::Init { Err("there is no decoder".into()) } else { Ok(()) }
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        let wrong = self.1;
        let made = cx.rows(items, &[], |item, _, row| {
            row[0] = item.index as u64;
            match wrong {
                _ if item.index != 5 => Ok(()),
                Wrong::Describe => Err("it is bad".into()),
                Wrong::SourceOfItself => Err(OfItself.into()),
                Wrong::OutOfMemory => {
                    let error = mp_core::Error::OutOfMemory { asked: 10, left: 9, limit: "a limit".into() };
                    Err(mp_reduce::Error::Memory(error).into())
                }
                Wrong::Panic => panic!("sample 5"),
                _ => Ok(()),
            }
        })?;
        if wrong == Wrong::OtherShape {
            return Ok(Tensor::full([items.len() + 3], 7)?);
        }
        Ok(made)
    }

    fn describe(&self, index: usize) -> Option<String> {
        assert!(self.1 != Wrong::Describe, "describe");
        Some(format!("number {index}"))
    }
}

pub(crate) fn numbers(len: usize, wrong: Wrong, workers: usize) -> DataLoaderBuilder<Numbers> {
    by_themselves(len, wrong, workers).batch_size(4)
}

/// Returns a builder without a batch size, for batch samplers.
pub(crate) fn by_themselves(len: usize, wrong: Wrong, workers: usize) -> DataLoaderBuilder<Numbers> {
    DataLoader::builder(Numbers(len, wrong)).num_workers(workers)
}

/// Returns the numbers of the batches of an epoch, and the errors.
pub(crate) fn outcomes<D: Dataset>(loader: &DataLoader<D>, epoch: u64) -> (Vec<u64>, Vec<LoadError>) {
    let mut batches = loader.epoch(epoch);
    let (mut made, mut errors) = (Vec::new(), Vec::new());
    while let Some(batch) = next(&mut batches) {
        match batch {
            Ok(batch) => made.push(batch.info.number),
            Err(error) => errors.push(error),
        }
    }
    (made, errors)
}

#[test]
fn loader_epochs_up_to_u64_max_end() {
    for workers in [0, 2] {
        let loader = builder(9, workers).build().unwrap();
        let last = loader.epoch(u64::MAX);
        assert_eq!(last.size_hint().1, Some(3));
        assert_eq!(all(last).iter().map(|batch| batch.0).collect::<Vec<_>>(), [u64::MAX; 3]);
        let two = all(loader.epochs(u64::MAX - 1..u64::MAX));
        assert_eq!(two.iter().map(|batch| batch.0).collect::<Vec<_>>(), [u64::MAX - 1; 3]);
        assert_eq!(
            loader.epochs(5..5).count() + loader.epochs(std::ops::Range { start: 5, end: 2 }).count(),
            0
        );
        let state = loader.epoch(u64::MAX).state();
        assert_eq!(loader.resume(&state).unwrap().count(), 3);
        assert_eq!(loader.resume_until(&state, u64::MAX).unwrap().count(), 0);
        // For a dataset without samples, the search for a batch must end before the last epoch.
        let empty = builder(0, workers).build().unwrap();
        assert_eq!(empty.epochs(0..u64::MAX).count(), 0);
        let short = builder(3, workers).drop_last(true).build().unwrap();
        assert_eq!(short.epochs(3..u64::MAX).count(), 0);
    }
}

#[test]
fn panic_in_describe_costs_only_the_samples_name() {
    for workers in [0, 1] {
        let loader = numbers(12, Wrong::Describe, workers).build().unwrap();
        let (made, errors) = outcomes(&loader, 0);
        assert_eq!((made, errors.len()), (vec![0, 2], 1));
        assert_eq!((errors[0].item.map(|item| item.index), &errors[0].description), (Some(5), &None));
        assert!(loader.verify(3).unwrap_err().to_string().contains("sample 5"));
    }
}

#[test]
fn dataset_error_that_is_its_own_source_is_reported() {
    for workers in [0, 1] {
        let loader = numbers(12, Wrong::SourceOfItself, workers).build().unwrap();
        let (made, errors) = outcomes(&loader, 0);
        assert_eq!((made, errors.len()), (vec![0, 2], 1));
        assert!(errors[0].to_string().contains("comes from itself"), "{}", errors[0]);
    }
}

#[test]
fn batch_with_wrapped_memory_error_is_retried_alone() {
    for workers in [0, 1] {
        let loader = numbers(12, Wrong::OutOfMemory, workers).build().unwrap();
        let (made, errors) = outcomes(&loader, 0);
        assert_eq!((made, errors.len()), (vec![0, 2], 1));
        let text = errors[0].to_string();
        assert!(errors[0].attempts == 2 && text.contains("out of shared memory"), "{text}");
        assert!(text.contains("this process holds "), "the memory of the trainer is not named: {text}");
    }
}

#[test]
fn verify_names_failed_samples_and_other_sizes() {
    for workers in [0, 2] {
        let error = numbers(12, Wrong::Panic, workers).build().unwrap().verify(3).unwrap_err();
        assert_eq!((error.batch, error.item.map(|item| item.index)), (1, Some(5)), "{error}");
        assert_eq!(error.description.as_deref(), Some("number 5"));
    }
    let loader = numbers(4, Wrong::OtherShape, 2).build().unwrap();
    // With a wrong number of rows, the trainer would assign rows to wrong samples.
    let errors = [*loader.verify(1).unwrap_err(), next(&mut loader.epoch(0)).unwrap().unwrap_err()];
    for error in errors {
        let text = error.to_string();
        assert!(
            error.batch == 0 && text.contains("a batch of 4 samples, a row each, but the column has "),
            "{text}"
        );
    }
}

/// Sampler whose number of batches overflows.
#[derive(Debug)]
struct Boundless;

impl BatchSampler for Boundless {
    fn name(&self) -> &str {
        "boundless/1"
    }

    fn batches(&self, _: u64) -> Option<u64> {
        Some(u64::MAX)
    }

    fn batch(&self, _: u64, k: u64) -> Option<Vec<u64>> {
        Some(vec![k % 12])
    }
}

#[test]
fn batch_numbers_up_to_u64_max_are_counted_or_refused() {
    let loader = by_themselves(12, Wrong::Nothing, 2).batch_sampler(Boundless).build().unwrap();
    let batches = loader.epoch(0);
    assert_eq!(batches.size_hint(), (0, Some(usize::MAX)));
    assert_eq!(batches.take(20).filter(Result::is_ok).count(), 20);
    // A state that no loader has saved.
    let mut state = serde_json::to_value(loader.epoch(0).state()).unwrap();
    state["plan"]["next"] = u64::MAX.into();
    state["beyond"] = serde_json::json!([0, u64::MAX]);
    let state: LoaderState = serde_json::from_value(state).unwrap();
    assert!(matches!(loader.resume(&state), Err(PlanError::StateChanged)));
    let mut batches = loader.resume(&state.sealed()).unwrap();
    assert!(next(&mut batches).is_none());
    assert_eq!(batches.state().next(), u64::MAX);
    let plan = serde_json::to_value(loader.plan().state(0, u64::MAX - 1)).unwrap();
    let far = serde_json::json!({"beyond": [], "plan": plan, "format": 1, "rank": 0, "check": 0});
    let mut batches = loader.resume(&serde_json::from_value::<LoaderState>(far).unwrap().sealed()).unwrap();
    let error = next(&mut batches).unwrap().unwrap_err();
    assert!(error.to_string().contains("at most 2⁴⁰ batches"), "{error}");
    assert!(next(&mut batches).is_none());

    let lengths: std::sync::Arc<[u32]> = (1..40).collect();
    for batching in [
        Batching::MaxTokens { lengths: lengths.clone(), tokens: 50, window: 10 },
        Batching::BucketByLength { lengths, window: 2 },
    ] {
        let plan = Plan::builder(39).distributed(1, 2).batching(batching).build().unwrap();
        assert_eq!(plan.epoch(0).batch(u64::MAX).unwrap(), None);
        assert!(plan.epoch(0).batch(0).unwrap().is_some());
    }
    let ragged = Ragged::<u8>::from_rows(&[[1, 2]]).unwrap();
    assert!([1, usize::MAX - 1, usize::MAX].iter().all(|row| ragged.row(*row).is_err()));
}

#[test]
fn invalid_loader_settings_are_refused_by_name() {
    // Errors name settings of the public interface.
    let said = |builder: DataLoaderBuilder<Numbers>| builder.build().unwrap_err().to_string();
    let of = || by_themselves(40, Wrong::Nothing, 0);
    assert!(said(of().batch_size(0)).ends_with("0 samples on each of 1 ranks: 1 to 2⁴⁰ in all are possible"));
    assert!(
        said(of().global_batch_size(7).distributed(0, 2))
            .contains("`global_batch_size`: 7 samples: a multiple")
    );
    let refused = |builder: DataLoaderBuilder<Numbers>| match builder.build().unwrap_err() {
        BuildError::Setting { setting, .. } => setting,
        BuildError::Plan(PlanError::Setting { setting, .. }) => setting,
        other => panic!("{other}"),
    };
    let of = |workers| numbers(12, Wrong::Nothing, workers);
    assert_eq!(refused(of(1001)), "num_workers");
    assert_eq!(refused(of(2).threads_per_worker(1025)), "threads_per_worker");
    assert_eq!(refused(of(2).prefetch_factor(usize::MAX)), "prefetch_factor");
    assert_eq!(refused(of(2).timeout(std::time::Duration::ZERO)), "timeout");
    assert_eq!(refused(of(0).batch_size(0)), "batch_size");
    // Zero counts as one, and more threads or batches than needed are accepted.
    let loader = of(2).prefetch_factor(0).threads_per_worker(0).batch_size(1 << 30).build().unwrap();
    assert_eq!(outcomes(&loader, 0).0, [0]);
    let loader = of(1).threads_per_worker(1024).build().unwrap();
    assert_eq!(outcomes(&loader, 0).0, [0, 1, 2]);
}

#[test]
fn broken_loader_ends_with_an_exact_state() {
    for workers in [0, 2] {
        let loader = numbers(12, Wrong::Init, workers).build().unwrap();
        let mut batches = loader.epoch(3);
        let error = next(&mut batches).unwrap().unwrap_err();
        assert_eq!((error.epoch, error.batch), (3, 0));
        assert!(error.to_string().contains("there is no decoder"), "{error}");
        assert!(next(&mut batches).is_none() && next(&mut batches).is_none());
        assert_eq!(batches.size_hint(), (0, Some(0)));
        // The error was not delivered as a batch, so a corrected dataset resumes with it.
        assert_eq!((batches.state().epoch(), batches.state().next()), (3, 0));
        assert_eq!(loader.metrics().failed, 1);
        let mended = numbers(12, Wrong::Nothing, 1).build().unwrap();
        assert_eq!(mended.resume(&batches.state()).unwrap().filter(Result::is_ok).count(), 3);
    }
}

/// Dataset that panics when it is sent, received or dropped.
struct Bomb(u8);

impl Serialize for Bomb {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        assert!(self.0 != 1, "it is not sent");
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Bomb {
    fn deserialize<De: Deserializer<'de>>(d: De) -> Result<Self, De::Error> {
        let kind = u8::deserialize(d)?;
        assert!(kind != 2, "it is not received");
        if kind == 4 { Err(serde::de::Error::custom("it is no dataset")) } else { Ok(Bomb(kind)) }
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(self.0 != 3 || std::thread::panicking(), "it is not dropped");
    }
}

impl Dataset for Bomb {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        4
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[], |item, _, row| {
            row[0] = self.0;
            assert!(self.0 != 3 || item.index != 1, "sample 1");
            Ok(())
        })
    }
}

#[test]
fn dataset_panic_in_serde_or_drop_is_an_error() {
    for workers in [0, 1] {
        let of = |kind| DataLoader::builder(Bomb(kind)).num_workers(workers).build();
        let said = |kind| match of(kind) {
            Err(error) => error.to_string(),
            Ok(loader) => {
                let (made, errors) = outcomes(&loader, 0);
                assert!(made.is_empty() && errors.len() == 1);
                errors[0].to_string()
            }
        };
        assert!(said(1).contains("it is not sent"), "{}", said(1));
        assert!(said(2).contains("it is not received"), "{}", said(2));
        assert!(said(4).contains("it is no dataset"), "{}", said(4));
        // After the panic of a sample the copy of the dataset is dropped, which panics, too.
        let loader = of(3).unwrap();
        let (made, errors) = outcomes(&loader, 0);
        assert_eq!((made, errors.len()), (vec![0, 2, 3], 1));
        assert!(errors[0].to_string().contains("sample 1"), "{}", errors[0]);
        catch_panic(|| drop(loader));
    }
}

/// Loader of a dataset that requests batches from this loader.
static OWN: OnceLock<DataLoader<AsksItsLoader>> = OnceLock::new();

#[derive(Serialize, Deserialize)]
struct AsksItsLoader;

impl Dataset for AsksItsLoader {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        4
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        if items[0].index == 2 {
            let mut batches = OWN.get().expect("the loader is stored before the first batch").epoch(1);
            drop(next(&mut batches).expect("the epoch has a batch")?);
        }
        cx.rows(items, &[], |item, _, row| {
            row[0] = item.index as u64;
            Ok(())
        })
    }
}

/// Without the guard of the in-process worker, the thread would wait for a lock that it holds.
#[test]
fn dataset_calling_its_own_loader_gets_an_error() {
    let loader = DataLoader::builder(AsksItsLoader).batch_size(2).num_workers(0).build().unwrap();
    let loader = OWN.get_or_init(|| loader);
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(loader.epoch(0).collect::<Vec<_>>()));
    let batches = ended.recv_timeout(DEADLINE).expect("the thread waits for itself");
    assert_eq!(batches[0].as_ref().unwrap().to_vec(), [0, 1]);
    let text = batches[1].as_ref().unwrap_err().to_string();
    assert!(text.contains("a loader without workers makes one at a time"), "{text}");
    // The loader continues.
    assert_eq!(next(&mut loader.epoch(2)).unwrap().unwrap().to_vec(), [0, 1]);
}
