//! A captured variable does not exist in the other process.
fn main() {
    let factor = std::hint::black_box(3);
    let _ = mp::spawn(move |rank: usize, (): ()| assert!(rank < factor), (), 2);
}
