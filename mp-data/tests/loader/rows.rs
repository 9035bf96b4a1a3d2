//! Missing rows: each column of a batch has one row for each sample.

use std::sync::atomic::{AtomicUsize, Ordering};

use mp_data::{
    AnyResult, Batch, Context, DataLoader, DataLoaderBuilder, Dataset, Item, LoadError, Objects, OnError,
    Ragged, Strings, Whole,
};
use mp_tensor::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize, Serializer};

use crate::common::{eventually, next};

#[derive(Batch)]
struct Named {
    number: Tensor<i64>,
    more: (Ragged<u8>, Strings),
    r#type: Objects<Option<u8>>,
    /// Column that does not have one row for each sample.
    once: Tensor<u64>,
}

/// Dataset of numbers. `less` is the number of missing rows of each column.
#[derive(Serialize, Deserialize)]
struct Less {
    less: [usize; 4],
    /// Number of batches that were made, if the numbers depend on it.
    counts: Option<SharedTensor<i64>>,
}

impl Less {
    fn of(less: [usize; 4]) -> Less {
        Less { less, counts: None }
    }
}

impl Dataset for Less {
    type Batch = Named;

    fn len(&self) -> usize {
        8
    }

    fn fetch(&mut self, items: &[Item], _: &mut Context<Named>) -> AnyResult<Named> {
        let rows = self.less.map(|less| items.len() - less);
        let once = Tensor::full([0_usize; 0], 7)?;
        let number = self.counts.as_ref().map_or(1, |counts| counts.fetch_add(0, 1));
        let number = Tensor::full([rows[0], 2], number)?;
        Ok(Named {
            number,
            more: (Ragged::from_rows(&vec![vec![1]; rows[1]])?, Strings::from_rows(&vec!["a"; rows[2]])?),
            r#type: vec![None; rows[3]].into(),
            once,
        })
    }
}

fn loader<D: Dataset>(dataset: D, workers: usize) -> DataLoaderBuilder<D> {
    DataLoader::builder(dataset).batch_size(4).num_workers(workers)
}

#[test]
fn column_with_missing_rows_is_an_error_by_name() {
    for workers in [0, 1] {
        let first = |less| {
            let loader = loader(Less::of(less), workers).build().unwrap();
            next(&mut loader.epoch(0)).unwrap().map(|_| ()).map_err(|error: LoadError| error.to_string())
        };
        assert_eq!(first([0; 4]), Ok(()));
        let says = |less, what: &str| {
            let text = first(less).unwrap_err();
            let end = format!(": `fetch` was to make a batch of 4 samples, a row each, but {what}");
            assert!(text.starts_with("batch 0 of epoch 0") && text.contains(&end), "{text}");
        };
        says([1, 0, 0, 0], "column `number` has 3 rows");
        says([0, 2, 0, 4], "column `more.0` has 2 rows, column `type` has 0 rows");
        says([0, 0, 3, 0], "column `more.1` has one row");
    }
}

/// Dataset that writes a value for each sample except one.
#[derive(Serialize, Deserialize)]
struct Forgets;

impl Dataset for Forgets {
    type Batch = (Tensor<u64>, Objects<u64>);

    fn len(&self) -> usize {
        8
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, (&[], ()), |item, _, (number, value)| {
            number[0] = item.index as u64;
            *value = Some(number[0]).filter(|number| *number != 5);
            Ok(())
        })
    }
}

#[test]
fn unwritten_row_value_is_an_error_of_its_sample() {
    for (workers, threads) in [(0, 1), (1, 1), (1, 2)] {
        let loader =
            |how| loader(Forgets, workers).threads_per_worker(threads).on_error(how).build().unwrap();
        let stops = loader(OnError::Report);
        let mut batches = stops.epoch(0);
        assert!(next(&mut batches).unwrap().is_ok());
        let error = next(&mut batches).unwrap().unwrap_err();
        assert_eq!(error.item.map(|item| item.index), Some(5), "{error}");
        let text = error.to_string();
        assert!(text.contains("sample 5") && text.contains("its row of column 1 was not written"), "{text}");
        let skips = loader(OnError::SkipSample);
        let mut batches = skips.epoch(0);
        let all: Vec<u64> = std::iter::from_fn(|| next(&mut batches))
            .flat_map(|batch| batch.unwrap().into_inner().1.into_inner())
            .collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 6, 7]);
    }
}

