//! An exclusive tensor moves into the queue.
use mp::{Queue, Tensor};

fn main() {
    let queue = Queue::<Tensor<f32>>::bounded(2).unwrap();
    let tensor = Tensor::<f32>::zeros(&[4]).unwrap();
    queue.put(tensor).unwrap();
    queue.put(tensor).unwrap();
}
