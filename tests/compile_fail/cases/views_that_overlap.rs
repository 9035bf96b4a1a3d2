//! A written view must not contain an element twice, and a borrowed view can't be sent.
use mp::{Queue, Tensor, TensorView};

fn main() {
    let mut tensor = Tensor::<f32>::zeros(&[1]).unwrap();
    let _ = tensor.view_mut().expand(&[4]);
    let _ = tensor.expand(&[4]);
    let _ = Queue::<TensorView<'static, f32>>::bounded(1);
}
