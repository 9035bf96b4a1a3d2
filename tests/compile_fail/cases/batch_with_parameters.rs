//! Which elements a column has is known.
#[derive(mp::data::Batch)]
struct Images<T: mp::tensor::Element> {
    pixels: mp::Tensor<T>,
}

fn main() {}
