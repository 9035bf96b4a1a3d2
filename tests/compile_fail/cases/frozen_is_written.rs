//! A frozen tensor can't be written, and a shared tensor gives no slice.
use mp::Tensor;

fn main() {
    let mut frozen = Tensor::<f32>::zeros(&[4]).unwrap().freeze();
    frozen.as_mut_slice().unwrap()[0] = 1.0;
    frozen.set(&[0], 1.0).unwrap();
    let shared = Tensor::<f32>::zeros(&[4]).unwrap().share();
    let _ = shared.as_slice();
}