/// Dataset with batches of two rows, which both fail. A row fails only after the other row has begun. In
/// every second batch, the second row fails first.
#[derive(Default, Serialize, Deserialize)]
struct BothFail {
    #[serde(skip)]
    begun: AtomicUsize,
    #[serde(skip)]
    ended: AtomicUsize,
}

impl Dataset for BothFail {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        400
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        (self.begun, self.ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let quicker = items[items[0].index / 2 % 2];
        cx.rows(items, &[], |item, _, _| {
            self.begun.fetch_add(1, Ordering::SeqCst);
            eventually("both have begun", || self.begun.load(Ordering::SeqCst) == 2);
            if item != quicker {
                eventually("the other one fails", || self.ended.load(Ordering::SeqCst) == 1);
            }
            self.ended.fetch_add(1, Ordering::SeqCst);
            Err(format!("sample {} is bad", item.index).into())
        })
    }
}

#[test]
fn first_of_two_failed_rows_of_a_batch_is_reported() {
    let loader =
        DataLoader::builder(BothFail::default()).batch_size(2).threads_per_worker(2).build().unwrap();
    let mut batches = loader.epoch(0);
    for number in 0..200 {
        let error = next(&mut batches).unwrap().unwrap_err();
        assert_eq!(error.item.map(|item| item.index), Some(2 * number), "{error}");
        assert!(error.to_string().contains(&format!("sample {} is bad", 2 * number)), "{error}");
    }
}

/// Dataset whose `fetch` writes all rows, and then fails.
#[derive(Serialize, Deserialize)]
struct FailsBehindRows;

impl Dataset for FailsBehindRows {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        8
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[], |item, _, row| {
            row[0] = item.index as u64;
            Ok(())
        })?;
        Err("they don't go together".into())
    }
}

#[test]
fn batch_failure_after_its_rows_names_no_sample() {
    for (workers, threads) in [(0, 1), (1, 1), (1, 2)] {
        for how in [OnError::Report, OnError::SkipSample] {
            let loader = loader(FailsBehindRows, workers).threads_per_worker(threads).on_error(how);
            let loader = loader.build().unwrap();
            let mut batches = loader.epoch(0);
            for number in 0..2 {
                let error = next(&mut batches).unwrap().unwrap_err();
                assert_eq!((error.batch, error.item), (number, None), "{how:?} {workers}: {error}");
            }
            assert!(next(&mut batches).is_none());
        }
    }
}

/// A number that can't be encoded if it is 5.
#[derive(Deserialize)]
struct Odd(u64);

impl Serialize for Odd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            5 => Err(serde::ser::Error::custom("five has no form")),
            number => serializer.serialize_u64(number),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Odds;

impl Dataset for Odds {
    type Batch = Objects<Odd>;

    fn len(&self) -> usize {
        8
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        Ok(cx.map(items, |item, _| Ok(Odd(item.index as u64)))?.into())
    }
}

#[test]
fn unsendable_batch_is_an_error_at_its_position() {
    let loader = DataLoader::builder(Odds).batch_size(2).num_workers(1).build().unwrap();
    let mut batches = loader.epoch(0);
    for number in 0..4 {
        match next(&mut batches).expect("there are four") {
            Ok(batch) => assert_eq!((batch.info.number, batch[0].0), (number, 2 * number)),
            Err(error) => {
                assert_eq!((error.batch, number), (2, 2), "{error}");
                assert!(format!("{error:#}").contains("five has no form"), "{error:#}");
            }
        }
    }
    assert!(next(&mut batches).is_none());
    assert_eq!(loader.metrics().failed, 1);
}

