//! A child has nothing of this process's memory. (Of a captured number, `cargo build` says so, and not `cargo check`.)
fn main() {
    let name = "x".to_string();
    let _ = mp::spawn(move |rank: usize, (): ()| println!("{name} {rank}"), (), 2);
}
