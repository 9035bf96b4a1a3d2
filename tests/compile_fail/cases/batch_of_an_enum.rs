//! Each sample must have a row in each column, so an enum can't be a batch.
#[derive(mp::data::Batch)]
enum Sample {
    Image(mp::Tensor<f32>),
    Text(mp::data::Strings),
}

fn main() {}
