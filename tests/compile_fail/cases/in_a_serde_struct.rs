//! So it can't be in a serde struct either.
use mp::Tensor;

#[derive(serde::Serialize, serde::Deserialize)]
struct Batch {
    name: String,
    images: Tensor<u8>,
}

fn main() {}
