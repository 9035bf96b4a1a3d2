//! What a closure captures is sent each time it is sent, so it can't be exclusive.
fn main() {
    let tensor = mp::Tensor::<f32>::zeros(&[3]).unwrap();
    let _ = mp::closure!([tensor] |x: f32| x);
}
