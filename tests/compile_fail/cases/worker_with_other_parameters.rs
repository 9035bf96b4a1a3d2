//! A worker function takes its rank and one argument. Several arguments are passed as one tuple.
fn turned(_args: Vec<u8>, _rank: usize) {}
fn several(_rank: usize, _a: u8, _b: u8) {}

fn main() {
    let _ = mp::spawn(turned, vec![1_u8], 2);
    let _ = mp::spawn(several, (1, 2), 2);
}
