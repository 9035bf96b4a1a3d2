//! How a struct lies in memory has to be known, and every bit pattern has to be one.
#[derive(Clone, Copy)]
struct Best {
    loss: f64,
    epoch: u64,
}

fn main() {
    let _ = mp::Lock::new(Best { loss: 0.5, epoch: 3 });
}
