//! Datasets made of other datasets, in real workers: batches, errors, deaths and states, with the cases of
//! torch's tests.

mod common;

use std::collections::BTreeSet;

use common::{Fault, Samples, builder_of, bytes, kept, next};
use mp_data::plan::{PlanError, SampleRng};
use mp_data::{
    AnyResult, ConcatDataset, Context, DataLoader, DataLoaderBuilder, Dataset, DatasetError, Item, LoadError,
    OnError, RowDataset, RowOf, ShapesOf, StackDataset, Subset, TensorDataset, WorkerInfo, random_split,
};
use mp_tensor::{FrozenTensor, SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

/// Dataset whose rows contain dataset, sample and random number.
#[derive(Clone, Serialize, Deserialize)]
struct Rows {
    name: u64,
    len: usize,
    width: usize,
    /// Sample with a fault, and the remaining number of times that the fault happens.
    fault: Option<(usize, Fault, SharedTensor<i64>)>,
    #[serde(skip)]
    begun: bool,
}

fn rows(name: u64, len: usize) -> Rows {
    Rows { name, len, width: 3, fault: None, begun: false }
}

impl Rows {
    fn with(self, index: usize, fault: Fault, times: i64) -> Rows {
        let times = Tensor::full([1], times).unwrap().share();
        Rows { fault: Some((index, fault, times)), ..self }
    }
}

impl Dataset for Rows {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        self.len
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<u64>>) -> AnyResult<Tensor<u64>> {
        cx.rows_of(self, items)
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        self.begun = true;
        Ok(())
    }

    fn describe(&self, index: usize) -> Option<String> {
        Some(format!("{index} of {}", self.name))
    }
}

impl RowDataset for Rows {
    fn row_shapes(&self) -> AnyResult<ShapesOf<'_, Self>> {
        Ok(if self.width == 3 { &[3] } else { &[4] })
    }

    fn write_row(&self, item: Item, rng: &mut SampleRng, row: RowOf<'_, Self>) -> AnyResult<()> {
        assert!(self.begun, "`init` was not called");
        if let Some((index, fault, times)) = &self.fault
            && *index == item.index
            && times.fetch_sub(0, 1) > 0
        {
            fault.happens(&format!("row {}", item.index))?;
        }
        row[..3].copy_from_slice(&[self.name, item.index as u64, rng.next_u64()]);
        Ok(())
    }
}

/// Returns the numbers of the rows of all batches of epoch 1, in order.
#[track_caller]
fn given<D: Dataset<Batch = Tensor<u64>>>(loader: &DataLoader<D>) -> Vec<u64> {
    let mut batches = loader.epoch(1);
    let all = std::iter::from_fn(|| next(&mut batches));
    all.flat_map(|batch| batch.unwrap().to_vec()).collect()
}

fn loader<D: Dataset>(dataset: D, workers: usize) -> DataLoaderBuilder<D> {
    DataLoader::builder(dataset).batch_size(4).seed(17).num_workers(workers)
}

#[track_caller]
fn first_error<D: Dataset>(builder: DataLoaderBuilder<D>) -> LoadError {
    let loader = builder.build().unwrap();
    let mut batches = loader.epoch(0);
    std::iter::from_fn(|| next(&mut batches)).find_map(Result::err).unwrap()
}

fn random_numbers(len: usize) -> FrozenTensor<u64> {
    let mut rng = SampleRng::new(5, 0, 0);
    Tensor::from_fn([len, 2], |_| rng.next_u64()).unwrap().freeze()
}

