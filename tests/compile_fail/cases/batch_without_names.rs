//! A struct without field names can't be a batch: a tuple is used for columns without names.
#[derive(mp::data::Batch)]
struct Images(mp::Tensor<f32>, mp::Tensor<i64>);

fn main() {}
