//! Nobody writes a frozen tensor, and nobody gets a slice of a shared one.
use mp::Tensor;

fn main() {
    let mut frozen = Tensor::<f32>::zeros(&[4]).unwrap().freeze();
    frozen.as_mut_slice().unwrap()[0] = 1.0;
    frozen.set(&[0], 1.0).unwrap();
    let shared = Tensor::<f32>::zeros(&[4]).unwrap().share();
    let _ = shared.as_slice();
}
