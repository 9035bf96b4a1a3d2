//! Captured values are sent each time the closure is sent, so they can't be exclusive.
fn main() {
    let tensor = mp::Tensor::<f32>::zeros(&[3]).unwrap();
    let _ = mp::closure!([tensor] |x: f32| x);
}
