//! A column is a tensor, ragged rows, strings, or objects, one for each sample.
#[derive(mp::data::Batch)]
struct Images {
    pixels: mp::Tensor<f32>,
    paths: Vec<String>,
}

fn main() {}
