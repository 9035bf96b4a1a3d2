//! An exclusive tensor can go to only one process, but an argument goes to every process.
use mp::Tensor;

fn worker(_rank: usize, _tensor: Tensor<f32>) {}

fn main() {
    let _ = mp::spawn(worker, Tensor::<f32>::zeros(&[4]).unwrap(), 2);
}
