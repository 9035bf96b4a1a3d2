//! The derive macro has one option.
#[derive(mp::Message)]
#[message(krate = mp)]
struct Job {
    tensor: mp::Tensor<f32>,
}

fn main() {}
