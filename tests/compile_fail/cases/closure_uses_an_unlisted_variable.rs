//! Variables that aren't in the list of captures aren't sent.
fn main() {
    let forgotten = std::hint::black_box(3u8);
    let _ = mp::closure!([] |x: u8| x + forgotten);
}
