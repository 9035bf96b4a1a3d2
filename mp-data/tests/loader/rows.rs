//! Rows that are missing: each column of a batch has one for each sample.

use mp_data::{
    AnyResult, Batch, Context, DataLoader, DataLoaderBuilder, Dataset, Item, LoadError, OnError, Other,
    Ragged, Strings,
};
use mp_tensor::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

use crate::common::next;

#[derive(Batch)]
struct Named {
    number: Tensor<i64>,
    more: (Ragged<u8>, Strings),
    r#type: Other<Option<u8>>,
    /// Of the batch, not of its samples.
    once: Tensor<u64>,
}

/// Numbers; `less` says how many rows each column lacks.
#[derive(Serialize, Deserialize)]
struct Less {
    less: [usize; 4],
    /// How many batches were made, if the numbers are that.
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
fn a_column_with_fewer_rows_than_samples_is_an_error_that_names_it() {
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

/// A value for each sample but one.
#[derive(Serialize, Deserialize)]
struct Forgets;

impl Dataset for Forgets {
    type Batch = (Tensor<u64>, Other<u64>);

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
fn a_value_that_is_not_written_is_an_error_of_its_sample() {
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

#[test]
fn a_difference_is_told_by_the_field_of_its_column() {
    let differs = Less { counts: Some(Tensor::zeros([1]).unwrap().share()), ..Less::of([0; 4]) };
    let found = loader(differs, 1).build().unwrap().verify(1).unwrap();
    assert!(found.to_string().contains("sample 0: column `number` is not the same twice"), "{found}");
}
