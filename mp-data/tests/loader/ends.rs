//! End of a loader: its workers drop their datasets.

use std::time::{Duration, Instant};

use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, WorkerInfo};
use mp_queue::Queue;
use mp_tensor::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

use crate::common::{DEADLINE, eventually, next};

/// Dataset that counts its initialised and dropped copies in shared memory.
#[derive(Serialize, Deserialize)]
struct Counted {
    /// Number of initialised copies, and of dropped copies.
    counts: SharedTensor<i64>,
    /// Two queues: each batch puts a message into the first one, and then waits for a message in the second
    /// one.
    gate: Option<(Queue<()>, Queue<()>)>,
    #[serde(skip)]
    is_initialised: bool,
}

impl Counted {
    fn new(gate: Option<(Queue<()>, Queue<()>)>) -> Self {
        let counts = Tensor::full([2], 0).unwrap().share();
        Counted { counts, gate, is_initialised: false }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.is_initialised {
            self.counts.fetch_add(1, 1);
        }
    }
}

impl Dataset for Counted {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        100
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        self.is_initialised = true;
        self.counts.fetch_add(0, 1);
        Ok(())
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<u64>>) -> AnyResult<Tensor<u64>> {
        if let Some((begun, go)) = &self.gate {
            begun.put(())?;
            go.get_timeout(DEADLINE)?;
        }
        cx.rows(items, &[], |item, _, row| {
            row[0] = item.index as u64;
            Ok(())
        })
    }
}

fn of(dataset: Counted, workers: usize) -> DataLoader<Counted> {
    DataLoader::builder(dataset).batch_size(10).num_workers(workers).build().unwrap()
}

#[test]
fn dropped_loader_drops_its_workers_datasets() {
    for workers in [0, 2] {
        let dataset = Counted::new(None);
        let counts = dataset.counts.clone();
        let loader = of(dataset, workers);
        let mut batches = loader.epoch(0);
        while let Some(batch) = next(&mut batches) {
            drop(batch.unwrap());
        }
        let copies = workers.max(1) as i64;
        eventually("all have begun", || counts.to_vec()[0] == copies);
        drop((batches, loader));
        assert_eq!(counts.to_vec(), [copies, copies], "{workers}");
    }
}

#[test]
fn dropped_loader_waits_for_the_running_batch() {
    let (begun, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let dataset = Counted::new(Some((begun.clone(), go.clone())));
    let counts = dataset.counts.clone();
    let loader = of(dataset, 1);
    let batches = loader.epoch(0);
    begun.get_timeout(DEADLINE).unwrap();
    drop(batches);
    let since = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(loader));
        go.put(()).unwrap();
    });
    // A busy machine may need more time than a dropped loader gives its worker.
    assert!(counts.to_vec() == [1, 1] || since.elapsed() > Duration::from_secs(1), "{:?}", counts.to_vec());
}

#[test]
fn joined_loader_waits_for_planned_batches() {
    for workers in [0, 1] {
        let (begun, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let dataset = Counted::new(Some((begun.clone(), go.clone())));
        let counts = dataset.counts.clone();
        let loader = of(dataset, workers);
        let mut batches = loader.epoch(0);
        if workers == 0 {
            go.put(()).unwrap();
            drop(next(&mut batches).unwrap().unwrap());
        } else {
            begun.get_timeout(DEADLINE).unwrap();
            assert!(!loader.join_timeout(Duration::from_millis(1)).unwrap());
            (0..10).for_each(|_| go.put(()).unwrap());
        }
        loader.join().unwrap();
        assert_eq!(counts.to_vec(), [1, 1], "{workers}");
        // The iterator returns the planned batches, then an error, and ends.
        let mut planned = 0;
        let error = loop {
            match next(&mut batches).unwrap() {
                Ok(_) => planned += 1,
                Err(error) => break error.to_string(),
            }
        };
        assert!(planned < 10 && (error.contains("closed") || error.contains("ended")), "{planned} {error}");
        assert!(next(&mut batches).is_none());
    }
}

#[test]
fn closed_loader_makes_no_more_batches() {
    let loader = of(Counted::new(None), 0);
    loader.close();
    let error = next(&mut loader.epoch(0)).unwrap().unwrap_err().to_string();
    assert!(error.contains("the loader is closed"), "{error}");
    assert!(loader.join_timeout(DEADLINE).unwrap());
}
