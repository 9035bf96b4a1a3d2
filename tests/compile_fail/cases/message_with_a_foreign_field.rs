//! Each field has to be a message.
#[derive(mp::Message)]
struct Job {
    tensor: mp::Tensor<f32>,
    thread: std::thread::JoinHandle<()>,
}

fn main() {}