#[test]
fn verify_names_the_field_of_a_differing_column() {
    let differs = Less { counts: Some(Tensor::zeros([1]).unwrap().share()), ..Less::of([0; 4]) };
    let found = loader(differs, 1).build().unwrap().verify(1).unwrap();
    assert!(found.to_string().contains("sample 0: column `number` is not the same twice"), "{found}");
}

/// Dataset with two columns. The first one has more rows than the batch has samples, and the rows of the
/// second one differ in length.
#[derive(Serialize, Deserialize)]
struct Anew {
    whole: bool,
    /// Number of batches that were made.
    counts: SharedTensor<i64>,
}

impl Dataset for Anew {
    type Batch = (Whole<Tensor<u8>>, Ragged<u8>);

    fn len(&self) -> usize {
        4
    }

    fn fetch(&mut self, _: &[Item], _: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        let count = self.counts.fetch_add(0, 1);
        let (last, more) = if self.whole { (count as u8, 0) } else { (0, count as usize) };
        let rows = [vec![1; 1], vec![1; 2], vec![1; 3 + more], vec![1; 4]];
        Ok((Whole(Tensor::from_slice(&[0, 0, 0, 0, 0, 0, last], [7])?), Ragged::from_rows(&rows)?))
    }
}

#[test]
fn verify_compares_whole_columns_and_row_lengths() {
    for (whole, row, column) in [(true, 3, 0), (false, 2, 1)] {
        let counts = Tensor::zeros([1]).unwrap().share();
        let found = loader(Anew { whole, counts }, 1).build().unwrap().verify(1).unwrap();
        let [difference] = &found.differences[..] else { panic!("{found}") };
        assert_eq!((difference.item.index, difference.column), (row, column), "{found}");
        assert!(!difference.not_written, "{found}");
    }
}

/// Treatment of the rows of sample 5.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Five {
    NotWritten,
    /// The row of the second column is not written at all.
    NotInOne,
    /// Writes only the byte 0xa5, the fill byte of unwritten rows in a build with debug assertions.
    WrittenSo,
    /// Writes only the byte 0xa5, and fails if the row is written a second time.
    WrittenOnce,
    Zeroed,
}

#[derive(Serialize, Deserialize)]
struct Leaves {
    five: Five,
    #[serde(skip)]
    written: AtomicUsize,
}

#[derive(Batch, Debug)]
struct Pair {
    level: Tensor<u8>,
    inner: (Whole<Tensor<i64>>, Ragged<u8>),
    no_bytes: Tensor<u32>,
}

impl Leaves {
    fn row(&self, index: usize, pixel: &mut u8, numbers: &mut [i64]) -> AnyResult<()> {
        let is_five = index == 5;
        match self.five {
            Five::NotWritten | Five::Zeroed if is_five => {}
            Five::NotInOne if is_five => *pixel = 5,
            Five::WrittenOnce if is_five && self.written.fetch_add(1, Ordering::SeqCst) > 0 => {
                return Err("written twice".into());
            }
            Five::WrittenSo | Five::WrittenOnce if is_five => {
                *pixel = 0xa5;
                numbers.fill(i64::from_ne_bytes([0xa5; 8]));
            }
            _ => {
                *pixel = index as u8;
                numbers.fill(index as i64);
            }
        }
        Ok(())
    }
}

impl Dataset for Leaves {
    type Batch = Pair;

    fn len(&self) -> usize {
        8
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Pair>) -> AnyResult<Pair> {
        if self.five == Five::Zeroed {
            cx.zeroed();
        }
        cx.rows(items, PairSpec { level: &[], inner: (&[2], ()), no_bytes: &[0] }, |item, _, row| {
            row.inner.1.extend(vec![1; item.index]);
            self.row(item.index, &mut row.level[0], row.inner.0)
        })
    }
}

