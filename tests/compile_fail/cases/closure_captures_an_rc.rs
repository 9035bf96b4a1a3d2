//! A captured value that is counted in the memory of this process.
fn main() {
    let shared = std::rc::Rc::new(3u8);
    let _ = mp::closure!([shared] |x: u8| x + **shared);
}
