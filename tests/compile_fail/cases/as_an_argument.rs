//! Arguments go to every process, but an exclusive tensor can go to only one process.
use mp::Tensor;

fn worker(_rank: usize, _tensor: Tensor<f32>) {}

fn main() {
    let _ = mp::spawn(worker, Tensor::<f32>::zeros(&[4]).unwrap(), 2);
}
