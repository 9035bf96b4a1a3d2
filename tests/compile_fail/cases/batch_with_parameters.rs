//! The element type of a column must be known, so a batch can't have type parameters.
#[derive(mp::data::Batch)]
struct Images<T: mp::tensor::Element> {
    pixels: mp::Tensor<T>,
}

fn main() {}
