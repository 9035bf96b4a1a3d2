//! Memory that workers free and reuse.
#![allow(unsafe_code)]

use mp_data::{AnyResult, Context, DataLoader, Dataset, Item};
use mp_spawn::{Process, StartMethod};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::common::next;

/// Number of buffers that the decoder below allocates, eight at a time.
const BUFFERS: usize = 1000;

/// Dataset that simulates a decoder of images. A sample is the number of page faults during its decoding.
#[derive(Serialize, Deserialize)]
struct Decoder;

impl Dataset for Decoder {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        1
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[], |_, _, row| {
            let before = faults()?;
            for _ in 0..BUFFERS / 8 {
                let buffers: Vec<Vec<u8>> = (1..=8).map(|size| vec![1; size << 18]).collect();
                drop(std::hint::black_box(buffers));
            }
            row[0] = faults()? - before;
            Ok(())
        })
    }
}

/// Returns the number of minor page faults of this process.
fn faults() -> AnyResult<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    Ok(fields.split_whitespace().nth(7).ok_or("no such field")?.parse()?)
}

/// Returns the number of page faults of a worker. The worker retains freed memory if `keep` is set.
fn faults_of_a_worker((method, keep, threads): (StartMethod, bool, usize)) -> AnyResult<u64> {
    if method == StartMethod::Fork {
        // SAFETY: the dataset uses no state of other threads, and nothing that two processes must not share.
        unsafe { mp_spawn::allow_fork() };
    }
    let builder = DataLoader::builder(Decoder).num_workers(1).threads_per_worker(threads);
    let loader = builder.start_method(method).keep_freed_memory(keep).build()?;
    Ok(next(&mut loader.epoch(0)).ok_or("no batch")??.to_vec()[0])
}

const METHODS: [StartMethod; 3] = [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork];

#[test]
fn freed_memory_is_reused_with_any_start_method() {
    let of = |method, keep, threads| {
        let process = Process::builder().env_remove("GLIBC_TUNABLES").env_remove("MALLOC_TRIM_THRESHOLD_");
        let trainer = process.env_remove("MALLOC_MMAP_THRESHOLD_");
        trainer.spawn(faults_of_a_worker, (method, keep, threads)).unwrap().join().unwrap()
    };
    for method in METHODS {
        // Eight buffers have 9 MiB, which are 2304 pages. Without retention, these pages are faulted in for
        // each image.
        for threads in [1, 2] {
            let kept = of(method, true, threads);
            assert!(kept < 10_000, "{method:?}, {threads} threads: {kept} page faults");
        }
        let given_back = of(method, false, 1);
        assert!(given_back > 100_000, "{method:?}: {given_back} page faults");
    }
}

#[test]
fn malloc_variables_override_kept_memory() {
    for method in METHODS {
        // The default thresholds of glibc, without their dynamic adjustment.
        for (name, value) in
            [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072")]
        {
            let trainer = Process::builder().env(name, value);
            let faults = trainer.spawn(faults_of_a_worker, (method, true, 1)).unwrap().join().unwrap();
            assert!(faults > 100_000, "{method:?}, {name}: {faults} page faults");
        }
    }
}