/// torch: `test_concat_two_singletons`, `test_concat_two_non_singletons_with_empty`.
#[test]
fn concat_yields_rows_of_all_datasets_in_order() {
    let parts = || ConcatDataset::new([rows(1, 5), rows(2, 0), rows(3, 1), rows(4, 7)]).unwrap();
    let places = |rows: &[u64]| rows.chunks(3).map(|row| (row[0], row[1])).collect::<Vec<_>>();
    let of = |name, len| (0..len).map(move |index| (name, index));
    let expected: Vec<_> = of(1, 5).chain(of(3, 1)).chain(of(4, 7)).collect();
    let ordered = given(&loader(parts(), 0).build().unwrap());
    assert_eq!(places(&ordered), expected);
    let shuffled = given(&loader(parts(), 0).shuffle(true).build().unwrap());
    assert_ne!(shuffled, ordered);
    assert_eq!(places(&shuffled).into_iter().collect::<BTreeSet<_>>(), expected.into_iter().collect());
    for threads in [1, 3] {
        let with = |shuffle| loader(parts(), 2).threads_per_worker(threads).shuffle(shuffle).build().unwrap();
        assert_eq!((given(&with(false)), given(&with(true))), (ordered.clone(), shuffled.clone()));
        assert!(with(true).verify(4).unwrap().is_same());
    }
    let nested = ConcatDataset::new([parts(), parts()]).unwrap();
    assert_eq!((nested.len(), nested.datasets().len()), (26, 2));
    let nested = given(&loader(nested, 1).build().unwrap());
    assert_eq!(places(&nested), [places(&ordered), places(&ordered)].concat());
}

#[test]
fn concat_of_bad_parts_is_an_error() {
    assert_eq!(ConcatDataset::<Rows>::new([]).unwrap_err(), DatasetError::Empty);
    let long = ConcatDataset::new([rows(1, usize::MAX), rows(2, 1)]).unwrap_err();
    assert_eq!(long, DatasetError::TooLong);
    for workers in [0, 1] {
        let wide = Rows { width: 4, ..rows(2, 3) };
        let error = first_error(loader(ConcatDataset::new([rows(1, 5), wide]).unwrap(), workers));
        assert_eq!((error.batch, error.item.map(|item| item.index)), (1, Some(5)), "{error}");
        let text = error.to_string();
        assert!(text.contains("sample 5 (0 of 2)") && text.contains("[4]") && text.contains("[3]"), "{text}");
    }
}

#[test]
fn concat_batch_of_a_killed_worker_is_retried() {
    let expected = given(&loader(ConcatDataset::new([rows(1, 5), rows(2, 6)]).unwrap(), 0).build().unwrap());
    let parts = ConcatDataset::new([rows(1, 5), rows(2, 6).with(2, Fault::Kill, 1)]).unwrap();
    let again = loader(parts, 2).build().unwrap();
    assert_eq!(given(&again), expected);
    assert_eq!(again.metrics().retried, 1);
    // The error of a sample that kills its worker each time names the dataset, and the sample can be skipped.
    let parts = ConcatDataset::new([rows(1, 5), rows(2, 6).with(2, Fault::Kill, i64::MAX)]).unwrap();
    let loader = loader(parts, 1).retries(0).on_error(OnError::SkipSample).build().unwrap();
    let mut batches = loader.epoch(1);
    let all = std::iter::from_fn(|| next(&mut batches)).map(Result::unwrap).collect::<Vec<_>>();
    let lacks = all[1].info.skipped.iter().map(|skipped| skipped.item.index).collect::<Vec<_>>();
    assert_eq!((all[1].shape(), lacks), (&[3, 3][..], vec![7]));
    assert!(all[1].info.skipped[0].why.contains("(2 of 2)"), "{:?}", all[1].info.skipped);
}

/// torch: `TestTensorDataset`.
#[test]
fn tensor_dataset_yields_rows_of_its_tensors() {
    let x = random_numbers(15);
    let y = Tensor::<i8>::from_fn([15], |i| i as i8).unwrap().freeze();
    let columns = Tensor::<f64>::from_fn([2, 15], |i| i as f64).unwrap().freeze().t().unwrap();
    assert!(!columns.is_contiguous());
    let of = || TensorDataset::new((x.clone(), y.clone(), columns.clone())).unwrap();
    assert_eq!(of().len(), 15);
    for workers in [0, 2] {
        let loader = loader(of(), workers).shuffle(true).build().unwrap();
        let mut batches = loader.epoch(0);
        let mut seen = BTreeSet::new();
        while let Some(batch) = next(&mut batches) {
            let batch = batch.unwrap();
            for (row, index) in batch.info.indices().into_iter().enumerate() {
                let same = x.select(0, index).unwrap() == batch.0.view().select(0, row).unwrap()
                    && columns.select(0, index).unwrap() == batch.2.view().select(0, row).unwrap();
                assert!(same && batch.1[[row]] == index as i8, "{index}");
                assert!(seen.insert(index));
            }
        }
        assert_eq!(seen.len(), 15);
    }
    // A single tensor, in a tuple or alone.
    let single = loader(TensorDataset::new((x.clone(),)).unwrap(), 1).build().unwrap();
    let mut batches = single.epoch(0);
    assert!(next(&mut batches).unwrap().unwrap().0 == x.slice(0, ..4, 1).unwrap());
    assert_eq!(given(&loader(x.clone(), 1).build().unwrap()), x.to_vec());
}

