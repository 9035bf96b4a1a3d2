//! A `Vec` or a `String` stores its contents in the memory of its process, so it can't be in a shared lock.
fn main() {
    let _ = mp::Lock::new(vec![1, 2]);
    let _: mp::RLock<String>;
    let _: mp::sync::RawValue<Option<u8>>;
}
