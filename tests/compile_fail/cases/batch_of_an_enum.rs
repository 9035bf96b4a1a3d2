//! Each sample has a row in each column.
#[derive(mp::data::Batch)]
enum Sample {
    Image(mp::Tensor<f32>),
    Text(mp::data::Strings),
}

fn main() {}
