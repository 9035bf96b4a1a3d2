//! An exclusive tensor has one handle.
use mp::Tensor;

fn main() {
    let tensor = Tensor::<f32>::zeros(&[4]).unwrap();
    let _other = tensor.clone();
}
