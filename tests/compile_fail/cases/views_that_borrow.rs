//! A tensor can't move while a borrowed view exists, and only one view at a time can write an element.
use mp::{Queue, Tensor};

fn main() {
    let mut tensor = Tensor::<f32>::zeros(&[4]).unwrap();
    let row = tensor.view_mut();
    let other = tensor.view_mut();
    drop((row, other));
    let view = tensor.view();
    Queue::bounded(1).unwrap().put(tensor).unwrap();
    let _ = view.len();
    let tensor = Tensor::<f32>::zeros(&[1]).unwrap();
    let _escaped: &'static [f32] = tensor.as_slice().unwrap();
}
