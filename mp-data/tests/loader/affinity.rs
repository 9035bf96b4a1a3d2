//! Processors of workers.

use mp_data::{Affinity, AnyResult, Context, DataLoader, Dataset, Item};
use mp_spawn::{Process, usable_processors};
use mp_tensor::Tensor;
use rustix::thread::sched_getaffinity;
use serde::{Deserialize, Serialize};

use crate::common::next;

/// Dataset whose rows have one bit for each processor on which the writing thread may run.
#[derive(Serialize, Deserialize)]
struct Where;

fn allowed() -> u64 {
    let set = sched_getaffinity(None).unwrap();
    (0..64).map(|number| u64::from(set.is_set(number)) << number).sum()
}

impl Dataset for Where {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        16
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[], |_, _, row| {
            row[0] = allowed();
            Ok(())
        })
    }
}

/// Returns the processors of all threads of all workers.
fn of(affinity: Affinity) -> Vec<u64> {
    let builder = DataLoader::builder(Where).batch_size(4).num_workers(2).threads_per_worker(2);
    let loader = builder.affinity(affinity).build().unwrap();
    let mut batches = loader.epoch(0);
    let mut all = Vec::new();
    while let Some(batch) = next(&mut batches) {
        all.extend(batch.unwrap().to_vec());
    }
    assert_eq!(all.len(), 16);
    all
}

/// torch's `TestSetAffinity`.
#[test]
fn loader_workers_run_on_processors_of_their_affinity() {
    let usable = usable_processors().unwrap();
    assert!(!usable.is_empty() && of(Affinity::Inherit).iter().all(|set| *set == allowed()));
    for number in usable.iter().filter(|number| **number < 64).take(4) {
        let set = of(Affinity::Cpus(vec![*number]));
        assert!(set.iter().all(|set| *set == 1 << number), "{number}: {set:?}");
    }
    // Node of the first usable processor.
    let has = |node: &usize| {
        std::path::Path::new(&format!("/sys/devices/system/node/node{node}/cpu{}", usable[0])).exists()
    };
    match (0..64).find(has) {
        Some(node) => {
            let set = of(Affinity::NumaNode(node));
            assert!(set.iter().all(|of| *of == set[0] && of >> usable[0] & 1 == 1), "{set:?}");
        }
        None => mp_harness::skip("this machine does not say which nodes it has"),
    }
}

#[test]
fn workers_inherit_the_trainers_affinity() {
    let first = usable_processors().unwrap()[0];
    let trainer = |first: usize| {
        let all = [of(Affinity::Inherit), of(Affinity::Cpus(vec![first]))];
        all.concat().iter().all(|set| *set == 1 << first)
    };
    assert!(Process::builder().processors([first]).spawn(trainer, first).unwrap().join().unwrap());
}

#[test]
fn worker_affinity_to_missing_processors_is_refused() {
    let said = |affinity| {
        let builder = DataLoader::builder(Where).num_workers(1).affinity(affinity);
        builder.build().unwrap_err().to_string()
    };
    let usable = usable_processors().unwrap();
    let text = said(Affinity::Cpus(vec![usable[0], 1000, 5000]));
    assert!(text.contains("`affinity`") && text.contains("the processors [1000, 5000]"), "{text}");
    assert!(text.contains(&format!("{usable:?}")), "{text}");
    assert!(said(Affinity::Cpus(Vec::new())).contains("no processors"));
    assert!(said(Affinity::NumaNode(99_999)).contains("there is no node 99999"));
    // Without workers the setting has no effect.
    let here = DataLoader::builder(Where).affinity(Affinity::Cpus(vec![1000])).build().unwrap();
    assert_eq!(here.epoch(0).filter(Result::is_ok).count(), 16);
}
