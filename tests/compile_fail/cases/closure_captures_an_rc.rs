//! An `Rc` counts its owners in the memory of this process, so it can't be captured.
fn main() {
    let shared = std::rc::Rc::new(3u8);
    let _ = mp::closure!([shared] |x: u8| x + **shared);
}
