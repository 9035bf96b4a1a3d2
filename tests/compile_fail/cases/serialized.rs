//! An exclusive tensor is no serde value: bytes could be written twice.
use mp::Tensor;

fn serialize<T: serde::Serialize>(_: &T) {}
fn deserialize<T: serde::de::DeserializeOwned>() {}

fn main() {
    serialize(&Tensor::<f32>::zeros(&[4]).unwrap());
    deserialize::<Tensor<f32>>();
}
