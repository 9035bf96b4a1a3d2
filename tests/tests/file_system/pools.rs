//! Pools in processes whose tensors are in files.

use std::path::PathBuf;

use mp::{Pool, Tensor};
use mp_tests::scratch::{Scratch, files_in};
use mp_tests::{alone, join, one_process};

#[test]
fn tensors_in_files_travel_through_a_pool() {
    fn worker(_: usize, directory: PathBuf) -> mp::AnyResult<()> {
        files_in(&directory);
        let pool = Pool::new(2)?;
        let twice = |mut tensor: Tensor<u64>| {
            tensor.as_mut_slice()?.iter_mut().for_each(|v| *v *= 2);
            Ok::<_, mp::Error>(tensor)
        };
        let tensors = (0..10).map(|i| Tensor::full([1000], i)).collect::<Result<Vec<_>, _>>()?;
        for (i, tensor) in (0..).zip(pool.map(twice, tensors)?) {
            assert!(tensor.iter().all(|v| v == 2 * i));
        }
        Ok(pool.join()?)
    }
    let _alone = alone();
    let scratch = Scratch::new("pool");
    join(&one_process(worker, scratch.0.clone())).unwrap();
}
