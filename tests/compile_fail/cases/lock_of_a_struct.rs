//! The memory layout of a struct must be known, and every bit pattern must be valid.
#[derive(Clone, Copy)]
struct Best {
    loss: f64,
    epoch: u64,
}

fn main() {
    let _ = mp::Lock::new(Best { loss: 0.5, epoch: 3 });
}
