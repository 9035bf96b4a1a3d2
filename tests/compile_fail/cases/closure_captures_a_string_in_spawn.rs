//! A child can't read this process's memory. (For a captured number, only `cargo build` reports the error.)
fn main() {
    let name = "x".to_string();
    let _ = mp::spawn(move |rank: usize, (): ()| println!("{name} {rank}"), (), 2);
}
