//! An exclusive tensor can't be a field of a serde struct.
use mp::Tensor;

#[derive(serde::Serialize, serde::Deserialize)]
struct Batch {
    name: String,
    images: Tensor<u8>,
}

fn main() {}
