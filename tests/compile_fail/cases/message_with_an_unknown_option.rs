//! The derive macro has two options.
#[derive(mp::Message)]
#[message(krate = mp)]
struct Job {
    tensor: mp::Tensor<f32>,
}

fn main() {}
