//! Columns without names are a tuple.
#[derive(mp::data::Batch)]
struct Images(mp::Tensor<f32>, mp::Tensor<i64>);

fn main() {}
