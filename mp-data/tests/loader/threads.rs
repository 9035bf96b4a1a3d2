//! Threads that write rows are reused and end with their loader. Libraries get the number of their threads
//! from the environment.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, Strings};
use mp_spawn::Process;
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::common::{DEADLINE, eventually, next};

const THREADS: usize = 3;

/// Dataset whose rows name the thread and the process that write them. The rows of a batch wait for each
/// other, so each row has its own thread.
#[derive(Default, Serialize, Deserialize)]
struct Written {
    #[serde(skip)]
    begun: AtomicUsize,
}

impl Dataset for Written {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        50 * THREADS
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        self.begun = AtomicUsize::new(0);
        cx.rows(items, &[2], |_, _, row| {
            self.begun.fetch_add(1, Ordering::SeqCst);
            eventually("all have begun", || self.begun.load(Ordering::SeqCst) == THREADS);
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64;
            row.copy_from_slice(&[u64::from(std::process::id()), thread]);
            Ok(())
        })
    }
}

#[test]
fn row_threads_end_with_their_loader() {
    for workers in [0, 1] {
        let loader = DataLoader::builder(Written::default()).batch_size(THREADS as u64).num_workers(workers);
        let loader = loader.threads_per_worker(THREADS).build().unwrap();
        let mut written = HashSet::new();
        for epoch in 0..2 {
            let mut batches = loader.epoch(epoch);
            while let Some(batch) = next(&mut batches) {
                let batch = batch.unwrap().to_vec();
                written.extend(batch.as_chunks::<2>().0.iter().copied());
            }
        }
        assert_eq!(written.len(), THREADS, "{workers}: {written:?}");
        drop(loader);
        let mine = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        let others = written.iter().filter(|[_, thread]| *thread != mine);
        eventually("the threads have ended", || {
            let path = |[pid, thread]: &[u64; 2]| format!("/proc/{pid}/task/{thread}");
            others.clone().all(|one| !Path::new(&path(one)).exists())
        });
    }
}

/// Dataset that reports the thread variables of its worker's environment.
#[derive(Serialize, Deserialize)]
struct ReportsThreads;

impl Dataset for ReportsThreads {
    type Batch = Strings;

    fn len(&self) -> usize {
        1
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Strings>) -> AnyResult<Strings> {
        let names = ["RAYON", "OMP", "MKL", "OPENBLAS"].map(|name| format!("{name}_NUM_THREADS"));
        cx.rows(items, (), |_, _, row| {
            let values = names.iter().map(|name| std::env::var(name).unwrap_or_default());
            row.push_str(&values.collect::<Vec<_>>().join(" "));
            Ok(())
        })
    }
}

#[test]
fn thread_count_variables_of_the_user_are_kept() {
    let trainer = |name: String| {
        let loader =
            DataLoader::builder(ReportsThreads).num_workers(1).threads_per_worker(3).build().unwrap();
        let reported = next(&mut loader.epoch(0)).unwrap().unwrap().get(0).unwrap().to_owned();
        // The trainer's own environment is unchanged.
        (reported, std::env::var(name).unwrap_or_default())
    };
    for (name, value, reported) in [
        ("OMP_NUM_THREADS", "7", "3 7 3 3"),
        ("RAYON_NUM_THREADS", "", " 3 3 3"),
        ("OPENBLAS_NUM_THREADS", "1", "3 3 3 1"),
    ] {
        let process = Process::builder().env(name, value).spawn(trainer, name.to_owned()).unwrap();
        assert!(process.wait_timeout(DEADLINE), "{process:?}");
        assert_eq!(process.join().unwrap(), (reported.to_owned(), value.to_owned()));
    }
}