/// torch: `test_size_mismatch`, `test_mixed`.
#[test]
fn stack_of_unequal_lengths_returns_an_error() {
    let (x, y) = (random_numbers(15), random_numbers(14));
    let error = StackDataset::new((x.clone(), rows(1, 15), y)).unwrap_err();
    assert_eq!(error, DatasetError::Lengths(vec![15, 15, 14]));
    assert!(error.to_string().contains("[15, 15, 14] samples can't be stacked"), "{error}");
    let scalar = Tensor::<u8>::full([], 1).unwrap().freeze();
    assert_eq!(Dataset::len(&scalar), 0);
    assert_eq!(TensorDataset::new((x, scalar)).unwrap_err(), DatasetError::Lengths(vec![15, 0]));
}

#[test]
fn stack_yields_the_same_rows_in_all_workers() {
    let of = || {
        let shorter = Subset::new(rows(2, 20), (0..20).step_by(2)).unwrap();
        StackDataset::new((rows(1, 10), shorter)).unwrap()
    };
    let run = |workers, threads| {
        let loader = loader(of(), workers).shuffle(true).threads_per_worker(threads).build().unwrap();
        let mut batches = loader.epoch(1);
        let all = std::iter::from_fn(|| next(&mut batches)).map(|batch| {
            let (first, second) = batch.unwrap().into_inner();
            [first.to_vec(), second.to_vec()]
        });
        all.collect::<Vec<_>>()
    };
    let expected = run(0, 1);
    for [first, second] in &expected {
        for (one, two) in first.chunks(3).zip(second.chunks(3)) {
            assert_eq!((one[0], two[0], two[1]), (1, 2, 2 * one[1]));
            assert_ne!(one[2], two[2], "the second dataset draws after the first");
        }
    }
    assert_eq!((run(1, 1), run(2, 3)), (expected.clone(), expected));
    let bad = StackDataset::new((rows(1, 10), rows(2, 10).with(6, Fault::Error, i64::MAX))).unwrap();
    let text = first_error(loader(bad, 1)).to_string();
    assert!(text.contains("sample 6 (6 of 1, 6 of 2)") && text.contains("row 6 is bad"), "{text}");
}

#[test]
fn subset_yields_samples_at_its_indices() {
    let indices = [9, 3, 3, 0, 12, 7];
    for workers in [0, 2] {
        let whole = builder_of(Samples::new(13), 0).shuffle(false).build().unwrap();
        let subset = Subset::new(Samples::new(13), indices).unwrap();
        assert_eq!((subset.len(), subset.dataset().len), (6, 13));
        let loader = loader(Subset::new(subset, [5, 4, 1, 0]).unwrap(), workers).build().unwrap();
        let mut batches = loader.epoch(0);
        let batch = next(&mut batches).unwrap().unwrap();
        assert_eq!(batch.info.indices(), [0, 1, 2, 3]);
        let (numbers, bytes, texts) = &*batch;
        assert_eq!(numbers.to_vec().chunks(3).map(|row| row[0]).collect::<Vec<_>>(), [7, 12, 3, 9]);
        assert_eq!((bytes.row(2).unwrap().len(), texts.get(1).unwrap()), (3, "12 at 1"));
        // The random numbers of a sample depend on its position in the epoch, not on the subset.
        let first = next(&mut whole.epoch(0)).unwrap().unwrap();
        assert_eq!(numbers[[0, 2]], first.0[[0, 2]]);
    }
    let error = Subset::new(Samples::new(13), [0, 13]).unwrap_err();
    assert_eq!(error, DatasetError::Index { index: 13, len: 13 });
    assert!(error.to_string().contains("index 13 of a dataset of 13 samples"), "{error}");
    let none = given(&loader(Subset::new(rows(1, 3), []).unwrap(), 1).build().unwrap());
    assert!(none.is_empty());
}

