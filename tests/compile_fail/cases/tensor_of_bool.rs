//! Another process could write a 2 into an element, which is not a valid `bool`.
use mp::Tensor;

fn main() {
    let _ = Tensor::<bool>::empty(&[4]);
    let _ = Tensor::<char>::empty(&[4]);
    let _ = Tensor::<&'static u8>::empty(&[4]);
}
