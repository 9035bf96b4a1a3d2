//! Neither the tensor nor a borrow of its elements outlives the put.
use mp::{Queue, Tensor};

fn main() {
    let queue = Queue::<Tensor<f32>>::bounded(2).unwrap();
    let mut tensor = Tensor::<f32>::zeros(&[4]).unwrap();
    let elements = tensor.as_mut_slice().unwrap();
    queue.put(tensor).unwrap();
    elements[0] = 1.0;
    println!("{}", tensor.len());
}