/// Tested combinations: number of workers, and number of threads of each.
const PLACES: [(usize, usize); 3] = [(0, 1), (1, 1), (1, 3)];

fn leaves(five: Five, (workers, threads): (usize, usize), how: OnError) -> DataLoader<Leaves> {
    let leaves = Leaves { five, written: AtomicUsize::new(0) };
    loader(leaves, workers).threads_per_worker(threads).on_error(how).build().unwrap()
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "rows are filled beforehand in builds with debug assertions")]
fn unwritten_tensor_row_is_an_error_of_its_column() {
    for place in PLACES {
        for (five, column) in [(Five::NotWritten, "`level`"), (Five::NotInOne, "`inner.0`")] {
            let loader = leaves(five, place, OnError::Report);
            let mut batches = loader.epoch(0);
            assert!(next(&mut batches).unwrap().is_ok());
            let error = next(&mut batches).unwrap().unwrap_err();
            let at = (error.epoch, error.batch, error.item.map(|item| item.index));
            assert_eq!(at, (0, 1, Some(5)), "{error}");
            let says = format!("its row of column {column} was not written");
            assert!(error.to_string().contains(&says), "{error}");
            assert!(next(&mut batches).is_none());
        }
        let loader = leaves(Five::NotWritten, place, OnError::SkipSample);
        let mut batches = loader.epoch(0);
        let all = std::iter::from_fn(|| next(&mut batches));
        let all: Vec<u8> = all.flat_map(|batch| batch.unwrap().level.to_vec()).collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 6, 7]);
    }
}

#[test]
fn row_equal_to_the_fill_pattern_is_accepted() {
    for place in PLACES {
        for five in [Five::WrittenSo, Five::WrittenOnce, Five::Zeroed] {
            let loader = leaves(five, place, OnError::Report);
            let mut batches = loader.epoch(0);
            assert!(next(&mut batches).unwrap().is_ok());
            let batch = next(&mut batches).unwrap().unwrap();
            let expected = if five == Five::Zeroed { 0 } else { 0xa5 };
            assert_eq!(batch.level.to_vec(), [4, expected, 6, 7]);
            assert_eq!(batch.inner.1.values().len(), 4 + 5 + 6 + 7);
        }
    }
}

/// Dataset with rows of three numbers. For sample 5, which has only two numbers, the function returns an
/// error or panics.
#[derive(Serialize, Deserialize)]
struct Uneven {
    checks: bool,
}

impl Dataset for Uneven {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        8
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[3], |item, _, row| {
            let numbers = vec![item.index as u64; if item.index == 5 { 2 } else { 3 }];
            if self.checks && numbers.len() != row.len() {
                return Err(format!("it has {} numbers instead of {}", numbers.len(), row.len()).into());
            }
            row.copy_from_slice(&numbers);
            Ok(())
        })
    }
}

#[test]
fn row_of_wrong_length_is_an_error_of_its_sample() {
    for place in PLACES {
        for checks in [false, true] {
            let loader = |how| {
                let loader = loader(Uneven { checks }, place.0).threads_per_worker(place.1);
                loader.on_error(how).build().unwrap()
            };
            let stops = loader(OnError::Report);
            let mut batches = stops.epoch(0);
            assert!(next(&mut batches).unwrap().is_ok());
            let error = next(&mut batches).unwrap().unwrap_err();
            let at = (error.epoch, error.batch, error.item.map(|item| item.index));
            assert_eq!(at, (0, 1, Some(5)), "{error}");
            // A panic has the standard library's text and its location.
            let says = if checks { "it has 2 numbers instead of 3" } else { "tests/loader/rows.rs:" };
            assert!(error.to_string().contains(says), "{error}");
            assert!(next(&mut batches).is_none());
            let skips = loader(OnError::SkipSample);
            let mut batches = skips.epoch(1);
            let rows = std::iter::from_fn(|| next(&mut batches)).flat_map(|batch| batch.unwrap().to_vec());
            assert_eq!(rows.step_by(3).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 6, 7]);
        }
    }
}
