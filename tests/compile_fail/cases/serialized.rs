//! An exclusive tensor is not a serde value, because a value could be serialized twice.
use mp::Tensor;

fn serialize<T: serde::Serialize>(_: &T) {}
fn deserialize<T: serde::de::DeserializeOwned>() {}

fn main() {
    serialize(&Tensor::<f32>::zeros(&[4]).unwrap());
    deserialize::<Tensor<f32>>();
}