/// The dataset implements only `fetch`, so the note of the failed sample is its number in the batch.
#[test]
fn subset_names_failed_samples_like_its_dataset() {
    for workers in [0, 1] {
        for fault in [Fault::Error, Fault::Panic] {
            let samples = Samples::new(13).with(12, fault, -1);
            let subset = Subset::new(samples, [9, 3, 0, 1, 2, 12, 7]).unwrap();
            let error = first_error(loader(subset, workers));
            assert_eq!((error.batch, error.item.map(|item| item.index)), (1, Some(5)), "{error}");
            assert!(error.to_string().contains("sample 5 (number 12)"), "{error}");
        }
    }
    let samples = Samples::new(13).with(12, Fault::Kill, -1);
    let subset = Subset::new(samples, [9, 3, 0, 1, 2, 12, 7]).unwrap();
    let loader = loader(subset, 1).on_error(OnError::SkipSample).retries(0).build().unwrap();
    let mut batches = loader.epoch(0);
    let all = std::iter::from_fn(|| next(&mut batches)).map(|batch| bytes(&batch.unwrap()).2);
    assert_eq!(all.collect::<Vec<_>>(), [vec![0, 1, 2, 3], vec![4, 6]]);
}

/// Dataset that does not write the row of sample 3.
#[derive(Serialize, Deserialize)]
struct Forgets;

impl Dataset for Forgets {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        5
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<u64>>) -> AnyResult<Tensor<u64>> {
        cx.rows(items, &[1], |item, _, row| {
            if item.index != 3 {
                row[0] = item.index as u64;
            }
            Ok(())
        })
    }
}

#[test]
#[cfg(debug_assertions)]
fn subset_with_unwritten_row_is_an_error() {
    let error = first_error(loader(Subset::new(Forgets, [1, 4, 3, 2]).unwrap(), 1));
    assert_eq!(error.item.map(|item| item.index), Some(2), "{error}");
    assert!(error.to_string().contains("was not written"), "{error}");
}

#[test]
fn subset_with_other_indices_refuses_the_state() {
    let of = |indices: &[usize]| {
        let subset = Subset::new(rows(1, 20), indices.iter().copied()).unwrap();
        loader(Subset::new(subset, 0..10).unwrap(), 1)
    };
    let (one, other): (Vec<usize>, Vec<usize>) = ((0..12).collect(), (8..20).collect());
    let loader = of(&one).build().unwrap();
    let mut batches = loader.epoch(0);
    drop(next(&mut batches).unwrap().unwrap());
    let state = kept(&batches.state());
    let rest = |loader: &DataLoader<Subset<Subset<Rows>>>| {
        let mut batches = loader.resume(&state)?;
        let all = std::iter::from_fn(|| next(&mut batches));
        Ok::<_, PlanError>(all.flat_map(|batch| batch.unwrap().info.indices()).collect::<Vec<_>>())
    };
    assert_eq!(rest(&of(&one).build().unwrap()).unwrap(), (4..10).collect::<Vec<_>>());
    let refused = rest(&of(&other).build().unwrap()).unwrap_err();
    assert!(matches!(refused, PlanError::StateDiffers { what: "hash of the subset", .. }), "{refused}");
    let changed = of(&other).allow_changed_dataset(true).build().unwrap();
    assert_eq!(rest(&changed).unwrap(), (4..10).collect::<Vec<_>>());
    // The checksum also covers subsets that are parts of other datasets.
    let state_of = |indices: std::ops::Range<usize>| {
        let part = Subset::new(rows(1, 20), indices).unwrap();
        let stacked = StackDataset::new((rows(1, 5), part)).unwrap();
        let all = ConcatDataset::new([stacked.clone(), stacked]).unwrap();
        self::loader(all, 0).build().unwrap().epoch(0).state()
    };
    assert_ne!(state_of(0..5), state_of(1..6));
    assert_eq!(state_of(0..5), state_of(0..5));
}

