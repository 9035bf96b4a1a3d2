//! A `Vec` has its elements in the memory of its process, and so has a `String`.
fn main() {
    let _ = mp::Lock::new(vec![1, 2]);
    let _: mp::RLock<String>;
    let _: mp::sync::RawValue<Option<u8>>;
}
