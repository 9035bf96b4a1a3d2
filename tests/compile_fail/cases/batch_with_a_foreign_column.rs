//! A column is a tensor, ragged, strings, or others, one a sample.
#[derive(mp::data::Batch)]
struct Images {
    pixels: mp::Tensor<f32>,
    paths: Vec<String>,
}

fn main() {}
