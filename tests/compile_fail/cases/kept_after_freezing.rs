//! A frozen tensor can't be written, not even by the process that froze it.
use mp::Tensor;

fn main() {
    let mut tensor = Tensor::<f32>::zeros(&[4]).unwrap();
    let _frozen = tensor.freeze();
    tensor.as_mut_slice().unwrap()[0] = 1.0;
}