fn counts<const N: usize>(parts: &[Subset<Rows>; N]) -> [usize; N] {
    parts.each_ref().map(Dataset::len)
}

/// torch: `test_splits_have_correct_size`, `test_splits_are_mutually_exclusive`,
/// `test_splits_reproducibility`.
#[test]
fn random_split_assigns_each_sample_once() {
    let golden = include_str!("golden/random-split-1.txt").split_whitespace();
    let golden: Vec<u64> = golden.map(|number| number.parse().unwrap()).collect();
    let parts = random_split(rows(1, 20), [8, 0, 12], 17).unwrap();
    assert_eq!(counts(&parts), [8, 0, 12]);
    assert_eq!(parts.iter().flat_map(|part| part.indices().to_vec()).collect::<Vec<_>>(), golden);
    let again = random_split(rows(1, 20), [8, 12], 18).unwrap();
    assert_ne!(again[0].indices().to_vec(), golden[..8]);
    let [train, rest] = random_split(rows(1, 20), [0.6, 0.4], 17).unwrap();
    let places = [train, rest].map(|part| {
        let rows = given(&loader(part, 2).shuffle(true).build().unwrap());
        rows.chunks(3).map(|row| row[1]).collect::<BTreeSet<_>>()
    });
    assert_eq!((places[0].len(), places[1].len(), places[0].union(&places[1]).count()), (12, 8, 20));
}

/// torch: `test_incomplete_fractional_splits`. The lengths come from torch's rule, in Python.
#[test]
fn random_split_rounds_fractions_like_torch() {
    let of = |len, fractions: [f64; 3]| counts(&random_split(rows(1, len), fractions, 0).unwrap());
    assert_eq!(of(3, [0.5, 0.5, 0.0]), [2, 1, 0]);
    assert_eq!(of(10, [1.0 / 3.0; 3]), [4, 3, 3]);
    assert_eq!(of(106, [0.3, 0.3, 0.4]), [32, 32, 42]);
    assert_eq!(of(2, [0.2, 0.2, 0.6]), [1, 0, 1]);
    assert_eq!(of(1, [0.4, 0.3, 0.3]), [1, 0, 0]);
    assert_eq!(of(0, [0.4, 0.3, 0.3]), [0, 0, 0]);
    assert_eq!(counts(&random_split(rows(1, 7), [0.7, 0.1, 0.1, 0.1], 0).unwrap()), [5, 1, 1, 0]);
}

/// torch: `test_lengths_must_equal_dataset_size`.
#[test]
fn random_split_of_wrong_lengths_is_an_error() {
    let text = |error: DatasetError| error.to_string();
    let wrong = [
        (random_split(rows(1, 4), [1, 2], 0).map(drop), "the sum has to be 4"),
        (random_split(rows(1, 4), [usize::MAX, 5], 0).map(drop), "the sum has to be 4"),
        (random_split(rows(1, 4), [0.5, 0.4], 0).map(drop), "the sum is 0.9, and has to be 1"),
        (random_split(rows(1, 4), [1.5, -0.5], 0).map(drop), "1.5 is not between 0 and 1"),
        (random_split(rows(1, 4), [f64::NAN, 0.5], 0).map(drop), "NaN is not between 0 and 1"),
        (random_split(rows(1, 4), [0.0; 0], 0).map(drop), "has to be 1"),
    ];
    for (result, what) in wrong {
        let text = text(result.unwrap_err());
        assert!(text.contains(what), "{what}: {text}");
    }
}

#[test]
fn concat_with_empty_first_part_takes_shapes_of_next() {
    let empty = Tensor::<f32>::zeros([0]).unwrap().freeze();
    let full = Tensor::<f32>::full([2, 3], 1.5).unwrap().freeze();
    let all = ConcatDataset::new([empty, full]).unwrap();
    let loader = DataLoader::builder(all).batch_size(2).num_workers(1).build().unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!((batch.shape(), batch.to_vec()), (&[2, 3][..], vec![1.5; 6]));
}

#[test]
fn random_split_of_too_many_samples_is_refused() {
    let many = rows(0, usize::MAX);
    assert!(matches!(random_split(many, [0.5, 0.5], 1), Err(DatasetError::Memory(_))));
}
