//! A tuple that contains an exclusive tensor needs `Bundle`.
use mp::{Queue, Tensor};

fn main() {
    let _queue = Queue::<(String, Tensor<f32>)>::bounded(2);
}
