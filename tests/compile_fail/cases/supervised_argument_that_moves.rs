//! A restarted process needs its argument again, but an exclusive tensor moves to the first process.
use mp::process::Restart;
use mp::{Process, Tensor};

fn main() {
    let tensor = Tensor::<f32>::zeros([4]).unwrap();
    let supervised = Process::builder().restart(Restart::on_failure(3));
    let _ = supervised.spawn(|_: Tensor<f32>| {}, tensor);
}
