//! The derive macro rejects options that it does not know.
#[derive(mp::Message)]
#[message(krate = mp)]
struct Job {
    tensor: mp::Tensor<f32>,
}

fn main() {}
